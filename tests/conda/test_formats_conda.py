"""Reading conda packages, and putting the prefix into files."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.conda.packing import PLACEHOLDER, Tree, write_package
from torchlock.formats.conda import (
    CondaError,
    installed_files,
    installed_path,
    is_entry_point_script,
    put_prefix,
    read_conda,
)

SITE = "lib/python3.11/site-packages"
names = st.text("abcdefghij/._-", min_size=1, max_size=60)


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def package(tmp_path, extension=".conda", noarch=None, **options):
    tree = Tree()
    tree.add("bin/tool", f"#!{PLACEHOLDER}/bin/python\n", executable=True)
    tree.add("share/data.bin", b"\0" + PLACEHOLDER.encode() + b"/x\0rest")
    tree.add("share/plain.txt", "plain\n")
    tree.links["lib/libx.so"] = "libx.so.1"
    return write_package(
        tmp_path, tree, name="tool", version="1.2", extension=extension, noarch=noarch, **options
    )


@pytest.mark.parametrize("extension", [".conda", ".tar.bz2"])
def test_what_a_package_installs(tmp_path, extension):
    found = read_conda(package(tmp_path, extension))
    assert (found.name, found.version, found.build, found.subdir) == (
        "tool",
        "1.2",
        "0",
        "linux-64",
    )
    assert found.noarch is None
    assert found.record_name == "tool-1.2-0"
    assert found.prefix_limit == 255
    files = {f.path: f for f in installed_files(found, "/env", SITE)}
    assert files["bin/tool"].sha256 == {sha256(b"#!/env/bin/python\n")}
    assert files["bin/tool"].executable
    padded = b"\0/env/x" + b"\0" * 251 + b"\0rest"
    assert files["share/data.bin"].sha256 == {sha256(padded)}
    assert files["share/plain.txt"].sha256 == {sha256(b"plain\n")}
    assert not files["share/plain.txt"].executable
    assert files["lib/libx.so"].target == "libx.so.1"


def test_noarch_python_paths():
    assert installed_path("site-packages/a/b.py", "python", SITE) == f"{SITE}/a/b.py"
    assert installed_path("python-scripts/run", "python", SITE) == "bin/run"
    assert installed_path("etc/x", "python", SITE) == "etc/x"
    assert installed_path("site-packages/a", "generic", SITE) == "site-packages/a"


def test_entry_points_and_link_scripts(tmp_path):
    tree = Tree()
    tree.add("site-packages/m.py", "def main(): pass\n")
    tree.add("bin/.thing-post-link.sh", "exit 0\n")
    path = write_package(tmp_path, tree, name="thing", version="1", noarch="python",
                         entry_points=("run = m:main", "a.b=m.n:C.f"))  # fmt: skip
    found = read_conda(path)
    assert found.noarch == "python"
    assert found.entry_points == (("run", "m:main"), ("a.b", "m.n:C.f"))
    assert found.link_scripts == ("bin/.thing-post-link.sh",)


@given(st.binary(max_size=200), names, st.binary(max_size=200), names, names)
def test_binary_files_keep_their_length_and_hold_the_prefix(before, tail, after, old, short):
    old, new = "/" + old * 3, "/" + short[: len(old) * 3]
    data = before + b"\0" + old.encode() + tail.encode() + b"\0" + after
    (put,) = put_prefix(data, old, new, "binary")
    assert len(put) == len(data)
    if old.encode() not in before + after and old not in tail and old not in new + tail:
        assert new.encode() + tail.encode() + b"\0" in put
        assert put.startswith(before + b"\0")
        assert put.endswith(b"\0" + after)


@given(st.lists(st.text("xyz \n", max_size=10), min_size=1, max_size=5))
def test_text_files_have_every_placeholder_replaced(parts):
    data = PLACEHOLDER.join(["-", *parts]).encode()
    (put,) = put_prefix(data, PLACEHOLDER, "/e", "text")
    assert put == "/e".join(["-", *parts]).encode()


def test_two_prefixes_in_one_string():
    old = "/" + "o" * 20
    data = f"{old}/a:{old}/b\0end".encode()
    assert put_prefix(data, old, "/n", "binary") == [b"/n/a:/n/b" + b"\0" * 38 + b"\0end"]


@pytest.mark.parametrize(
    ("line", "prefix", "expected"),
    [
        ("{}/bin/python -s", "/short", ["#!/short/bin/python -s"]),
        ("{}/bin/perl -w", "/a b", ["#!/a b/bin/perl -w", "#!/usr/bin/env perl -w"]),
        (
            "{}/bin/python3.11",
            "/" + "l" * 120,
            [
                "#!/" + "l" * 120 + "/bin/python3.11",
                "#!/usr/bin/env python3.11",
                f"#!/bin/sh\n'''exec' \"/{'l' * 120}/bin/python3.11\" \"$0\" \"$@\" #'''",
            ],
        ),
    ],
)
def test_interpreter_lines_that_a_kernel_cannot_read(line, prefix, expected):
    data = f"#!{line.format(PLACEHOLDER)}\n{PLACEHOLDER}\n".encode()
    put = put_prefix(data, PLACEHOLDER, prefix, "text")
    assert put == [f"{first}\n{prefix}\n".encode() for first in expected]


def test_a_prefix_longer_than_the_placeholder_does_not_fit_a_binary_file():
    with pytest.raises(CondaError, match="longer than 4 bytes"):
        put_prefix(b"/old\0", "/old", "/newer", "binary")
    assert put_prefix(b"/old", "/old", "/newer", "text") == [b"/newer"]


SCRIPT = """\
# -*- coding: utf-8 -*-
import re
import sys

from m.n import C

if __name__ == '__main__':
    sys.argv[0] = re.sub(r'(-script\\.pyw?|\\.exe)?$', '', sys.argv[0])
    sys.exit(C.f())
"""


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        (f"#!/e/bin/python3.11\n{SCRIPT}", True),
        (f"#!/bin/sh\n'''exec' \"/e/bin/python3.11\" \"$0\" \"$@\" #'''\n{SCRIPT}", True),
        (f"#!/other/bin/python3.11\n{SCRIPT}", False),
        (f"#!/bin/sh\n'''exec' \"/tmp/x\" \"$0\" \"$@\" #'''\n{SCRIPT}", False),
        (f"#!/e/bin/python3.11\nimport evil\n{SCRIPT}", False),
        (f"#!/e/bin/python3.11\n{SCRIPT}".replace("C.f()", "C.g()"), False),
        (f"#!/e/bin/python3.11\n{SCRIPT}(", False),
        ("", False),
    ],
)
def test_generated_scripts(text, holds):
    assert is_entry_point_script(text, "m.n:C.f", "/e/bin/python3.11") is holds


def hard_linked(tmp_path, **changes: object):
    """A package in which `bin/again` is a hard link to `bin/tool`, as git's programs are."""
    data = f"#!{PLACEHOLDER}/bin/python\n".encode()
    row = {"path_type": "hardlink", "sha256": sha256(data), "size_in_bytes": len(data),
           "prefix_placeholder": PLACEHOLDER, "file_mode": "text"}  # fmt: skip
    rows = [{**row, "_path": "bin/tool"}, {**row, "_path": "bin/again", **changes}]
    path = tmp_path / "x-1-0.tar.bz2"
    with tarfile.open(path, "w:bz2") as tar:
        for name, value in (("info/index.json", INDEX), ("info/paths.json", {"paths": rows})):
            text = json.dumps(value).encode()
            member = tarfile.TarInfo(name)
            member.size = len(text)
            tar.addfile(member, io.BytesIO(text))
        for name, kind in (("bin/tool", tarfile.REGTYPE), ("bin/again", tarfile.LNKTYPE)):
            member = tarfile.TarInfo(name)
            member.mode, member.type, member.linkname = 0o755, kind, "bin/tool"
            member.size = len(data) if kind == tarfile.REGTYPE else 0
            tar.addfile(member, io.BytesIO(data))
    return read_conda(path)


def test_a_hard_link_is_the_file_that_it_names(tmp_path):
    files = installed_files(hard_linked(tmp_path), "/env", SITE)
    assert [f.path for f in files] == ["bin/tool", "bin/again"]
    assert {f.sha256 for f in files} == {frozenset({sha256(b"#!/env/bin/python\n")})}
    assert all(f.executable for f in files)


@pytest.mark.parametrize(
    "changes", [{"sha256": "0" * 64}, {"file_mode": "binary"}, {"prefix_placeholder": None}]
)
def test_a_hard_link_that_paths_json_describes_otherwise(tmp_path, changes):
    with pytest.raises(CondaError, match=r"bin/again is not what paths\.json says: a hard link"):
        installed_files(hard_linked(tmp_path, **changes), "/env", SITE)


@pytest.mark.parametrize("extension", [".conda", ".tar.bz2"])
@pytest.mark.parametrize("keep", [0.0, 0.1, 0.5, 0.9])
def test_a_truncated_archive(tmp_path, extension, keep):
    path = package(tmp_path, extension)
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * keep)])
    with pytest.raises(CondaError, match=path.name):
        installed_files(read_conda(path), "/env", SITE)


@given(st.binary(max_size=300))
def test_no_bytes_make_it_fail_otherwise(data):
    import tempfile
    from pathlib import Path

    with tempfile.TemporaryDirectory() as scratch:
        for name in ("x-1-0.conda", "x-1-0.tar.bz2"):
            path = Path(scratch, name)
            path.write_bytes(data)
            with pytest.raises(CondaError):
                read_conda(path)


def raw(tmp_path, index: object, paths: object):
    path = tmp_path / "x-1-0.tar.bz2"
    with tarfile.open(path, "w:bz2") as tar:
        for name, value in (("info/index.json", index), ("info/paths.json", paths)):
            data = value if isinstance(value, bytes) else json.dumps(value).encode()
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return path


INDEX = {"name": "x", "version": "1", "build": "0", "subdir": "linux-64"}
ROW = {"_path": "bin/x", "path_type": "hardlink", "sha256": "0" * 64, "size_in_bytes": 1}


@pytest.mark.parametrize(
    ("index", "paths", "message"),
    [
        (b"{", {"paths": []}, "unreadable info/index.json"),
        (b"", {"paths": []}, "no info/index.json"),
        ({"name": "x"}, {"paths": []}, "malformed"),
        (INDEX, b"", "no info/paths.json"),
        (INDEX, [], "unreadable info/paths.json"),
        (INDEX, {"paths": [{**ROW, "_path": "../../etc/passwd"}]}, "unsafe path"),
        (INDEX, {"paths": [{**ROW, "_path": "/etc/passwd"}]}, "unsafe path"),
        (INDEX, {"paths": [ROW, ROW]}, "bin/x occurs twice"),
        (INDEX, {"paths": [{**ROW, "path_type": "device"}]}, "unknown type 'device'"),
        (INDEX, {"paths": [{**ROW, "sha256": None}]}, "no sha256"),
        (INDEX, {"paths": [{**ROW, "prefix_placeholder": "/p"}]}, "file mode None"),
        (INDEX, {"paths": ["x"]}, "malformed"),
    ],
)
def test_malformed_packages(tmp_path, index, paths, message):
    with pytest.raises(CondaError, match=message):
        read_conda(raw(tmp_path, index, paths))


def test_contents_that_are_not_what_paths_json_says(tmp_path):
    found = read_conda(raw(tmp_path, INDEX, {"paths": [ROW]}))
    with pytest.raises(CondaError, match=r"bin/x is in paths\.json, not in the archive"):
        installed_files(found, "/env", SITE)
