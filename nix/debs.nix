# The locked Debian packages of the image's root file system.
#
# { pkgs, lock } -> [ { filename, sha256, path }; ... ]
#
# The pool drops a version once a newer one replaces it; the snapshot archive keeps them all.
{ pkgs, lock }:
let
  inherit (builtins) baseNameOf fromJSON readFile replaceStrings;

  locked = fromJSON (readFile lock);

  fetched =
    package:
    let
      archive = locked.archives.${package.archive};
      filename = baseNameOf package.pool;
    in
    {
      inherit filename;
      inherit (package) sha256;
      path = pkgs.fetchurl {
        name = replaceStrings [ "~" ] [ "-" ] filename; # which a store path must not have
        urls = map (place: "${place}/${package.pool}") [
          archive.url
          archive.snapshots
        ];
        inherit (package) sha256;
      };
    };
in
map fetched locked.packages
