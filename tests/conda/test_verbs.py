"""The verbs over a small lock: `invoke env`, then `invoke validate`, as a user types them."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from tests.test_tasks import ROOT, invoke
from torchlock.artifacts import Store, fetch
from torchlock.files import write_atomically
from torchlock.realize.marker import read_marker
from torchlock.records import write_records
from torchlock.repository import Repository

pytestmark = pytest.mark.slow


@pytest.fixture
def clone(world, tmp_path: Path) -> Path:
    """The tool with the small lock in place of its own."""
    clone = tmp_path / "clone"
    ignored = shutil.ignore_patterns(".git", ".venv", "env", "tests", "records", "__pycache__")
    shutil.copytree(ROOT, clone, ignore=ignored)
    for path in (world.repository.environment, world.repository.lock, world.repository.pylock):
        shutil.copy(path, clone)
    write_records(world.records, Repository(clone).records, write_atomically)
    return clone


def foundation_in_certificate(clone: Path, prefix: Path, store: Path) -> str:
    """Let `invoke validate` judge the files; the stack has no torch, so the numbers fail."""
    certificate = prefix.with_name("certificate.json")
    done = invoke(
        "validate", "--prefix", str(prefix), "--only", "stack", "--device", "cpu",
        "--json", str(certificate), cwd=clone, CONDARC=os.devnull, TORCHLOCK_CACHE=str(store),
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    issued = json.loads(certificate.read_text())
    assert issued["files"]["verdict"] == "holds"
    assert "Traceback" not in done.stderr
    return str(issued["foundation"])


def test_auto_takes_conda_where_the_channel_answers_and_the_certificate_says_so(
    world, clone, tmp_path
):
    prefix, store = tmp_path / "env", tmp_path / "store"
    done = invoke(
        "env", "--foundation", "auto", "--prefix", str(prefix), "--json", "-",
        cwd=clone, CONDARC=os.devnull, TORCHLOCK_CACHE=str(store),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "foundation conda: the conda packages can be had" in done.stderr
    said = json.loads(done.stdout)
    assert (said["foundation"], said["tree"]) == ("conda", world.records.tree)
    assert f"next: conda activate {prefix}" in done.stderr
    assert foundation_in_certificate(clone, prefix, store) == "conda"


def test_auto_takes_the_hosts_python_where_it_does_not_and_the_certificate_says_so(
    world, clone, faults, tmp_path
):
    prefix, store = tmp_path / "env", Store(tmp_path / "store")
    fetch(world.lock.wheels("linux-64"), store)
    for package in world.lock.conda_packages("linux-64"):
        faults.statuses[package.url.removeprefix(f"{world.server.url}/")] = [503]
    done = invoke(
        "env", "--foundation", "auto", "--prefix", str(prefix), "--json", "-",
        cwd=clone, CONDARC=os.devnull, TORCHLOCK_CACHE=str(store.root),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    said = "foundation venv: the conda channel cannot be used: 127.0.0.1 answers HTTP 503"
    assert said in done.stderr
    assert json.loads(done.stdout)["foundation"] == "venv"
    marker = read_marker(prefix)
    assert marker
    assert marker.foundation == "venv"
    assert foundation_in_certificate(clone, prefix, store.root) == "venv"


def test_a_name_puts_the_environment_among_condas_own(world, clone, tmp_path):
    """In envs_dirs of a file of conda's own, which has a space in it and a variable."""
    settings = tmp_path / "home" / ".config" / "conda" / "condarc"
    settings.parent.mkdir(parents=True)
    settings.write_text('envs_dirs: ["$PLACE/my envs"]\n')
    variables = {"HOME": str(tmp_path / "home"), "PLACE": str(tmp_path), "CONDARC": ""}
    variables["TORCHLOCK_CACHE"] = str(world.store.root)
    done = invoke("env", "--foundation", "conda", "--name", "pt27", cwd=clone, **variables)
    assert done.returncode == 0, done.stderr
    prefix = tmp_path / "my envs" / "pt27"
    assert read_marker(prefix)
    assert f"next: conda activate '{prefix}'" in done.stderr
    # Given by place, with `..`, it is the same one: nothing is left to do.
    (tmp_path / "my envs" / "other").mkdir()
    other = f"{tmp_path}/my envs/other/../pt27"
    again = invoke("env", "--prefix", other, cwd=clone, **variables)
    assert f"{prefix} is what the lock says; nothing to do" in again.stderr


def test_a_channels_token_is_neither_shown_nor_in_the_certificate(world, clone, faults, tmp_path):
    prefix, certificate = tmp_path / "env", tmp_path / "certificate.json"
    world.make(prefix)
    (tmp_path / "condarc").write_text(
        f"custom_channels:\n  channel: {world.server.url}/t/tk-sesame\n"
    )
    for package in world.lock.conda_packages("linux-64"):
        faults.statuses[package.url.removeprefix(f"{world.server.url}/")] = [403]
    done = invoke(
        "validate", "--prefix", str(prefix), "--only", "stack", "--device", "cpu",
        "--json", str(certificate), cwd=clone,
        CONDARC=str(tmp_path / "condarc"), TORCHLOCK_CACHE=str(tmp_path / "empty"),
    )  # fmt: skip
    assert done.returncode in (1, 2)
    written = certificate.read_text()
    assert f"{world.server.url}/t/<TOKEN>" in written
    assert "sesame" not in written + done.stderr + done.stdout
