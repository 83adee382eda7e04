# Byte code of all modules below `root`, or of the standard library without one.
#
# { pkgs, root ? "" } -> derivation
#
# Laid out as an interpreter with a cache prefix looks for it, apart from the sources:
# `site-packages` has a digest that byte code must not touch.
{
  pkgs,
  root ? "",
}:
pkgs.runCommandLocal "bytecode" { PYTHONHASHSEED = "0"; } ''
  ${pkgs.python311}/bin/python3.11 -B ${./bytecode.py} $out ${root}
''
