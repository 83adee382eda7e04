# The recorded trees of the locked wheels.
#
# { records, wheels } -> { tree, wheels = { <name> = { wheel, tree, ... }; ... }; }
#
# Throws, naming the packages, unless exactly the locked wheels are recorded.
{ records, wheels }:
let
  inherit (builtins)
    attrNames
    concatStringsSep
    filter
    fromJSON
    readFile
    ;

  recorded = fromJSON (readFile records);
  differing = filter (
    name: (wheels.${name}.sha256 or null) != (recorded.wheels.${name}.wheel or null)
  ) (attrNames (wheels // recorded.wheels));
in
if differing == [ ] then
  recorded
else
  throw "the recorded trees are not those of the locked wheels: ${concatStringsSep ", " differing}; record them with: invoke record"
