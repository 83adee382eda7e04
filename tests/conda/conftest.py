"""A channel of genuine packages and a wheel index on 127.0.0.1, and a lock made over them."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.conda.packing import (
    bundled_wheels,
    demo_binary,
    demo_failing_link_script,
    demo_link_script,
    demo_meddling_link_script,
    demo_slow_link_script,
    demo_text,
    pack_python,
    pack_wheel,
    write_channel_index,
)
from tests.support.index import write_index
from tests.support.server import Faults, Served, serve
from tests.support.wheels import build_wheel
from torchlock import records as recorded
from torchlock.artifacts import Store, fetch
from torchlock.files import write_atomically
from torchlock.lock import Lock, read_lock
from torchlock.realize.prefix import MadePrefix, make_prefix
from torchlock.records import Records, write_records
from torchlock.relock import relock
from torchlock.repository import Repository

ENVIRONMENT = """\
name: demo
channels:
  - {channel}
platforms:
  - linux-64
dependencies:
  - python 3.11.*
  - pip
  - greet
  - where
  - whereami
{more}  - pip:
      - tinystack
"""


SHOW = """\
import shutil, sys
from pathlib import Path
shutil.copy(sys.argv[sys.argv.index("--context") + 1], Path(__file__).with_name("shown.json"))
"""


@dataclass(frozen=True)
class World:
    """The served packages, and the lock over them."""

    server: Served
    root: Path
    repository: Repository
    lock: Lock
    records: Records
    store: Store

    def make(self, prefix: Path, lock: Lock | None = None, **options) -> MadePrefix:
        options.setdefault("store", self.store)
        return make_prefix(lock or self.lock, self.records, prefix, **options)


@pytest.fixture(scope="session", autouse=True)
def unlisted() -> Iterator[None]:
    """Prefixes of tests stay off the list that conda keeps for the person who runs them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CONDA_REGISTER_ENVS", "false")
        yield


@pytest.fixture(scope="session")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with `channel/` and the wheels and pages of an index."""
    if sys.version_info[:2] != (3, 11):
        pytest.skip(f"the running CPython is packed, which must be a 3.11; {sys.executable} is not")
    root = tmp_path_factory.mktemp("served")
    scratch = tmp_path_factory.mktemp("scratch")
    channel = root / "channel"
    channel.mkdir()
    pack_python(channel, scratch)
    for name, wheel in bundled_wheels().items():
        pack_wheel(channel, wheel, depends=("setuptools",) if name == "pip" else ())
    # greet is in both halves, in different versions: the wheel replaces the conda package
    greet = b"def main():\n    print('hello from %s')\n"
    old = build_wheel(
        scratch,
        "greet",
        "1.0",
        {"greet/__init__.py": greet % b"conda", "greet/old.py": b""},
        entry_points="[console_scripts]\ngreet = greet:main\ngreet-old = greet:main\n",
    )
    pack_wheel(channel, old)
    demo_text(channel)
    demo_binary(channel, scratch)
    demo_link_script(channel)
    demo_meddling_link_script(channel)
    demo_slow_link_script(channel)
    demo_failing_link_script(channel)
    write_channel_index(channel)
    build_wheel(
        root,
        "greet",
        "2.0",
        {"greet/__init__.py": greet % b"the wheel"},
        entry_points="[console_scripts]\ngreet = greet:main\n",
    )
    build_wheel(
        root,
        "tinystack",
        "1.5",
        {
            "tinystack/__init__.py": b"import greet\n",
            "tinystack/weights.bin": bytes(1000),
            "tinystack-1.5.data/scripts/tiny": b"#!python\nprint('tiny')\n",
            "tinystack-1.5.data/data/share/tiny/notes.txt": b"notes\n",
        },
        executable=frozenset({"tinystack-1.5.data/scripts/tiny"}),  # pip keeps the wheel's mode
        requires=("greet",),
    )
    write_index(root)
    return root


@pytest.fixture(scope="session")
def served(packed: Path) -> Iterator[Served]:
    with serve(packed) as server:
        yield server


def make_repository(root: Path, served: Served, store: Store, more: str = "") -> Repository:
    """Make a repository whose lock `invoke lock` makes over the loopback server."""
    repository = Repository(root)
    root.mkdir(parents=True, exist_ok=True)
    channel = f"{served.url}/channel"
    repository.environment.write_text(ENVIRONMENT.format(channel=channel, more=more))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("UV_DEFAULT_INDEX", f"{served.url}/simple")
        patch.setenv("UV_CACHE_DIR", str(root / "uv-cache"))
        patch.setenv("CONDARC", os.devnull)
        relock(repository, store)
    return repository


@pytest.fixture(scope="session")
def world(served: Served, packed: Path, tmp_path_factory: pytest.TempPathFactory) -> World:
    store = Store(tmp_path_factory.mktemp("store"))
    repository = make_repository(tmp_path_factory.mktemp("repository"), served, store)
    lock = read_lock(repository.lock)
    wheels = lock.wheels("linux-64")
    records = recorded.record(list(zip(wheels, fetch(wheels, store), strict=True)), "linux-64")
    return World(served, packed, repository, lock, records, store)


@pytest.fixture(scope="session")
def made(world: World, tmp_path_factory: pytest.TempPathFactory) -> MadePrefix:
    """A prefix made once and not to be changed."""
    return world.make(tmp_path_factory.mktemp("made") / "demo")


@pytest.fixture
def prefix(made: MadePrefix, world: World, tmp_path: Path) -> Iterator[Path]:
    """A prefix to spoil."""
    place = tmp_path / "demo"
    world.make(place)
    yield place
    shutil.rmtree(place, ignore_errors=True)


@pytest.fixture
def faults(served: Served) -> Iterator[Faults]:
    """The faults of the server; none are left for the next test."""
    yield served.faults
    served.faults = Faults()


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
