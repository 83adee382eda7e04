# Byte code of the stack and of the standard library, below `site` and `stdlib`.
#
# { pkgs, site-packages } -> derivation
#
# Kept apart from `site-packages`, whose digest it must not touch.
{ pkgs, site-packages }:
pkgs.runCommandLocal "bytecode" { PYTHONHASHSEED = "0"; } ''
  ${pkgs.python311}/bin/python3.11 -B ${./bytecode.py} ${site-packages} $out
''
