"""The real 140 wheels, installed and judged; needs the environment that `invoke env` made."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.index import write_condarc
from tests.test_tasks import ROOT, invoke
from torchlock.artifacts import default_store
from torchlock.findings import find_site
from torchlock.lock import read_lock
from torchlock.pylock import PLATFORM
from torchlock.records import read_records
from torchlock.repository import this_repository
from torchlock.tree import entry_on_disk, tree_digest
from torchlock.uv import uv_command
from torchlock.verify import verify

pytestmark = pytest.mark.slow

RECORDS = read_records(this_repository().records, PLATFORM)


@pytest.fixture(scope="module")
def prefix() -> Path:
    """The environment that CI made with the README's command."""
    python = os.environ.get("TORCHLOCK_STACK_PYTHON")
    if not python:
        pytest.skip("TORCHLOCK_STACK_PYTHON does not name the python of an environment")
    return Path(python).parent.parent


@pytest.fixture(scope="module")
def scratch_prefix(tmp_path_factory):
    """A second environment, to be damaged."""
    path = tmp_path_factory.mktemp("real") / "env"
    done = invoke("env", "--prefix", str(path))
    assert done.returncode == 0, done.stderr
    yield path
    shutil.rmtree(path)


def test_every_file_is_the_locked_one(prefix):
    verdict = verify(find_site(prefix), RECORDS)
    assert verdict.findings == ()
    assert verdict.tree == RECORDS.tree


def test_the_recorded_digest_is_that_of_the_files_on_disk(prefix):
    site = find_site(prefix).site_packages
    paths = {f.path for w in RECORDS.wheels.values() for f in w.files if f.counts}
    assert tree_digest(entry_on_disk(site, path) for path in paths) == RECORDS.tree
    torch = {f.path for f in RECORDS.wheels["torch"].files if f.counts}
    found = tree_digest(entry_on_disk(site, path) for path in torch)
    assert found == RECORDS.wheels["torch"].tree


def test_damage_is_named_and_repaired(scratch_prefix):
    site = find_site(scratch_prefix).site_packages
    damaged = {
        "torch/optim/adamw.py": "torch",
        "torch/lib/libtorch_python.so": "torch",
        "nvidia/cudnn/lib/libcudnn.so.9": "nvidia-cudnn-cu12",
        "numpy/version.py": "numpy",
    }
    for name in list(damaged)[:3]:
        flip_a_byte(site / name)
    (site / "numpy/version.py").unlink()
    as_a_copy(site / "torch/bin/protoc").chmod(0o644)
    done = invoke("validate", "--prefix", str(scratch_prefix), "--only", "stack")
    assert done.returncode == 1
    for name, package in damaged.items():
        assert f"lib/python3.11/site-packages/{name} ({package})" in done.stderr
    assert "mode: lib/python3.11/site-packages/torch/bin/protoc (torch)" in done.stderr
    assert f"next: invoke env --prefix {scratch_prefix}" in done.stderr
    repaired = invoke("env", "--prefix", str(scratch_prefix))
    assert repaired.returncode == 0, repaired.stderr
    assert "repairing numpy, nvidia-cudnn-cu12, torch" in repaired.stderr
    assert RECORDS.tree in repaired.stderr


def flip_a_byte(path: Path) -> None:
    """Change one byte of a file, keeping its size and times."""
    status = as_a_copy(path).stat()
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def as_a_copy(path: Path) -> Path:
    """Take a file out of the links it shares with uv's cache and other environments."""
    copy = path.with_name(path.name + ".copy")
    shutil.copy2(path, copy)
    return copy.replace(path)


def test_uv_sync_of_the_view_gives_the_same_tree(tmp_path, prefix):
    venv = tmp_path / "synced"
    subprocess.run([base_python(prefix), "-m", "venv", "--without-pip", venv], check=True)
    try:
        # The wheels come from the store, so that CI fetches them once.
        subprocess.run(
            [*uv_command(), "pip", "sync", mirrored_view(tmp_path), "--no-config",
             "--python", venv / "bin" / "python", "--cache-dir", tmp_path / "uv"],
            check=True, capture_output=True,
        )  # fmt: skip
        verdict = verify(find_site(venv), RECORDS)
        assert (verdict.findings, verdict.tree) == ((), RECORDS.tree)
    finally:
        shutil.rmtree(venv)
        shutil.rmtree(tmp_path / "uv")


def base_python(prefix: Path) -> str:
    """The CPython 3.11 under an environment."""
    ask = [prefix / "bin" / "python", "-c", "import sys; print(sys._base_executable)"]
    return subprocess.run(ask, capture_output=True, text=True, check=True).stdout.strip()


def mirrored_view(directory: Path) -> Path:
    """pylock.toml with each URL replaced by that of the same wheel in the store."""
    text = this_repository().pylock.read_text()
    store = default_store()
    for wheel in read_lock(this_repository().lock).wheels(PLATFORM):
        text = text.replace(wheel.url, store.path(wheel).as_uri())
    path = directory / "pylock.toml"
    path.write_text(text)
    return path


def test_pip_accepts_the_view(tmp_path, prefix):
    venv = tmp_path / "venv"
    subprocess.run([base_python(prefix), "-m", "venv", venv], check=True)
    pip = [venv / "bin" / "python", "-m", "pip"]
    subprocess.run([*pip, "install", "--quiet", "--upgrade", "pip>=26.3"], check=True)
    done = subprocess.run(
        [*pip, "install", "--quiet", "--dry-run", "--no-deps",
         "--requirement", mirrored_view(tmp_path)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_locking_again_changes_nothing(tmp_path):
    """The conda half over the slice of the index, the pip half over the real index."""
    write_condarc(tmp_path / "condarc")
    clone = tmp_path / "clone"
    ignored = shutil.ignore_patterns(".git", ".venv", "env", "tests", "__pycache__")
    shutil.copytree(ROOT, clone, ignore=ignored)
    done = invoke("lock", cwd=clone, CONDARC=str(tmp_path / "condarc"))
    assert done.returncode == 0, done.stderr
    assert "0 packages changed" in done.stderr
    for name in ("conda-lock.yml", "pylock.toml"):
        assert (clone / name).read_bytes() == (ROOT / name).read_bytes()


def test_the_environments_own_invoke_hands_over_and_finds_where_it_runs(prefix):
    assert (ROOT / ".venv").is_dir()
    done = subprocess.run(
        [prefix / "bin" / "invoke", "validate", "--only", "neighbours"],
        cwd=ROOT, capture_output=True, text=True, check=False,
        env={**os.environ, "VIRTUAL_ENV": str(prefix)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert f"checking the files of {prefix}" in done.stderr
    assert "identical to the reference" in done.stdout


def test_the_doctors_first_finding_is_in_the_certificate(prefix, tmp_path):
    if Path("/dev/nvidiactl").exists():
        pytest.fail("this test is for a machine without a GPU")
    asked = ("--device", "cuda", "--only", "gpu", "--json", str(tmp_path / "c.json"))
    done = invoke("validate", "--prefix", str(prefix), *asked)
    assert done.returncode == 2, done.stderr
    certificate = json.loads((tmp_path / "c.json").read_text())
    finding = certificate["doctor"]["finding"]
    assert (finding["code"], finding["certainty"]) == ("no-nvidia-gpu", "certain")
    assert f"CUDA is expected and absent: {finding['cause']}" in done.stderr
    assert certificate["verdict"] == "not judged"
    assert certificate["foundation"] == "venv"


def test_no_node_is_no_number_of_nodes(prefix):
    done = invoke("validate", "--prefix", str(prefix), "--nnodes", "0", "--only", "ddp")
    assert done.returncode == 2
    assert "there is no node 0 among 0" in done.stderr
