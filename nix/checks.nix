# What `nix flake check` judges.
#
# { pkgs, source, site-packages, environment, renderer, image } -> { <check> = derivation; ... }
#
# Each runs a script of ./checks over this repository: in the environment or, where the image is
# judged, in what rendered it.
{
  pkgs,
  source,
  site-packages,
  environment,
  renderer,
  image,
}:
let
  judge =
    name: variables: command:
    pkgs.runCommandLocal "check-${name}" variables ''
      export HOME=$(mktemp -d)
      ${command}
      touch $out
    '';
  check =
    name:
    judge name { PYTHONPATH = source; }
      "${environment}/bin/python ${./checks}/${name}.py ${source} ${site-packages}";
in
{
  tree-digest = check "tree_digest";
  record = check "record";
  imports = check "imports";
  python = check "python";
  compile = check "compile";
  image-digest =
    judge "image_digest" renderer.variables
      "${pkgs.python311}/bin/python3.11 -B ${./checks}/image_digest.py ${renderer.source} ${image}";
}
