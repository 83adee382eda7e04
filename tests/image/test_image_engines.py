"""Real engines take a rendered layout, and say by which digest they have it.

Needs root, and from Debian: podman runc docker.io docker-cli containerd.
"""

import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.image.test_image_render import World, world  # noqa: F401 - a fixture
from torchlock.oci.layout import Layout
from torchlock.oci.load import LoadError, load
from torchlock.realize.image import render

TAG = "torchlock-test:small"


def test_without_an_engine_the_error_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(LoadError, match="no container engine is not on PATH") as refused:
        load(Layout(tmp_path), TAG)
    assert "invoke push" in refused.value.hint


def test_an_engine_that_refuses_is_quoted(
    world: World,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    render(world.source, tmp_path / "out", world.store, tag=TAG)
    docker = tmp_path / "docker"
    docker.write_text("#!/bin/sh\necho 'daemon not running' >&2\nexit 1\n")
    docker.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    with pytest.raises(LoadError, match="docker could not load the image: daemon not running"):
        load(Layout(tmp_path / "out"), TAG, "docker")


@pytest.fixture
def docker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A docker daemon of our own, and the containerd that it starts."""
    for program in ("dockerd", "docker", "containerd", "ctr"):
        if not shutil.which(program):
            pytest.skip(f"{program} is not installed")
    host = f"unix://{tmp_path}/docker.sock"
    command = [
        "dockerd", "--iptables=false", "--bridge=none", f"--host={host}",
        f"--data-root={tmp_path}/data", f"--exec-root={tmp_path}/exec",
        f"--pidfile={tmp_path}/docker.pid", "--storage-driver=vfs",
    ]  # fmt: skip
    log = (tmp_path / "dockerd.log").open("wb")
    with log, subprocess.Popen(command, stdout=log, stderr=log) as process:
        monkeypatch.setenv("DOCKER_HOST", host)
        monkeypatch.setenv("CONTAINERD_ADDRESS", f"{tmp_path}/exec/containerd/containerd.sock")
        try:
            for _ in range(150):
                if subprocess.run(["docker", "info"], capture_output=True, check=False).returncode:
                    time.sleep(0.2)
                else:
                    break
            else:
                pytest.fail((tmp_path / "dockerd.log").read_text()[-3000:])
            yield
        finally:
            process.terminate()


@pytest.mark.slow
def test_docker_and_containerd_take_the_image(
    world: World,  # noqa: F811
    tmp_path: Path,
    docker: None,
):
    image, _ = render(world.source, tmp_path / "out", world.store, tag=TAG)
    done = load(Layout(tmp_path / "out"), TAG, "docker")
    if done.digest_kept:
        assert done.digest == image.digest
    else:  # docker's own store knows the image by its configuration
        assert done.digest == image.config.digest
    kept = load(Layout(tmp_path / "out"), TAG, "ctr")
    assert kept.digest_kept and kept.digest == image.digest


@pytest.mark.slow
def test_podman_keeps_the_digest(world: World, tmp_path: Path):  # noqa: F811
    if not shutil.which("podman"):
        pytest.skip("podman is not installed")
    out = tmp_path / "A Layout" / "OUT"  # podman makes names of paths; this is none
    out.parent.mkdir()
    image, _ = render(world.source, out, world.store, tag=TAG)
    done = load(Layout(out), TAG, "podman")
    try:
        assert done.digest_kept and done.digest == image.digest
        listed = subprocess.run(["podman", "images"], check=True, capture_output=True, text=True)
        assert "localhost/torchlock-test" in listed.stdout
        assert "/tmp/torchlock" not in listed.stdout
    finally:
        subprocess.run(["podman", "rmi", "--force", TAG], check=True, capture_output=True)
