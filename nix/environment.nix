# A virtual environment of nixpkgs' CPython 3.11 around the locked `site-packages`.
#
# { pkgs, wheels, wheelhouse, site-packages, bytecode = { site, stdlib } } -> derivation
#
# Laid out like any other: bin/, lib/python3.11/site-packages (a link to the tree), share/,
# pyvenv.cfg. What an installer would generate comes from environment.py.
{
  pkgs,
  wheels,
  wheelhouse,
  site-packages,
  bytecode,
}:
let
  settings = {
    inherit wheelhouse bytecode;
    site = site-packages;
    scripts = builtins.path {
      name = "scripts";
      path = ./.;
      filter = path: _: builtins.match ".*[.]sh" path != null;
    };
    values = {
      bash = pkgs.runtimeShell;
      inherit (pkgs) coreutils;
      python = "${pkgs.python311}/bin/python3.11";
      loader = "${pkgs.glibc}/lib/ld-linux-x86-64.so.2";
      # libstdc++ and libgcc_s, all that the wheels need beyond glibc and the driver.
      libraries = "${pkgs.stdenv.cc.cc.lib}/lib";
      cc = pkgs.stdenv.cc;
    };
  };
in
pkgs.runCommandLocal "torchlock-environment"
  {
    PYTHONPATH = "${import ./modules.nix}:${wheelhouse}/${wheels.packaging.filename}";
    settings = builtins.toJSON settings;
    passAsFile = [ "settings" ];
    meta.mainProgram = "python";
  }
  ''
    ${pkgs.python311}/bin/python3.11 -B ${./environment.py} "$settingsPath" $out
  ''
