# The OCI image, as the layout that `invoke image` renders: the same bytes, the same digest.
#
# { pkgs, wheels, wheelhouse, debs, renderer = { source, variables } } -> derivation
{
  pkgs,
  wheels,
  wheelhouse,
  debs,
  renderer,
}:
let
  settings = {
    inherit (renderer) source;
    artifacts =
      debs
      ++ map (wheel: {
        inherit (wheel) filename sha256;
        path = "${wheelhouse}/${wheel.filename}";
      }) (builtins.attrValues wheels);
  };
in
pkgs.runCommandLocal "torchlock-image"
  (
    renderer.variables
    // {
      settings = builtins.toJSON settings;
      passAsFile = [ "settings" ];
    }
  )
  ''
    ${pkgs.python311}/bin/python3.11 -B ${./image.py} "$settingsPath" $out
  ''
