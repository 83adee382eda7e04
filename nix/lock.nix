# The locked wheels of one system, from `pylock.toml` (PEP 751).
#
# { pylock, system } -> { <name> = { name, version, filename, url, sha256 }; ... }
#
# Builtins only. Throws a sentence that names the package or the system when the file does not
# give exactly one wheel with one sha256 for every package.
{ pylock, system }:
let
  inherit (builtins)
    concatStringsSep
    elem
    elemAt
    fromTOML
    groupBy
    isString
    length
    mapAttrs
    match
    readFile
    ;

  lock = fromTOML (readFile pylock);

  # System of Nix -> the environment marker that `pylock.toml` has for it.
  markers = {
    x86_64-linux = "sys_platform == 'linux' and platform_machine == 'x86_64'";
    aarch64-linux = "sys_platform == 'linux' and platform_machine == 'aarch64'";
    aarch64-darwin = "sys_platform == 'darwin' and platform_machine == 'arm64'";
  };

  wheelOf =
    package:
    let
      wheels = package.wheels or [ ];
      wheel = elemAt wheels 0;
      sha256 = wheel.hashes.sha256 or null;
    in
    if length wheels != 1 then
      throw "${package.name}: pylock.toml has ${toString (length wheels)} wheels for it (${
        concatStringsSep ", " (map (w: w.name) wheels)
      }), one is expected; make it again with: invoke lock"
    else if !(isString sha256 && match "[0-9a-f]{64}" sha256 != null) then
      throw "${wheel.name}: pylock.toml has no sha256 of 64 lower-case hex digits for it; make it again with: invoke lock"
    else
      {
        inherit (package) name version;
        inherit (wheel) url;
        inherit sha256;
        filename = wheel.name;
      };

  only =
    name: packages:
    if length packages == 1 then
      wheelOf (elemAt packages 0)
    else
      throw "${name}: pylock.toml has it ${toString (length packages)} times, in versions ${
        concatStringsSep " and " (map (p: p.version) packages)
      }; make it again with: invoke lock";
in
if lock.lock-version or null != "1.0" then
  throw "pylock.toml is no PEP 751 lock of version 1.0; make it again with: invoke lock"
else if !(elem (markers.${system} or system) (lock.environments or [ ])) then
  throw "${system}: pylock.toml has no wheels for it; it has wheels for ${
    concatStringsSep "; " (lock.environments or [ "nothing" ])
  }"
else
  mapAttrs only (groupBy (package: package.name) lock.packages)
