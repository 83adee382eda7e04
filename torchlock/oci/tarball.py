"""Tar headers, written one way.

POSIX ustar (IEEE Std 1003.1-2017, pax), with a pax extended header only where a name, a link
target or a size does not fit. No owner names, and no times but those that an artifact fixes.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Literal
from zlib import adler32

BLOCK = 512
END = bytes(2 * BLOCK)
"""Two empty blocks end an archive."""

_USTAR = struct.Struct("100s24s24s8ss100s8s64x16s155s12x")
"""Name; mode, user and group; size and time; checksum; type; link; magic; devices; prefix."""

Kind = Literal["file", "link", "symlink", "directory"]
_TYPES: dict[Kind, bytes] = {"file": b"0", "link": b"1", "symlink": b"2", "directory": b"5"}


@dataclass(frozen=True, slots=True)
class Member:
    """What a tar header says of one entry.

    `path` is relative, without a trailing slash; `mode` is the permission bits; `size` is in
    bytes and 0 for all but files; `target` is a symbolic link's text, or the path of the file
    a (hard) link is another name of; `mtime` is in seconds since the epoch.
    """

    path: str
    kind: Kind = "file"
    mode: int = 0o644
    size: int = 0
    target: str = ""
    uid: int = 0
    gid: int = 0
    mtime: int = 0


def padding(size: int) -> bytes:
    """Return what follows `size` bytes of contents to fill the last block."""
    return bytes(-size % BLOCK)


def header(member: Member) -> bytes:
    """Return the header blocks of a member: 512 bytes, or more with a pax header before it."""
    name = member.path.encode() + (b"/" if member.kind == "directory" else b"")
    target = member.target.encode()
    size = member.size
    extended = b""
    prefix = b""
    if len(name) > 100:
        prefix, name, fits = _split(name)
        if not fits:
            extended += _pax("path", member.path.encode())
    if len(target) > 100:
        extended += _pax("linkpath", target)
        target = target[:100]
    if size >= 8**11:
        extended += _pax("size", str(size).encode())
        size = 0
    plain = _ustar(name, prefix, member, size, target, _TYPES[member.kind])
    if not extended:
        return plain
    before = _ustar(b"pax", b"", Member("pax"), len(extended), b"", b"x")
    return before + extended + padding(len(extended)) + plain


def _split(name: bytes) -> tuple[bytes, bytes, bool]:
    """Split a long name into ustar's prefix (155) and name (100), or cut it off."""
    for at in range(min(155, len(name) - 2), 0, -1):
        if name[at : at + 1] == b"/" and len(name) - at - 1 <= 100:
            return name[:at], name[at + 1 :], True
    return b"", name[:100], False


def _pax(key: str, value: bytes) -> bytes:
    # The record's length counts its own digits.
    rest = b" " + key.encode() + b"=" + value + b"\n"
    length = len(rest) + len(str(len(rest)))
    length = len(rest) + len(str(length))
    return str(length).encode() + rest


def _ustar(
    name: bytes, prefix: bytes, member: Member, size: int, target: bytes, kind: bytes
) -> bytes:
    fields = _USTAR.pack(
        name,
        b"%07o\0%07o\0%07o\0" % (member.mode, member.uid, member.gid),
        b"%011o\0%011o\0" % (size, member.mtime),
        b" " * 8,
        kind,
        target,
        b"ustar\x0000",
        b"%07o\0%07o\0" % (0, 0),
        prefix,
    )
    return b"%b%06o\0 %b" % (fields[:148], _sum(fields), fields[156:])


def _sum(block: bytes) -> int:
    """Return the sum of a block's bytes."""
    # Adler-32's lower half is one more, modulo 65521, which half a block cannot reach.
    return (adler32(block[:256]) & 0xFFFF) + (adler32(block[256:]) & 0xFFFF) - 2
