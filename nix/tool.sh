#!@bash@
# A program that a wheel brings, run by the loader of nixpkgs: NixOS has none in /lib64.
exec @loader@ @site@/triton/backends/nvidia/bin/@tool@ "$@"
