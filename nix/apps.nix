# What `nix run` starts.
#
# { pkgs, source, environment } -> { <app> = { type, program, meta }; ... }
{
  pkgs,
  source,
  environment,
}:
let
  app = description: program: {
    type = "app";
    program = toString program;
    meta = { inherit description; };
  };
in
{
  python = app "Python of the locked environment" "${environment}/bin/python";
  jupyter = app "JupyterLab of the locked environment" "${environment}/bin/jupyter-lab";
  validate = app "The proof of files and numbers, in the locked environment" (
    pkgs.writeShellScript "validate" ''
      exec ${environment}/bin/python ${source}/nix/validate.py "$@"
    ''
  );
}
