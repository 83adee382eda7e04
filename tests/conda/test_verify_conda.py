"""The conda half of verification: what is found, and that it is named."""

from __future__ import annotations

import json
import os
import py_compile
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from torchlock.errors import TorchlockError
from torchlock.realize.foundation import judge_foundation


def judge(world, prefix: Path, lock=None):
    return judge_foundation(lock or world.lock, "linux-64", prefix, world.records, world.store)


def own(path: Path) -> Path:
    """Give a file its own bytes, apart from the cache it may be linked into."""
    data, mode = path.read_bytes(), path.stat().st_mode
    path.unlink()
    path.write_bytes(data)
    path.chmod(mode)
    return path


def test_every_kind_of_difference_is_found_and_named(world, prefix):
    library = "lib/python3.11"
    own(prefix / library / "argparse.py").open("ab").write(b"\n")
    (prefix / library / "csv.py").unlink()
    (prefix / "bin/whereami").chmod(0o644)
    own(prefix / library / "string.py").chmod(0o755)
    own(prefix / library / "this.py").chmod(0o4644)
    (prefix / "share/where/current").unlink()
    (prefix / "share/where/current").symlink_to("elsewhere.txt")
    (prefix / "bin/python3").unlink()
    shutil.copyfile(prefix / "bin/python3.11", prefix / "bin/python3")
    (prefix / library / "shlex.py").unlink()
    (prefix / library / "shlex.py").symlink_to("cmd.py")
    own(prefix / "bin/pip").write_text("#!/bin/sh\necho pip\n")
    own(prefix / f"{library}/site-packages/pip/__init__.py").write_text("")
    (prefix / "etc/conda/activate.d").mkdir(parents=True)
    (prefix / "etc/conda/activate.d/x.sh").write_text("export LD_LIBRARY_PATH=/tmp\n")
    (prefix / "conda-meta/other-1.0-0.json").write_text("{}")
    (prefix / "conda-meta/state").write_text('{"env_vars": {"LD_PRELOAD": "/tmp/x.so"}}')
    (prefix / f"{library}/sitecustomize.py").write_text("")
    (prefix / f"{library}/json/__pycache__/nothing.cpython-311.pyc").write_bytes(b"\0" * 20)
    found = judge(world, prefix)
    assert {(f.kind, f.package, f.path) for f in found.findings} == {
        ("changed", "python", f"{library}/argparse.py"),
        ("missing", "python", f"{library}/csv.py"),
        ("mode", "whereami", "bin/whereami"),
        ("mode", "python", f"{library}/string.py"),
        ("mode", "python", f"{library}/this.py"),
        ("changed", "where", "share/where/current"),
        ("not a file", "python", "bin/python3"),
        ("not a file", "python", f"{library}/shlex.py"),
        ("changed", "pip", "bin/pip"),
        ("changed", "pip", f"{library}/site-packages/pip/__init__.py"),
        ("foreign", "", "etc/conda/activate.d/x.sh"),
        ("foreign", "other", "conda-meta/other-1.0-0.json"),
        ("foreign", "", "conda-meta/state"),
        ("foreign", "", f"{library}/sitecustomize.py"),
        ("byte code", "", f"{library}/json/__pycache__/nothing.cpython-311.pyc"),
    }
    assert not found.holds


def test_byte_code_that_python_writes_is_explained(world, prefix):
    source = prefix / "lib/python3.11/json/tool.py"
    compiled = Path(py_compile.compile(str(source), optimize=2, doraise=True) or "")
    assert compiled.is_relative_to(prefix)
    found = judge(world, prefix)
    assert found.findings == ()
    assert found.bytecode == 1
    os.utime(source, (1, 1))
    assert [(f.kind, f.path) for f in judge(world, prefix).findings] == [
        ("byte code", compiled.relative_to(prefix).as_posix())
    ]


def test_what_a_replaced_conda_package_leaves_behind_is_found(world, prefix):
    left = prefix / "lib/python3.11/site-packages/greet/old.py"
    left.write_text("")
    (finding,) = judge(world, prefix).findings
    assert (finding.kind, finding.package) == ("foreign", "greet")
    assert finding.path == "lib/python3.11/site-packages/greet/old.py"


def test_records_that_are_not_the_locks(world, prefix):
    record = prefix / "conda-meta/where-1.0-0.json"
    content = json.loads(record.read_text())
    record.write_text(json.dumps({**content, "sha256": "1" * 64}))
    other = prefix / "conda-meta/whereami-2.1-0.json"
    other.rename(other.with_name("whereami-2.0-0.json"))
    details = {f.package: (f.kind, f.path, f.detail) for f in judge(world, prefix).findings}
    assert details["where"][:2] == ("version", "conda-meta/where-1.0-0.json")
    assert "installed from sha256 1111" in details["where"][2]
    assert details["whereami"] == (
        "version",
        "conda-meta/whereami-2.0-0.json",
        "whereami-2.0-0 is installed, the lock says whereami-2.1-0.conda",
    )


def test_a_package_that_is_not_installed(world, made):
    lock = replace(world.lock, packages=tuple(p for p in world.lock.packages if p.name != "where"))
    found = judge(world, made.prefix, lock)
    assert {(f.kind, f.path) for f in found.findings} == {
        ("foreign", "conda-meta/where-1.0-0.json"),
        ("foreign", "bin/where"),
        ("foreign", "share/where/current"),
        ("foreign", "share/where/data.txt"),
    }


def test_a_moved_prefix_is_found(world, prefix):
    moved = prefix.with_name("moved")
    prefix.rename(moved)
    found = judge(world, moved)
    assert {f.kind for f in found.findings} == {"changed"}
    assert "bin/where" in {f.path for f in found.findings}


def test_a_prefix_reached_through_a_link(world, made, tmp_path):
    link = tmp_path / "link"
    link.symlink_to(made.prefix)
    assert judge(world, link).findings == ()


def test_no_conda_prefix_is_not_judged(world, tmp_path):
    with pytest.raises(TorchlockError, match="is no conda prefix") as fault:
        judge(world, tmp_path)
    assert fault.value.code == 2
