# What renders the image, as modules to import.
#
# { pkgs, wheels, wheelhouse, pylock } -> { source, modules }
#
# `source` is what of this repository an image is made from, with the package `torchlock`; an edit
# elsewhere makes no image anew. `modules` is what `torchlock` imports: wheels of the stack, and
# those of `pylock`, which the stack lacks. The encoder among them decides the image's bytes, so
# it is the published one and not nixpkgs'.
{
  pkgs,
  wheels,
  wheelhouse,
  pylock,
}:
let
  root = toString ../.;
  below = path: builtins.substring (builtins.stringLength root + 1) (-1) path;
  needed = path: builtins.match "conda-lock[.]yml|(torchlock|validation)(/.*)?" path != null;

  stack = map (name: "${wheelhouse}/${wheels.${name}.filename}") [
    "certifi"
    "charset-normalizer"
    "filelock"
    "idna"
    "packaging"
    "platformdirs"
    "pygments"
    "pyyaml"
    "requests"
    "urllib3"
  ];
  own = import ./lock.nix {
    inherit pylock;
    inherit (pkgs.stdenv.hostPlatform) system;
    maker = ".ci/requirements";
  };
  ownhouse = import ./wheelhouse.nix {
    inherit pkgs;
    wheels = own;
  };
in
{
  source = builtins.path {
    name = "torchlock-source";
    path = ../.;
    filter = path: _: needed (below path) && builtins.baseNameOf path != "__pycache__";
  };

  modules = pkgs.runCommandLocal "renderer" { } ''
    for wheel in ${toString stack} ${ownhouse}/*; do
      ${pkgs.python311}/bin/python3.11 -m zipfile -e "$wheel" $out
    done
  '';
}
