"""`invoke validate` on a conda prefix: both halves are judged, or it says why not."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path

from torchlock.files import sha256_of
from torchlock.proof import find_realization, validate
from torchlock.realize.marker import read_marker, write_marker
from torchlock.repository import Repository
from torchlock.stamps import Stamps


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


def test_it_reads_what_stamps_call_unchanged(prefix, repository, world):
    """Whoever can write the notes can make `invoke env` skip a file, but not this."""
    module = prefix / "lib/python3.11/argparse.py"
    good = sha256_of(module)
    module.unlink()
    module.write_text("evil = True\n")
    time.sleep(0.05)
    notes = world.store.root / "stamps"
    before = notes.read_bytes()
    stamps = Stamps.read(notes)
    stamps.note(module.stat(), good, time.time_ns())
    stamps.write()
    try:
        assert not world.make(prefix).installed
        context = files_context(repository, prefix)
    finally:
        notes.write_bytes(before)
    assert context["verdict"] == "does not hold"
    assert context["evidence"].endswith("changed: lib/python3.11/argparse.py")


def test_what_link_scripts_wrote_is_not_judged(world, prefix, repository):
    marker = read_marker(prefix)
    assert marker
    (prefix / "etc").mkdir()
    (prefix / "etc/left").write_text("x")
    left = {"etc/left": f"sha256:{sha256_of(prefix / 'etc/left')}"}
    write_marker(prefix, replace(marker, written=left))
    context = files_context(repository, prefix)
    assert context["verdict"] == "not judged"
    said = "1 files that link scripts wrote, which no lock can prove, the first: etc/left"
    assert context["evidence"].startswith(said)


def test_without_the_packages_it_is_not_judged(made, repository, faults, tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHLOCK_CACHE", str(tmp_path / "empty"))
    faults.statuses["channel/linux-64/where-1.0-0.tar.bz2"] = [404]
    context = files_context(repository, made.prefix)
    assert context["verdict"] == "not judged"
    assert "where 1.0 cannot be fetched" in context["evidence"]
