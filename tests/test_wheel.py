"""Wheels: where their files go, and every way in which an archive can be bad."""

from __future__ import annotations

import stat
import struct
import zipfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.wheels import build_wheel
from torchlock.formats.wheel import (
    METADATA_LIMIT,
    WheelError,
    hashed_files,
    in_tree,
    metadata_member,
    read_wheel,
)
from torchlock.tree import tree_digest

INFO = "demo-1.0.dist-info"


def layout(path: Path) -> dict[str, tuple[str, bool]]:
    """Return member -> ("scheme:target", execute bit)."""
    with read_wheel(path) as wheel:
        return {f.member: (f"{f.scheme}:{f.entry.path}", f.entry.executable) for f in wheel.files}


def rewrite(path: Path, change) -> Path:
    """Write the archive again, each member (info, data) as `change` returns them."""
    with zipfile.ZipFile(path) as archive:
        members = [(info, archive.read(info)) for info in archive.infolist()]
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for info, data in change(members):
            archive.writestr(info, data)
    return path


def with_member(path: Path, name: str, data: bytes = b"", mode: int = 0o100644) -> Path:
    info = zipfile.ZipInfo(name)
    info.external_attr = mode << 16
    return rewrite(path, lambda members: [*members, (info, data)])


def replaced(path: Path, member: str, data: bytes) -> Path:
    return rewrite(path, lambda ms: [(i, data if i.filename == member else d) for i, d in ms])


def refused(path: Path) -> str:
    """Return what is said of a wheel that cannot be read or hashed."""
    with pytest.raises(WheelError) as caught, read_wheel(path) as wheel:
        hashed_files(wheel)
    assert path.name in caught.value.message
    return caught.value.message


def test_layout_schemes_and_execute_bits(tmp_path):
    data = "demo-1.0.data"
    path = build_wheel(
        tmp_path,
        "demo",
        files={
            "demo/__init__.py": b"",
            "demo/bin/tool": b"\x7fELF",
            f"{data}/purelib/pure.py": b"",
            f"{data}/platlib/demo/native.so": b"so",
            f"{data}/scripts/run": b"#!python\n",
            f"{data}/data/share/demo/x.json": b"{}",
            f"{data}/headers/demo.h": b"",
            "other-1.0.data/purelib/kept.py": b"",
        },
        executable=frozenset({"demo/bin/tool"}),
    )
    found = layout(path)
    assert {k: v for k, v in found.items() if not k.startswith(INFO)} == {
        "demo/__init__.py": ("site:demo/__init__.py", False),
        "demo/bin/tool": ("site:demo/bin/tool", True),
        f"{data}/purelib/pure.py": ("site:pure.py", False),
        f"{data}/platlib/demo/native.so": ("site:demo/native.so", False),
        f"{data}/scripts/run": ("scripts:run", True),
        f"{data}/data/share/demo/x.json": ("data:share/demo/x.json", False),
        f"{data}/headers/demo.h": ("headers:demo.h", False),
        # Another package's .data directory means nothing to an installer.
        "other-1.0.data/purelib/kept.py": ("site:other-1.0.data/purelib/kept.py", False),
    }


def test_the_tree_leaves_out_what_installers_write(tmp_path):
    path = build_wheel(
        tmp_path,
        "demo",
        files={
            "demo/a.py": b"",
            "demo/__pycache__/a.cpython-311.pyc": b"x",
            f"{INFO}/INSTALLER": b"pip",
            f"{INFO}/direct_url.json": b"{}",
            f"{INFO}/licenses/RECORD": b"kept: only the directory's own RECORD is the installer's",
            "demo-1.0.data/scripts/run": b"",
        },
    )
    with read_wheel(path) as wheel:
        assert sorted(e.path for e in wheel.tree()) == [
            f"{INFO}/METADATA",
            f"{INFO}/WHEEL",
            f"{INFO}/licenses/RECORD",
            "demo/a.py",
        ]
    assert in_tree("RECORD")
    assert in_tree("demo/RECORD")
    assert not in_tree(f"{INFO}/RECORD")


def test_the_tree_digest_is_of_the_contents_not_of_the_archive(tmp_path):
    path = build_wheel(tmp_path, "demo", files={"b.py": b"2", "a.py": b"1"})
    with read_wheel(path) as wheel:
        before = tree_digest(wheel.tree())

    def reversed_and_stored(members):
        for info, data in reversed(members):
            info.compress_type = zipfile.ZIP_STORED
            info.date_time = (2020, 2, 2, 2, 2, 2)
            yield info, data

    with read_wheel(rewrite(path, reversed_and_stored)) as wheel:
        assert tree_digest(wheel.tree()) == before


def test_entry_points_of_both_kinds_without_extras(tmp_path):
    text = (
        "[console_scripts]\nzed = demo.cli:main\nAlpha-1.x = demo:a.b [extra]\n"
        "[gui_scripts]\ngui=demo.gui:run\n[other.group]\nx = y:z\n"
    )
    with read_wheel(build_wheel(tmp_path, "demo", entry_points=text)) as wheel:
        assert wheel.entry_points == (
            ("Alpha-1.x", "demo:a.b"),
            ("gui", "demo.gui:run"),
            ("zed", "demo.cli:main"),
        )


@pytest.mark.parametrize(
    "text", ["[console_scripts\n", "a = b\n", "[console_scripts]\n a\n", "\udcff"]
)
def test_entry_points_that_cannot_be_read(tmp_path, text):
    path = build_wheel(tmp_path, "demo", entry_points="[console_scripts]\n")
    data = text.encode("utf-8", "surrogateescape")
    said = refused(replaced(path, f"{INFO}/entry_points.txt", data))
    assert "unreadable entry_points.txt" in said


@pytest.mark.parametrize(
    "line",
    ["../evil = demo:main", "a/b = demo:main", ".. = demo:main", ". = demo:main",
     "a = demo:main; import os", "a = demo:f()", "a =", "a = demo.cli", "a = :main"],
)  # fmt: skip
def test_entry_points_that_are_none(tmp_path, line):
    path = build_wheel(tmp_path, "demo", entry_points=f"[console_scripts]\n{line}\n")
    assert "is no entry point for a script" in refused(path)


@pytest.mark.parametrize(
    "name",
    ["../evil.py", "/etc/evil", "demo/../../evil", "demo//evil", "./evil", "demo\\evil",
     "C:/evil", "demo/evil\n.py", "demo-1.0.data/purelib/../evil", "../", "/"],
)  # fmt: skip
def test_names_that_escape_are_refused(tmp_path, name):
    assert "unsafe path" in refused(with_member(build_wheel(tmp_path, "demo"), name))


def test_the_metadata_of_a_wheel_is_one_file():
    names = ["demo/a.dist-info/METADATA", f"{INFO}/METADATA", f"{INFO}/METADATA.txt"]
    assert metadata_member(names) == f"{INFO}/METADATA"
    for names in ([], [f"{INFO}/METADATA", "other-1.dist-info/METADATA"]):
        with pytest.raises(WheelError, match=f"{len(names)} METADATA files"):
            metadata_member(names)


def test_a_name_hidden_behind_a_nul_is_refused(tmp_path):
    path = with_member(build_wheel(tmp_path, "demo"), "demo/evil.py_.txt")
    path.write_bytes(path.read_bytes().replace(b"evil.py_.txt", b"evil.py\0.txt"))
    assert "unsafe path" in refused(path)


def test_names_that_are_not_the_utf8_they_claim_are_refused(tmp_path):
    path = with_member(build_wheel(tmp_path, "demo"), "demo/é.py")
    path.write_bytes(path.read_bytes().replace("é".encode(), b"\xff\xfe"))
    assert "damaged archive" in refused(path)


@pytest.mark.parametrize(
    ("mode", "said"),
    [
        (stat.S_IFLNK | 0o777, "is a symbolic link"),
        (stat.S_IFIFO | 0o644, "is not a regular file"),
        (stat.S_IFCHR | 0o644, "is not a regular file"),
        (stat.S_IFDIR | 0o755, "is not a regular file"),
    ],
)
def test_only_regular_files_are_accepted(tmp_path, mode, said):
    path = with_member(build_wheel(tmp_path, "demo"), "demo/node", b"/etc/passwd", mode)
    assert f"demo/node {said}" in refused(path)


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_duplicate_names_are_refused(tmp_path):
    path = with_member(build_wheel(tmp_path, "demo"), "demo/__init__.py", b"other")
    assert "demo/__init__.py occurs twice" in refused(path)


def test_two_members_for_one_place_are_refused(tmp_path):
    path = with_member(build_wheel(tmp_path, "demo"), "demo-1.0.data/platlib/demo/__init__.py")
    assert "go to the same place" in refused(path)


def test_a_file_that_is_also_a_directory_is_refused(tmp_path):
    path = with_member(build_wheel(tmp_path, "demo"), "demo/__init__.py/below")
    assert "demo/__init__.py is a file and a directory" in refused(path)


@pytest.mark.parametrize("name", ["demo-1.0.data/evil/x", "demo-1.0.data/x", "demo-1.0.data/data"])
def test_members_of_no_data_scheme_are_refused(tmp_path, name):
    assert "is in no known .data scheme" in refused(
        with_member(build_wheel(tmp_path, "demo"), name)
    )


def set_flag(path: Path, member: str, offset: int, value: int) -> None:
    """Set a 16-bit field of a member's entry in the central directory."""
    data = bytearray(path.read_bytes())
    at = data.index(b"PK\x01\x02")
    while data[at + 46 : at + 46 + len(member)] != member.encode():
        at = data.index(b"PK\x01\x02", at + 4)
    struct.pack_into("<H", data, at + offset, value)
    path.write_bytes(data)


def test_encrypted_members_are_refused(tmp_path):
    path = build_wheel(tmp_path, "demo")
    set_flag(path, "demo/__init__.py", 8, 0x1)
    assert "demo/__init__.py is encrypted" in refused(path)


def test_compressions_that_installers_do_not_know_are_refused(tmp_path):
    def lzma(members):
        for info, data in members:
            info.compress_type = zipfile.ZIP_LZMA
            yield info, data

    assert "compressed in a way" in refused(rewrite(build_wheel(tmp_path, "demo"), lzma))


def test_a_crc_that_lies_is_refused(tmp_path):
    path = build_wheel(tmp_path, "demo")
    set_flag(path, "demo/__init__.py", 16, 0xBEEF)
    assert "demo/__init__.py cannot be read (Bad CRC-32" in refused(path)


@pytest.mark.parametrize("size", [0, 3, 11, 255])
def test_a_size_that_lies_is_refused(tmp_path, size):
    path = build_wheel(tmp_path, "demo", files={"demo/__init__.py": b"0123456789"})
    set_flag(path, "demo/__init__.py", 24, size)
    assert "demo/__init__.py" in refused(path)


def test_another_name_in_the_local_header_is_refused(tmp_path):
    path = build_wheel(tmp_path, "demo")
    path.write_bytes(path.read_bytes().replace(b"demo/__init__.py", b"evil/__init__.py", 1))
    assert "cannot be read" in refused(path)


@pytest.mark.parametrize("keep", [0, 10, 0.5, 0.9, -1])
def test_truncated_archives_are_refused(tmp_path, keep):
    path = build_wheel(tmp_path, "demo")
    data = path.read_bytes()
    length = int(len(data) * keep) if isinstance(keep, float) else keep
    path.write_bytes(data[:length])
    assert "damaged archive" in refused(path)


def test_contents_that_are_not_what_record_says_are_refused(tmp_path):
    path = build_wheel(tmp_path, "demo", record={"demo/__init__.py": "sha256=" + "A" * 43})
    said = refused(path)
    assert "demo/__init__.py has sha256" in said
    assert f"RECORD says {'0' * 64}" in said


@pytest.mark.parametrize("value", ["sha256=AAAA", "sha256=", "sha256=é" * 43, "sha256=!!"])
def test_malformed_hashes_in_record_are_refused(tmp_path, value):
    path = build_wheel(tmp_path, "demo", record={"demo/__init__.py": value})
    assert "malformed hash" in refused(path)


def test_an_unreadable_record_is_refused(tmp_path):
    path = build_wheel(tmp_path, "demo")
    assert "RECORD" in refused(replaced(path, f"{INFO}/RECORD", b"x," + b"y" * 200_000))


def test_metadata_that_would_fill_memory_is_refused(tmp_path):
    """A few kilobytes of an archive that nobody has verified yet may inflate to gigabytes."""
    most = b"a,,\n" * (METADATA_LIMIT // 4)
    path = replaced(build_wheel(tmp_path, "demo"), f"{INFO}/RECORD", most + b"\n")
    said = f"{INFO}/RECORD claims {METADATA_LIMIT + 1} bytes, more than {METADATA_LIMIT}"
    assert refused(path).endswith(said)


def test_members_that_record_is_silent_about_are_hashed_all_the_same(tmp_path):
    path = with_member(build_wheel(tmp_path, "demo"), "demo/more.py", b"x = 1\n")
    with read_wheel(path) as wheel:
        hashes = {f.member: f.entry.sha256 for f in hashed_files(wheel)}
    assert hashes["demo/more.py"] == (
        "9e26bf369911c45c243c684147b23fc9e1dcfcf257d299a1c632016a6fcd33f4"
    )


@pytest.mark.parametrize("missing", ["METADATA", "WHEEL", "RECORD"])
def test_an_incomplete_dist_info_is_refused(tmp_path, missing):
    path = rewrite(
        build_wheel(tmp_path, "demo"),
        lambda members: [(i, d) for i, d in members if not i.filename.endswith(missing)],
    )
    assert f"{INFO}/{missing} is missing" in refused(path)


def test_no_or_two_dist_infos_are_refused(tmp_path):
    path = with_member(build_wheel(tmp_path, "demo"), "other-1.0.dist-info/METADATA")
    assert "2 .dist-info directories" in refused(path)
    path = rewrite(path, lambda ms: [(i, d) for i, d in ms if ".dist-info" not in i.filename])
    assert "0 .dist-info directories" in refused(path)


@pytest.mark.parametrize("name", ["other-1.0-py3-none-any.whl", "demo-2.0-py3-none-any.whl"])
def test_contents_of_another_package_are_refused(tmp_path, name):
    path = build_wheel(tmp_path, "demo")
    assert f"contains {INFO}" in refused(path.rename(tmp_path / name))


@pytest.mark.parametrize("name", ["demo.whl", "demo-1.0.zip", "demo-x-py3-none-any.whl", "x"])
def test_file_names_that_are_no_wheels_are_refused(tmp_path, name):
    path = build_wheel(tmp_path, "demo")
    assert "not a wheel's file name" in refused(path.rename(tmp_path / name))


def test_escaped_names_and_local_versions_are_recognised(tmp_path):
    path = build_wheel(tmp_path, "My-Demo", "1.0+cu126")
    with read_wheel(path) as wheel:
        assert (wheel.name, wheel.version) == ("my-demo", "1.0+cu126")


def test_a_file_that_is_not_there_is_named(tmp_path):
    assert "No such file" in refused(tmp_path / "demo-1.0-py3-none-any.whl")


PARTS = st.text(st.sampled_from("abAB01_.-é"), min_size=1, max_size=4).filter(
    lambda name: name not in (".", "..") and not name.endswith(".dist-info")
)


@given(
    files=st.dictionaries(
        st.tuples(st.sampled_from(["d1", "d2/x", "demo-1.0.data/purelib/p"]), PARTS).map("/".join),
        st.tuples(st.binary(max_size=300), st.booleans()),
        max_size=6,
    )
)
def test_what_is_built_is_read_back(files, tmp_path_factory):
    path = build_wheel(
        tmp_path_factory.mktemp("wheel"),
        "demo",
        files={name: data for name, (data, _) in files.items()} or {"x": b""},
        executable=frozenset(name for name, (_, executable) in files.items() if executable),
    )
    with read_wheel(path) as wheel:
        read = {}
        for file in hashed_files(wheel):
            with file.entry.opens() as stream:
                read[file.member] = (stream.read(), file.entry.executable)
    assert {name: read[name] for name in files} == files


@pytest.fixture(scope="module")
def genuine(tmp_path_factory) -> bytes:
    path = build_wheel(
        tmp_path_factory.mktemp("genuine"), "demo", entry_points="[console_scripts]\na = b:c\n"
    )
    return path.read_bytes()


def judge(directory: Path, data: bytes) -> None:
    """Read and hash a wheel of these bytes: all is well, or a WheelError."""
    path = directory / "demo-1.0-py3-none-any.whl"
    path.write_bytes(data)
    try:
        with read_wheel(path) as wheel:
            hashed_files(wheel)
            tree_digest(wheel.tree())
    except WheelError:
        pass


@given(
    cut=st.integers(0, 2000),
    changes=st.lists(st.tuples(st.integers(0, 2000), st.integers(0, 255)), max_size=4),
    insert=st.binary(max_size=6),
)
def test_mutated_archives_never_give_anything_but_a_wheel_error(
    genuine, cut, changes, insert, tmp_path_factory
):
    data = bytearray(genuine)
    for position, value in changes:
        data[position % len(data)] = value
    cut %= len(data)
    judge(tmp_path_factory.getbasetemp(), bytes(data[:cut] + insert + data[cut:]))


def test_every_byte_of_the_directory_may_be_damaged(genuine, tmp_path):
    start = genuine.index(b"PK\x01\x02")
    for position in range(start, len(genuine)):
        for value in (0x00, 0x01, 0xFF):
            judge(tmp_path, genuine[:position] + bytes([value]) + genuine[position + 1 :])


@given(data=st.binary(max_size=400))
def test_random_bytes_never_give_anything_but_a_wheel_error(data, tmp_path_factory):
    judge(tmp_path_factory.getbasetemp(), data)


@given(text=st.text(st.sampled_from('[]=:;# \n\tab./%\x00é"'), max_size=40))
def test_random_entry_points_never_give_anything_but_a_wheel_error(genuine, text, tmp_path_factory):
    path = tmp_path_factory.getbasetemp() / "demo-1.0-py3-none-any.whl"
    path.write_bytes(genuine)
    replaced(path, f"{INFO}/entry_points.txt", f"[console_scripts]\n{text}".encode())
    judge(path.parent, path.read_bytes())


@given(text=st.text(st.sampled_from('sha256=,"\n\r\x00ab/é-_'), max_size=60))
def test_random_records_never_give_anything_but_a_wheel_error(genuine, text, tmp_path_factory):
    path = tmp_path_factory.getbasetemp() / "demo-1.0-py3-none-any.whl"
    path.write_bytes(genuine)
    replaced(path, f"{INFO}/RECORD", text.encode())
    judge(path.parent, path.read_bytes())
