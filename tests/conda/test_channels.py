"""Channels as the user's `.condarc` has them, and which foundation can be had."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
import rattler

from torchlock.artifacts import Store
from torchlock.channels import package_mirrors
from torchlock.errors import TorchlockError
from torchlock.lock import Package
from torchlock.realize.choice import choose_foundation
from torchlock.realize.foundation import fetch_foundation, why_no_conda
from torchlock.realize.place import named_prefix


@pytest.fixture(autouse=True)
def no_settings(monkeypatch, tmp_path):
    for variable in [name for name in os.environ if name.startswith(("CONDA", "MAMBA", "XDG_"))]:
        monkeypatch.delenv(variable)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))


@pytest.fixture
def condarc(monkeypatch, tmp_path):
    def write(text: str) -> None:
        path = tmp_path / "condarc"
        path.write_text(text)
        monkeypatch.setenv("CONDARC", str(path))

    return write


@pytest.fixture
def named(world):
    """The lock as it would be with the channel given by name, at a host that is not there."""
    canonical = rattler.Channel("channel").base_url.rstrip("/")
    packages = [
        replace(p, url=p.url.replace(f"{world.server.url}/channel", canonical))
        for p in world.lock.packages
    ]
    return replace(world.lock, channels=("channel",), packages=tuple(packages))


def first(lock) -> Package:
    return lock.conda_packages("linux-64")[0]


def mirrors(lock) -> list[str]:
    return package_mirrors(lock, [first(lock)]).get(first(lock).sha256, [])


def test_an_alias_a_custom_channel_and_mirrors(named, condarc):
    rest = "noarch/greet-1.0-pyhd8ed1ab_0.conda"
    assert mirrors(named) == []
    condarc("channel_alias: http://mirror.example/conda/\n")
    assert mirrors(named) == [f"http://mirror.example/conda/channel/{rest}"]
    condarc("custom_channels:\n  channel: file:///srv\n")
    assert mirrors(named) == [f"file:///srv/channel/{rest}"]
    condarc("mirrored_channels:\n  channel: [http://a.example/x, http://b.example/y/]\n")
    assert mirrors(named) == [f"http://a.example/x/{rest}", f"http://b.example/y/{rest}"]
    condarc("mirrored_channels:\n  channel: http://a.example/x\nchannel_alias: http://b.example\n")
    assert mirrors(named) == [f"http://a.example/x/{rest}", f"http://b.example/channel/{rest}"]


def test_a_channel_given_as_a_url_is_meant_literally(world, condarc):
    condarc("channel_alias: http://mirror.example\n")
    assert mirrors(world.lock) == []


def test_packages_come_from_the_mirror_and_are_the_locked_ones(world, named, condarc, tmp_path):
    condarc(f"channel_alias: {world.server.url}\n")
    found = fetch_foundation(named, "linux-64", Store(tmp_path / "store"))
    assert [p.package.name for p in found] == [
        "greet", "pip", "python", "setuptools", "where", "whereami",
    ]  # fmt: skip


SETTINGS = {
    "custom_channels": "custom_channels:\n  channel: $MIRROR\n",
    "custom_multichannels": "custom_multichannels:\n  channel: [$NOWHERE/none, $MIRROR/channel]\n",
    "mirrored_channels": "mirrored_channels:\n  channel: ${MIRROR}/channel\n",
}


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("place", [".config/conda/condarc", ".conda/condarc.d/mirror.yml"])
def test_packages_come_from_where_a_file_of_condas_says(
    world, named, monkeypatch, tmp_path, setting, place
):
    monkeypatch.setenv("MIRROR", world.server.url)
    monkeypatch.setenv("NOWHERE", world.server.url)
    path = tmp_path / "home" / place
    path.parent.mkdir(parents=True)
    path.write_text(SETTINGS[setting])
    found = fetch_foundation(named, "linux-64", Store(tmp_path / "store"))
    assert len(found) == 6


@pytest.mark.parametrize(
    ("status", "hint"),
    [
        (404, "point your channel settings (.condarc) at"),
        (403, "proxy and channel settings (.condarc)"),
    ],
)
def test_what_to_do_about_a_conda_package_that_is_not_to_be_had(
    world, faults, tmp_path, status, hint
):
    for package in world.lock.conda_packages("linux-64"):
        faults.statuses[package.url.removeprefix(f"{world.server.url}/")] = [status]
    with pytest.raises(TorchlockError) as caught:
        fetch_foundation(world.lock, "linux-64", Store(tmp_path / "store"))
    assert hint in caught.value.hint
    assert "index" not in caught.value.hint


def test_conda_where_the_store_or_the_channel_has_it(world, named, condarc, tmp_path):
    empty = Store(tmp_path / "empty")
    assert why_no_conda(world.lock, "linux-64", world.store) == ""
    assert why_no_conda(world.lock, "linux-64", empty) == ""
    condarc(f"channel_alias: {world.server.url}\n")
    assert why_no_conda(named, "linux-64", empty) == ""


def test_why_there_is_no_conda(world, faults, tmp_path):
    empty = Store(tmp_path / "empty")
    faults.statuses["channel/noarch/greet-1.0-pyhd8ed1ab_0.conda"] = [404]
    assert why_no_conda(world.lock, "linux-64", empty) == "127.0.0.1 answers HTTP 404"
    nowhere = [replace(p, url=f"http://127.0.0.1:9/c/{p.filename}") for p in world.lock.packages]
    lock = replace(world.lock, packages=tuple(nowhere))
    assert why_no_conda(lock, "linux-64", empty) == "127.0.0.1 does not (ConnectionError)"


def test_where_conda_keeps_a_named_environment(condarc, monkeypatch, tmp_path):
    own = tmp_path / "home/.conda/envs"
    assert named_prefix("pt27") == own / "pt27"
    root = tmp_path / "miniforge"
    (root / "conda-meta").mkdir(parents=True)
    monkeypatch.setenv("CONDA_EXE", str(root / "bin/conda"))
    assert named_prefix("pt27") == own / "pt27"  # by conda's rule this root is not the user's
    (root / "conda-meta/history").touch()
    assert named_prefix("pt27") == root / "envs/pt27"
    (own / "pt27").mkdir(parents=True)
    assert named_prefix("pt27") == own / "pt27"  # where it is already
    assert named_prefix("pt28") == root / "envs/pt28"
    condarc("envs_dirs: [~/envs, /other]\n")
    assert named_prefix("pt28") == Path.home() / "envs/pt28"
    monkeypatch.setenv("CONDA_ENVS_PATH", f"{tmp_path}/a file/envs:{tmp_path}/second")
    (tmp_path / "a file").touch()
    assert named_prefix("pt28") == tmp_path / "second/pt28"


def test_where_micromamba_and_a_conda_on_path_keep_one(monkeypatch, tmp_path):
    root = tmp_path / "mamba"
    root.mkdir()
    monkeypatch.setenv("MAMBA_ROOT_PREFIX", str(root))
    assert named_prefix("pt27") == root / "envs/pt27"
    monkeypatch.delenv("MAMBA_ROOT_PREFIX")
    program = tmp_path / "opt/condabin/conda"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent))
    assert named_prefix("pt27") == tmp_path / "home/.conda/envs/pt27"
    (tmp_path / "opt/conda-meta").mkdir()
    (tmp_path / "opt/conda-meta/history").touch()
    assert named_prefix("pt27") == tmp_path / "opt/envs/pt27"


@pytest.mark.parametrize("name", ["", "base", "root", "..", "a/b", "a b", "a:b", "#x"])
def test_what_is_no_name(name):
    with pytest.raises(TorchlockError, match="no name"):
        named_prefix(name)


def test_the_foundation_is_chosen_and_the_reason_said(world, faults, made, tmp_path):
    def choose(asked: str, prefix: Path = tmp_path / "new", store: Store = world.store):
        return choose_foundation(asked, prefix, world.lock, "linux-64", store)

    assert choose("conda") == ("conda", "as asked for")
    assert choose("venv") == ("venv", "as asked for")
    assert choose("auto") == ("conda", "the conda packages can be had")
    assert choose("auto", made.prefix) == ("conda", "as it was made")
    faults.statuses["channel/noarch/greet-1.0-pyhd8ed1ab_0.conda"] = [503]
    assert choose("auto", store=Store(tmp_path / "empty")) == (
        "venv",
        "the conda channel cannot be used: 127.0.0.1 answers HTTP 503",
    )
    with pytest.raises(TorchlockError, match="no foundation 'nix'"):
        choose("nix")
