"""`conda-lock install` on our lock, with a genuine conda; and what conda makes of our prefixes."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.conda.conda_client import client_environment, write_client
from tests.conda.packing import bundled_version
from tests.conda.test_others_files import lock_with, pack
from tests.conda.test_validate import files_context
from torchlock.artifacts import ArtifactError, Store
from torchlock.errors import DoesNotHold
from torchlock.findings import find_site
from torchlock.lock import read_lock
from torchlock.realize.foundation import expect_foundation, fetch_foundation
from torchlock.verify import verify
from torchlock.verify_conda import verify_conda

pytestmark = pytest.mark.slow


@dataclass(frozen=True)
class Client:
    conda: Path
    environment: dict[str, str]

    def run(self, *arguments: object) -> str:
        return subprocess.run(
            [self.conda, *map(str, arguments)],
            env=self.environment, capture_output=True, text=True, check=True,
        ).stdout  # fmt: skip

    def install(self, lock: Path, prefix: Path) -> subprocess.CompletedProcess[str]:
        conda_lock = Path(sys.executable).with_name("conda-lock")
        command = [conda_lock, "install", "--conda", self.conda, "--prefix", prefix, lock]
        return subprocess.run(
            list(map(str, command)), env=self.environment, capture_output=True, text=True
        )


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Client:
    home = tmp_path_factory.mktemp("home")
    return Client(write_client(home), client_environment(home))


def judge(world, prefix: Path):
    foundation = fetch_foundation(world.lock, "linux-64", world.store)
    conda = verify_conda(prefix, expect_foundation(prefix, foundation), world.records)
    return conda, verify(find_site(prefix), world.records, explained=conda.explains)


def test_a_prefix_that_conda_lock_made_is_what_the_lock_says(world, client, repository, tmp_path):
    prefix = tmp_path / "by-conda-lock"
    done = client.install(world.repository.lock, prefix)
    assert done.returncode == 0, done.stderr
    conda, stack = judge(world, prefix)
    assert conda.findings == ()
    assert stack.findings == ()
    assert conda.superseded == ("greet",)
    assert conda.bytecode + stack.bytecode > 100  # conda compiles what it links
    context = files_context(repository, prefix)
    assert (context["verdict"], context["tree"]) == ("holds", world.records.tree)
    assert "files of 6 conda packages" in context["evidence"]
    assert f"{stack.bytecode} byte code files are what their source compiles to" in str(context)
    client.run("list", "--prefix", prefix)  # deletes the record of greet
    assert files_context(repository, prefix)["verdict"] == "holds"
    assert stack.tree == world.records.tree
    (prefix / "bin" / "where").write_text("#!/bin/sh\n")
    conda, _ = judge(world, prefix)
    assert [(f.kind, f.package, f.path) for f in conda.findings] == [
        ("changed", "where", "bin/where")
    ]


def test_conda_recognises_a_prefix_that_it_did_not_make(world, client, prefix):
    rows = json.loads(client.run("list", "--json", "--prefix", prefix))
    channel = f"{world.server.url}/channel"
    assert {(r["name"], r["version"], r["base_url"] == channel) for r in rows} == {
        ("greet", "2.0", False),
        ("pip", bundled_version("pip"), True),
        ("python", sys.version.split()[0], True),
        ("setuptools", bundled_version("setuptools"), True),
        ("tinystack", "1.5", False),
        ("where", "1.0", True),
        ("whereami", "2.1", True),
    }
    assert {r["name"] for r in rows if r["channel"] == "pypi"} == {"greet", "tinystack"}
    activation = client.run("shell.posix", "activate", prefix)
    script = f'{activation}\necho "$CONDA_PREFIX"; command -v python'
    out = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True).stdout
    assert out.split() == [str(prefix), f"{prefix}/bin/python"]
    explicit = client.run("list", "--explicit", "--md5", "--prefix", prefix)
    # conda leaves greet out of this list: it sees that the wheel took its place
    assert {
        f"{p.url}#{p.md5}" for p in world.lock.conda_packages("linux-64") if p.name != "greet"
    } <= set(explicit.split())
    # It deletes the record, too; the prefix is no worse for it.
    assert not (prefix / "conda-meta/greet-1.0-pyhd8ed1ab_0.json").exists()
    assert [verdict.findings for verdict in judge(world, prefix)] == [(), ()]
    assert not world.make(prefix).installed


def shell(*lines: str) -> list[str]:
    """Run lines of shell; return the lines that they print."""
    return subprocess.run(
        ["sh", "-e"], input="\n".join(lines), capture_output=True, text=True, check=True
    ).stdout.splitlines()


def test_activation_scripts_of_packages_are_run(world, client, prefix, tmp_path):
    scripts = {
        "etc/conda/activate.d/act.sh": 'export ACT="in $CONDA_PREFIX"\n',
        "etc/conda/deactivate.d/act.sh": 'echo "leaving $ACT"; unset ACT\n',
    }
    assert world.make(prefix, lock_with(world.lock, pack(tmp_path, "act", scripts))).conda.holds
    activate = client.run("shell.posix", "activate", prefix)
    assert shell(activate, 'echo "$ACT"') == [f"in {prefix}"]
    client.environment.update({"CONDA_PREFIX": str(prefix), "CONDA_SHLVL": "1"})
    try:
        deactivate = client.run("shell.posix", "deactivate")
    finally:
        del client.environment["CONDA_PREFIX"], client.environment["CONDA_SHLVL"]
    assert shell(activate, deactivate, 'echo "${ACT-none}"') == [f"leaving in {prefix}", "none"]


def test_variables_that_conda_sets_at_activation_are_named_until_they_are_unset(
    world, client, prefix
):
    client.run("env", "config", "vars", "set", "--prefix", prefix, "LD_PRELOAD=/tmp/x.so")
    with pytest.raises(DoesNotHold, match="activation sets LD_PRELOAD by it"):
        world.make(prefix)
    client.run("env", "config", "vars", "unset", "--prefix", prefix, "LD_PRELOAD")
    assert (prefix / "conda-meta/state").is_file()
    conda, stack = judge(world, prefix)
    assert (conda.findings, stack.findings) == ((), ())
    assert not world.make(prefix).installed


def test_a_package_that_conda_installed_is_not_taken_away(world, client, prefix, tmp_path):
    archive = pack(tmp_path, "same1", {"share/mine.txt": "mine"})
    client.run("install", "--yes", "--offline", "--prefix", prefix, archive)
    lock = lock_with(world.lock, pack(tmp_path, "other", {"share/other.txt": "x"}))
    for locked in (world.lock, lock):
        with pytest.raises(DoesNotHold, match="same1-1-0"):
            world.make(prefix, locked)
        assert (prefix / "share/mine.txt").read_text() == "mine"
    remove = ("remove", "--yes", "--offline", "--force", "--solver", "classic")
    client.run(*remove, "--prefix", prefix, "same1")
    assert world.make(prefix, lock).conda.holds


def test_conda_lock_ignores_a_wrong_conda_sha256_and_we_do_not(world, client, tmp_path):
    text = world.repository.lock.read_text()
    locked = next(p for p in world.lock.packages if p.name == "whereami")
    lock = tmp_path / "conda-lock.yml"
    lock.write_text(text.replace(locked.sha256, "ab" * 32))
    assert client.install(lock, tmp_path / "by-conda-lock").returncode == 0
    wrong = read_lock(lock)
    with pytest.raises(ArtifactError, match=f"whereami 2.1 cannot be fetched.*{locked.sha256}"):
        world.make(tmp_path / "by-us", wrong, store=Store(tmp_path / "store"))
    assert not (tmp_path / "by-us").exists()


def test_conda_lock_refuses_a_wrong_md5(world, client, tmp_path):
    locked = next(p for p in world.lock.packages if p.name == "whereami")
    lock = tmp_path / "conda-lock.yml"
    lock.write_text(world.repository.lock.read_text().replace(locked.md5, "0" * 31 + "f"))
    assert client.install(lock, tmp_path / "by-conda-lock").returncode != 0


def test_conda_lock_deletes_what_was_in_the_prefix_and_we_do_not(world, client, tmp_path):
    prefix = tmp_path / "precious"
    world.make(prefix)
    thesis = prefix / "thesis.tex"
    thesis.write_text("years of work")
    assert client.install(world.repository.lock, prefix).returncode == 0
    assert not thesis.exists()
    shutil.rmtree(prefix)
