#!/usr/bin/env bash
# Extract nix-bin of a later Debian release, with every library it needs, below one directory.
#
#     tests/nix/newer-nix.sh DIR [RELEASE]
#
# Nothing is installed: the system's packages, apt sources and libraries stay as they are.
# DIR/bin/nix runs the extracted nix with the extracted loader and libraries. The archive is the
# one that this system's own apt sources name. A DIR that is already complete is left alone.
set -euo pipefail

dir=$(mkdir -p "$1" && cd "$1" && pwd)
release=${2:-trixie}
if [ -x "$dir/bin/nix" ]; then
  exit 0
fi

# shellcheck disable=SC2016 # apt expands $(SITE) itself
site=$(apt-get indextargets --format '$(SITE)' 'Identifier: Packages' 'Component: main' |
  grep -m 1 '/debian/\?$')
apt=$dir/apt
root=$dir/root
mkdir -p "$apt"/{lists,cache/archives/partial,preferences.d,sources.list.d} "$root" "$dir/bin"
: >"$apt/status" # an empty system: the closure of dependencies is complete, libc included
echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $site $release main" \
  >"$apt/sources.list"
options=(
  -o "Dir::Etc::SourceList=$apt/sources.list"
  -o "Dir::Etc::SourceParts=$apt/sources.list.d"
  -o "Dir::Etc::Preferences=$apt/preferences"
  -o "Dir::Etc::PreferencesParts=$apt/preferences.d"
  -o "Dir::State=$apt"
  -o "Dir::State::Lists=$apt/lists"
  -o "Dir::State::Status=$apt/status"
  -o "Dir::Cache=$apt/cache"
  -o "APT::Sandbox::User=root"
  -o "APT::Install-Recommends=false"
  -o "APT::Update::Post-Invoke-Success="
  -o "DPkg::Post-Invoke="
)
apt-get "${options[@]}" -qq update
apt-get "${options[@]}" -qq -y --download-only install nix-bin
for deb in "$apt"/cache/archives/*.deb; do
  dpkg-deb --fsys-tarfile "$deb" | tar -x -C "$root" --keep-directory-symlink --no-same-owner
done
rm -r "$apt"

library=$root/usr/lib/x86_64-linux-gnu
for name in nix nix-store; do
  # Without a build hook: nix would start itself again as one, by /proc/self/exe, the loader here.
  cat >"$dir/bin/$name.new" <<SCRIPT
#!/bin/sh
exec "$library/ld-linux-x86-64.so.2" --library-path "$library" --argv0 $name \\
  "$root/usr/bin/nix" --option build-hook "" "\$@"
SCRIPT
  chmod +x "$dir/bin/$name.new"
done
"$dir/bin/nix.new" --version
for name in nix-store nix; do # nix last: it marks the directory as complete
  mv "$dir/bin/$name.new" "$dir/bin/$name"
done
