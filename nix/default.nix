# Everything that the lock gives for one system.
#
# { pkgs, pylock ? ..., records ? ... } ->
#   { wheels, wheelhouse, site-packages, bytecode = { site, stdlib }, environment,
#     renderer = { source, variables }, image }
{
  pkgs,
  pylock ? ../pylock.toml,
  records ? ../torchlock/records/linux-64.json,
}:
let
  wheels = import ./lock.nix {
    inherit pylock;
    inherit (pkgs.stdenv.hostPlatform) system;
  };
  wheelhouse = import ./wheelhouse.nix { inherit pkgs wheels; };
  site-packages = import ./site-packages.nix {
    inherit pkgs wheels wheelhouse;
    records = import ./records.nix { inherit records wheels; };
  };
  bytecode = {
    site = import ./bytecode.nix {
      inherit pkgs;
      root = site-packages;
    };
    stdlib = import ./bytecode.nix { inherit pkgs; };
  };
  environment = import ./environment.nix {
    inherit
      pkgs
      wheels
      wheelhouse
      site-packages
      bytecode
      ;
  };
  renderer = import ./renderer.nix {
    inherit pkgs wheels wheelhouse;
    pylock = ./pylock.renderer.toml;
  };
  image = import ./image.nix {
    inherit
      pkgs
      wheels
      wheelhouse
      renderer
      ;
    debs = import ./debs.nix {
      inherit pkgs;
      lock = ../torchlock/rootfs/rootfs-lock.json;
    };
  };
in
{
  inherit
    wheels
    wheelhouse
    site-packages
    bytecode
    environment
    renderer
    image
    ;
}
