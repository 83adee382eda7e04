"""What stands in the way of an installation is named; what belongs there is not."""

from __future__ import annotations

from pathlib import Path

import pytest

from torchlock.findings import Finding
from torchlock.realize.obstacles import (
    SITE,
    blocked,
    dist_infos,
    installed_paths,
    overwritten,
    strange_packages,
)
from torchlock.tree import walk


def found(prefix: Path, paths: list[str], links: dict[str, str] | None = None) -> list[str]:
    return [
        f"{f.path}: {f.detail}" for f in blocked(prefix, paths, dict(walk(prefix)), links or {})
    ]


def test_an_absent_or_ordinary_prefix_blocks_nothing(tmp_path):
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib/there").touch()
    (tmp_path / "lib/link").symlink_to("/nowhere")  # it is replaced, not followed
    assert found(tmp_path, ["lib/there", "lib/link", "lib/more/deep", "bin/x"]) == []


@pytest.mark.parametrize("target", ["lib", "elsewhere", "/usr/lib"])
def test_a_link_to_a_directory_belongs_there_or_is_named(tmp_path, target):
    (tmp_path / "lib64").symlink_to(target)
    expected = (
        []
        if target == "lib"
        else [f"lib64: a link to {target} stands in the place of a directory of the lock"]
    )
    assert found(tmp_path, ["lib64/a", "lib64/b/c"], {"lib64": "lib"}) == expected


def test_a_linked_directory_of_byte_code_is_named(tmp_path):
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib/__pycache__").symlink_to("/var/cache")
    said = "lib/__pycache__: a link to /var/cache stands in the place of a directory of the lock"
    assert found(tmp_path, ["lib/a.py"]) == [said]


def test_directories_and_files_in_each_others_places(tmp_path):
    (tmp_path / "share/data").mkdir(parents=True)
    (tmp_path / "share/where").touch()
    assert found(tmp_path, ["share/data", "share/where/a", "share/where/b"]) == [
        "share/data: a directory stands in the place of a file of the lock",
        "share/where: a file stands in the place of a directory of the lock",
    ]


def test_what_would_be_overwritten(tmp_path):
    findings = [
        Finding("changed", "p", "mine", ""),
        Finding("changed", "p", "ours", ""),
        Finding("changed", "p", "lib/__pycache__/a.cpython-311.pyc", ""),
        Finding("mode", "p", "mode", ""),
        Finding("missing", "p", "missing", ""),
        Finding("not a file", "p", "link", ""),
    ]
    for finding in findings:
        if finding.kind != "missing":
            (tmp_path / finding.path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / finding.path).touch()
    present = dict(walk(tmp_path))
    assert [f.path for f in overwritten(findings, present, {"ours"})] == ["mine", "link"]


def test_conda_packages_that_are_neither_locked_nor_ours(tmp_path):
    (tmp_path / "conda-meta").mkdir()
    for record in ("where-1.0-0", "a-b-2.0-h1_0", "old-1-0", "second-1-0", "second-2-0", "up-9-0"):
        (tmp_path / f"conda-meta/{record}.json").touch()
    locked = ("where-1.0-0", "second-1-0", "up-1-0")
    assert strange_packages(tmp_path, locked, ("old-1-0",)) == ["a-b-2.0-h1_0", "second-2-0"]


def test_installed_wheels_by_name_and_version(tmp_path):
    site = tmp_path / SITE
    for name in ("Typing_Extensions-4.0", "torch-2.7.1+cu126", "alpha-2.0"):
        (site / f"{name}.dist-info").mkdir(parents=True)
    wheels = ["typing-extensions==4.0", "torch==2.7.1+cu126", "alpha==1.0", "gone==1"]
    assert [p.name for p in dist_infos(site, wheels)] == [
        "Typing_Extensions-4.0.dist-info",
        "torch-2.7.1+cu126.dist-info",
    ]
    record = site / "torch-2.7.1+cu126.dist-info/RECORD"
    record.write_text('torch/__init__.py,sha256=x,1\n"a,b.py",,\n../../../bin/torchrun,,\n')
    (tmp_path / "conda-meta").mkdir()
    (tmp_path / "conda-meta/where-1.0-0.json").write_text('{"files": ["bin/where"]}')
    (tmp_path / "conda-meta/damaged-1-0.json").write_text("{")
    assert installed_paths(tmp_path, ["where-1.0-0", "damaged-1-0"], wheels) == {
        "bin/where",
        "bin/torchrun",
        f"{SITE}/torch/__init__.py",
        f"{SITE}/a,b.py",
    }
