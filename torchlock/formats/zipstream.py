"""Where a zip archive keeps its members' raw bytes, judged before anyone copies them.

Format: PKWARE APPNOTE 6.3.10. The central directory is read by the standard library, ZIP64
included; this module finds each member's data behind its local header and refuses archives
whose parts disagree or overlap.
"""

from __future__ import annotations

import struct
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from torchlock.errors import TorchlockError

_LOCAL = struct.Struct("<8xH16x2H")
"""A local header's method, and the lengths of name and extra field, which follow it."""


class ZipStreamError(TorchlockError):
    """The archive's directory, local headers and data do not agree."""


@dataclass(frozen=True, slots=True)
class RawMember:
    """One member's data: `length` bytes at `offset`, `size` when unpacked.

    `deflated` tells a raw DEFLATE stream from stored bytes; `crc32` is the directory's claim.
    """

    name: str
    offset: int
    length: int
    size: int
    crc32: int
    deflated: bool


Read = Callable[[int, int], bytes]
"""Returns the bytes at an offset, as many as asked for unless the file ends."""


def raw_members(path: Path, archive: zipfile.ZipFile, read: Read) -> Iterator[RawMember]:
    """Yield every file member, in the directory's order, of the archive opened from `path`.

    Local headers are read with `read` when their turn comes; in nearly all archives each lies
    just before its member's data, so one pass can take both.

    Raises `ZipStreamError` when the archive is damaged, encrypted, uses another method than
    stored or DEFLATE, names a member twice, or when a local header is absent, names another
    member, or lies in another member's data.
    """
    infos = [info for info in archive.infolist() if not info.is_dir()]
    try:
        if len({info.filename for info in infos}) != len(infos):
            raise _Disagreement("a member's name occurs twice")
        following = _following(infos)
        for info in infos:
            member = _raw_member(info, read)
            _check_end(member, following[info.header_offset], archive.start_dir)
            yield member
    except _Disagreement as fault:
        raise ZipStreamError(f"{path.name}: {fault}") from None


class _Disagreement(Exception):  # noqa: N818 - becomes a ZipStreamError that names the archive
    pass


def _following(infos: list[zipfile.ZipInfo]) -> dict[int, zipfile.ZipInfo | None]:
    """Return what comes next in the file, by the offset of a member's local header."""
    placed = sorted(infos, key=lambda info: info.header_offset)
    following = [*placed[1:], None]
    return {info.header_offset: after for info, after in zip(placed, following, strict=True)}


def _check_end(member: RawMember, after: zipfile.ZipInfo | None, directory: int) -> None:
    end = member.offset + member.length
    if after and end > after.header_offset:
        raise _Disagreement(f"{after.filename} lies in another member's data")
    if end > directory:
        raise _Disagreement("a member's data reaches into the directory")


def _raw_member(info: zipfile.ZipInfo, read: Read) -> RawMember:
    if info.flag_bits & 0x1:
        raise _Disagreement(f"{info.filename} is encrypted")
    deflated = info.compress_type == zipfile.ZIP_DEFLATED
    if not deflated and info.compress_type != zipfile.ZIP_STORED:
        method = info.compress_type
        raise _Disagreement(f"{info.filename} is packed by method {method}, not DEFLATE")
    if not deflated and info.compress_size != info.file_size:
        raise _Disagreement(f"{info.filename} is stored, but its two sizes differ")
    offset = info.header_offset + _local_length(info, read)
    return RawMember(info.filename, offset, info.compress_size, info.file_size, info.CRC, deflated)


def _local_length(info: zipfile.ZipInfo, read: Read) -> int:
    """Return the length of a member's local header, which has to be its own."""
    if info.header_offset < 0:  # so the standard library reads a directory that lies too far ahead
        raise _Disagreement(f"{info.filename} lies before the archive's beginning")
    name = info.orig_filename
    encoded = name.encode("utf-8" if info.flag_bits & 0x800 or name.isascii() else "cp437")
    local = read(info.header_offset, _LOCAL.size + len(encoded))
    if len(local) < _LOCAL.size or not local.startswith(b"PK\x03\x04"):
        raise _Disagreement(f"{info.filename} has no local header where the directory says")
    method, name_length, extra_length = cast(tuple[int, int, int], _LOCAL.unpack_from(local))
    same_name = name_length == len(encoded) and local[_LOCAL.size :] == encoded
    if not same_name or method != info.compress_type:
        raise _Disagreement(f"{info.filename}: the local header describes another member")
    return _LOCAL.size + name_length + extra_length
