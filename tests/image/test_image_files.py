"""The image's own files: which they are, and what its scripts do without a container."""

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from torchlock.realize.image_contents import FILES, TOOLS, contents_items
from torchlock.repository import this_repository


def test_the_tools_are_what_git_tracks(tmp_path: Path):
    root = this_repository().root

    def tracked(*paths: str) -> list[str]:
        return subprocess.run(
            ["git", "ls-files", *paths], cwd=root, check=True, capture_output=True, text=True
        ).stdout.splitlines()

    carried = tracked(
        "validation", "torchlock/doctor", "conda-lock.yml", "torchlock/__init__.py",
        "torchlock/errors.py", "torchlock/records/linux-64.*", "torchlock/formats/__init__.py",
        "torchlock/formats/wheel.py",
        *(f"torchlock/{name}.py" for name in (
            "bytecode", "conda_meta", "console", "files", "findings", "inside", "lock",
            "recompile", "records", "repository", "selfcheck", "stamps", "superseded", "tree",
            "urls", "verify", "verify_files", "verify_foreign", "verify_scripts")),
    )  # fmt: skip
    assert len(carried) > 60
    for path in tracked("validation", "torchlock", "conda-lock.yml"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_bytes((root / path).read_bytes())
    for stray in (
        "validation/.digest.py.swp", "validation/.#digest.py", "validation/certificate.json",
        "validation/digest.py~", "torchlock/doctor/core.1234", "torchlock/doctor/.env",
        "validation/__pycache__/digest.cpython-311.pyc", "torchlock/proof.py",
        "validation/.ipynb_checkpoints/digest-checkpoint.py", "validation/references/.avx2.json",
        "validation/references/avx2.json.orig",
    ):  # fmt: skip
        (tmp_path / stray).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / stray).write_text("stray")
    paths = {item.member.path for item in contents_items(tmp_path, ())}
    assert {p for p in paths if p.startswith(TOOLS)} == {f"{TOOLS}/{p}" for p in carried}


@pytest.mark.parametrize(
    ("module", "given"),
    [("torchlock.doctor", ()), ("validation", ()), ("torchlock.selfcheck", ("packaging", "yaml"))],
)
def test_the_tools_carry_all_they_import(tmp_path: Path, module: str, given: tuple[str, ...]):
    """With nothing but the standard library and `given`, packages of the stack."""
    for name in given:
        (tmp_path / name).symlink_to(Path(importlib.import_module(name).__file__).parent)
    for item in contents_items(this_repository().root, ()):
        if item.member.path.startswith(f"{TOOLS}/") and isinstance(item.contents, bytes):
            path = tmp_path / item.member.path.removeprefix(f"{TOOLS}/")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(item.contents)
    done = subprocess.run(
        [sys.executable, "-S", "-B", "-m", module, "--help"],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "usage" in done.stdout


@pytest.mark.parametrize("script", ["entrypoint", "health"])
def test_scripts_are_bash(script: str):
    subprocess.run(["bash", "-n", str(FILES / script)], check=True)


def first_notebook(directory: Path, tmp_path: Path, *before: str) -> str:
    """Run the entry point's own check of `directory`; return what it says."""
    kept = tmp_path / "share" / "notebooks"
    kept.mkdir(parents=True, exist_ok=True)
    (tmp_path / "share" / "torchlock").mkdir(exist_ok=True)
    (kept / "first.ipynb").write_bytes((FILES / "notebooks" / "first.ipynb").read_bytes())
    done = subprocess.run(
        [*before, "bash", "-s", "first-notebook", str(directory)],
        input=(FILES / "entrypoint").read_text(), capture_output=True, text=True, check=True,
        env={**os.environ, "TORCHLOCK_TOOLS": str(tmp_path / "share" / "torchlock")},
    )  # fmt: skip
    assert done.stdout == ""
    return done.stderr


def test_an_empty_directory_gets_the_first_notebook(tmp_path: Path):
    directory = tmp_path / "notebooks"
    directory.mkdir()
    assert first_notebook(directory, tmp_path) == ""
    assert json.loads((directory / "first.ipynb").read_text())["nbformat"] == 4


def test_a_directory_in_use_is_left_alone(tmp_path: Path):
    directory = tmp_path / "notebooks"
    directory.mkdir()
    (directory / "mine.ipynb").write_text("mine")
    assert first_notebook(directory, tmp_path) == ""
    assert [p.name for p in directory.iterdir()] == ["mine.ipynb"]


def test_a_directory_that_cannot_be_written_is_said(tmp_path: Path):
    directory = tmp_path / "notebooks"
    directory.mkdir(mode=0o555)
    other = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")
    said = first_notebook(directory, tmp_path, *(other if os.geteuid() == 0 else ()))
    assert f"torchlock: {directory} cannot be written by user " in said
    assert "sudo chown" in said
    assert list(directory.iterdir()) == []


def test_under_a_rootless_engine_the_directory_is_given_by_podman(tmp_path: Path):
    directory = tmp_path / "notebooks"
    directory.mkdir(mode=0o555)
    other = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")
    become = (*(other if os.geteuid() == 0 else ()), "unshare", "--user", "--map-root-user")
    tried = subprocess.run([*become, "true"], capture_output=True, text=True, check=False)
    if tried.returncode:
        pytest.skip(f"no user namespace can be made here: {tried.stderr.strip()}")
    said = first_notebook(directory, tmp_path, *become)
    assert "On the host: podman unshare chown 0 DIRECTORY" in said
