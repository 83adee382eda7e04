{
  description = "PyTorch 2.7.1, CUDA 12.6 and cuDNN 9.5.1 from the locked wheels, byte for byte";

  # nixos-25.11. The revision is part of the address: only a change of this line moves it.
  inputs.nixpkgs.url = "github:NixOS/nixpkgs/30a3c519afcf3f99e2c6df3b359aec5692054d92";

  outputs =
    { self, nixpkgs }:
    let
      eachSystem =
        outputs:
        nixpkgs.lib.genAttrs [ "x86_64-linux" ] (
          system:
          let
            pkgs = nixpkgs.legacyPackages.${system};
          in
          outputs (import ./nix { inherit pkgs; } // { inherit pkgs; })
        );
    in
    {
      packages = eachSystem (
        {
          environment,
          site-packages,
          wheelhouse,
          image,
          ...
        }:
        {
          default = environment;
          inherit site-packages wheelhouse image;
        }
      );

      devShells = eachSystem (
        { pkgs, environment, ... }:
        {
          default = pkgs.mkShell {
            packages = [ environment ];
            VIRTUAL_ENV = "${environment}"; # by which `invoke` and editors find it
          };
        }
      );

      apps = eachSystem (
        { pkgs, environment, ... }:
        import ./nix/apps.nix {
          inherit pkgs environment;
          source = self;
        }
      );

      checks = eachSystem (
        {
          pkgs,
          environment,
          site-packages,
          renderer,
          image,
          ...
        }:
        import ./nix/checks.nix {
          inherit
            pkgs
            environment
            site-packages
            renderer
            image
            ;
          source = self;
        }
      );

      formatter = eachSystem ({ pkgs, ... }: pkgs.nixfmt-tree);
    };
}
