"""`invoke env` in a conda prefix neither removes nor overwrites what it did not make."""

from __future__ import annotations

import hashlib
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from tests.conda.packing import SITE, Tree, write_package
from torchlock.errors import DoesNotHold
from torchlock.lock import Lock, Package

WORK = "years of work"


def pack(tmp_path: Path, name: str, files: dict[str, str], version: str = "1") -> Path:
    """Make a conda package of a few text files; a path that ends in `*` is a program's."""
    tree = Tree()
    for path, text in files.items():
        tree.add(path.removesuffix("*"), text, path.endswith("*"))
    return write_package(tmp_path / "packed", tree, name=name, version=version, depends=("python",))


def lock_with(lock: Lock, *archives: Path) -> Lock:
    """Return the lock with these packages besides, or in place of those of the same name."""
    like = next(p for p in lock.packages if p.name == "where")
    added = [
        replace(
            like,
            name=path.name.split("-")[0],
            version=path.name.split("-")[1],
            url=path.as_uri(),
            sha256=hashlib.sha256(path.read_bytes()).hexdigest(),
            md5=hashlib.md5(path.read_bytes()).hexdigest(),
        )
        for path in archives
    ]
    names = {p.name for p in added}
    kept: list[Package] = [p for p in lock.packages if p.name not in names]
    return replace(lock, packages=(*kept, *added))


@pytest.mark.slow
def test_a_conda_package_of_the_user_is_named_and_kept(world, prefix, tmp_path):
    archive = pack(tmp_path, "same1", {"share/mine.txt": WORK})
    world.make(prefix, lock_with(world.lock, archive))
    # Now it looks like one that the user installed: it is in no marker.
    shutil.copy(prefix / "conda-meta/same1-1-0.json", tmp_path)
    world.make(prefix)
    assert not (prefix / "share/mine.txt").exists()  # what an earlier lock had goes
    shutil.copy(tmp_path / "same1-1-0.json", prefix / "conda-meta")
    (prefix / "share/mine.txt").write_text(WORK)
    other = lock_with(world.lock, pack(tmp_path, "other", {"share/other.txt": "x"}))
    with pytest.raises(DoesNotHold, match=r"foreign: conda-meta/same1-1-0\.json"):
        world.make(prefix)
    for lock in (other, world.lock):
        (prefix / "bin/where").unlink(missing_ok=True)  # so that there is something to do
        with pytest.raises(DoesNotHold, match=r"did not install and the lock has not: same1-1-0;"):
            world.make(prefix, lock)
        assert (prefix / "share/mine.txt").read_text() == WORK
        assert not (prefix / "share/other.txt").exists()
    (prefix / "conda-meta/same1-1-0.json").unlink()
    (prefix / "share/mine.txt").unlink()
    assert world.make(prefix).conda.holds


def test_a_file_of_the_user_is_not_overwritten_by_a_package_of_a_new_lock(world, prefix, tmp_path):
    generic, same = prefix / "share/generic", prefix / "share/same"
    (prefix / "share").mkdir(exist_ok=True)
    generic.write_text(WORK)
    same.write_text("x")
    lock = lock_with(world.lock, pack(tmp_path, "new", {"share/generic": "new", "share/same": "x"}))
    for _ in range(2):
        with pytest.raises(DoesNotHold, match="nothing has been changed") as fault:
            world.make(prefix, lock)
        assert "foreign: share/generic (new): a file of the lock would take" in fault.value.message
        assert "share/same" not in fault.value.message  # nothing would be lost
        assert generic.read_text() == WORK
        assert not (prefix / "conda-meta/new-1-0.json").exists()
    generic.unlink()
    assert world.make(prefix, lock).conda.holds
    # What the lock has there is torchlock's from then on, in the next version too.
    newer = pack(tmp_path, "new", {"share/generic": "newer", "share/same": "x"}, "2")
    assert world.make(prefix, lock_with(world.lock, newer)).conda.holds
    assert generic.read_text() == "newer"


@pytest.mark.parametrize("place", ["share", "share/where", "lib/python3.11/json", SITE])
def test_nothing_is_written_or_removed_through_a_directory_that_is_a_link(
    world, prefix, tmp_path, place
):
    outside = tmp_path / "outside"
    (prefix / place).rename(outside)
    (prefix / place).symlink_to(outside)
    for path in [p for p in outside.rglob("*") if p.is_file()][:3]:
        path.unlink()
        path.write_text(WORK)
    (outside / "thesis.tex").write_text(WORK)
    before = contents(outside)
    without = tuple(p for p in world.lock.packages if p.name != "where")
    for lock in (world.lock, replace(world.lock, packages=without)):
        with pytest.raises(DoesNotHold, match="nothing has been changed") as fault:
            world.make(prefix, lock)
        assert f"foreign: {place}: a link to {outside} stands in the place" in fault.value.message
        assert contents(outside) == before
    (prefix / place).unlink()
    assert world.make(prefix).conda.holds


def test_nothing_is_removed_through_a_link_where_rattler_sets_files_aside(world, prefix, tmp_path):
    kept = tmp_path / "outside/where/share/where/data.txt"
    kept.parent.mkdir(parents=True)
    kept.write_text(WORK)
    (prefix / "__clobbers__").symlink_to(tmp_path / "outside")
    without = tuple(p for p in world.lock.packages if p.name != "where")
    with pytest.raises(DoesNotHold, match="foreign: __clobbers__: a link to"):
        world.make(prefix, replace(world.lock, packages=without))
    assert kept.read_text() == WORK


def contents(root: Path) -> dict[str, tuple[bytes, int]]:
    return {
        str(path): (path.read_bytes(), path.stat().st_mode)
        for path in sorted(root.rglob("*"))
        if path.is_file()
    }


def test_what_stands_in_the_place_of_a_file_or_directory_is_named(world, prefix):
    data = prefix / "share/where/data.txt"
    data.unlink()
    data.mkdir()
    (data / "thesis.tex").write_text(WORK)
    shutil.rmtree(prefix / "lib/python3.11/json")
    (prefix / "lib/python3.11/json").write_text(WORK)
    for _ in range(2):
        with pytest.raises(DoesNotHold) as fault:
            world.make(prefix)
        assert "share/where/data.txt: a directory stands in the place of a file" in str(fault.value)
        assert "lib/python3.11/json: a file stands in the place of a directory" in str(fault.value)
    assert (data / "thesis.tex").read_text() == WORK
    assert (prefix / "lib/python3.11/json").read_text() == WORK


@pytest.mark.slow
def test_packages_that_have_a_path_in_common(world, tmp_path):
    same = "share/same.txt"
    lock = lock_with(
        world.lock,
        pack(tmp_path, "same1", {same: "one"}),
        pack(tmp_path, "same2", {same: "two", "share/own.txt": "x"}),
        pack(tmp_path, "same3", {f"{same}*": "one"}),
    )
    prefix = tmp_path / "demo"
    assert world.make(prefix, lock).conda.holds
    aside = sorted((prefix / "__clobbers__").glob(f"*/{same}"))
    assert [path.relative_to(prefix / "__clobbers__").parts[0] for path in aside] == [
        "same2",
        "same3",
    ]
    assert not world.make(prefix, lock).installed
    aside[0].unlink()
    aside[0].write_text("three")
    made = world.make(prefix, lock)
    assert (made.installed, aside[0].read_text()) == (True, "two")
    (prefix / "__clobbers__/same4/share").mkdir(parents=True)
    (prefix / "__clobbers__/same4" / same).write_text("x")
    with pytest.raises(DoesNotHold, match=f"foreign: __clobbers__/same4/{same}"):
        world.make(prefix, lock)
    shutil.rmtree(prefix / "__clobbers__/same4")
    without = tuple(p for p in lock.packages if p.name != "same1")
    assert world.make(prefix, replace(lock, packages=without)).conda.holds
    assert world.make(prefix, lock).conda.holds
    assert world.make(prefix).conda.holds
    assert not (prefix / same).exists()
    assert not (prefix / "__clobbers__").exists()
