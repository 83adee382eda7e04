"""Real engines take a rendered layout, and say by which digest they have it.

Needs root, and from Debian: podman runc docker.io docker-cli containerd iptables iproute2.
"""

import errno
import re
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

import pytest

from tests.image.test_image_render import World, world  # noqa: F401 - a fixture
from tests.support.disks import read_only
from tests.support.dockerd import docker_engine
from torchlock.oci.layout import Layout, LayoutError
from torchlock.oci.load import LoadError, load
from torchlock.realize.image import render

TAG = "torchlock-test:small"


def fake_engine(directory: Path, monkeypatch: pytest.MonkeyPatch, name: str, script: str) -> None:
    """Put a shell script of that name before the host's programs on PATH."""
    (directory / name).write_text(f"#!/bin/sh\n{script}")
    (directory / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{directory}:/usr/sbin:/usr/bin:/sbin:/bin")


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
    fake_engine(tmp_path, monkeypatch, "docker", "echo 'daemon not running' >&2\nexit 1\n")
    with pytest.raises(LoadError, match="docker could not load the image: daemon not running"):
        load(Layout(tmp_path / "out"), TAG, "docker")


def test_a_temporary_directory_that_takes_no_link_is_named(
    world: World,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    render(world.source, tmp_path / "out", world.store, tag=TAG)
    fake_engine(tmp_path, monkeypatch, "podman", "")
    with read_only(tmp_path / "out") as temporary:
        monkeypatch.setattr(tempfile, "tempdir", str(temporary))
        with pytest.raises(LoadError, match="Read-only file system") as refused:
            load(Layout(tmp_path / "out"), TAG, "podman")
    assert "TMPDIR=DIR invoke load" in refused.value.hint


def test_podman_gets_a_path_that_an_image_can_be_named_by(
    world: World,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    render(world.source, tmp_path / "out", world.store, tag=TAG)
    fake_engine(tmp_path, monkeypatch, "podman", f'echo "$@" > {tmp_path}/asked\nexit 1\n')
    (tmp_path / "Job A").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "Job A"))
    with pytest.raises(LoadError, match="podman could not load the image"):
        load(Layout(tmp_path / "out"), TAG, "podman")
    assert re.search(r" oci:/tmp/torchlock[0-9a-f]{32}:", (tmp_path / "asked").read_text())


def test_a_missing_layer_is_named_before_an_engine_is_started(
    world: World,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    image, _ = render(world.source, tmp_path / "out", world.store, tag=TAG)
    layout = Layout(tmp_path / "out")
    layout.blob(image.layers[1][1].digest).unlink()
    fake_engine(tmp_path, monkeypatch, "docker", f"touch {tmp_path}/started\n")
    with pytest.raises(LoadError, match=f"lacks the blob {image.layers[1][1].digest}") as refused:
        load(layout, TAG, "docker")
    assert "invoke image" in refused.value.hint
    assert not (tmp_path / "started").exists()


def test_an_engine_is_ended_when_the_layout_cannot_be_read(
    world: World,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    render(world.source, tmp_path / "out", world.store, tag=TAG)
    fake_engine(
        tmp_path, monkeypatch, "docker", f"echo $$ > {tmp_path}/pid\nexec cat > /dev/null\n"
    )

    def fails(*_):
        while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text().strip():
            time.sleep(0.01)
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr("torchlock.oci.load._archive", fails)
    with pytest.raises(LoadError, match="Input/output error"):
        load(Layout(tmp_path / "out"), TAG, "docker")
    assert not Path(f"/proc/{(tmp_path / 'pid').read_text().strip()}").exists()


@pytest.mark.parametrize(
    "content",
    [
        '{"manifests": [1]}', '{"manifests": [{"digest": 1, "mediaType": ""}]}', "[]", "{", "null",
        '{"manifests": 1}', '{"manifests": [{"digest": "", "mediaType": "", "annotations": 1}]}',
    ],
)  # fmt: skip
def test_a_damaged_index_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str):
    fake_engine(tmp_path, monkeypatch, "docker", "")
    (tmp_path / "index.json").write_text(content)
    with pytest.raises(LayoutError, match=r"index\.json is damaged"):
        load(Layout(tmp_path), TAG, "docker")


@pytest.mark.slow
def test_docker_and_containerd_take_the_image(
    world: World,  # noqa: F811
    tmp_path: Path,
):
    image, _ = render(world.source, tmp_path / "out", world.store, tag=TAG)
    with docker_engine(tmp_path):
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
