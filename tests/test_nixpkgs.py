"""The nixpkgs pin, without Nix."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from torchlock.errors import DoesNotHold, TorchlockError
from torchlock.nixpkgs import Pin, move_pin, read_pin
from torchlock.repository import Repository, this_repository

REVISION = "30a3c519afcf3f99e2c6df3b359aec5692054d92"
NAR_HASH = "sha256-8IQQUorUGiSmFaPnLSo2+T+rjHtiNWc+OAzeHck7N48="
OTHER = "b6018f87da91d19d0ab4cf979885689b469cdd41"


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    for name in ("flake.nix", "flake.lock"):
        shutil.copy(this_repository().root / name, tmp_path)
    return Repository(tmp_path)


def fake_nix(directory: Path, script: str) -> None:
    """A `nix` that runs `script`; $1 is the directory of the flake to lock."""
    program = directory / "nix"
    program.write_text(f'#!/bin/sh\nfor last; do :; done; set -- "${{last#path:}}"\n{script}\n')
    program.chmod(0o755)


def contents(repository: Repository) -> list[bytes]:
    return [(repository.root / name).read_bytes() for name in ("flake.nix", "flake.lock")]


def test_the_repository_is_pinned_at_the_revision_others_have_seen():
    assert read_pin(this_repository()) == Pin(REVISION, NAR_HASH)


@pytest.mark.parametrize("name", ["flake.nix", "flake.lock"])
def test_a_stale_half_names_both_revisions(repository, name):
    path = repository.root / name
    path.write_text(path.read_text().replace(REVISION, OTHER))

    with pytest.raises(DoesNotHold) as fault:
        read_pin(repository)

    assert REVISION in fault.value.message
    assert OTHER in fault.value.message
    assert "invoke lock --nixpkgs" in fault.value.hint


def test_a_lock_edited_in_one_place_does_not_hold(repository):
    path = repository.root / "flake.lock"
    path.write_text(path.read_text().replace(REVISION, OTHER, 1))

    with pytest.raises(DoesNotHold):
        read_pin(repository)


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"nodes": {"nixpkgs": 1}}'])
def test_a_damaged_lock_is_named(repository, text):
    (repository.root / "flake.lock").write_text(text)

    with pytest.raises(TorchlockError, match=r"flake\.lock is damaged"):
        read_pin(repository)


def test_a_flake_that_follows_a_branch_is_refused(repository):
    path = repository.root / "flake.nix"
    path.write_text(path.read_text().replace(REVISION, "nixos-25.11"))

    with pytest.raises(TorchlockError, match="names no revision"):
        read_pin(repository)


def test_a_missing_file_is_named(repository):
    (repository.root / "flake.lock").unlink()

    with pytest.raises(TorchlockError, match=r"flake\.lock cannot be read"):
        read_pin(repository)


@pytest.mark.parametrize("revision", ["", "nixos-25.11", REVISION[:39], REVISION.upper()])
def test_what_is_no_revision_is_refused(repository, revision):
    before = contents(repository)

    with pytest.raises(TorchlockError, match="is no revision of nixpkgs"):
        move_pin(repository, revision)

    assert contents(repository) == before


def test_moving_writes_both_files(repository, tmp_path_factory, monkeypatch):
    programs = tmp_path_factory.mktemp("bin")
    locked = json.loads((repository.root / "flake.lock").read_text())
    node = locked["nodes"]["nixpkgs"]
    node["locked"].update(rev=OTHER, narHash="sha256-" + "A" * 43 + "=")
    node["original"]["rev"] = OTHER
    (programs / "lock.json").write_text(json.dumps(locked))
    fake_nix(programs, f'grep -q {OTHER} "$1/flake.nix" && cp {programs}/lock.json "$1/flake.lock"')
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")

    pin = move_pin(repository, OTHER)

    assert pin == Pin(OTHER, "sha256-" + "A" * 43 + "=") == read_pin(repository)
    assert REVISION not in (repository.root / "flake.nix").read_text()


@pytest.mark.parametrize(
    "script", ["echo 'error: no such revision' >&2; exit 1", ": > $1/flake.lock"]
)
def test_a_move_that_fails_changes_nothing(repository, tmp_path_factory, monkeypatch, script):
    programs = tmp_path_factory.mktemp("bin")
    fake_nix(programs, script)
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
    before = contents(repository)

    with pytest.raises(TorchlockError):
        move_pin(repository, OTHER)

    assert contents(repository) == before


def test_without_nix_the_move_says_so(repository, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))

    with pytest.raises(TorchlockError, match="nix cannot be started"):
        move_pin(repository, OTHER)
