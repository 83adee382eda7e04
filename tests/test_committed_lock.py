"""The lock, the view and the records that this repository ships."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from conda_lock.lockfile import parse_conda_lock_file

from tests.test_relock import conda_lock_check
from torchlock.check import check_lock
from torchlock.lock import read_lock
from torchlock.pylock import PLATFORM
from torchlock.records import read_records, tree_of
from torchlock.repository import this_repository
from torchlock.solve.pip import wheel_rank
from torchlock.tree import merge
from torchlock.uv import uv_command

DATA = Path(__file__).parent / "data" / "conda-forge"
REPOSITORY = this_repository()

PINNED = {
    "torch": "2.7.1",
    "torchvision": "0.22.1",
    "torchaudio": "2.7.1",
    "triton": "3.3.1",
    "nvidia-cublas-cu12": "12.6.4.1",
    "nvidia-cuda-cupti-cu12": "12.6.80",
    "nvidia-cuda-nvrtc-cu12": "12.6.77",
    "nvidia-cuda-runtime-cu12": "12.6.77",
    "nvidia-cudnn-cu12": "9.5.1.17",
    "nvidia-cufft-cu12": "11.3.0.4",
    "nvidia-cufile-cu12": "1.11.1.6",
    "nvidia-curand-cu12": "10.3.7.77",
    "nvidia-cusolver-cu12": "11.7.1.2",
    "nvidia-cusparse-cu12": "12.5.4.2",
    "nvidia-cusparselt-cu12": "0.6.3",
    "nvidia-nccl-cu12": "2.26.2",
    "nvidia-nvjitlink-cu12": "12.6.85",
    "nvidia-nvtx-cu12": "12.6.77",
}


@pytest.fixture(scope="module")
def lock():
    return read_lock(REPOSITORY.lock)


def test_lock_views_request_and_records_agree():
    assert [(c.name, c.fault) for c in check_lock(REPOSITORY) if c.fault] == []


def test_pins_the_stated_stack(lock):
    locked = {w.name: w.version for w in lock.wheels(PLATFORM)}
    assert {name: locked.get(name) for name in PINNED} == PINNED
    assert {"setuptools", "numpy", "jupyterlab", "ipykernel", "nvitop"} <= locked.keys()


def test_torch_is_the_cuda_build_of_the_package_index(lock):
    (torch,) = [w for w in lock.wheels(PLATFORM) if w.name == "torch"]
    assert torch.sha256 == "06eea61f859436622e78dd0cdd51dbc8f8c6d76917a9cf0555a333f9eac31ec1"


def test_every_wheel_runs_on_the_platform(lock):
    assert all(wheel_rank(w.filename, PLATFORM) for w in lock.wheels(PLATFORM))


def test_every_conda_record_equals_the_harvested_facts(lock):
    facts = {f["name"]: f for f in json.loads((DATA / "closure.json").read_text())}
    locked = {p.name: (p.version, p.url, p.sha256, p.md5) for p in lock.conda_packages(PLATFORM)}
    assert locked == {
        name: (f["version"], f["url"], f["sha256"], f["md5"]) for name, f in facts.items()
    }


def test_conda_locks_own_parser_reads_it(lock):
    parsed = parse_conda_lock_file(REPOSITORY.lock)
    assert {(p.manager, p.name, p.url, p.hash.sha256) for p in parsed.package} == {
        (p.manager, p.name, p.url, p.sha256) for p in lock.packages
    }


def test_conda_lock_itself_calls_it_up_to_date(tmp_path):
    before = REPOSITORY.lock.read_bytes()
    done = conda_lock_check(REPOSITORY, tmp_path)
    assert (done.returncode, REPOSITORY.lock.read_bytes()) == (0, before), done.stderr
    assert "Skipping solve" in done.stderr


def test_uv_accepts_the_view(tmp_path, lock):
    venv = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
    done = subprocess.run(
        [*uv_command(), "pip", "sync", REPOSITORY.pylock, "--python", venv / "bin" / "python",
         "--python-version", "3.11", "--python-platform", "x86_64-manylinux_2_28",
         "--dry-run", "--offline", "--no-config"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert f"Would install {len(lock.wheels(PLATFORM))} packages" in done.stderr


def test_the_view_holds_no_dates(lock):
    text = REPOSITORY.pylock.read_text()
    assert "upload-time" not in text
    assert text.count("[[packages]]") == text.count("[[packages.wheels]]") == 140


def test_recorded_trees_are_the_reviewed_ones():
    records = read_records(REPOSITORY.records, PLATFORM)
    assert records.tree == "sha256-RWQYoP4ocQg2qFv6E+84/G+xE32Q2YC1xKSbmpxbHHQ="
    assert records.wheels["torch"].tree == TORCH_TREE


def test_no_two_wheels_disagree_about_a_path():
    records = read_records(REPOSITORY.records, PLATFORM)
    assert len(merge(tree_of(records.wheels.values()))) > 20_000


TORCH_TREE = "sha256-oeCjwCipIIz9p8CRvnVV5FkK9igpl0+MJJcsBxcdDrg="
