"""The user's list of environments, against what conda itself makes of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conda.conda_client import client_environment, write_client
from tests.support.disks import read_only
from torchlock.artifacts import ArtifactError, Store
from torchlock.realize.environments_txt import register_environment

ORACLE = r"""
import json, os, sys
import conda_lock._vendor
from pathlib import Path
sys.path.insert(0, os.path.dirname(conda_lock._vendor.__file__))
from conda_lock._vendor.conda.core.envs_manager import register_env
path = Path(os.path.expanduser("~/.conda/environments.txt"))
answers = []
for text, location in json.load(sys.stdin):
    path.parent.mkdir(exist_ok=True)
    path.unlink() if path.exists() else None
    path.write_text(text) if text is not None else None
    register_env(location)
    answers.append(path.read_text() if path.exists() else None)
json.dump(answers, sys.stdout)
"""
"""Prints what conda 24.7 makes of the list in each case."""

TEXTS = (None, "", "/other\n", "# mine\n\n  /with spaces \n/listed\n", "/listed", "/listed/more\n")
LOCATIONS = ("/new", "/listed", "/with spaces", "/# mine", "/ä", "/a/skeleton_b", "/a/placehold_pl")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home of its own, in which conda's settings say nothing."""
    for name in [name for name in os.environ if name.startswith(("CONDA", "MAMBA", "XDG_"))]:
        monkeypatch.delenv(name)
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    return home


def listed(home: Path) -> str | None:
    path = home / ".conda" / "environments.txt"
    return path.read_text() if path.exists() else None


def test_the_list_is_what_conda_makes_of_it(home: Path):
    cases = [(text, location) for text in TEXTS for location in LOCATIONS]
    cases.remove(("/listed", "/new"))  # conda makes one path of two where a line has no end
    cases = [c for c in cases if c[0] != "/listed" or c[1] == "/listed"]
    done = subprocess.run(
        [sys.executable, "-c", ORACLE],
        input=json.dumps(cases), capture_output=True, text=True, check=True,
    )  # fmt: skip
    path = home / ".conda" / "environments.txt"
    for (text, location), conda in zip(cases, json.loads(done.stdout), strict=True):
        path.unlink(missing_ok=True)
        if text is not None:
            path.write_text(text)
        register_environment(Path(location))
        assert listed(home) == conda, (text, location)


def test_a_line_without_an_end_stays_a_line_of_its_own(home: Path):
    (home / ".conda").mkdir()
    (home / ".conda" / "environments.txt").write_text("/listed")
    register_environment(Path("/new"))
    assert listed(home) == "/listed\n/new\n"


@pytest.mark.parametrize("setting", ["register_envs: false\n", "register_envs: [\n"])
def test_nothing_is_listed_against_the_users_settings(home: Path, setting: str):
    (home / ".condarc").write_text(setting)
    register_environment(Path("/new"))
    assert listed(home) is None


def test_a_list_that_cannot_be_written_is_left_alone(home: Path, monkeypatch):
    with read_only(home):
        register_environment(Path("/new"))
        assert listed(home) is None
    (home / ".conda" / "environments.txt").mkdir(parents=True)
    register_environment(Path("/new"))
    monkeypatch.setenv("HOME", str(home / "none"))
    register_environment(Path("/new"))
    assert not (home / "none").exists()
    monkeypatch.setenv("HOME", "")
    monkeypatch.chdir(home)
    register_environment(Path("/new"))
    assert [path.name for path in home.iterdir()] == [".conda"]


def test_a_prefix_is_listed_once_and_when_it_is_complete(world, faults, home: Path, tmp_path: Path):
    prefix = tmp_path / "my env"
    wheel = next(p for p in world.lock.packages if p.name == "tinystack")
    faults.statuses[wheel.filename] = [404]
    with pytest.raises(ArtifactError, match="tinystack"):
        world.make(prefix, store=Store(tmp_path / "store"))
    assert listed(home) is None
    assert world.make(prefix).installed
    assert listed(home) == f"{prefix}\n"
    assert not world.make(prefix).installed
    assert listed(home) == f"{prefix}\n"
    (home / ".conda" / "environments.txt").unlink()
    assert not world.make(prefix).installed
    assert listed(home) == f"{prefix}\n"


@pytest.mark.slow
def test_conda_env_list_shows_the_prefix(world, home: Path, tmp_path: Path):
    made, other = tmp_path / "my env", tmp_path / "other"
    world.make(made)
    (other / "conda-meta").mkdir(parents=True)
    (other / "conda-meta" / "history").touch()
    conda = write_client(tmp_path)
    # For root conda goes by /etc/passwd and not by HOME, so it is started as nobody in particular.
    nobody = ["unshare", "--user"] if os.geteuid() == 0 else []
    done = subprocess.run(
        [*nobody, conda, "env", "list", "--json"],
        env=client_environment(home), capture_output=True, text=True, check=True,
    )  # fmt: skip
    shown = json.loads(done.stdout)["envs"]
    assert str(made) in shown
    assert str(other) not in shown
