"""Where a zip archive keeps its members' raw bytes, judged before anyone copies them.

Format: PKWARE APPNOTE 6.3.10. The central directory is read by the standard library, ZIP64
included; this module finds each member's data behind its local header and refuses archives
whose parts disagree or overlap.
"""

from __future__ import annotations

import struct
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import IO, cast

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


def raw_members(path: Path, archive: zipfile.ZipFile) -> dict[str, RawMember]:
    """Return every file member of the archive opened from `path`, directories left out.

    Raises `ZipStreamError` when the archive is damaged, encrypted, uses another method than
    stored or DEFLATE, names a member twice, or when a local header is absent, names another
    member, or lies in another member's data.
    """
    try:
        return _raw_members(archive)
    except _Disagreement as fault:
        raise ZipStreamError(f"{path.name}: {fault}") from None
    except (OSError, ValueError, OverflowError) as error:  # offsets beyond any file
        raise ZipStreamError(f"{path.name}: cannot be read ({error})") from None


class _Disagreement(Exception):  # noqa: N818 - becomes a ZipStreamError that names the archive
    pass


def _raw_members(archive: zipfile.ZipFile) -> dict[str, RawMember]:
    raw = cast(IO[bytes], archive.fp)
    infos = [info for info in archive.infolist() if not info.is_dir()]
    members = [_raw_member(info, raw) for info in infos]
    starts = (info.header_offset for info in infos)
    placed = sorted(zip(starts, members, strict=True), key=lambda s: s[0])
    _check_disjoint(placed, archive.start_dir)
    found = {member.name: member for member in members}
    if len(found) != len(members):
        raise _Disagreement("a member's name occurs twice")
    return found


def _raw_member(info: zipfile.ZipInfo, raw: IO[bytes]) -> RawMember:
    if info.flag_bits & 0x1:
        raise _Disagreement(f"{info.filename} is encrypted")
    deflated = info.compress_type == zipfile.ZIP_DEFLATED
    if not deflated and info.compress_type != zipfile.ZIP_STORED:
        method = info.compress_type
        raise _Disagreement(f"{info.filename} is packed by method {method}, not DEFLATE")
    if not deflated and info.compress_size != info.file_size:
        raise _Disagreement(f"{info.filename} is stored, but its two sizes differ")
    return RawMember(
        info.filename,
        _data_offset(info, raw),
        info.compress_size,
        info.file_size,
        info.CRC,
        deflated,
    )


def _data_offset(info: zipfile.ZipInfo, raw: IO[bytes]) -> int:
    """Return where a member's data begins: behind its local header, which has to be its own."""
    name = info.orig_filename
    encoded = name.encode("utf-8" if info.flag_bits & 0x800 or name.isascii() else "cp437")
    raw.seek(info.header_offset)
    local = raw.read(_LOCAL.size + len(encoded))
    if len(local) < _LOCAL.size or not local.startswith(b"PK\x03\x04"):
        raise _Disagreement(f"{info.filename} has no local header where the directory says")
    method, name_length, extra_length = cast(tuple[int, int, int], _LOCAL.unpack_from(local))
    same_name = name_length == len(encoded) and local[_LOCAL.size :] == encoded
    if not same_name or method != info.compress_type:
        raise _Disagreement(f"{info.filename}: the local header describes another member")
    return info.header_offset + _LOCAL.size + name_length + extra_length


def _check_disjoint(members: list[tuple[int, RawMember]], end: int) -> None:
    limit = 0
    for start, member in members:
        if start < limit:
            raise _Disagreement(f"{member.name} lies in another member's data")
        limit = member.offset + member.length
    if limit > end:
        raise _Disagreement("a member's data reaches into the directory")
