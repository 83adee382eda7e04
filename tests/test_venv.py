"""The venv realization, with the real uv on small wheels."""

from __future__ import annotations

import os
import pickle
import random
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import pytest

from tests.support.children import start, wait_until
from tests.support.disks import read_only, small_disk
from tests.support.locks import lock_of, locked_wheel, records_of
from tests.support.wheels import build_wheel
from torchlock import download
from torchlock.artifacts import Store
from torchlock.errors import DoesNotHold, TorchlockError
from torchlock.findings import find_site
from torchlock.lock import Lock, Package
from torchlock.realize import interpreter, venv
from torchlock.realize.interpreter import Interpreter, find_interpreter
from torchlock.realize.marker import NAME, Marker, read_marker
from torchlock.realize.venv import Made, make_venv
from torchlock.records import Records
from torchlock.verify import verify

SITE = "lib/python3.11/site-packages"


@dataclass
class World:
    """A lock over small wheels, a store, and a place for a prefix."""

    wheels: list[Path]
    store: Store
    prefix: Path
    url: str = "http://127.0.0.1:9"

    @property
    def lock(self) -> Lock:
        return lock_of(self.packages)

    @property
    def packages(self) -> list[Package]:
        return [locked_wheel(path, self.url) for path in self.wheels]

    @property
    def records(self) -> Records:
        return recorded(tuple(self.packages), tuple(self.wheels))

    def fill_store(self) -> None:
        """Put the wheels into the store, as if fetched."""
        for package, path in zip(self.packages, self.wheels, strict=True):
            target = self.store.path(package)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, target)

    def make(self, **options) -> Made:
        return make_venv(self.lock, self.records, self.prefix, Store(self.store.root), **options)

    def holds(self) -> bool:
        return verify(find_site(self.prefix), self.records).holds

    def run(self, program: str, *arguments: str) -> str:
        environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
        done = subprocess.run(
            [self.prefix / "bin" / program, *arguments],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout.strip()


@lru_cache
def recorded(packages: tuple[Package, ...], wheels: tuple[Path, ...]) -> Records:
    """Record wheels once; their digests are part of what is asked."""
    return records_of(wheels)


def small_wheels(directory: Path) -> list[Path]:
    directory.mkdir(exist_ok=True)
    return [
        build_wheel(
            directory,
            "alpha",
            files={
                "alpha/__init__.py": b"VALUE = 1\n\n\ndef main():\n    print('alpha', VALUE)\n",
                "alpha/native.so": b"\x7fELF" + bytes(1000),
                "alpha/bin/tool": b"#!/bin/sh\necho tool\n",
                "shared/__init__.py": b"",
                "alpha-1.0.data/scripts/alpha-run": b"#!python\nprint('run')\n",
                "alpha-1.0.data/data/share/alpha.txt": b"data",
            },
            executable=frozenset({"alpha/bin/tool"}),
            entry_points="[console_scripts]\nalpha = alpha:main\n",
        ),
        build_wheel(
            directory, "beta", files={"beta.py": b"VALUE = 2\n", "shared/__init__.py": b""},
            requires=("not-locked>=5",),
        ),
    ]  # fmt: skip


@pytest.fixture
def world(tmp_path, monkeypatch) -> World:
    monkeypatch.setattr(download, "BACKOFF", 0.001)
    world = World(small_wheels(tmp_path / "wheels"), Store(tmp_path / "store"), tmp_path / "env")
    world.fill_store()
    return world


def state(root: Path) -> dict[str, tuple]:
    return {
        str(p.relative_to(root)): (s.st_ino, s.st_size, s.st_mode, s.st_mtime_ns, s.st_ctime_ns)
        for p in sorted(root.rglob("*"))
        if (s := p.lstat())
    }


def flip(path: Path) -> None:
    """Change one byte in place: through a hard link uv's cache changes with it."""
    status = path.stat()
    with path.open("r+b") as stream:
        stream.seek(3)
        stream.write(b"~")
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def broken(world: World, error: type[TorchlockError] = TorchlockError, **options):
    with pytest.raises(error) as caught:
        world.make(**options)
    return caught.value


def test_a_fresh_venv_is_what_the_lock_says_and_runs(world):
    made = world.make()
    assert (made.installed, made.verdict.holds) == (True, True)
    assert made.verdict.tree == world.records.tree
    assert world.run("alpha") == "alpha 1"
    assert world.run("alpha-run") == "run"
    assert world.run("python", "-c", "import beta; print(beta.VALUE)") == "2"
    assert world.run("python", "-c", "import sys; print(sys.prefix)") == str(world.prefix)
    marker = read_marker(world.prefix)
    assert marker == Marker(world.lock.digest, "venv", ("alpha==1.0", "beta==1.0"), complete=True)


def test_again_changes_nothing(world):
    world.make()
    before = state(world.prefix)
    made = world.make()
    assert not made.installed
    assert made.verdict.tree == world.records.tree
    assert state(world.prefix) == before


def test_again_needs_neither_store_nor_network(world):
    world.make()
    shutil.rmtree(world.store.root)
    assert not world.make().installed


@pytest.mark.parametrize("damage", ["change", "delete", "mode", "link", "so", "script", "console"])
def test_tampering_is_repaired(world, damage):
    world.make()
    module = world.prefix / SITE / "alpha/__init__.py"
    if damage == "change":
        flip(module)
    elif damage == "so":
        flip(world.prefix / SITE / "alpha/native.so")
    elif damage == "delete":
        module.unlink()
    elif damage == "mode":
        module.chmod(0o755)
    elif damage == "link":
        module.rename(world.prefix.parent / "copy")
        module.symlink_to(world.prefix.parent / "copy")
    elif damage == "script":
        (world.prefix / "bin/alpha-run").unlink()
    else:
        (world.prefix / "bin/alpha").write_text("#!/bin/sh\necho evil\n")
    assert not world.holds()
    said = []
    made = world.make(say=said.append)
    assert (made.installed, made.verdict.holds) == (True, True)
    assert "repairing alpha" in said
    assert world.run("alpha") == "alpha 1"


def test_a_prefix_that_lost_its_site_packages_is_made_whole(world):
    world.make()
    shutil.rmtree(world.prefix / SITE)
    assert world.make().installed
    assert world.holds()


def test_a_second_prefix_is_linked_from_what_was_read_and_says_so(world):
    said: list[str] = []
    time.sleep(0.05)  # what changed a moment ago is not noted
    world.make(say=said.append)
    assert "artifacts: 2 read, 0 unchanged since they were read" in said
    assert "installed files: 11 read, 0 unchanged since they were read" in said
    time.sleep(0.05)
    world.make()
    said.clear()
    replace(world, prefix=world.prefix.parent / "other").make(say=said.append)
    assert "artifacts: 0 read, 2 unchanged since they were read" in said
    # Two wheels carry shared/__init__.py; whose copy uv links, read or not, is up to its threads.
    told = ("installed files: 0 read, 11 unchanged", "installed files: 1 read, 10 unchanged")
    assert [line for line in said if line.startswith(told)]


def test_a_second_prefix_is_not_made_of_what_was_tampered_with_in_the_first(world):
    world.make()
    flip(world.prefix / SITE / "alpha/__init__.py")
    other = replace(world, prefix=world.prefix.parent / "other")
    assert other.make().verdict.holds


def test_a_prefix_of_somebody_else_is_left_alone(world):
    world.prefix.mkdir()
    (world.prefix / "thesis.txt").write_text("mine")
    before = state(world.prefix)
    error = broken(world)
    assert "torchlock did not make it" in error.message
    assert "--prefix" in error.hint
    assert state(world.prefix) == before


def test_a_venv_of_somebody_else_is_left_alone(world):
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", world.prefix], check=True)
    before = state(world.prefix)
    assert "torchlock did not make it" in broken(world).message
    assert state(world.prefix) == before


def test_an_empty_directory_is_used(world):
    world.prefix.mkdir()
    assert world.make().verdict.holds


@pytest.mark.parametrize("below", ["", "/below"])
def test_a_file_is_no_prefix(world, below):
    world.prefix.write_text("mine")
    world.prefix = Path(f"{world.prefix}{below}")
    assert "is not a directory" in broken(world).message


def test_a_prefix_on_another_foundation_is_left_alone(world):
    world.prefix.mkdir()
    (world.prefix / NAME).write_text(
        '{"format": 1, "lock": "x", "foundation": "conda", "wheels": [], "complete": true}'
    )
    error = broken(world)
    assert "is a conda prefix, not a venv" in error.message
    assert "--foundation conda" in error.hint


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "5", '"x"', "null", "{}", '{"format": 2}', '{"format": 1, "lock": 1}']
)
def test_a_damaged_marker_is_named(world, text):
    world.prefix.mkdir()
    (world.prefix / NAME).write_text(text)
    assert f"{world.prefix / NAME} is damaged" in broken(world).message


def test_a_foreign_file_is_reported_and_stays(world):
    world.make()
    foreign = world.prefix / SITE / "alpha.py"
    foreign.write_text("mine")
    before = state(world.prefix)
    shutil.rmtree(world.store.root / "sha256")
    error = broken(world, DoesNotHold)
    assert f"shadows: {SITE}/alpha.py" in error.message
    assert "removes nothing that it did not install" in error.hint
    assert state(world.prefix) == before
    foreign.unlink()
    assert not world.make().installed


def test_a_foreign_file_does_not_keep_damage_from_being_repaired(world):
    world.make()
    (world.prefix / SITE / "mine.py").write_text("mine")
    (world.prefix / SITE / "beta.py").unlink()
    error = broken(world, DoesNotHold)
    assert "mine.py" in error.message
    assert "beta" not in error.message
    assert (world.prefix / SITE / "beta.py").exists()
    assert (world.prefix / SITE / "mine.py").read_text() == "mine"


def test_another_version_installed_over_it_is_put_right(world, tmp_path):
    world.make()
    uv_install(world.prefix, build_wheel(tmp_path, "beta", "0.9", files={"beta.py": b"old\n"}))
    assert "0.9 is installed, the lock says 1.0" in str(
        verify(find_site(world.prefix), world.records).findings[0]
    )
    assert world.make().verdict.holds
    assert not (world.prefix / SITE / "beta-0.9.dist-info").exists()


def test_what_is_left_of_another_version_is_named(world):
    world.make()
    left = world.prefix / SITE / "beta-0.9.dist-info"
    left.mkdir()
    (left / "METADATA").write_text("Metadata-Version: 2.1\nName: beta\nVersion: 0.9\n")
    error = broken(world, DoesNotHold)
    assert f"version: {SITE}/beta-0.9.dist-info (beta)" in error.message
    assert "remove them" in error.hint


def test_a_changed_lock_moves_the_prefix(world, tmp_path):
    world.make()
    world.run("alpha")
    world.run("python", "-c", "import beta")
    extra = build_wheel(tmp_path, "mine", files={"mine.py": b"x = 1\n"})
    uv_install(world.prefix, extra)
    beta = build_wheel(tmp_path / "wheels", "beta", "2.0", files={"beta.py": b"VALUE = 3\n"})
    gamma = build_wheel(tmp_path / "wheels", "gamma", files={"gamma.py": b""})
    world.wheels = [beta, gamma]
    world.fill_store()
    error = broken(world, DoesNotHold)
    assert "mine.py" in error.message
    assert "alpha" not in error.message
    site = world.prefix / SITE
    assert list(site.rglob("alpha*")) == []
    assert not (world.prefix / "bin/alpha").exists()
    assert (site / "beta.py").read_text() == "VALUE = 3\n"
    assert (site / "mine.py").exists()
    uv("pip", "uninstall", "--python", str(world.prefix / "bin/python"), "mine")
    assert world.make().verdict.tree == world.records.tree
    assert read_marker(world.prefix).wheels == ("beta==2.0", "gamma==1.0")


def test_a_wheel_that_the_user_moved_to_another_version_is_not_taken_away(world, tmp_path):
    world.make()
    uv_install(world.prefix, build_wheel(tmp_path, "alpha", "1.1", files={"alpha.py": b"mine\n"}))
    world.wheels = [path for path in world.wheels if not path.name.startswith("alpha")]
    error = broken(world, DoesNotHold)
    assert f"foreign: {SITE}/alpha.py" in error.message
    assert (world.prefix / SITE / "alpha.py").read_text() == "mine\n"


def test_a_file_of_the_user_is_not_overwritten_by_a_wheel_of_a_new_lock(world, tmp_path):
    world.make()
    mine = world.prefix / SITE / "gamma.py"
    mine.write_text("years of work")
    gamma = build_wheel(tmp_path / "wheels", "gamma", files={"gamma.py": b"", "delta.py": b""})
    world.wheels = [*world.wheels, gamma]
    world.fill_store()
    for _ in range(2):
        error = broken(world, DoesNotHold)
        assert (
            f"foreign: {SITE}/gamma.py (gamma): a file of the lock would take its" in error.message
        )
        assert "nothing has been changed" in error.message
        assert mine.read_text() == "years of work"
        assert not (world.prefix / SITE / "delta.py").exists()
    mine.rename(tmp_path / "gamma.py")
    assert world.make().verdict.holds


def test_nothing_is_written_or_removed_through_a_directory_that_is_a_link(world, tmp_path):
    world.make()
    outside = tmp_path / "outside"
    (world.prefix / SITE / "alpha").rename(outside)
    (world.prefix / SITE / "alpha").symlink_to(outside)
    (outside / "__init__.py").write_text("mine\n")
    before = {path.name: path.read_bytes() for path in outside.iterdir() if path.is_file()}
    for lock in ("the same", "without alpha"):
        if lock == "without alpha":
            world.wheels = [path for path in world.wheels if not path.name.startswith("alpha")]
        error = broken(world, DoesNotHold)
        assert f"foreign: {SITE}/alpha: a link to {outside} stands in the place" in error.message
        assert {p.name: p.read_bytes() for p in outside.iterdir() if p.is_file()} == before


def test_a_directory_of_the_user_in_the_place_of_a_file_is_named(world):
    world.make()
    place = world.prefix / SITE / "beta.py"
    place.unlink()
    place.mkdir()
    (place / "thesis.tex").write_text("years of work")
    for _ in range(2):
        error = broken(world, DoesNotHold)
        assert f"{SITE}/beta.py: a directory stands in the place of a file" in error.message
    assert (place / "thesis.tex").exists()


def test_it_says_why_something_is_installed_again(world):
    world.make()
    (world.prefix / SITE / "beta.py").unlink()
    said: list[str] = []
    world.make(say=said.append)
    assert any(f"missing: {SITE}/beta.py (beta)" in line for line in said)


def test_a_wheel_of_one_version_but_other_contents_replaces_the_old(world, tmp_path):
    world.make()
    world.wheels[1] = build_wheel(tmp_path / "wheels", "beta", files={"beta.py": b"VALUE = 9\n"})
    world.fill_store()
    assert world.make().verdict.holds
    assert world.run("python", "-c", "import beta; print(beta.VALUE)") == "9"


def test_the_locked_one_of_two_wheels_of_a_version_is_installed(world, tmp_path):
    tag = "cp311-cp311-manylinux_2_17_x86_64"
    better = build_wheel(tmp_path / "wheels", "beta", files={"beta.py": b"VALUE = 7\n"}, tag=tag)
    plain = world.wheels[1]
    for wheel, value in ((better, "7"), (plain, "2"), (better, "7")):
        world.wheels[1] = wheel
        world.fill_store()
        assert world.make().verdict.holds
        assert world.run("python", "-c", "import beta; print(beta.VALUE)") == value


def uv(*arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "uv", *arguments], check=True, capture_output=True)


def uv_install(prefix: Path, wheel: Path) -> None:
    uv("pip", "install", "--python", str(prefix / "bin/python"), "--no-deps", "--no-index",
       str(wheel))  # fmt: skip


def test_poisoned_byte_code_is_reported(world):
    world.make()
    assert world.run("alpha") == "alpha 1"
    (code,) = (world.prefix / SITE / "alpha/__pycache__").iterdir()
    assert not world.make().installed
    assert world.make().verdict.bytecode == 1
    data = code.read_bytes()
    assert b"alpha" in data[16:]
    code.write_bytes(data[:16] + data[16:].replace(b"alpha", b"evil!"))
    assert world.run("alpha") == "evil! 1"
    error = broken(world, DoesNotHold)
    assert f"byte code: {code.relative_to(world.prefix)}" in error.message
    assert "remove them" in error.hint
    code.unlink()
    assert not world.make().installed


# A python that is not the prefix's own


def test_without_its_configuration_the_hosts_python_is_not_written_to(world):
    world.make()
    (world.prefix / "pyvenv.cfg").unlink()
    (world.prefix / SITE / "beta.py").unlink()
    made = world.make()
    assert made.verdict.holds
    assert world.run("python", "-c", "import sys; print(sys.prefix)") == str(world.prefix)


def test_a_python_that_is_gone_is_replaced(world):
    world.make()
    for link in (world.prefix / "bin").glob("python*"):
        link.unlink()
        link.symlink_to("/nowhere/python")
    assert world.make().verdict.holds
    assert world.run("alpha") == "alpha 1"


def test_a_python_of_another_version_is_replaced(world):
    world.make()
    fake = world.prefix / "bin/python"
    fake.unlink()
    fake.write_text(f"#!/bin/sh\nprintf '3.12\\n{world.prefix}\\n'\n")
    fake.chmod(0o755)
    assert world.make().verdict.holds
    assert world.run("alpha") == "alpha 1"


def test_a_moved_prefix_is_put_right(world):
    world.make()
    world.prefix = world.prefix.rename(world.prefix.with_name("moved"))
    assert "starts" in verify(find_site(world.prefix), world.records).findings[0].detail
    assert world.make().verdict.holds
    assert world.run("alpha") == "alpha 1"
    assert world.run("alpha-run") == "run"


@pytest.mark.parametrize("name", ["with space", "ünï", "a'b", "x" * 150])
def test_odd_paths(world, name):
    world.prefix = world.prefix.parent / name / "env"
    assert world.make().verdict.holds
    assert world.run("alpha") == "alpha 1"
    assert world.run("alpha-run") == "run"
    assert not world.make().installed


def test_no_interpreter_says_what_to_install(world, monkeypatch):
    monkeypatch.setattr(interpreter, "_running", lambda: None)
    monkeypatch.setattr(interpreter, "_asked", lambda program: None)
    monkeypatch.setattr(interpreter, "_uv_python", lambda *arguments: "")
    error = broken(world)
    assert "there is no CPython 3.11 here" in error.message
    assert "apt-get install python3.11" in error.hint
    assert not world.prefix.exists()


def test_the_interpreter_is_a_base_one_of_the_right_version():
    found = find_interpreter()
    code = "import sys; print(sys.version_info[:2] == (3, 11) and sys.prefix == sys.base_prefix)"
    done = subprocess.run([found.program, "-I", "-c", code], capture_output=True, check=True)
    assert done.stdout.strip() == b"True"


def test_a_host_whose_python_has_no_venv(world, tmp_path, monkeypatch):
    bare = tmp_path / "python"
    bare.write_text("#!/bin/sh\necho No module named venv >&2\nexit 1\n")
    bare.chmod(0o755)
    monkeypatch.setattr(venv, "find_interpreter", lambda: Interpreter(bare, "a bare one"))
    error = broken(world)
    assert "No module named venv" in error.message
    assert "python3-venv" in error.hint
    monkeypatch.undo()
    assert world.make().verdict.holds


# The user's own settings


def test_no_setting_of_the_user_changes_the_result(world, monkeypatch, tmp_path):
    elsewhere = tmp_path / "elsewhere"
    other = build_wheel(tmp_path, "beta", "9.0", files={"beta.py": b"VALUE = 9\n"})
    constraints = tmp_path / "constraints.txt"
    constraints.write_text("beta==9.0\n")
    config = tmp_path / "uv.toml"
    config.write_text(f'find-links = ["{tmp_path}"]\n[pip]\nno-binary = [":all:"]\n')
    (tmp_path / "pip.conf").write_text("[global]\nrequire-virtualenv = true\nno-binary = :all:\n")
    (tmp_path / "usercode").mkdir()
    (tmp_path / "usercode/encodings.py").write_text("raise SystemExit(1)\n")
    settings = {
        "UV_CONFIG_FILE": config, "UV_CONSTRAINT": constraints, "UV_OVERRIDE": constraints,
        "UV_FIND_LINKS": tmp_path, "UV_INDEX_URL": "http://127.0.0.1:9/simple",
        "UV_EXTRA_INDEX_URL": "http://127.0.0.1:9/simple", "UV_PYTHON": "3.12",
        "UV_TARGET": elsewhere, "UV_SYSTEM_PYTHON": "1", "UV_LINK_MODE": "symlink",
        "UV_COMPILE_BYTECODE": "1", "UV_CACHE_DIR": elsewhere, "UV_NO_CACHE": "1",
        "UV_NO_BINARY": "1", "UV_PRERELEASE": "allow", "UV_EXCLUDE_NEWER": "2001-01-01",
        "UV_PROJECT_ENVIRONMENT": elsewhere, "UV_NO_INSTALLER_METADATA": "1",
        "PIP_TARGET": elsewhere, "PIP_NO_BINARY": ":all:", "PIP_CONFIG_FILE": tmp_path / "pip.conf",
        "PIP_CONSTRAINT": constraints, "PYTHONPATH": tmp_path / "usercode",
        "PYTHONHOME": "", "PYTHONSTARTUP": "/nowhere", "PYTHONNOUSERSITE": "",
        "VIRTUAL_ENV": elsewhere, "CONDA_PREFIX": elsewhere, "PYTHONPYCACHEPREFIX": elsewhere,
    }  # fmt: skip
    assert other.exists()
    for name, value in settings.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.chdir(tmp_path)
    made = world.make()
    assert made.verdict.tree == world.records.tree
    assert made.verdict.bytecode == 0
    assert not any(p.is_symlink() for p in (world.prefix / SITE).rglob("*"))
    assert not elsewhere.exists()


# Faults of the store, the network and the disk


def test_wheels_are_fetched(world, server, files):
    for path in world.wheels:
        shutil.copy(path, files)
    world.url = server.url
    shutil.rmtree(world.store.root)
    assert world.make().verdict.holds
    assert len(server.requests) == 2


def test_without_network_and_wheels_nothing_is_made(world):
    shutil.rmtree(world.store.root)
    assert "cannot be fetched" in broken(world).message
    assert not world.prefix.exists()


def test_a_tampered_wheel_in_the_store_is_not_installed(world):
    path = world.store.path(world.packages[0])
    path.write_bytes(path.read_bytes() + b"\0")
    assert "alpha 1.0 cannot be fetched" in broken(world).message
    assert not world.prefix.exists()


def test_a_store_that_cannot_be_written_serves(world):
    with read_only(world.store.root):
        assert world.make().verdict.holds
        assert not world.make().installed
    assert world.run("alpha") == "alpha 1"


def test_too_small_a_disk_is_refused_before_anything_is_written(world, tmp_path):
    with small_disk(tmp_path / "disk", "4m") as disk:
        world.prefix = disk / "env"
        error = broken(world)
        assert "no space for the environment" in error.message
        assert str(disk) in error.message
        assert not world.prefix.exists()


def test_a_disk_that_fills_up_is_named_and_the_prefix_completed_later(world, tmp_path, monkeypatch):
    monkeypatch.setattr(venv, "check_space", lambda *_: None)
    world.wheels.append(
        build_wheel(
            tmp_path / "wheels", "big", files={"big.bin": random.Random(0).randbytes(3_000_000)}
        )
    )
    world.fill_store()
    with small_disk(tmp_path / "disk", "2m") as disk:
        world.prefix = disk / "env"
        error = broken(world)
        assert "no space left" in error.message
        assert "completes the prefix" in error.hint
        subprocess.run(["mount", "-o", "remount,size=64m", disk], check=True)
        assert world.make().verdict.holds
        assert world.run("alpha") == "alpha 1"


def test_a_prefix_that_cannot_be_written(world, tmp_path):
    (tmp_path / "disk").mkdir()
    with read_only(tmp_path / "disk"):
        world.prefix = tmp_path / "disk/env"
        error = broken(world)
    assert f"{world.prefix} cannot be written" in error.message


# Interruptions


MAKE = """
import pickle, sys
from pathlib import Path
from torchlock.errors import TorchlockError
from torchlock.realize.venv import make_venv
try:
    make_venv(*pickle.loads(Path(sys.argv[1]).read_bytes()))
except KeyboardInterrupt:
    sys.exit(130)
except TorchlockError as error:
    print(error)
    sys.exit(error.code)
"""


def making(world: World):
    """Start make_venv in a process of its own."""
    arguments = world.prefix.parent / "arguments"
    arguments.write_bytes(
        pickle.dumps((world.lock, world.records, world.prefix, Store(world.store.root)))
    )
    return start(MAKE, arguments)


MOMENTS = {
    "marker": NAME,
    "configuration": "pyvenv.cfg",
    "interpreter": "bin/python",
    "files": f"{SITE}/alpha/__init__.py",
    "metadata": f"{SITE}/alpha-1.0.dist-info/METADATA",
    "scripts": "bin/alpha",
    "record": f"{SITE}/beta-1.0.dist-info/INSTALLER",
}


@pytest.mark.parametrize(
    ("moment", "how"),
    [*((moment, signal.SIGKILL) for moment in MOMENTS),
     *((moment, signal.SIGINT) for moment in ("marker", "files"))],
)  # fmt: skip
def test_whenever_it_is_interrupted_the_next_run_completes_it(world, moment, how):
    child = making(world)
    appeared = world.prefix / MOMENTS[moment]
    wait_until(lambda: os.path.lexists(appeared) or child.poll() is not None, moment)
    os.killpg(child.pid, how)
    said = child.communicate(timeout=60)[1]
    assert "Traceback" not in said
    assert world.make().verdict.holds
    assert world.run("alpha") == "alpha 1"
    assert world.run("alpha-run") == "run"
    assert not world.make().installed


@pytest.mark.parametrize(
    "left",
    [
        ["alpha-1.0.dist-info/METADATA"],
        ["alpha-1.0.dist-info"],
        ["alpha", "alpha-1.0.dist-info", "shared"],
        ["alpha", "alpha-1.0.dist-info", "shared", "alpha-1.0.data"],
    ],
)
def test_a_wheel_that_uv_left_half_installed_is_completed(world, left, tmp_path):
    """What is there when uv is killed between unpacking, scripts, `.data` and RECORD."""
    world.make()
    shutil.unpack_archive(world.wheels[0], tmp_path / "raw", "zip")
    shutil.rmtree(world.prefix)
    child = making(world)
    wait_until(lambda: os.path.lexists(world.prefix / "bin/python3.11"), "the interpreter")
    os.killpg(child.pid, signal.SIGKILL)
    child.communicate()
    site = world.prefix / SITE
    for name in [*left, "alpha-1.0.data"]:
        target = site / name
        if target.is_dir():
            shutil.rmtree(target)
        (site / ".tmpAb3dE9").mkdir(exist_ok=True)
        (site / ".tmpAb3dE9/alpha.py").touch()
        (site / "beta-1.0.dist-info").mkdir(exist_ok=True)
        (site / "beta-1.0.dist-info/.tmpGzgcdb").touch()
        if name in left:
            target.parent.mkdir(parents=True, exist_ok=True)
            source = tmp_path / "raw" / name
            (shutil.copytree if source.is_dir() else shutil.copy)(source, target)
    assert world.make().verdict.holds
    assert world.run("alpha") == "alpha 1"
    assert world.run("alpha-run") == "run"


def test_two_runs_at_once_do_not_write_one_prefix(world):
    first, second = making(world), making(world)
    said = [child.communicate(timeout=60)[0] for child in (first, second)]
    codes = sorted([first.returncode, second.returncode])
    assert codes in ([0, 0], [0, 2])
    if codes == [0, 2]:
        assert any(f"another torchlock is working on {world.prefix}" in text for text in said)
    assert world.holds()
    assert not world.make().installed


def test_a_prefix_is_one_under_all_its_names(world, tmp_path):
    (tmp_path / "link").symlink_to(tmp_path)
    with venv.alone(world.prefix, world.store):
        world.prefix = tmp_path / "link/env"
        assert "another torchlock is working" in broken(world).message
