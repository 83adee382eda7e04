"""`invoke validate` on a conda prefix: both halves are judged, or it says why not."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from torchlock.files import write_atomically
from torchlock.proof import find_realization, validate
from torchlock.records import write_records
from torchlock.repository import Repository

SHOW = """\
import shutil, sys
from pathlib import Path
shutil.copy(sys.argv[sys.argv.index("--context") + 1], Path(__file__).with_name("shown.json"))
"""


@pytest.fixture
def repository(world, tmp_path, monkeypatch) -> Repository:
    """The lock's repository, with a `validation` that only keeps what it is told."""
    shutil.copytree(world.repository.root, tmp_path / "repository")
    repository = Repository(tmp_path / "repository")
    write_records(world.records, repository.records, write_atomically)
    (repository.root / "validation").mkdir()
    (repository.root / "validation" / "__main__.py").write_text(SHOW)
    monkeypatch.setenv("TORCHLOCK_CACHE", str(world.store.root))
    return repository


def files_context(repository: Repository, prefix: Path) -> dict[str, str]:
    realization = find_realization(prefix)
    assert realization
    assert realization.foundation == "conda"
    assert validate(repository, realization, [], say=lambda _: None) == 0
    return json.loads((repository.root / "validation" / "shown.json").read_text())["files"]


def test_both_halves_hold(world, made, repository):
    context = files_context(repository, made.prefix)
    assert context["verdict"] == "holds"
    assert context["tree"] == world.records.tree
    assert f"{made.conda.files} files of 6 conda packages" in context["evidence"]


def test_a_changed_file_of_the_foundation_does_not_hold(prefix, repository):
    script = prefix / "bin" / "whereami"
    script.unlink()
    context = files_context(repository, prefix)
    assert context["verdict"] == "does not hold"
    assert context["evidence"] == "1 findings, the first: missing: bin/whereami"


def test_without_the_packages_it_is_not_judged(made, repository, faults, tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHLOCK_CACHE", str(tmp_path / "empty"))
    faults.statuses["channel/linux-64/where-1.0-0.tar.bz2"] = [404]
    context = files_context(repository, made.prefix)
    assert context["verdict"] == "not judged"
    assert "where 1.0 cannot be fetched" in context["evidence"]
