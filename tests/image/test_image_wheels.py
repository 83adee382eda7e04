"""Wheels in layers: what installers write, and archives that lie."""

import base64
import csv
import hashlib
import io
import random
import struct
import tarfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.image.image_making import make_wheel
from torchlock.errors import TorchlockError
from torchlock.formats.zipstream import raw_members
from torchlock.oci.layer import LayerError, write_layer
from torchlock.onepass import OnePass
from torchlock.realize.image_wheels import PREFIX, SITE, wheels_items


@contextmanager
def opened(path: Path) -> Iterator[OnePass]:
    with path.open("rb", buffering=0) as file:
        yield OnePass(path, file)


def render(*paths: Path) -> tuple[str, dict[str, bytes], dict[str, int]]:
    out = io.BytesIO()
    blob = write_layer(wheels_items(map(opened, paths)), out)
    with tarfile.open(fileobj=io.BytesIO(out.getvalue())) as archive:
        rows = [m for m in archive if m.isreg()]
        contents = {m.name: archive.extractfile(m).read() for m in rows}
    return blob.digest, contents, {m.name: m.mode for m in rows}


FILES = {
    "demo/__init__.py": b"value = 1\n" * 50,
    "demo/empty.py": b"",
    "demo-1.0.data/scripts/tool": b"#!python\nprint(1)\n",
    "demo-1.0.data/data/share/demo/x.txt": b"shared",
    "demo-1.0.data/headers/demo.h": b"int x;",
}
POINTS = "[console_scripts]\ndemo = demo.cli:main\nother = demo:Tool.run [extra]\n"


def test_a_wheel_is_laid_out_as_installers_do(tmp_path: Path):
    _, found, modes = render(make_wheel(tmp_path, files=FILES, entry_points=POINTS))
    assert found[f"{SITE}/demo/__init__.py"] == FILES["demo/__init__.py"]
    assert found[f"{SITE}/demo/empty.py"] == b""
    assert found[f"{PREFIX}/share/demo/x.txt"] == b"shared"
    assert found[f"{PREFIX}/include/site/python3.11/demo/demo.h"] == b"int x;"
    assert found[f"{PREFIX}/bin/tool"].startswith(b"#!/opt/torchlock/bin/python3.11\n")
    assert modes[f"{PREFIX}/bin/tool"] == modes[f"{PREFIX}/bin/demo"] == 0o755
    assert b"from demo.cli import main" in found[f"{PREFIX}/bin/demo"]
    assert b"from demo import Tool" in found[f"{PREFIX}/bin/other"]
    assert b"sys.exit(Tool.run())" in found[f"{PREFIX}/bin/other"]
    assert found[f"{SITE}/demo-1.0.dist-info/INSTALLER"] == b"torchlock\n"


def test_record_names_every_file_with_its_digest(tmp_path: Path):
    _, found, _ = render(make_wheel(tmp_path, files=FILES, entry_points=POINTS))
    rows = list(csv.reader(io.StringIO(found[f"{SITE}/demo-1.0.dist-info/RECORD"].decode())))
    record = {row[0]: row[1:] for row in rows}
    assert len(record) == len(rows) == len(found)
    for name, content in found.items():
        path = name[len(SITE) + 1 :] if name.startswith(SITE) else f"../../../{name[14:]}"
        if path.endswith("/RECORD"):
            assert record[path] == ["", ""]
            continue
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).decode().rstrip("=")
        assert record[path] == [f"sha256={digest}", str(len(content))], path


def test_golden_digest_of_a_wheel_layer(tmp_path: Path):
    stored = make_wheel(tmp_path, files=FILES, entry_points=POINTS, compression=0)
    assert (
        render(stored)[0]
        == "sha256:25a725168d23a478e639a702c7bf38daafcdc6a7524158a70cbfee2f37ead18e"
    )


def test_two_wheels_may_share_a_file_but_not_disagree(tmp_path: Path):
    one = make_wheel(tmp_path, "one", {"shared/__init__.py": b"", "one.py": b"1"})
    two = make_wheel(tmp_path, "two", {"shared/__init__.py": b"", "two.py": b"2"})
    assert f"{SITE}/shared/__init__.py" in render(one, two)[1]
    three = make_wheel(tmp_path, "three", {"shared/__init__.py": b"x = 1"})
    with pytest.raises(LayerError, match=r"one-1.0.*three-1.0.*shared/__init__\.py"):
        render(one, three)
    four = make_wheel(tmp_path, "four", {"shared/__init__.py": b"x = 2"})
    with pytest.raises(LayerError, match=r"three-1.0.*four-1.0.*shared/__init__\.py"):
        render(three, four)


def patched(path: Path, signature: bytes, offset: int, value: bytes, member: int = 0) -> Path:
    data = bytearray(path.read_bytes())
    at = -1
    for _ in range(member + 1):
        at = data.index(signature, at + 1)
    data[at + offset : at + offset + len(value)] = value
    path.write_bytes(data)
    return path


CENTRAL, LOCAL = b"PK\x01\x02", b"PK\x03\x04"


@pytest.mark.parametrize(
    ("where", "offset", "value"),
    [
        (CENTRAL, 16, b"\1\2\3\4"),  # CRC-32
        (CENTRAL, 24, struct.pack("<I", 7)),  # size
        (CENTRAL, 20, struct.pack("<I", 7)),  # compressed size
        (CENTRAL, 8, struct.pack("<H", 1)),  # encrypted
        (CENTRAL, 10, struct.pack("<H", 12)),  # bzip2
        (CENTRAL, 42, struct.pack("<I", 9)),  # offset of the local header
        (LOCAL, 8, struct.pack("<H", 0)),  # the local header's method
        (LOCAL, 30, b"other"),  # the local header's name
    ],
)
def test_a_directory_that_lies_is_refused(tmp_path: Path, where: bytes, offset: int, value: bytes):
    path = patched(make_wheel(tmp_path), where, offset, value)
    with pytest.raises(TorchlockError) as refused:
        render(path)
    assert path.name in str(refused.value)


@pytest.mark.parametrize("name", ["../escape.py", "/absolute.py", "a//b.py", "a\\b.py", "C:/x.py"])
def test_escaping_names_are_refused(tmp_path: Path, name: str):
    path = make_wheel(tmp_path, files={"x" * len(name): b"1"})
    data = path.read_bytes().replace(b"x" * len(name), name.encode())
    path.write_bytes(data)
    with pytest.raises(TorchlockError, match="unsafe path"):
        render(path)


def test_duplicate_names_are_refused(tmp_path: Path):
    path = make_wheel(tmp_path)
    with pytest.warns(UserWarning, match="Duplicate"), zipfile.ZipFile(path, "a") as archive:
        archive.writestr("demo/__init__.py", b"again")
    with pytest.raises(TorchlockError, match="twice"):
        render(path)


def test_links_are_refused(tmp_path: Path):
    path = make_wheel(tmp_path)
    with zipfile.ZipFile(path, "a") as archive:
        row = zipfile.ZipInfo("demo/link")
        row.external_attr = 0o120777 << 16
        archive.writestr(row, "/etc/passwd")
    with pytest.raises(TorchlockError, match="symbolic link"):
        render(path)


def test_overlapping_members_are_refused(tmp_path: Path):
    path = make_wheel(tmp_path, files={"a.py": b"a" * 99, "b.py": b"a" * 99})
    # The second entry of the directory points at the first member, under the first's name.
    data = bytearray(path.read_bytes())
    second = data.index(CENTRAL, data.index(CENTRAL) + 1)
    data[second + 42 : second + 46] = struct.pack("<I", 0)
    data[second + 46 : second + 50] = b"a.py"
    path.write_bytes(data)
    with pytest.raises(TorchlockError, match=r"lies in another member's data|twice"):
        render(path)


def test_zip64_and_stored_members_are_read(tmp_path: Path):
    plain, _ = render(make_wheel(tmp_path))[1:]
    path = tmp_path / "demo-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path) as old:
        members = {i.filename: old.read(i) for i in old.infolist()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            with archive.open(zipfile.ZipInfo(name), "w", force_zip64=True) as stream:
                stream.write(content)
    assert render(path)[1] == plain
    with zipfile.ZipFile(path) as archive, opened(path) as read_once:
        assert not any(m.deflated for m in raw_members(path, archive, read_once.read))


def test_a_directory_in_another_order_than_the_data_is_followed(tmp_path: Path):
    files = {f"{n}.bin": random.Random(n).randbytes(400_000) for n in range(3)}
    path = make_wheel(tmp_path, files=files)
    before, after = render(path)[1], render(reversed_directory(path))[1]
    assert before == after
    assert list(before) != list(after)


def reversed_directory(path: Path) -> Path:
    with zipfile.ZipFile(path, "a") as archive:
        archive.filelist.reverse()
        archive._didModify = True  # or closing it would not write the directory
    return path


def test_a_truncated_wheel_is_refused(tmp_path: Path):
    path = make_wheel(tmp_path)
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(TorchlockError, match="damaged archive"):
        render(path)
