"""The whole stack on a conda half: rendered, loaded by podman, and used.

The conda packages are the loopback channel's, since no conda channel can be reached where this is
tested: the CPython 3.11 that runs this, and a few more. Needs what `test_image_real.py` needs.
"""

from __future__ import annotations

import os
import pickle
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from packaging.utils import canonicalize_name

from tests.conda.test_conda_image import HOME, HOSTILE
from tests.image.test_image_real import REPOSITORY, RUN, inside, other_python, run, serve
from tests.support.locks import lock_text
from torchlock.artifacts import Store, default_store, fetch
from torchlock.findings import find_site
from torchlock.lock import Lock, read_lock
from torchlock.oci.layout import Layout
from torchlock.oci.load import load
from torchlock.realize.image import render
from torchlock.realize.image_contents import TOOLS
from torchlock.realize.image_documents import Image
from torchlock.realize.image_plan import PLATFORM, ImageSource, plan, recorded_layers
from torchlock.recompile import differing
from torchlock.records import read_records
from torchlock.rootfs.lock import RootfsLockError, fetch_debs, make_rootfs_lock, read_rootfs_lock
from torchlock.verify import verify
from torchlock.verify_conda import expect, verify_conda

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

TAG = "torchlock-test:conda"


@dataclass(frozen=True)
class Rendered:
    """The image, its layout, and what it was rendered from."""

    source: ImageSource
    store: Store
    image: Image
    layout: Layout


@pytest.fixture(scope="module")
def rendered(world, tmp_path_factory) -> Iterator[Rendered]:
    """The committed lock's wheels on the channel's conda packages."""
    root = tmp_path_factory.mktemp("image")
    shared = default_store()
    committed = read_lock(REPOSITORY.lock)
    wheels, packages = committed.wheels(PLATFORM), world.lock.conda_packages(PLATFORM)
    fetch(wheels, shared)
    rootfs = read_rootfs_lock()
    try:
        fetch_debs(rootfs, shared)
    except RootfsLockError:
        rootfs = make_rootfs_lock(rootfs)
    lock = Lock((*packages, *wheels), (PLATFORM,), world.lock.channels, (), {})
    records = read_records(REPOSITORY.records, PLATFORM)
    sizes = {w.wheel: w.wheel_size for w in records.wheels.values()}
    source = ImageSource(REPOSITORY, lock, rootfs, sizes, "conda")
    store = fresh_store(root / "store")
    image, _ = render(source, root / "out", store, tag=TAG)
    yield Rendered(source, store, image, Layout(root / "out"))
    shutil.rmtree(root)


def fresh_store(root: Path) -> Store:
    """A store that has the shared one's artifacts and no layers, and keeps its own to itself."""
    (root / "sha256").mkdir(parents=True)
    for artifact in (default_store().root / "sha256").iterdir():
        (root / "sha256" / artifact.name).symlink_to(artifact)
    return Store(root)


@pytest.fixture(scope="module")
def loaded(rendered: Rendered) -> Iterator[str]:
    for program in ("podman", "/usr/sbin/runc"):
        if not shutil.which(program):
            pytest.skip(f"{program} is not installed")
    done = load(rendered.layout, TAG, "podman")
    assert done.digest_kept and done.digest == rendered.image.digest
    yield done.name
    subprocess.run(["podman", "rmi", "--force", done.name], check=False, capture_output=True)


def test_another_host_and_python_render_the_same_digest(rendered: Rendered, tmp_path: Path):
    store = fresh_store(tmp_path / "store")
    asked = tmp_path / "asked"
    asked.write_bytes(pickle.dumps((rendered.source, str(store.root), str(tmp_path / "out"))))
    said = run(
        "taskset", "-c", "0", other_python(tmp_path), "-c", HOSTILE, asked, cwd=REPOSITORY.root,
        env={**os.environ, "TZ": "Asia/Kathmandu", "LC_ALL": "C", "PYTHONHASHSEED": "7",
             "SOURCE_DATE_EPOCH": "1", "PYTHONDONTWRITEBYTECODE": "1"},
    )  # fmt: skip
    shutil.rmtree(tmp_path / "out")
    assert "(3, 11)" not in said
    assert said.split()[-1] == rendered.image.digest


def test_wheels_have_the_layers_that_are_recorded_for_debian(rendered: Rendered):
    recorded, made = recorded_layers(rendered.source).layers, dict(rendered.image.layers)
    wheels = [p for p in plan(rendered.source) if p.kind == "wheels"]
    assert wheels
    assert {p.title: made[p.title] for p in wheels} == {p.title: recorded[p.key] for p in wheels}


def test_both_halves_are_the_locks(
    rendered: Rendered, loaded: str, monkeypatch: pytest.MonkeyPatch
):
    root = Path(run("podman", "image", "mount", loaded).strip())
    prefix = root / "opt" / "torchlock"
    try:
        records = read_records(REPOSITORY.records, PLATFORM)
        archives = [(p, rendered.store.path(p)) for p in rendered.source.conda]
        conda = verify_conda(prefix, expect(prefix, archives, home=HOME), records)
        stack = verify(replace(find_site(prefix), home=HOME), records, explained=conda.explains)
        assert {f.path.split("/")[0] for f in conda.findings} == {"etc", "libexec", "share"}
        assert {f.kind for f in conda.findings} == {"foreign"}, "the image's own files"
        assert conda.superseded == ("packaging", "setuptools") or conda.superseded == (
            "setuptools",
        )
        assert stack.findings == ()
        assert stack.tree == records.tree
        assert stack.bytecode > 9000
        monkeypatch.setenv("LD_LIBRARY_PATH", str(prefix / "lib"))
        compiled = sorted(p.relative_to(prefix).as_posix() for p in prefix.rglob("*.pyc"))
        assert differing(prefix / "bin" / "python3.11", prefix, compiled[::8]) == []
    finally:
        run("podman", "image", "unmount", loaded)


def test_python_is_condas_and_its_tools_see_the_packages(rendered: Rendered, loaded: str):
    script = """
set -eu
python -c 'import sys, torch; print(sys.prefix, torch.__version__, torch.ones(2).sum())'
python -c 'import numpy, torchvision, torchaudio, ssl, sqlite3, ctypes'
python -c 'import torch; print(torch.compile(lambda x: (2 * x).sum())(torch.ones(8)).item())'
pip check
pip --disable-pip-version-check list --format=freeze
"""
    prefix, compiled, checked, *listed = inside(loaded, "bash", "-c", script).splitlines()
    assert prefix == "/opt/torchlock 2.7.1+cu126 tensor(2.)"
    assert compiled == "16.0"
    assert checked == "No broken requirements found."
    versions = {w.name: w.version for w in rendered.source.wheels}
    versions |= {p.name: p.version for p in rendered.source.conda if p.name in ("pip", "greet")}
    found = dict(line.split("==") for line in listed)
    assert {canonicalize_name(name): version for name, version in found.items()} == versions


def test_validate_judges_files_by_the_lock_that_the_image_is_of(
    rendered: Rendered, loaded: str, tmp_path: Path
):
    """The repository's own lock is in the image, and this conda half is not that lock's."""
    lock = tmp_path / "conda-lock.yml"
    lock.write_text(lock_text(rendered.source.lock.packages))
    mounted = ("--volume", f"{lock}:/{TOOLS}/conda-lock.yml:ro")
    said = inside(loaded, "validate", "--device", "cpu", "--only", "stack", options=mounted)
    assert "does not hold" not in said and "not judged" not in said
    conda = len(rendered.source.conda)
    assert f"files of {conda} conda packages are as conda-meta says" in " ".join(said.split())
    done = subprocess.run(
        [*RUN, "--rm", loaded, "validate", "--device", "cpu", "--only", "stack", "transformer"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert "identical to the reference of class cpu x86-64 avx2" in " ".join(done.stdout.split())
    assert "foreign: lib/python3.11/site-packages/" in done.stderr


def test_it_serves(loaded: str):
    container = serve(loaded, "--user", "1000")
    try:
        assert container.api("api/contents", container.token()) == 200
        run("podman", "exec", container.id, "/opt/torchlock/libexec/health")
        assert container.stop() == 143
    finally:
        container.remove()
