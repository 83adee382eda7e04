"""Places that a conda prefix is made in, and stores it is made from, which are not usual."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.disks import read_only, small_disk
from torchlock.artifacts import Store, fetch
from torchlock.errors import TorchlockError
from torchlock.realize import place
from torchlock.realize.foundation import judge_foundation
from torchlock.realize.venv import make_venv


def test_a_prefix_given_with_dots_is_the_one_that_is_judged(world, tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    made = world.make(Path("../there"))
    assert made.prefix == tmp_path / "there"
    script = (tmp_path / "there/bin/where").read_text().splitlines()[0]
    assert script == f"#!{tmp_path}/there/bin/python"
    assert judge_foundation(
        world.lock, "linux-64", tmp_path / "there", world.records, world.store
    ).holds


def test_a_place_that_cannot_be_written_is_refused_before_anything_is_fetched(world, tmp_path):
    store = Store(tmp_path / "store")
    (tmp_path / "shared").mkdir()
    with (
        read_only(tmp_path / "shared") as shared,
        pytest.raises(TorchlockError, match="env cannot be written"),
    ):
        world.make(shared / "env", store=store)
    assert not (store.root / "sha256").exists()


def test_a_name_that_cannot_work_is_refused_before_anything_is_written(world, tmp_path):
    with pytest.raises(TorchlockError, match="cannot be a conda prefix"):
        world.make(tmp_path / "o'brien" / "env", store=Store(tmp_path / "store"))
    assert not any(tmp_path.iterdir())


def test_a_disk_that_is_full_while_linking_is_named(world, tmp_path, monkeypatch):
    monkeypatch.setattr(place, "SPARE", -(10**9))
    with (
        small_disk(tmp_path / "disk", "12m") as disk,
        pytest.raises(TorchlockError, match="No space left") as caught,
    ):
        world.make(disk / "env")
    assert "free some space" in caught.value.hint


def test_a_store_may_have_any_name(world, tmp_path):
    store = Store(tmp_path / "a #1, b?%20")
    fetch(world.lock.wheels("linux-64"), store)
    made = make_venv(world.lock, world.records, tmp_path / "env", store)
    assert made.verdict.tree == world.records.tree
