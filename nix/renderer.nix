# What renders the image: Python modules, and the files of this repository that it is made from.
#
# { pkgs, wheels, wheelhouse, pylock } -> { source, variables }
#
# `source` has the package `torchlock`; an edit elsewhere makes no image anew. `variables` are those
# under which Python imports it and what it needs: wheels of the stack, and those of `pylock`, which
# the stack lacks. The encoder among them decides the image's bytes, so it is the published one and
# not nixpkgs'.
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
in
{
  inherit source;
  variables = {
    PYTHONPATH = "${source}:${modules}";
    LD_LIBRARY_PATH = "${pkgs.stdenv.cc.cc.lib}/lib"; # libgcc_s, for wheels made by Rust
  };
}
