"""Archives whose directory, local headers and data do not agree: each is refused by its name."""

from __future__ import annotations

import struct
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

from torchlock.formats.zipstream import RawMember, ZipStreamError, raw_members
from torchlock.onepass import OnePass

CENTRAL, LOCAL = b"PK\x01\x02", b"PK\x03\x04"
DATA = b"data " * 20


def make(path: Path, **members: bytes) -> Path:
    """Write an archive of stored members."""
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(zipfile.ZipInfo(name), content)
    return path


def read(path: Path) -> dict[str, RawMember]:
    with zipfile.ZipFile(path) as archive, path.open("rb", buffering=0) as file:
        return {m.name: m for m in raw_members(path, archive, OnePass(path, file).read)}


def put(data: bytearray, signature: bytes, offset: int, value: bytes) -> None:
    """Overwrite a field of the first header with that signature."""
    at = data.index(signature) + offset
    data[at : at + len(value)] = value


def test_members_are_where_their_local_headers_end(tmp_path: Path):
    path = tmp_path / "x.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.mkdir("d") if hasattr(archive, "mkdir") else archive.writestr("d/", b"")
        archive.writestr("d/stored", DATA)
        archive.writestr("d/packed", DATA, zipfile.ZIP_DEFLATED)
    found, data = read(path), path.read_bytes()
    assert set(found) == {"d/stored", "d/packed"}
    for member in found.values():
        raw = data[member.offset : member.offset + member.length]
        assert (zlib.decompress(raw, -15) if member.deflated else raw) == DATA
        assert (member.size, member.crc32) == (len(DATA), zlib.crc32(DATA))


def lie(signature: bytes, offset: int, value: bytes) -> Callable[[bytearray], None]:
    return lambda data: put(data, signature, offset, value)


def points_into_the_comment(data: bytearray) -> None:
    """The directory names a place where a header begins and the file ends."""
    put(data, CENTRAL, 42, struct.pack("<I", len(data)))
    put(data, b"PK\x05\x06", 20, struct.pack("<H", 4))
    data += LOCAL


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lie(CENTRAL, 8, b"\1"), "one is encrypted"),
        (lie(CENTRAL, 10, b"\x0c"), "one is packed by method 12"),
        (lie(LOCAL, 0, b"PK\3\5"), "one has no local header"),
        (points_into_the_comment, "one has no local header"),
        (lie(CENTRAL, 42, b"\1"), "one has no local header"),
        (lie(CENTRAL, 42, b"\xfe\xff\xff\xff"), "one has no local header"),
        (lie(LOCAL, 8, b"\x08"), "one: the local header describes another member"),
        (lie(LOCAL, 26, b"\4"), "one: the local header describes another member"),
        (lie(LOCAL, 30, b"six"), "one: the local header describes another member"),
        (lie(CENTRAL, 20, b"\1"), "one is stored, but its two sizes differ"),
    ],
)
def test_what_does_not_agree_is_named(
    tmp_path: Path, spoil: Callable[[bytearray], None], says: str
):
    path = make(tmp_path / "x.zip", one=DATA)
    data = bytearray(path.read_bytes())
    spoil(data)
    path.write_bytes(data)
    with pytest.raises(ZipStreamError, match=f"x.zip: {says}"):
        read(path)


def test_a_name_that_occurs_twice_is_refused(tmp_path: Path):
    path = make(tmp_path / "x.zip", one=DATA)
    with pytest.warns(UserWarning, match="Duplicate"), zipfile.ZipFile(path, "a") as archive:
        archive.writestr("one", b"again")
    with pytest.raises(ZipStreamError, match="a member's name occurs twice"):
        read(path)


def test_a_member_in_another_s_data_is_refused(tmp_path: Path):
    """The classic of bombs: a header quoted in the data before it, and all of it consistent."""
    inner = make(tmp_path / "inner.zip", two=DATA).read_bytes()
    path = make(tmp_path / "x.zip", one=inner[: inner.index(CENTRAL)], two=DATA)
    data = bytearray(path.read_bytes())
    second = data.index(CENTRAL, data.index(CENTRAL) + 1)
    quoted = data.index(LOCAL, 1)
    data[second + 42 : second + 46] = struct.pack("<I", quoted)
    path.write_bytes(data)
    with zipfile.ZipFile(path) as archive:
        assert archive.getinfo("two").header_offset == quoted
    with pytest.raises(ZipStreamError, match="two lies in another member's data"):
        read(path)


@pytest.mark.parametrize("more", [1, 10_000])
def test_data_that_reaches_into_the_directory_is_refused(tmp_path: Path, more: int):
    path = make(tmp_path / "x.zip", one=DATA)
    data = bytearray(path.read_bytes())
    assert read(path)["one"].offset + len(DATA) == data.index(CENTRAL), "up to it is no fault"
    put(data, CENTRAL, 20, struct.pack("<II", len(DATA) + more, len(DATA) + more))
    path.write_bytes(data)
    with pytest.raises(ZipStreamError, match="reaches into the directory"):
        read(path)
