#!@bash@
# Python of the locked environment: sets what the loader needs, for this one process.
#
# The host's programs that Python starts must not see these libraries, which may need a newer
# glibc than theirs; so the loader is told directly and LD_LIBRARY_PATH stays as it is.

coreutils=@coreutils@/bin

# Print the directory of the NVIDIA driver's libraries, or nothing where there is none.
driver() {
  local directory line found='' version='' file links parent scratch
  for directory in /run/opengl-driver/lib /usr/lib/wsl/lib; do
    if [[ -e $directory/libcuda.so.1 ]]; then
      printf '%s' "$directory"
      return
    fi
  done

  # Elsewhere the driver lies among the host's own libraries, which must stay out of sight:
  # ask the host's loader for it and link to what belongs to the driver alone.
  while read -r line; do
    if [[ $line == 'libcuda.so.1 (libc6,x86-64'*' => '* ]]; then
      found=${line##* => }
      break
    fi
  done < <(/sbin/ldconfig -p 2>/dev/null)
  if [[ -z $found || ! -e $found ]]; then
    return
  fi
  directory=${found%/*}
  for file in "$directory"/libcuda.so.*.*; do
    if [[ $file -ef $found ]]; then
      version=${file##*/libcuda.so}
    fi
  done
  if [[ -z ${XDG_CACHE_HOME:-${HOME:-}} ]]; then
    echo "torchlock: no HOME to keep links to the NVIDIA driver in; CUDA will not be found" >&2
    return
  fi
  parent=${XDG_CACHE_HOME:-$HOME/.cache}/torchlock/driver
  links=$parent/${directory//\//-}$version
  if [[ ! -e $links/libcuda.so.1 ]]; then
    if ! { $coreutils/mkdir -p -m 700 "$parent" &&
      scratch=$($coreutils/mktemp -d "$parent/.new.XXXXXX"); } 2>/dev/null; then
      echo "torchlock: $parent cannot be written, where links to the NVIDIA driver go;" \
        "CUDA will not be found. Set XDG_CACHE_HOME to a directory of yours" >&2
      return
    fi
    for file in "$directory"/lib{cuda,cudadebugger,nvcuvid,nvidia-*}.so*; do
      if [[ -e $file ]]; then
        $coreutils/ln -s "$file" "$scratch/"
      fi
    done
    if [[ ! -e $scratch/libcuda.so ]]; then
      $coreutils/ln -s "$found" "$scratch/libcuda.so" # what -lcuda finds
    fi
    # Another process may have been faster; its links are the same.
    $coreutils/mv -T "$scratch" "$links" 2>/dev/null || $coreutils/rm -r "$scratch"
  fi
  printf '%s' "$links"
}

libraries=@libraries@
directory=$(driver)
if [[ -n $directory ]]; then
  libraries+=:$directory
  export TRITON_LIBCUDA_PATH=${TRITON_LIBCUDA_PATH:-$directory}
fi
export CC=${CC:-@cc@/bin/cc} CXX=${CXX:-@cc@/bin/c++}
for tool in ptxas cuobjdump nvdisasm; do
  name=TRITON_${tool^^}_PATH
  export "$name=${!name:-@out@/libexec/$tool}"
done
exec @loader@ --library-path "$libraries" --argv0 @out@/bin/python3.11 \
  @python@ -B -X pycache_prefix=@out@/lib/pycache "$@"
