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
from typing import IO

from torchlock.errors import TorchlockError

_LOCAL = struct.Struct("<4s5H3I2H")


class ZipStreamError(TorchlockError):
    """The archive's directory, local headers and data do not agree."""


@dataclass(frozen=True)
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
    infos = [info for info in archive.infolist() if not info.is_dir()]
    try:
        with path.open("rb", buffering=0) as raw:
            members = [_raw_member(path, info, raw) for info in infos]
    except OSError as error:
        raise ZipStreamError(f"{path.name}: cannot be read ({error.strerror})") from None
    starts = (info.header_offset for info in infos)
    placed = sorted(zip(starts, members, strict=True), key=lambda s: s[0])
    _check_disjoint(path, placed, archive.start_dir)
    found = {member.name: member for member in members}
    if len(found) != len(members):
        raise ZipStreamError(f"{path.name}: a member's name occurs twice")
    return found


def _raw_member(path: Path, info: zipfile.ZipInfo, raw: IO[bytes]) -> RawMember:
    where = f"{path.name}: {info.filename}"
    if info.flag_bits & 0x1:
        raise ZipStreamError(f"{where} is encrypted")
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise ZipStreamError(f"{where} is packed by method {info.compress_type}, not DEFLATE")
    encoded = info.orig_filename.encode("utf-8" if info.flag_bits & 0x800 else "cp437")
    raw.seek(info.header_offset)
    local = raw.read(_LOCAL.size + len(encoded))
    if len(local) < _LOCAL.size or not local.startswith(b"PK\x03\x04"):
        raise ZipStreamError(f"{where} has no local header where the directory says")
    _, _, _, method, _, _, _, _, _, name_length, extra_length = _LOCAL.unpack_from(local)
    name = local[_LOCAL.size :]
    if name != encoded or name_length != len(encoded) or method != info.compress_type:
        raise ZipStreamError(f"{where}: the local header describes another member")
    deflated = info.compress_type == zipfile.ZIP_DEFLATED
    if not deflated and info.compress_size != info.file_size:
        raise ZipStreamError(f"{where} is stored, but its two sizes differ")
    return RawMember(
        name=info.filename,
        offset=info.header_offset + _LOCAL.size + name_length + extra_length,
        length=info.compress_size,
        size=info.file_size,
        crc32=info.CRC,
        deflated=deflated,
    )


def _check_disjoint(path: Path, members: list[tuple[int, RawMember]], end: int) -> None:
    limit = 0
    for start, member in members:
        if start < limit:
            raise ZipStreamError(f"{path.name}: {member.name} lies in another member's data")
        limit = member.offset + member.length
    if limit > end:
        raise ZipStreamError(f"{path.name}: a member's data reaches into the directory")
