# NOT nixpkgs: a stand-in over the host's bash, coreutils, C compiler and CPython 3.11, for tests
# on machines that cannot fetch nixpkgs. It has what this repository's flake uses, and no more.
# A sandbox needs the host's /usr inside (see ../runner.py); what it cannot show is in docs/nix.md.
{
  description = "NOT nixpkgs: a stand-in over the host's own programs, for tests";

  outputs =
    { self }:
    let
      system = "x86_64-linux";
      bash = "/bin/bash";

      runCommandLocal =
        name: attributes: command:
        derivation (
          (removeAttrs attributes [ "meta" ])
          // {
            inherit name system;
            builder = bash;
            args = [
              "-euc"
              # The last command must not be the builder's own process: Nix kills the builder
              # as soon as its output is closed, which coreutils do before they exit.
              "${command}\nexit 0"
            ];
            PATH = "/usr/bin:/bin";
          }
        );

      # A package of links to the host's files: { <path below $out> = "<path on the host>"; }.
      links =
        name: files:
        runCommandLocal name { } (
          builtins.concatStringsSep "\n" (
            map (path: ''
              mkdir -p "$(dirname "$out/${path}")"
              test -e ${files.${path}}
              ln -s ${files.${path}} "$out/${path}"
            '') (builtins.attrNames files)
          )
        );

      libraries = links "host-libraries" {
        "lib/libstdc++.so.6" = "/usr/lib/x86_64-linux-gnu/libstdc++.so.6";
        "lib/libgcc_s.so.1" = "/lib/x86_64-linux-gnu/libgcc_s.so.1";
      };
    in
    {
      lib.genAttrs =
        names: value:
        builtins.listToAttrs (
          map (name: {
            inherit name;
            value = value name;
          }) names
        );

      legacyPackages.${system} = rec {
        inherit runCommandLocal;
        runtimeShell = bash;

        bashInteractive = links "host-bash" { "bin/bash" = bash; };
        coreutils = links "host-coreutils" { "bin" = "/usr/bin"; };
        glibc = links "host-glibc" {
          "lib/ld-linux-x86-64.so.2" = "/lib64/ld-linux-x86-64.so.2";
        };
        python311 = links "host-python3.11" { "bin/python3.11" = "/usr/bin/python3.11"; };
        nixfmt-tree = runCommandLocal "treefmt" { } ''
          mkdir -p $out/bin
          printf '#!${bash}\necho "the formatter"\n' > $out/bin/treefmt
          chmod +x $out/bin/treefmt
        '';

        stdenv = {
          hostPlatform = { inherit system; };
          cc =
            links "host-cc" {
              "bin/cc" = "/usr/bin/cc";
              "bin/c++" = "/usr/bin/c++";
            }
            // {
              cc.lib = libraries;
            };
        };

        # One place is enough: what a test builds from is in the store already.
        fetchurl =
          arguments:
          import <nix/fetchurl.nix> (
            { url = builtins.head arguments.urls; } // removeAttrs arguments [ "urls" ]
          );

        linkFarm =
          name: entries:
          runCommandLocal name { } ''
            mkdir $out
            ${builtins.concatStringsSep "\n" (map (e: "ln -s ${e.path} $out/${e.name}") entries)}
          '';

        writeShellScript =
          name: text:
          runCommandLocal name
            {
              text = "#!${bash}\n${text}";
              passAsFile = [ "text" ];
            }
            ''
              cp "$textPath" $out
              chmod +x $out
            '';

        mkShell =
          { packages, ... }@arguments:
          runCommandLocal "shell" (
            {
              outputs = [ "out" ]; # `nix develop` reads it as a variable
              stdenv = runCommandLocal "setup" { } ''
                mkdir $out
                echo 'export PATH=${
                  builtins.concatStringsSep ":" (map (p: "${p}/bin") packages)
                }:$PATH' > $out/setup
              '';
            }
            // removeAttrs arguments [ "packages" ]
          ) "touch $out";
      };
    };
}
