"""A channel of genuine packages and a wheel index on 127.0.0.1, and a lock made over them."""

from __future__ import annotations

import base64
import ensurepip
import hashlib
import os
import shutil
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from loopback import Loopback, serving
from packing import (
    demo_binary,
    demo_link_script,
    demo_text,
    pack_python,
    pack_wheel,
    write_index,
)

from torchlock import records as recorded
from torchlock.artifacts import Store, fetch
from torchlock.lock import Lock, read_lock
from torchlock.realize.prefix import MadePrefix, make_prefix
from torchlock.records import Records
from torchlock.relock import relock
from torchlock.repository import Repository

WHEELS = {
    # greet is in both halves, in different versions: the wheel replaces the conda package
    "greet-2.0-py3-none-any.whl": {
        "greet/__init__.py": "def main():\n    print('hello from the wheel')\n",
        "greet-2.0.dist-info/entry_points.txt": "[console_scripts]\ngreet = greet:main\n",
    },
    "tinystack-1.5-py3-none-any.whl": {
        "tinystack/__init__.py": "import greet\n",
        "tinystack/weights.bin": "\0" * 1000,
        "tinystack-1.5.data/scripts/tiny": "#!python\nprint('tiny')\n",
        "tinystack-1.5.data/data/share/tiny/notes.txt": "notes\n",
    },
}
REQUIRES = {"tinystack": "greet"}

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


def write_wheel(directory: Path, filename: str, files: dict[str, str]) -> Path:
    name, version = filename.split("-")[:2]
    info = f"{name}-{version}.dist-info"
    requires = f"Requires-Dist: {REQUIRES[name]}\n" if name in REQUIRES else ""
    contents = {
        **files,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{requires}",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    rows = []
    for path, text in contents.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=")
        rows.append(f"{path},sha256={digest.decode()},{len(text.encode())}\n")
    rows.append(f"{info}/RECORD,,\n")
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / filename
    with zipfile.ZipFile(path, "w") as archive:
        for member, text in {**contents, f"{info}/RECORD": "".join(rows)}.items():
            archive.writestr(zipfile.ZipInfo(member, (2024, 1, 1, 0, 0, 0)), text)
    return path


@dataclass(frozen=True)
class World:
    """The served packages, and the lock over them."""

    server: Loopback
    root: Path
    repository: Repository
    lock: Lock
    records: Records
    store: Store

    @property
    def channel(self) -> Path:
        return self.root / "channel"

    def make(self, prefix: Path, lock: Lock | None = None, **options) -> MadePrefix:
        options.setdefault("store", self.store)
        return make_prefix(lock or self.lock, self.records, prefix, **options)


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Loopback]:
    root = tmp_path_factory.mktemp("served")
    scratch = tmp_path_factory.mktemp("scratch")
    channel = root / "channel"
    channel.mkdir()
    pack_python(channel, scratch)
    for wheel in (Path(ensurepip.__file__).parent / "_bundled").glob("*.whl"):
        pack_wheel(channel, wheel, depends=("setuptools",) if wheel.name[:3] == "pip" else ())
    old = write_wheel(scratch, "greet-1.0-py3-none-any.whl", {
        "greet/__init__.py": "def main():\n    print('hello from conda')\n",
        "greet/old.py": "",
        "greet-1.0.dist-info/entry_points.txt":
            "[console_scripts]\ngreet = greet:main\ngreet-old = greet:main\n",
    })  # fmt: skip
    pack_wheel(channel, old)
    demo_text(channel)
    demo_binary(channel, scratch)
    demo_link_script(channel)
    write_index(channel)
    for filename, files in WHEELS.items():
        wheel = write_wheel(root / "wheels", filename, files)
        page = root / "simple" / filename.split("-")[0] / "index.html"
        page.parent.mkdir(parents=True)
        digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
        page.write_text(f'<a href="/wheels/{filename}#sha256={digest}">{filename}</a>')
    with serving(root) as server:
        server.directory = root
        yield server


def make_repository(root: Path, served: Loopback, store: Store, more: str = "") -> Repository:
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
def world(served: Loopback, tmp_path_factory: pytest.TempPathFactory) -> World:
    store = Store(tmp_path_factory.mktemp("store"))
    repository = make_repository(tmp_path_factory.mktemp("repository"), served, store)
    lock = read_lock(repository.lock)
    wheels = lock.wheels("linux-64")
    records = recorded.record(list(zip(wheels, fetch(wheels, store), strict=True)), "linux-64")
    return World(served, served.directory, repository, lock, records, store)


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


@pytest.fixture(autouse=True)
def no_faults(served: Loopback) -> Iterator[None]:
    yield
    served.faults.clear()
