"""Rendering: one digest whatever the host is like, nothing half-written, nothing made twice."""

import errno
import hashlib
import json
import os
import subprocess
import sys
import time
import zipfile
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.image.image_making import check_recorded, entry, make_deb, make_wheel
from tests.support.disks import small_disk
from tests.support.hosts import FACTS, assert_another, other_host
from tests.support.server import serve
from torchlock import download
from torchlock.artifacts import ArtifactError, Store
from torchlock.errors import DoesNotHold, TorchlockError
from torchlock.lock import Lock, Package
from torchlock.oci import frame, layer
from torchlock.oci.frame import Frame
from torchlock.oci.layout import Layout, LayoutError
from torchlock.oci.reference import DEFAULT_TAG
from torchlock.realize import image, image_bytecode
from torchlock.realize.image import render
from torchlock.realize.image_bytecode import BytecodeError
from torchlock.realize.image_documents import image_digest
from torchlock.realize.image_plan import BIG, ImageSource, image_source, plan
from torchlock.realize.image_records import LayerCache, records_path, write_layer_records
from torchlock.realize.image_sbom import sbom
from torchlock.realize.place import read_stamps
from torchlock.repository import Repository, this_repository
from torchlock.rootfs.lock import Archive, DebPackage, RootfsLock
from torchlock.stamps import Reading

BASE = [
    (entry("./usr/share/base-passwd/passwd.master"), b"root:*:0:0:root:/root:/bin/bash\n"),
    (entry("./usr/share/base-passwd/group.master"), b"root:*:0:\n"),
]


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


class World:
    """A repository of its own, a filled store, and an image source of small parts."""

    def __init__(self, root: Path) -> None:
        self.made = root / "made"
        self.made.mkdir()
        self.store = Store(root / "store")
        self.repository = Repository(root / "repository")
        self.repository.records.mkdir(parents=True)
        (self.repository.root / "validation").mkdir()
        for name in ("__init__.py", "errors.py"):
            (self.repository.root / "torchlock" / name).write_text("")
        debs = [self._deb(n) for n in ("base", "python3.11", *image_bytecode.PACKAGES)]
        archive = Archive("http://archive.invalid/debian", "http://snapshot.invalid/x", {})
        rootfs = RootfsLock(
            "bookworm", "amd64", "2026-01-02T03:04:05Z", {"debian": archive}, tuple(debs)
        )
        wheels = (self._wheel("alpha"), self._wheel("beta"), self._wheel("gamma"))
        self.source = self._source(rootfs, wheels)

    def _source(self, rootfs: RootfsLock, wheels: tuple[Package, ...]) -> ImageSource:
        lock = Lock(wheels, ("linux-64",), (), (), {})
        return ImageSource(self.repository, lock, rootfs, {w.sha256: 1000 for w in wheels})

    def with_wheel(
        self, name: str, files: dict[str, bytes], compression: int = zipfile.ZIP_STORED
    ) -> ImageSource:
        changed = self._wheel(name, files, compression)
        wheels = tuple(changed if w.name == name else w for w in self.source.wheels)
        return self._source(self.source.rootfs, wheels)

    def _deb(self, name: str) -> DebPackage:
        path = make_deb(self.made, name, BASE if name == "base" else [], version="3.11.2-1")
        layer_name = "toolchain" if name == "zlib1g" else "system"
        package = DebPackage(
            name, "3.11.2-1", "amd64", "debian", layer_name, path.name, path.stat().st_size,
            sha256(path), f"http://snapshot.invalid/x/{path.name}",
        )  # fmt: skip
        self._keep(package, path)
        return package

    def _wheel(
        self,
        name: str,
        files: dict[str, bytes] | None = None,
        compression: int = zipfile.ZIP_STORED,
    ) -> Package:
        path = make_wheel(self.made, name, files, compression=compression)
        url = f"http://index.invalid/{path.name}"
        package = Package(name, "1.0", "pip", "linux-64", url, sha256(path), None, {})
        self._keep(package, path)
        return package

    def _keep(self, artifact, path: Path) -> None:
        kept = self.store.path(artifact)
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.write_bytes(path.read_bytes())


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    # These packages hold no interpreter; the real one is tested in test_image_real.py.
    monkeypatch.setattr(image, "unpack_compiler", lambda debs, directory: None)
    monkeypatch.setattr(image, "compiled", lambda root, sources: iter(()))
    monkeypatch.setattr(download, "BACKOFF", 0)  # no address of these answers
    return World(tmp_path)


def everything_below(root: Path) -> set[str]:
    return {
        p.relative_to(root).as_posix() for p in root.rglob("*") if p.is_file() and p.name != ".lock"
    }


def test_the_layout_is_an_image(world: World, tmp_path: Path):
    made, _ = render(world.source, tmp_path / "out", world.store)
    layout = Layout(tmp_path / "out")
    assert json.loads((tmp_path / "out" / "oci-layout").read_text()) == {
        "imageLayoutVersion": "1.0.0"
    }
    manifest = json.loads(layout.read(layout.find(DEFAULT_TAG)))
    config = json.loads(layout.read(manifest["config"]))
    assert len(manifest["layers"]) == len(config["rootfs"]["diff_ids"]) == len(made.layers)
    for row in manifest["layers"]:
        content = layout.blob(row["digest"]).read_bytes()
        assert "sha256:" + hashlib.sha256(content).hexdigest() == row["digest"]
        assert len(content) == row["size"]
    assert config["created"] == "2026-01-02T03:04:05Z"
    assert config["config"]["Labels"]["torchlock.lock"] == world.source.lock.digest
    assert config["config"]["Labels"]["torchlock.driver.minimum"] == "525.60.13"
    assert not any(v.startswith("CUDA_VERSION") for v in config["config"]["Env"])
    assert manifest["annotations"]["org.opencontainers.image.title"] == "torchlock"


def test_the_bill_of_materials_is_attached(world: World, tmp_path: Path):
    made, _ = render(world.source, tmp_path / "out", world.store)
    layout = Layout(tmp_path / "out")
    [row] = layout.referrers(made.digest)
    referrer = json.loads(layout.read(row))
    assert referrer["subject"]["digest"] == made.digest
    materials = json.loads(layout.read(referrer["layers"][0]))
    purls = {c["purl"]: c["hashes"][0]["content"] for c in materials["components"]}
    assert set(purls) == {c["bom-ref"] for c in materials["components"]}
    alpha = world.source.wheels[0]
    assert purls[f"pkg:pypi/alpha@1.0?file_name={alpha.filename}"] == alpha.sha256
    assert "pkg:deb/debian/base@3.11.2-1?arch=amd64&distro=bookworm" in purls


@pytest.mark.parametrize(
    ("package", "purl"),
    [
        (("libstdc++6", "12.2.0-14+deb12u1"), "libstdc%2B%2B6@12.2.0-14%2Bdeb12u1"),
        (("cpp", "4:12.2.0-3~x"), "cpp@4:12.2.0-3~x"),
    ],
)
def test_package_urls_are_in_their_canonical_form(world: World, package, purl: str):
    """ECMA-427: a colon is not encoded, nor what letters, digits and `.-_~` are."""
    name, version = package
    known = world.source.rootfs.packages[0]
    lock = replace(world.source.rootfs, packages=(replace(known, name=name, version=version),))
    [component] = json.loads(sbom("x", (), (), lock).content)["components"]
    assert component["purl"] == f"pkg:deb/debian/{purl}?arch=amd64&distro=bookworm"


def test_two_renders_and_a_rerender_agree(world: World, tmp_path: Path):
    first, _ = render(world.source, tmp_path / "one", world.store)
    second, _ = render(world.source, tmp_path / "two", world.store)
    assert first.digest == second.digest
    assert everything_below(tmp_path / "one") == everything_below(tmp_path / "two")
    written = {p: p.stat().st_mtime_ns for p in (tmp_path / "one" / "blobs").rglob("*")}
    render(world.source, tmp_path / "one", world.store)
    for path in (p for p in written if p.is_file() and p.name != ".lock"):
        assert path.stat().st_mtime_ns == written[path], "a blob that is there is left alone"


def test_the_digest_is_told_from_records_without_a_wheel(world: World, tmp_path: Path):
    with pytest.raises(TorchlockError, match="is not recorded"):
        image_digest(world.source)
    made, layers = render(world.source, tmp_path / "out", world.store)
    write_layer_records(records_path(world.repository.records, "linux-64"), layers)
    for path in (world.store.root / "sha256").rglob("*.whl"):
        path.unlink()
    assert image_digest(world.source) == made.digest


def test_what_a_dropped_package_leaves_comparable_is_compared(world: World, tmp_path: Path):
    records = records_path(world.repository.records, "linux-64")
    committed = world.source.rootfs
    made, layers = render(world.source, tmp_path / "out", world.store)
    write_layer_records(records, layers)
    assert check_recorded(world.source, committed, made) == ""
    *kept, dropped = committed.packages
    newer = replace(committed, packages=(*kept, replace(dropped, version="3.11.2-2")))
    source = replace(world.source, rootfs=newer)
    other, _ = render(source, tmp_path / "other", world.store)
    said = check_recorded(source, committed, other)
    assert f"newer ones were locked: {dropped.name}" in said
    assert "Debian: configuration" in said and "wheels, group" not in said
    key = next(p.key for p in plan(source) if p.kind == "wheels")
    wrong = replace(layers[key][1], size=1)
    write_layer_records(records, {**layers, key: (layers[key][0], wrong)})
    with pytest.raises(AssertionError):
        check_recorded(source, committed, other)


def without_frames(world: World) -> None:
    for path in (world.store.root / "layers").glob("*.frame"):
        path.unlink()


@pytest.mark.parametrize("framed", [True, False])
def test_a_recorded_render_copies_to_the_same_blobs(world: World, tmp_path: Path, framed: bool):
    made, layers = render(world.source, tmp_path / "out", world.store)
    write_layer_records(records_path(world.repository.records, "linux-64"), layers)
    if not framed:
        without_frames(world)
    again, _ = render(world.source, tmp_path / "again", Store(world.store.root))
    assert again.digest == made.digest
    for name in everything_below(tmp_path / "out"):
        assert (tmp_path / "out" / name).read_bytes() == (tmp_path / "again" / name).read_bytes()


def test_frames_spare_the_archives_until_they_are_damaged_or_another_s(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    source = world.with_wheel(
        "beta", {"beta/a.py": b"a" * 99_999, "beta/b.py": b"b" * 999}, zipfile.ZIP_DEFLATED
    )
    made, _ = render(source, tmp_path / "out", world.store)
    frames = sorted((world.store.root / "layers").glob("*.frame"))
    real, opened = image.wheels_items, []
    monkeypatch.setattr(image, "wheels_items", lambda w: real(opened.append(w) or w))

    def archives_read(name: str) -> int:
        opened.clear()
        again, _ = render(source, tmp_path / name, Store(world.store.root))
        assert again.digest == made.digest
        for _, blob in made.layers:
            assert "sha256:" + sha256(Layout(tmp_path / name).blob(blob.digest)) == blob.digest
        return len(opened)

    assert archives_read("one") == 0
    good = frames[0].read_bytes()
    frames[0].write_bytes(good[:-1] + bytes([good[-1] ^ 1]))
    assert archives_read("two") == 1
    assert frames[0].read_bytes() == good, "and kept anew"
    frames[0].chmod(0o666)
    assert archives_read("three") == 1
    frames[0].write_bytes(Frame().encoded())  # of no layer of this size
    assert archives_read("four") == 1
    assert archives_read("five") == 0


def test_wheels_of_known_layers_are_read_where_they_changed_and_all_to_verify(
    world: World, tmp_path: Path
):
    made, _ = render(world.source, tmp_path / "out", world.store)
    time.sleep(0.05)  # a file that has just changed is not noted as read

    def wheels(name: str, **how: bool) -> list[str]:
        said: list[str] = []
        again, _ = render(
            world.source, tmp_path / name, Store(world.store.root), say=said.append, **how
        )
        assert again.digest == made.digest
        return [line for line in said if line.startswith("wheels")]

    label = "wheels of known layers: "
    assert wheels("one") == [label + "3 read, 0 unchanged since they were read"]
    assert wheels("two") == [label + "0 read, 3 unchanged since they were read"]
    beta = world.store.path(world.source.wheels[1])
    beta.write_bytes(beta.read_bytes())
    assert wheels("three") == [label + "1 read, 2 unchanged since they were read"]
    assert wheels("four", verify=True) == []
    beta.write_bytes(beta.read_bytes()[:-1] + b"?")
    with pytest.raises(TorchlockError, match="beta"):  # thrown away, and cannot be had again
        render(world.source, tmp_path / "five", Store(world.store.root))
    assert not beta.exists()
    assert not (tmp_path / "five" / "index.json").exists()


@pytest.mark.parametrize("framed", [True, False])
def test_a_wheel_that_decayed_under_its_stamp_is_noticed_where_its_layer_is_put_together(
    world: World, tmp_path: Path, framed: bool
):
    """A disk that decays moves no time; here a note that lies stands for it."""
    source = world.with_wheel("beta", {"beta/a.py": b"value = 1\n" * 9}, zipfile.ZIP_DEFLATED)
    wheel = next(w for w in source.wheels if w.name == "beta")
    _, layers = render(source, tmp_path / "out", world.store)
    if not framed:
        without_frames(world)
    beta = world.store.path(wheel)
    good = sha256(beta)
    with zipfile.ZipFile(beta) as archive:
        info = archive.getinfo("beta/a.py")
    at = info.header_offset + 30 + len(info.filename) + 3
    contents = bytearray(beta.read_bytes())
    contents[at] ^= 1
    beta.write_bytes(contents)
    time.sleep(0.05)
    stamps = read_stamps(world.store)
    stamps.note(beta.stat(), good, time.time_ns())
    stamps.write()
    assert world.store.verified(wheel, Reading(stamps)), "the stamp hides it"
    copied = tmp_path / "copied"
    if framed:  # a copy alone notices nothing; whoever takes the image does, and so does --verify
        render(source, copied, Store(world.store.root))
        [key] = [p.key for p in plan(source) if p.kind == "wheels" and wheel in p.artifacts]
        digest = layers[key][1].digest
        assert "sha256:" + sha256(Layout(copied).blob(digest)) != digest
    with pytest.raises(ArtifactError, match="beta"):  # noticed, and cannot be had again
        render(source, copied, Store(world.store.root), verify=framed)
    assert not beta.exists()
    assert framed or not (copied / "index.json").exists()


def test_a_cut_wheel_is_fetched_anew(world: World, tmp_path: Path):
    """The standard library then puts members before the file's beginning."""
    made, _ = render(world.source, tmp_path / "out", world.store)
    without_frames(world)
    wheel = world.source.wheels[1]
    beta = world.store.path(wheel)
    good = beta.read_bytes()
    beta.write_bytes(good[99:])
    with serve(world.made) as server:
        mirror = {wheel.sha256: [f"{server.url}/{wheel.filename}"]}
        again, _ = render(
            world.source, tmp_path / "again", Store(world.store.root), mirrors=lambda _: mirror
        )
    assert again.digest == made.digest and beta.read_bytes() == good


def test_a_frame_of_another_layer_of_the_same_size_is_not_used(world: World, tmp_path: Path):
    """Rules that change without a change of format are the renderer's fault, and found out."""
    _, layers = render(world.source, tmp_path / "out", world.store)
    changed = {
        key: (title, replace(blob, digest="sha256:" + blob.digest[:6:-1]))
        for key, (title, blob) in layers.items()
    }
    write_layer_records(records_path(world.repository.records, "linux-64"), changed)
    kept = everything_below(world.store.root / "layers")
    with pytest.raises(DoesNotHold, match="came out as"):
        render(world.source, tmp_path / "again", Store(world.store.root))
    assert everything_below(world.store.root / "layers") == kept


def test_a_frame_that_is_too_large_is_not_kept(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(frame, "LIMIT", 100)
    render(world.source, tmp_path / "out", world.store)
    assert not list((world.store.root / "layers").glob("*.frame"))


@pytest.mark.parametrize("framed", [True, False])
def test_a_wheel_that_is_not_the_locked_one_leaves_no_layer_and_is_fetched_anew(
    world: World, tmp_path: Path, framed: bool
):
    """Its sha256 is known only when it has been copied; nothing else in it looks wrong."""
    made, layers = render(world.source, tmp_path / "out", world.store)
    if not framed:
        without_frames(world)
    wheel = world.source.wheels[1]
    beta = world.store.path(wheel)
    good = beta.read_bytes()
    other = good.replace(b"\0\0\x21\0", b"\1\0\x21\0", 1)  # the time in a local header
    assert other != good
    beta.write_bytes(other)
    with pytest.raises(ArtifactError, match="beta"):  # thrown away, and cannot be had again
        render(world.source, tmp_path / "not", Store(world.store.root))
    assert not beta.exists()
    [key] = [p.key for p in plan(world.source) if p.kind == "wheels" and wheel in p.artifacts]
    assert not Layout(tmp_path / "not").blob(layers[key][1].digest).exists()
    assert not any("partial" in name for name in everything_below(tmp_path / "not"))
    frames = {path.stem for path in (world.store.root / "layers").glob("*.frame")}
    assert framed or layers[key][1].digest.removeprefix("sha256:") not in frames

    beta.write_bytes(other)
    with serve(world.made) as server:
        mirror = {wheel.sha256: [f"{server.url}/{wheel.filename}"]}
        again, _ = render(
            world.source, tmp_path / "again", Store(world.store.root), mirrors=lambda _: mirror
        )
    assert beta.read_bytes() == good
    assert again.digest == made.digest
    for _, blob in made.layers:
        assert "sha256:" + sha256(Layout(tmp_path / "again").blob(blob.digest)) == blob.digest


def test_a_kept_layer_that_is_damaged_is_made_again(world: World, tmp_path: Path):
    made, layers = render(world.source, tmp_path / "out", world.store)
    digest = next(b.digest for title, b in layers.values() if title == "Debian: system")
    kept = LayerCache(world.store.root / "layers").blob(digest)
    kept.write_bytes(kept.read_bytes()[:-1] + b"?")
    again, _ = render(world.source, tmp_path / "again", Store(world.store.root))
    assert again.digest == made.digest
    blob = Layout(tmp_path / "again").blob(digest)
    assert "sha256:" + sha256(blob) == digest


def test_a_layer_that_another_user_could_have_noted_is_not_believed(world: World, tmp_path: Path):
    made, layers = render(world.source, tmp_path / "out", world.store)
    cache = LayerCache(world.store.root / "layers")
    key, (_, blob) = next((k, v) for k, v in layers.items() if v[0].startswith("wheels"))
    lie = replace(blob, digest="sha256:" + "0" * 64)
    cache.remember(key, lie)
    assert cache.known(key) == lie
    (cache.root / f"{key}.json").chmod(0o666)
    assert cache.known(key) is None
    again, _ = render(world.source, tmp_path / "again", Store(world.store.root))
    assert again.digest == made.digest
    assert cache.known(key) == blob, "and noted anew, by this user alone"


def test_verify_compares_with_the_records(world: World, tmp_path: Path):
    made, layers = render(world.source, tmp_path / "out", world.store)
    path = records_path(world.repository.records, "linux-64")
    write_layer_records(path, layers)
    assert render(world.source, tmp_path / "out", world.store, verify=True)[0] == made
    key, (title, blob) = next((k, v) for k, v in layers.items() if "group" in v[0])
    wrong = {**layers, key: (title, replace(blob, digest="sha256:" + "0" * 64))}
    write_layer_records(path, wrong)
    with pytest.raises(DoesNotHold, match=title):
        render(world.source, tmp_path / "out", world.store, verify=True)


def test_a_changed_wheel_changes_its_own_layers_alone(world: World, tmp_path: Path):
    before, _ = render(world.source, tmp_path / "out", world.store)
    changed = world.with_wheel("beta", {"beta/__init__.py": b"value = 2\n"})
    after, _ = render(changed, tmp_path / "out", world.store)
    assert after.digest != before.digest
    old, new = ({b.digest for _, b in made.layers} for made in (before, after))
    assert len(new - old) == 1


def test_conda_packages_that_cannot_be_had_leave_the_other_foundation(world: World, tmp_path: Path):
    url = "http://channel.invalid/linux-64/python-3.11.7-0.conda"
    python = Package("python", "3.11.7", "conda", "linux-64", url, "ab" * 32, "cd" * 16, {})
    lock = Lock((*world.source.wheels, python), ("linux-64",), (), (), {})
    source = replace(world.source, lock=lock, foundation="conda")
    with pytest.raises(ArtifactError, match=r"python-3\.11\.7-0\.conda") as refused:
        render(source, tmp_path / "out", world.store)
    assert "invoke image --foundation debian" in refused.value.hint


def test_big_wheels_have_layers_of_their_own(world: World):
    sizes = dict.fromkeys((w.sha256 for w in world.source.wheels), 1000)
    sizes[world.source.wheels[1].sha256] = BIG
    titles = [p.title for p in plan(replace(world.source, sizes=sizes))]
    assert "beta 1.0" in titles
    assert not any("alpha 1.0" in title for title in titles)


def test_an_image_under_another_tag_stays(world: World, tmp_path: Path):
    render(world.source, tmp_path / "out", world.store, tag="first:1")
    changed = world.with_wheel("beta", {"beta/__init__.py": b"value = 2\n"})
    render(changed, tmp_path / "out", world.store, tag="second:1")
    layout = Layout(tmp_path / "out")
    assert layout.find("first:1")["digest"] != layout.find("second:1")["digest"]
    with pytest.raises(LayoutError, match="has no image third"):
        layout.find("third:1")


def test_a_killed_render_leaves_no_layout_and_is_gone_on_with(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    real, calls = layer.write_layer, []

    def dies(items, out, frame=None):
        calls.append(out)
        if len(calls) == 4:
            out.write(b"half")
            raise KeyboardInterrupt
        return real(items, out, frame)

    monkeypatch.setattr(image, "write_layer", dies)
    with pytest.raises(KeyboardInterrupt):
        render(world.source, tmp_path / "out", world.store)
    assert not (tmp_path / "out" / "index.json").exists()
    assert not [n for n in everything_below(tmp_path / "out") if "partial" in n]
    done = everything_below(tmp_path / "out")
    monkeypatch.setattr(image, "write_layer", real)
    (tmp_path / "out" / "blobs" / ".partial-killed").write_bytes(b"left by SIGKILL")
    made, _ = render(world.source, tmp_path / "out", world.store)
    assert done <= everything_below(tmp_path / "out")
    assert not (tmp_path / "out" / "blobs" / ".partial-killed").exists()
    assert made.digest == render(world.source, tmp_path / "two", world.store)[0].digest


def test_a_second_render_leaves_the_first_alone(world: World, tmp_path: Path):
    layout = Layout(tmp_path / "out")
    with layout.alone():
        half = tmp_path / "out" / "blobs" / ".partial-first"
        half.write_bytes(b"the first render is writing this")
        with pytest.raises(TorchlockError, match="another render is working on") as refused:
            render(world.source, tmp_path / "out", world.store)
        assert "wait for it" in refused.value.hint
        assert half.exists()
    render(world.source, tmp_path / "out", world.store)
    assert not half.exists()


def test_a_full_disk_is_named(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def full(items, out, frame=None):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(image, "write_layer", full)
    with pytest.raises(TorchlockError, match="no space left"):
        render(world.source, tmp_path / "out", world.store)
    assert not (tmp_path / "out" / "index.json").exists()


def test_a_disk_that_fills_is_gone_on_with_when_there_is_room(world: World, tmp_path: Path):
    expected, _ = render(world.source, tmp_path / "one", world.store)
    with small_disk(tmp_path / "disk", "1m") as disk:
        out, ballast = disk / "out", disk / "ballast"
        with pytest.raises(OSError, match="No space"):
            ballast.write_bytes(bytes(2 << 20))
        with pytest.raises(LayoutError, match=f"no space left in {out}|{out} cannot be"):
            render(world.source, out, world.store)
        ballast.write_bytes(bytes((1 << 20) - (28 << 10)))
        with pytest.raises(LayoutError, match=f"no space left in {out} .* GB free") as refused:
            render(world.source, out, world.store)
        assert "free some space or choose another --out" in refused.value.hint
        assert not (out / "index.json").exists()
        done = everything_below(out)
        assert done and not any("partial" in name for name in done)
        ballast.unlink()
        made, _ = render(world.source, out, world.store)
        assert made.digest == expected.digest
        assert done <= everything_below(out) == everything_below(tmp_path / "one")


@pytest.mark.parametrize("method", ["remember", "keep", "keep_frame"])
@pytest.mark.parametrize("fault", [errno.EROFS, errno.ENOSPC])
def test_a_store_that_takes_no_layers_costs_the_next_render_alone(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str, fault: int
):
    expected, _ = render(world.source, tmp_path / "one", Store(world.store.root))

    def refuses(*_):
        raise OSError(fault, os.strerror(fault))

    monkeypatch.setattr(LayerCache, method, refuses)
    said: list[str] = []
    made, _ = render(world.source, tmp_path / "out", world.store, verify=True, say=said.append)
    assert made.digest == expected.digest
    assert sum(os.strerror(fault) in line and "not kept" in line for line in said) == 1


def test_a_layer_is_kept_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "blob").write_bytes(b"layer")
    cache = LayerCache(tmp_path / "layers")

    def full(source, out, _):
        out.write(b"la")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr("torchlock.realize.image_records.shutil.copyfileobj", full)
        with pytest.raises(OSError, match="No space"):
            cache.keep("sha256:ab", tmp_path / "blob")
    assert everything_below(cache.root) == set()
    cache.keep("sha256:ab", tmp_path / "blob")
    assert cache.blob("sha256:ab").read_bytes() == b"layer"


def test_a_temporary_directory_that_is_full_or_noexec_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    deb = make_deb(tmp_path, "libc6", [(entry("./usr/x"), b"x")])
    (tmp_path / "usr").write_text("in the way")
    with pytest.raises(BytecodeError, match=f"unpacked into {tmp_path}: ") as refused:
        image_bytecode.unpack_compiler([deb], tmp_path)
    assert "TMPDIR=" in refused.value.hint
    root = tmp_path / "root"
    loader = root / "usr/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2"
    loader.parent.mkdir(parents=True)
    loader.write_text("may not be executed")
    with pytest.raises(BytecodeError, match=r"cannot be started .*: Permission denied") as refused:
        list(image_bytecode.compiled(root, [("a.py", b"")]))
    assert "TMPDIR=" in refused.value.hint
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "absent"))
    with pytest.raises(BytecodeError, match="no temporary directory"), image._compiler([]):
        pass


@pytest.mark.parametrize("length", [10, 10_000_000])
def test_a_compiler_that_ends_early_is_named(tmp_path: Path, length: int):
    loader = tmp_path / "usr/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2"
    loader.parent.mkdir(parents=True)
    loader.write_text("#!/bin/sh\nhead -c 8 > /dev/null\n")
    loader.chmod(0o755)
    with pytest.raises(BytecodeError, match="the byte code ended early") as refused:
        list(image_bytecode.compiled(tmp_path, [("a.py", bytes(length))]))
    assert "TMPDIR=" in refused.value.hint


@pytest.mark.parametrize(("platform", "machine"), [("darwin", "x86_64"), ("linux", "aarch64")])
def test_where_the_compiler_cannot_run_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, platform: str, machine: str
):
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setattr(os, "uname", lambda: SimpleNamespace(machine=machine))
    with pytest.raises(BytecodeError, match="needs Linux on x86-64"):
        image_bytecode.unpack_compiler([], tmp_path)


def test_a_rootfs_lock_without_the_compiler_is_named(world: World):
    fewer = tuple(p for p in world.source.rootfs.packages if p.name not in ("libc6", "zlib1g"))
    with pytest.raises(BytecodeError, match="the rootfs lock has no libc6, zlib1g"):
        plan(replace(world.source, rootfs=replace(world.source.rootfs, packages=fewer)))


def test_what_an_image_cannot_be_planned_from_is_named(world: World, tmp_path: Path):
    with pytest.raises(TorchlockError, match="no foundation 'fedora'") as refused:
        image_source(world.repository, "fedora")
    assert "debian|conda" in refused.value.hint
    with pytest.raises(TorchlockError, match=r"the size of alpha 1\.0 is not recorded"):
        plan(replace(world.source, sizes={}))
    records = records_path(world.repository.records, "linux-64")
    for text in ("{", "[]", '{"format": 1}', '{"format": 1, "layers": {"k": {}}}'):
        records.write_text(text)
        with pytest.raises(TorchlockError, match=r"image-linux-64\.json is damaged") as refused:
            render(world.source, tmp_path / "out", world.store)
        assert "invoke image --record" in refused.value.hint
    records.write_text('{"format": 0}')
    render(world.source, tmp_path / "out", world.store)


def test_a_directory_of_somebody_else_is_left_alone(world: World, tmp_path: Path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.tex").write_text("mine")
    with pytest.raises(LayoutError, match="holds no image layout"):
        render(world.source, tmp_path / "out", world.store)
    assert everything_below(tmp_path / "out") == {"thesis.tex"}


HOSTILE = """
import os, sys
sys.path[:0] = {path!r}
os.umask(0o077)
from pathlib import Path
import pytest
import tests.image.test_image_render as t
from torchlock.realize import image
image.unpack_compiler = lambda debs, directory: None
image.compiled = lambda root, sources: iter(())
world = t.World(Path({root!r}))
made, layers = image.render(world.source, Path({root!r}) / "out", world.store)
print(made.digest, t.digest_of_layers(layers))
"""


def digest_of_layers(layers) -> str:
    rows = [[title, blob.digest, blob.diff_id] for title, blob in layers.values()]
    return hashlib.sha256(json.dumps(rows).encode()).hexdigest()


GOLDEN = "c539f7775f9c664fb2ce9a49a9b75c5897ea7c4a2711dd9aca25251d1671849a"
"""Of the layers of small parts made by hand: it moves with the renderer's rules alone."""


@pytest.mark.parametrize("isal", [True, False])
def test_the_host_does_not_enter_the_digest(world: World, tmp_path: Path, isal: bool):
    """Another clock, user, umask, locale, hash seed, number of cores, and zlib."""
    made, layers = render(world.source, tmp_path / "out", world.store)
    assert digest_of_layers(layers) == GOLDEN
    scratch, other = tmp_path / "scratch", tmp_path / "other"
    scratch.mkdir()
    other.mkdir()
    host = other_host(scratch, isal=isal)
    here = [str(this_repository().root)]
    script = HOSTILE.format(path=here, root=str(other)) + FACTS
    done = subprocess.run(
        [*host.before, sys.executable, "-c", script],
        env=host.environment, capture_output=True, text=True, check=True,
    )  # fmt: skip
    rendered, facts = done.stdout.splitlines()
    assert rendered.split() == [made.digest, GOLDEN]
    assert_another(facts, zlib=isal)


@pytest.mark.slow
def test_blobs_of_no_image_are_counted_left_and_removed_by_the_command_that_is_said(
    world: World, tmp_path: Path
):
    out, said = tmp_path / "out", []
    render(world.source, out, world.store, say=said.append)
    changed = world.with_wheel("beta", {"beta/__init__.py": b"value = 2\n"})
    assert not [line for line in said if "umoci" in line]
    before = everything_below(out)
    made, _ = render(changed, out, world.store, say=said.append)
    assert before <= everything_below(out)
    [line] = [line for line in said if "are in no image" in line]
    # The manifest, the configuration, one layer, the bill of materials and what attaches it.
    assert line.startswith(f"5 blobs in {out} ")
    command = line.rpartition("to remove: ")[2]
    subprocess.run(command, shell=True, check=True)
    layout = Layout(out)
    assert layout.unreached() == []
    assert [r["digest"] for r in layout.referrers(made.digest)] == [made.referrer.digest]
    assert everything_below(out) < before | everything_below(out)
    kept = {b.name for b in (out / "blobs" / "sha256").iterdir()}
    assert kept == {d.digest[7:] for d in made.documents} | {b.digest[7:] for _, b in made.layers}
