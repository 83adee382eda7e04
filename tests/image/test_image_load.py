"""Loading: what the engine is handed, what is said of it, and which digest it then has."""

from __future__ import annotations

import tarfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.image.image_making import small_layout
from tests.image.test_image_engines import fake_engine
from torchlock.oci.layout import Layout
from torchlock.oci.load import LoadError, load
from torchlock.oci.reference import parse_name

OTHER = "sha256:" + "0" * 64
PODMAN = """
case "$1 $2 $4" in
"pull --quiet "*) echo image ;;
"image inspect {{json .RepoTags}}") echo '["localhost/torchlock:x"]' ;;
"image inspect {{.Digest}}") echo DIGEST ;;
esac
"""
DOCKER = """
case "$1" in
load) cat > ARCHIVE ;;
image) echo DIGEST ;;
esac
"""
CTR = """
case "$2" in
import) cat > ARCHIVE ;;
list) echo "NAME DIGEST" ;;
esac
"""


@pytest.mark.parametrize(("engine", "script"), [("podman", PODMAN), ("docker", DOCKER)])
def test_an_engine_that_has_another_digest_is_not_said_to_keep_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: str, script: str
):
    layout = small_layout(tmp_path / "layout", "demo:1")
    digest = layout.find("demo:1")["digest"]
    for has in (digest, OTHER):
        there = script.replace("DIGEST", has).replace("ARCHIVE", str(tmp_path / "archive"))
        fake_engine(tmp_path, monkeypatch, engine, there)
        loaded = load(layout, "demo:1", engine)
        assert (loaded.digest, loaded.digest_kept) == (has, has == digest)


def test_containerd_that_lists_another_digest_is_not_said_to_keep_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    layout = small_layout(tmp_path / "layout", "demo:1")
    digest = layout.find("demo:1")["digest"]
    for has in (digest, OTHER):
        there = CTR.replace("DIGEST", has).replace("ARCHIVE", str(tmp_path / "archive"))
        fake_engine(tmp_path, monkeypatch, "ctr", there)
        loaded = load(layout, "demo:1", "ctr")
        assert (loaded.digest, loaded.digest_kept) == (digest, has == digest)


@pytest.mark.parametrize(
    ("tag", "podman", "containerd"),
    [
        ("demo:1", "localhost/demo:1", "docker.io/library/demo:1"),
        ("lab/demo:1", "localhost/lab/demo:1", "docker.io/lab/demo:1"),
        ("host.example:5000/demo:1", "host.example:5000/demo:1", "host.example:5000/demo:1"),
    ],
)
def test_an_image_has_the_name_that_the_engine_gives_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tag: str, podman: str, containerd: str
):
    layout = small_layout(tmp_path / "layout", tag)
    fake_engine(tmp_path, monkeypatch, "podman", PODMAN)
    fake_engine(tmp_path, monkeypatch, "ctr", CTR.replace("ARCHIVE", str(tmp_path / "archive")))
    assert load(layout, tag, "podman").name == podman
    assert load(layout, tag, "ctr").name == containerd == parse_name(tag).full
    with tarfile.open(tmp_path / "archive") as archive:
        index = archive.extractfile("index.json")
        assert index and f'"{containerd}"' in index.read().decode()


class Shown:
    """A display that remembers what it was told."""

    def __init__(self) -> None:
        self.verb = ""
        self.sizes: list[int | None] = []
        self.counts: list[int] = []

    @contextmanager
    def __call__(self, verb: str, items: int) -> Iterator[Shown]:
        self.verb = f"{verb} {items}"
        yield self

    def start(self, label: str, total: int | None, done: int) -> int:
        self.sizes.append(total)
        self.counts.append(0)
        return len(self.counts) - 1

    def advance(self, item: int, count: int) -> None:
        self.counts[item] += count

    def finish(self, item: int) -> None:
        assert self.counts[item] == self.sizes[item]


def test_what_is_handed_over_is_said_and_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    layout = small_layout(tmp_path / "layout", "demo:1")
    archive, said, shown = tmp_path / "archive", [], Shown()
    fake_engine(tmp_path, monkeypatch, "docker", DOCKER.replace("ARCHIVE", str(archive)))
    load(layout, "demo:1", "docker", progress=shown, say=said.append)
    size = sum(n or 0 for n in shown.sizes)
    assert shown.verb == "to docker 4"
    assert size == sum(f.stat().st_size for f in (layout.root / "blobs" / "sha256").iterdir())
    assert said == [f"handing 4 blobs, {size / 1e6:.0f} MB, to docker, which unpacks them"]
    fake_engine(tmp_path, monkeypatch, "podman", PODMAN)
    load(layout, "demo:1", "podman", say=said.append)
    assert said[1:] == [said[0].replace("docker", "podman")]


def test_ctrl_c_ends_the_engine_and_is_no_failure_to_load(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    layout = small_layout(tmp_path / "layout", "demo:1")
    fake_engine(
        tmp_path, monkeypatch, "docker", f"echo $$ > {tmp_path}/pid\nexec cat > /dev/null\n"
    )

    class Interrupts(Shown):
        def advance(self, item: int, count: int) -> None:
            while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text().strip():
                time.sleep(0.01)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        load(layout, "demo:1", "docker", progress=Interrupts())
    assert not Path(f"/proc/{(tmp_path / 'pid').read_text().strip()}").exists()


def test_how_to_render_what_is_not_there_can_be_pasted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    layout = small_layout(tmp_path / "a layout", "demo:1")
    fake_engine(tmp_path, monkeypatch, "docker", "")
    layout.blob(layout.manifest(layout.find("demo:1"))["config"]["digest"]).unlink()
    with pytest.raises(LoadError, match="lacks the blob") as refused:
        load(layout, "demo:1", "docker")
    assert refused.value.hint == f"invoke image --out '{tmp_path}/a layout' --tag demo:1"


def test_what_is_no_engine_is_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(LoadError, match="'sh' is none of podman, docker, ctr"):
        load(Layout(tmp_path), "demo:1", "sh")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(LoadError, match="docker is not on PATH"):
        load(Layout(tmp_path), "demo:1", "docker")
