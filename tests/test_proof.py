"""Which environment `invoke validate` judges, and what carries it."""

from __future__ import annotations

from pathlib import Path

import pytest

from torchlock.errors import TorchlockError
from torchlock.proof import find_realization

HASH = "4gyqbkrrlji6ssd707q8fn5igdqxjgyk"


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A Nix store at another place than /nix/store, with an environment that has a torch."""
    path = tmp_path / "elsewhere" / "store"
    (path / f"{HASH}-torchlock-environment/lib/python3.11/site-packages/torch").mkdir(parents=True)
    return path


@pytest.fixture
def environment(store: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        monkeypatch.delenv(name, raising=False)
    return store / f"{HASH}-torchlock-environment"


def test_an_environment_in_a_nix_store_is_carried_by_nix(environment):
    realization = find_realization(environment)

    assert realization is not None
    assert (realization.prefix, realization.foundation) == (environment, "nix")


def test_a_link_to_one_is_carried_by_nix_too(environment, tmp_path):
    result = tmp_path / "result"
    result.symlink_to(environment)

    realization = find_realization(result)

    assert realization is not None
    assert (realization.prefix, realization.foundation) == (result, "nix")


def test_the_shell_of_nix_develop_is_the_active_environment(environment, monkeypatch):
    assert find_realization(None) is None
    monkeypatch.setenv("VIRTUAL_ENV", str(environment))

    realization = find_realization(None)

    assert realization is not None
    assert (realization.prefix, realization.foundation) == (environment, "nix")


def test_another_venv_is_not_taken_for_one_of_nix(tmp_path, monkeypatch):
    (tmp_path / "lib/python3.11/site-packages/torch").mkdir(parents=True)
    monkeypatch.setenv("VIRTUAL_ENV", str(tmp_path))
    monkeypatch.delenv("CONDA_PREFIX", raising=False)

    assert find_realization(None) is None
    named = find_realization(tmp_path)
    assert named is not None
    assert named.foundation == "venv"


def test_a_directory_named_like_a_store_path_elsewhere_is_no_store(tmp_path):
    place = tmp_path / f"{HASH}-work" / "env"
    (place / "lib/python3.11/site-packages").mkdir(parents=True)
    assert find_realization(place).foundation == "venv"


def test_a_store_path_that_is_no_environment_says_which_is(store):
    tree = store / f"{HASH}-site-packages-0123456789ab"
    (tree / "torch").mkdir(parents=True)

    with pytest.raises(TorchlockError) as fault:
        find_realization(tree)

    assert str(tree) in fault.value.message
    assert "invoke validate --prefix $(nix build" in fault.value.hint
