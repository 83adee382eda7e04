"""Layers: valid for every reader, spliced where possible, and always the same bytes."""

import gzip
import hashlib
import io
import struct
import tarfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torchlock.oci import frame, gzipped, tarball
from torchlock.oci.frame import Frame, decoded
from torchlock.oci.layer import (
    Item,
    LayerError,
    Stream,
    copy_framed,
    copy_layer,
    directory_item,
    file_item,
    stream_item,
    symlink_item,
    write_layer,
)
from torchlock.oci.tarball import Member
from torchlock.onepass import OnePass


def written(items):
    out = io.BytesIO()
    blob = write_layer(items, out)
    return blob, out.getvalue()


def source(path: Path) -> OnePass:
    return OnePass(path, path.open("rb", buffering=0))


def deflated(path: Path, content: bytes, **lies) -> Stream:
    # DEFLATE made by hand, in stored blocks: the golden digest depends on nobody's zlib.
    blocks = [content[i : i + 65535] for i in range(0, len(content), 65535)]
    raw = b"".join(
        struct.pack("<BHH", i == len(blocks) - 1, len(b), len(b) ^ 0xFFFF) + b
        for i, b in enumerate(blocks)
    )
    path.write_bytes(b"before" + raw + b"after")
    claims = {"length": len(raw), "size": len(content), "crc32": zlib.crc32(content), **lies}
    return Stream(source(path), 6, claims["length"], claims["size"], claims["crc32"], "member")


def everything(tmp_path: Path) -> list[Item]:
    return [
        directory_item("tmp", 0o1777),
        file_item("etc/secret", b"x" * 700, 0o640, gid=42),
        symlink_item("bin", "usr/bin"),
        stream_item("opt/lib/big.so", deflated(tmp_path / "z", b"spliced " * 99_999), 0o755),
        Item(Member("opt/lib/same.so", "link", 0o755, target="opt/lib/big.so")),
        file_item("opt/" + "long/" * 30 + "name", b""),
        file_item("opt/" + "x" * 180, b"pax"),
        symlink_item("opt/far", "y" * 150),
    ]


def test_a_layer_has_its_golden_digest(tmp_path: Path):
    blob, data = written(everything(tmp_path))
    assert blob.digest == "sha256:17138604491d93d029c3d7f7eab585b936e5820c3133a43561516563594f8d9a"
    assert blob.diff_id == "sha256:643f59ccf73a0d99e983915d17d62ab9e6bf21bf01dcb48b03fbe856418b91ae"
    assert blob.digest == "sha256:" + hashlib.sha256(data).hexdigest()
    assert blob.size == len(data)
    assert blob.diff_id == "sha256:" + hashlib.sha256(gzip.decompress(data)).hexdigest()


def test_the_standard_library_reads_what_was_written(tmp_path: Path):
    _, data = written(everything(tmp_path))
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        rows = {m.name: m for m in archive}
        assert archive.extractfile("opt/lib/big.so").read() == b"spliced " * 99_999
    assert rows["tmp"].mode == 0o1777 and rows["tmp"].isdir()
    assert (rows["etc/secret"].mode, rows["etc/secret"].gid) == (0o640, 42)
    assert rows["bin"].linkname == "usr/bin"
    assert rows["opt/lib/same.so"].islnk()
    assert rows["opt/" + "long/" * 30 + "name"].size == 0
    assert rows["opt/" + "x" * 180].size == 3
    assert rows["opt/far"].linkname == "y" * 150
    assert rows["opt/lib"].mode == 0o755, "parents are made once, before their first entry"
    assert {m.mtime for m in rows.values()} == {0}
    assert {m.uname for m in rows.values()} == {""}


def test_a_stream_is_copied_not_compressed(tmp_path: Path):
    stream = deflated(tmp_path / "z", bytes(range(256)) * 4000)
    _, data = written([stream_item("a", stream)])
    raw = (tmp_path / "z").read_bytes()[6 : 6 + stream.length]
    assert raw in data


def test_a_recorded_layer_is_copied_to_the_same_bytes(tmp_path: Path):
    blob, data = written(everything(tmp_path))
    out = io.BytesIO()
    assert copy_layer(everything(tmp_path), out, Frame()) == (blob.digest, blob.size)
    assert out.getvalue() == data
    other = copy_layer(everything(tmp_path)[:-1], io.BytesIO(), Frame())
    assert other[0] != blob.digest and other[1] < blob.size


@contextmanager
def again(path: Path) -> Iterator[OnePass]:
    with path.open("rb", buffering=0) as file:
        yield OnePass(path, file)


@pytest.mark.parametrize("copied", [True, False])
def test_a_layer_that_was_taken_down_is_written_again_from_its_frame(tmp_path: Path, copied: bool):
    blob, data = written(everything(tmp_path))
    taken, out = Frame(), io.BytesIO()
    if copied:
        copy_layer(everything(tmp_path), io.BytesIO(), taken)
    else:
        assert write_layer(everything(tmp_path), io.BytesIO(), taken) == blob
    assert len(taken.encoded()) < len(data) / 100
    copy_framed(decoded(taken.encoded()), [again(tmp_path / "z")], out, blob)
    assert out.getvalue() == data


def test_a_frame_without_its_sources_makes_no_layer(tmp_path: Path):
    taken = Frame()
    blob = write_layer(everything(tmp_path), io.BytesIO(), taken)
    with pytest.raises(LayerError, match="recorded with"):
        copy_framed(taken, [], io.BytesIO(), blob)
    (tmp_path / "z").write_bytes(b"short")
    with pytest.raises(LayerError, match="z: ends inside a stream at 6"):
        copy_framed(taken, [again(tmp_path / "z")], io.BytesIO(), blob)


def test_a_damaged_frame_is_none(tmp_path: Path):
    taken = Frame()
    write_layer(everything(tmp_path), io.BytesIO(), taken)
    good = taken.encoded()
    for at in range(0, len(good), 7):
        with pytest.raises(ValueError, match="not a frame, or a damaged one"):
            decoded(good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :])
        with pytest.raises(ValueError, match="not a frame, or a damaged one"):
            decoded(good[:at])


def test_a_frame_does_not_grow_without_end(monkeypatch: pytest.MonkeyPatch):
    taken = Frame()
    monkeypatch.setattr(frame, "LIMIT", 1000)
    items = [file_item(str(n), hashlib.sha256(str(n).encode()).digest() * 9) for n in range(9999)]
    write_layer(items[:1], io.BytesIO(), taken)
    assert not taken.is_full
    write_layer(items, io.BytesIO(), taken)
    assert taken.is_full


@pytest.mark.parametrize(
    ("lies", "says"),
    [
        ({"size": 10}, "inflates to more than the 10 bytes"),
        ({"size": 90_000}, "inflates to 80000 bytes"),
        ({"crc32": 1}, "claims 80000 and 00000001"),
        ({"length": 20}, "cut off"),
    ],
)
def test_a_stream_that_is_not_what_its_archive_claims_is_refused(tmp_path: Path, lies, says):
    stream = deflated(tmp_path / "z", b"liar" * 20_000, **lies)
    with pytest.raises(LayerError, match=says):
        written([stream_item("a", stream)])


@pytest.mark.parametrize("size", [100, 80_000, 900_000, (256 << 10) - 4 * 5])
@pytest.mark.parametrize("behind", [1, 600_000])
def test_what_stands_behind_a_stream_is_not_taken_along(tmp_path: Path, size: int, behind: int):
    """Whether it comes with the stream's last bytes or, the last size, in reads of its own."""
    good = deflated(tmp_path / "z", bytes(size))
    raw = (tmp_path / "z").read_bytes()[6 : 6 + good.length]
    (tmp_path / "z").write_bytes(raw + bytes(behind))
    crc = zlib.crc32(bytes(size))
    stream = Stream(source(tmp_path / "z"), 0, good.length + behind, size, crc, "member")
    with pytest.raises(LayerError, match="member: the DEFLATE stream ends early"):
        written([stream_item("a", stream)])


@pytest.mark.parametrize("packed", [True, False])
def test_a_file_that_ends_inside_a_stream_is_named(tmp_path: Path, packed: bool):
    content = bytes(80_000)
    stream = deflated(tmp_path / "z", content)
    (tmp_path / "z").write_bytes((tmp_path / "z").read_bytes()[:50_000])
    if not packed:
        stream = Stream(stream.source, 6, 80_000, 80_000, zlib.crc32(content), "member", False)
    with pytest.raises(LayerError, match="z: ends inside member"):
        written([stream_item("a", stream)])


def test_a_bomb_is_noticed_before_it_has_burst(tmp_path: Path):
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    raw = packer.compress(bytes(64 << 20)) + packer.flush()
    (tmp_path / "z").write_bytes(raw)
    stream = Stream(source(tmp_path / "z"), 0, len(raw), 8 << 20, 0, "member")
    with pytest.raises(LayerError, match="inflates to more than the 8388608 bytes"):
        written([stream_item("a", stream)])


def test_contents_are_read_in_pieces_and_all_of_them_have_to_come():
    content = hashlib.sha256(b"x").digest() * 300_000
    whole = written([file_item("a", content)])
    item = Item(Member("a", size=len(content)), io.BytesIO(content))
    assert written([item]) == whole
    short = Item(Member("a", size=len(content)), io.BytesIO(content[:-7]))
    with pytest.raises(LayerError, match=f"a: 7 of its {len(content)} bytes are missing"):
        written([short])


def test_a_directory_may_follow_what_is_in_it_and_be_named_again():
    plain = written([file_item("a/b", b"1")])
    assert written([file_item("a/b", b"1"), directory_item("a", 0o700)]) == plain


def test_garbage_instead_of_a_stream_is_refused(tmp_path: Path):
    (tmp_path / "z").write_bytes(b"\xff" * 100)
    with pytest.raises(LayerError, match="damaged DEFLATE stream"):
        written([stream_item("a", Stream(source(tmp_path / "z"), 0, 100, 5, 5, "member"))])


def test_stored_bytes_are_checked_too(tmp_path: Path):
    (tmp_path / "z").write_bytes(b"stored")
    good = Stream(source(tmp_path / "z"), 0, 6, 6, zlib.crc32(b"stored"), "m", deflated=False)
    _, data = written([stream_item("a", good)])
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        assert archive.extractfile("a").read() == b"stored"
    bad = Stream(source(tmp_path / "z"), 0, 6, 6, 1, "m", deflated=False)
    with pytest.raises(LayerError, match="CRC-32"):
        written([stream_item("a", bad)])


def test_one_path_twice_is_refused():
    with pytest.raises(LayerError, match="occurs twice"):
        written([file_item("a", b"1"), file_item("a", b"1")])
    with pytest.raises(LayerError, match="occurs twice"):
        written([file_item("a/b", b"1"), file_item("a", b"1")])


def test_sizes_beyond_eight_gigabytes_get_a_pax_header():
    head = tarball.header(Member("big", size=8**11 + 5))
    info = tarfile.TarInfo.frombuf(head[:512], "utf-8", "strict")
    assert info.type == tarfile.XHDTYPE
    assert b" size=8589934597\n" in head[512:1024]


names = st.lists(
    st.text(st.characters(blacklist_characters="/\0", blacklist_categories=("Cs",)), min_size=1)
    .filter(lambda s: s not in (".", ".."))
    .map(lambda s: s[:60]),
    min_size=1,
    max_size=6,
).map("/".join)


@settings(max_examples=60, deadline=None)
@given(st.dictionaries(names, st.binary(max_size=2000), max_size=8), st.booleans())
def test_any_files_come_back_as_they_were(files: dict[str, bytes], executable: bool):
    # A name that is also another's directory is refused; that has its own test.
    files = {n: c for n, c in files.items() if not any(o.startswith(n + "/") for o in files)}
    mode = 0o755 if executable else 0o644
    blob, data = written([file_item(name, content, mode) for name, content in files.items()])
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        found = {m.name: archive.extractfile(m).read() for m in archive if m.isreg()}
    assert found == files
    assert blob == written([file_item(n, c, mode) for n, c in files.items()])[0]


def test_another_encoder_is_noticed(monkeypatch: pytest.MonkeyPatch):
    gzipped.check_encoder.cache_clear()
    real = gzipped.deflate.deflate_compress
    monkeypatch.setattr(gzipped.deflate, "deflate_compress", lambda data, level: real(data, 1))
    with pytest.raises(Exception, match="compresses otherwise than the pinned one"):
        gzipped.check_encoder()
    monkeypatch.undo()
    gzipped.check_encoder.cache_clear()
    gzipped.check_encoder()
