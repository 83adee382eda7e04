# The locked wheels of one system, from a `pylock.toml` (PEP 751).
#
# { pylock, system, maker ? ... } -> { <name> = { name, version, filename, url, sha256 }; ... }
#
# Builtins only. Throws a sentence that names the package or the system when the file does not
# give exactly one wheel with one sha256 for every package; `maker` is the command that it names.
{
  pylock,
  system,
  maker ? "invoke lock",
}:
let
  inherit (builtins)
    baseNameOf
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
  file = baseNameOf pylock;
  again = "make it again with: ${maker}";

  # System of Nix -> the environment marker that `pylock.toml` has for it.
  markers = {
    x86_64-linux = "sys_platform == 'linux' and platform_machine == 'x86_64'";
    aarch64-linux = "sys_platform == 'linux' and platform_machine == 'aarch64'";
    aarch64-darwin = "sys_platform == 'darwin' and platform_machine == 'arm64'";
  };

  # The format lets a wheel's name be that of its URL, and a lock without environments be for all.
  filename = wheel: wheel.name or (baseNameOf wheel.url);
  environments = lock.environments or [ marker ];
  marker = markers.${system} or system;

  wheelOf =
    package:
    let
      wheels = package.wheels or [ ];
      wheel = elemAt wheels 0;
      sha256 = wheel.hashes.sha256 or null;
    in
    if length wheels != 1 then
      throw "${package.name}: ${file} has ${toString (length wheels)} wheels for it (${
        concatStringsSep ", " (map filename wheels)
      }), one is expected; ${again}"
    else if !(isString sha256 && match "[0-9a-f]{64}" sha256 != null) then
      throw "${filename wheel}: ${file} has no sha256 of 64 lower-case hex digits for it; ${again}"
    else
      {
        inherit (package) name version;
        inherit (wheel) url;
        inherit sha256;
        filename = filename wheel;
      };

  only =
    name: packages:
    if length packages == 1 then
      wheelOf (elemAt packages 0)
    else
      throw "${name}: ${file} has it ${toString (length packages)} times, in versions ${
        concatStringsSep " and " (map (p: p.version) packages)
      }; ${again}";
in
if lock.lock-version or null != "1.0" then
  throw "${file} is no PEP 751 lock of version 1.0; ${again}"
else if !(elem marker environments) then
  throw "${system}: ${file} has no wheels for it; it has wheels for ${concatStringsSep "; " environments}"
else
  mapAttrs only (groupBy (package: package.name) lock.packages)
