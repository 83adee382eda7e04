# The modules of this repository that builders import, and no others: an edit elsewhere rebuilds
# nothing. Below the result lies the package `torchlock`.
let
  root = toString ../.;
  needed = map (file: "${root}/torchlock${file}") [
    ""
    "/__init__.py"
    "/errors.py"
    "/formats"
    "/formats/__init__.py"
    "/formats/wheel.py"
    "/tree.py"
  ];
in
builtins.path {
  name = "torchlock-modules";
  path = ../.;
  filter = path: _: builtins.elem path needed;
}
