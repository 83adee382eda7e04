"""`/etc/ld.so.cache`, as ldconfig writes it, from the libraries' sonames.

Format: glibc's "new" cache (elf/dl-cache.h, `struct cache_file_new`), which the loader and
`ldconfig -p` read; triton asks the latter where libcuda is.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping
from functools import cmp_to_key

DIRECTORIES = ("usr/local/lib", "usr/lib/x86_64-linux-gnu", "usr/lib", "usr/lib64")
"""Where libraries are looked for, those first that come first in the cache."""

_FLAGS = 0x0303  # an x86-64 library for libc6
_HEADER = struct.Struct("<20sIIBxxxI12x")
_ENTRY = struct.Struct("<iIIIQ")
_DT_STRTAB, _DT_SONAME = 5, 14


def is_library_path(path: str) -> bool:
    """Say whether ldconfig would look at this path."""
    directory, _, name = path.rpartition("/")
    return directory in DIRECTORIES and (name.startswith(("lib", "ld-"))) and ".so" in name


def soname(image: bytes) -> str:
    """Return the DT_SONAME of a 64-bit little-endian x86-64 library, or an empty string."""
    if image[:6] != b"\x7fELF\x02\x01" or len(image) < 64:
        return ""
    kind, machine = struct.unpack_from("<HH", image, 16)
    if kind != 3 or machine != 62:
        return ""
    (offset,) = struct.unpack_from("<Q", image, 32)
    size, count = struct.unpack_from("<HH", image, 54)
    headers = [struct.unpack_from("<IIQQQQ", image, offset + i * size) for i in range(count)]
    loads = [(h[3], h[2], h[5]) for h in headers if h[0] == 1]
    dynamic = next(((h[2], h[5]) for h in headers if h[0] == 2), (0, 0))
    tags: dict[int, int] = {}
    for at in range(dynamic[0], dynamic[0] + dynamic[1], 16):
        tag, value = struct.unpack_from("<qQ", image, at)
        if tag == 0:
            break
        tags.setdefault(tag, value)
    if _DT_SONAME not in tags or _DT_STRTAB not in tags:
        return ""
    address = tags[_DT_STRTAB]
    for start, where, length in loads:
        if start <= address < start + length:
            begin = address - start + where + tags[_DT_SONAME]
            return image[begin : image.index(b"\0", begin)].decode()
    return ""


def cache(libraries: Mapping[str, str]) -> bytes:
    """Return the cache for libraries given as path (without leading slash) -> soname."""
    best: dict[str, str] = {}
    for path in sorted(libraries, key=lambda p: (_rank(p), p)):
        best.setdefault(libraries[path], f"/{path.rpartition('/')[0]}/{libraries[path]}")
    names = sorted(best, key=cmp_to_key(_compare), reverse=True)
    start = _HEADER.size + len(names) * _ENTRY.size
    strings, entries = b"", []
    for name in names:
        path = best[name]
        key = start + len(strings)
        # The soname is the end of the path: ldconfig shares the bytes, too.
        entries.append(
            _ENTRY.pack(_FLAGS, key + len(path.encode()) - len(name.encode()), key, 0, 0)
        )
        strings += path.encode() + b"\0"
    head = _HEADER.pack(b"glibc-ld.so.cache1.1", len(names), len(strings), 2, 0)
    return head + b"".join(entries) + strings


def _rank(path: str) -> int:
    return DIRECTORIES.index(path.rpartition("/")[0])


def _compare(left: str, right: str) -> int:
    """Order names as the loader's search does: digits as numbers, after everything else."""
    a, b = (re.findall(r"\d+|\D", name) for name in (left, right))
    for x, y in zip(a, b, strict=False):
        if x.isdigit() and y.isdigit():
            if int(x) != int(y):
                return int(x) - int(y)
        elif x.isdigit() or y.isdigit():
            return 1 if x.isdigit() else -1
        elif x != y:
            return ord(x) - ord(y)
    return len(a) - len(b)
