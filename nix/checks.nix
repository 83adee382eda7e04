# What `nix flake check` judges.
#
# { pkgs, source, site-packages, environment } -> { <check> = derivation; ... }
#
# Each runs a script of ./checks in the environment, over this repository.
{
  pkgs,
  source,
  site-packages,
  environment,
}:
let
  check =
    name:
    pkgs.runCommandLocal "check-${name}" { PYTHONPATH = source; } ''
      export HOME=$(mktemp -d)
      ${environment}/bin/python ${./checks}/${name}.py ${source} ${site-packages}
      touch $out
    '';
in
{
  tree-digest = check "tree_digest";
  record = check "record";
  imports = check "imports";
  python = check "python";
  compile = check "compile";
}
