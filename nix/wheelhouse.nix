# The wheels as they were published, one link each under its own file name.
#
# { pkgs, wheels } -> derivation
{ pkgs, wheels }:
pkgs.linkFarm "wheelhouse" (
  map (wheel: {
    name = wheel.filename;
    path = pkgs.fetchurl {
      name = wheel.filename;
      inherit (wheel) url sha256;
    };
  }) (builtins.attrValues wheels)
)
