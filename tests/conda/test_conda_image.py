"""`invoke image --foundation conda`: the image on the lock's conda half.

The packages are the loopback channel's genuine ones, the Debian packages small ones made here; the
whole image is in `test_conda_image_real.py`.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import pickle
import subprocess
import sys
import tarfile
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from tests.conda.conda_client import client_environment, write_client
from tests.conda.packing import (
    PLACEHOLDER,
    Tree,
    demo_link_script,
    demo_text,
    write_package,
)
from tests.image.image_making import entry, make_deb
from torchlock.artifacts import ArtifactError
from torchlock.errors import DoesNotHold, TorchlockError
from torchlock.findings import find_site
from torchlock.formats.conda import CondaError, read_conda
from torchlock.lock import Lock, Package
from torchlock.oci.layer import Blob, write_layer
from torchlock.oci.layout import Layout
from torchlock.oci.reference import DEFAULT_TAG
from torchlock.realize.foundation import LockedConda
from torchlock.realize.image import render
from torchlock.realize.image_bytecode import PACKAGES, BytecodeError
from torchlock.realize.image_conda import CondaLayer, conda_half
from torchlock.realize.image_documents import Image, image_digest
from torchlock.realize.image_plan import ImageSource, plan, record_layers, recorded_layers
from torchlock.recompile import differing
from torchlock.repository import Repository
from torchlock.rootfs.lock import Archive, DebPackage, RootfsLock
from torchlock.verify import verify
from torchlock.verify_conda import expect, verify_conda

HOME = Path("/opt/torchlock")
SITE = "lib/python3.11/site-packages"

AS_IT_IS = {"filter": "tar"} if hasattr(tarfile, "tar_filter") else {}
"""Python 3.11.2, Debian's, has no filters."""


def c_library() -> dict[str, bytes]:
    """The loader and the C library of this machine, as paths and contents of `libc6`."""
    said = subprocess.run(
        ["ldd", Path(sys.base_prefix) / "bin" / "python3.11"],
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    found = {word for line in said.splitlines() for word in line.split() if word.startswith("/")}
    here = {Path(p).name: Path(p).read_bytes() for p in found if "libpython" not in p}
    return {f"./usr/lib/x86_64-linux-gnu/{name}": data for name, data in here.items()}


@pytest.fixture(scope="session")
def rootfs(world, tmp_path_factory: pytest.TempPathFactory) -> RootfsLock:
    """Debian packages that hold nothing but what a render asks for, in the store."""
    made = tmp_path_factory.mktemp("debs")
    files = {
        "base": {
            "./usr/share/base-passwd/passwd.master": b"root:*:0:0:root:/root:/bin/bash\n",
            "./usr/share/base-passwd/group.master": b"root:*:0:\n",
        },
        "libc6": c_library(),
    }
    packages = []
    for name in ("base", "python3.11", *PACKAGES):
        rows = [(entry(path, mode=0o755), data) for path, data in files.get(name, {}).items()]
        path = make_deb(made, name, rows, version="3.11.2-1")
        package = DebPackage(
            name, "3.11.2-1", "amd64", "debian", "toolchain" if name == "zlib1g" else "system",
            path.name, path.stat().st_size, hashlib.sha256(path.read_bytes()).hexdigest(),
            f"http://snapshot.invalid/x/{path.name}",
        )  # fmt: skip
        kept = world.store.path(package)
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.write_bytes(path.read_bytes())
        packages.append(package)
    archive = Archive("http://archive.invalid/debian", "http://snapshot.invalid/x", {})
    return RootfsLock(
        "bookworm", "amd64", "2026-01-02T03:04:05Z", {"debian": archive}, tuple(packages)
    )


def locked_conda(path: Path) -> LockedConda:
    """Lock a package file where it lies."""
    data, content = path.read_bytes(), read_conda(path)
    package = Package(
        content.name, content.version, "conda", "linux-64", path.as_uri(),
        hashlib.sha256(data).hexdigest(), hashlib.md5(data).hexdigest(), {},
    )  # fmt: skip
    return LockedConda(package, path, content)


def make_source(world, rootfs: RootfsLock, root: Path, lock: Lock | None = None) -> ImageSource:
    repository = Repository(root)
    repository.records.mkdir(parents=True)
    (root / "validation").mkdir()
    for name in ("__init__.py", "errors.py"):
        (root / "torchlock" / name).write_text("")
    sizes = {w.wheel: w.wheel_size for w in world.records.wheels.values()}
    return ImageSource(repository, lock or world.lock, rootfs, sizes, "conda")


@pytest.fixture
def source(world, rootfs: RootfsLock, tmp_path: Path) -> ImageSource:
    return make_source(world, rootfs, tmp_path / "repository")


@dataclass(frozen=True)
class Rendered:
    """An image that was rendered, what was said, and what it was rendered from."""

    source: ImageSource
    image: Image
    layout: Layout
    said: tuple[str, ...]


@pytest.fixture(scope="session")
def rendered(world, rootfs, tmp_path_factory) -> Rendered:
    """The image of the world's lock and of a package with a link script."""
    root = tmp_path_factory.mktemp("image")
    scripted = locked_conda(demo_link_script(root)).package
    lock = replace(world.lock, packages=(*world.lock.packages, scripted))
    source = make_source(world, rootfs, root / "repository", lock)
    said: list[str] = []
    image, _ = render(source, root / "out", world.store, say=said.append)
    return Rendered(source, image, Layout(root / "out"), tuple(said))


@pytest.fixture(scope="session")
def prefix(rendered: Rendered, tmp_path_factory) -> Path:
    """The image's prefix: its layers laid over each other, as an engine does."""
    root = tmp_path_factory.mktemp("root")
    for _, blob in rendered.image.layers:
        with tarfile.open(rendered.layout.blob(blob.digest)) as archive:
            archive.extractall(root, **AS_IT_IS)
    return root / "opt" / "torchlock"


@pytest.fixture
def runnable(prefix: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The image's Python, started outside the prefix that is written into it."""
    monkeypatch.setenv("LD_LIBRARY_PATH", str(prefix / "lib"))
    return prefix / "bin" / "python3.11"


def test_both_halves_are_what_the_lock_says(world, rendered: Rendered, prefix: Path):
    archives = [(p, world.store.path(p)) for p in rendered.source.conda]
    conda = verify_conda(prefix, expect(prefix, archives, home=HOME), world.records)
    site = replace(find_site(prefix), home=HOME)
    stack = verify(site, world.records, explained=conda.explains)
    own = ("libexec/", "share/torchlock/", "share/notebooks/", "share/jupyter/", "etc/jupyter/")
    assert [f for f in conda.findings if not f.path.startswith(own)] == []
    assert conda.packages == 7 and conda.superseded == ("greet",)
    assert stack.findings == ()
    assert stack.tree == world.records.tree


def test_what_a_wheel_replaces_is_not_there_and_what_conda_brings_is(prefix: Path):
    assert not (prefix / SITE / "greet" / "old.py").exists()
    assert not (prefix / "bin" / "greet-old").exists()
    assert "the wheel" in (prefix / SITE / "greet" / "__init__.py").read_text()
    assert (prefix / "bin" / "where").read_text().startswith(f"#!{HOME}/bin/python\n")
    assert (prefix / "share" / "where" / "current").readlink() == Path("data.txt")
    assert (prefix / "bin" / "pip").read_text().startswith(f"#!{HOME}/bin/python3.11\n")
    assert (prefix / "bin" / "tiny").read_text().startswith(f"#!{HOME}/bin/python3.11\n")
    assert (prefix / "bin" / "python").readlink() == Path("python3.11")
    assert not (prefix / "pyvenv.cfg").exists()


def test_byte_code_is_what_the_images_own_python_makes(prefix: Path, runnable: Path):
    library = prefix / "lib" / "python3.11"
    compiled = [p.relative_to(library).as_posix() for p in library.rglob("*.pyc")]
    assert "site-packages/greet/__pycache__/__init__.cpython-311.pyc" in compiled
    assert "site-packages/pip/__pycache__/__init__.cpython-311.pyc" in compiled
    assert "json/__pycache__/__init__.cpython-311.pyc" in compiled
    assert differing(runnable, library, compiled) == []


def test_python_takes_the_byte_code_that_is_there(prefix: Path, runnable: Path):
    code = "import json, pip, greet, sysconfig, ssl"
    said = subprocess.run(
        [runnable, "-v", "-B", "-c", code], capture_output=True, text=True, check=True
    ).stderr
    for package in ("json", "site-packages/pip", "site-packages/greet"):
        path = f"{prefix}/lib/python3.11/{package}"
        compiled = f"{path}/__pycache__/__init__.cpython-311.pyc"
        assert f"{compiled} matches {path}/__init__.py" in said
    assert "bytecode is stale" not in said


def test_conda_knows_the_prefix(world, prefix: Path, tmp_path: Path):
    program = write_client(tmp_path)
    said = subprocess.run(
        [program, "list", "-p", prefix, "--json"],
        capture_output=True, text=True, check=True, env=client_environment(tmp_path),
    ).stdout  # fmt: skip
    channels = {row["name"]: row["channel"] for row in json.loads(said)}
    for package in world.lock.conda_packages("linux-64"):
        if package.name != "greet":  # a wheel has its place
            assert channels[package.name] not in ("pypi", "<develop>")
    assert channels["tinystack"] == "pypi"
    said = subprocess.run(
        [program, "list", "-p", prefix, "--explicit", "--md5"],
        capture_output=True, text=True, check=True, env=client_environment(tmp_path),
    ).stdout  # fmt: skip
    listed = {line for line in said.splitlines() if line.startswith("http")}
    packages = world.lock.conda_packages("linux-64")
    assert listed == {f"{p.url}#{p.md5}" for p in packages if p.name != "greet"}


def test_the_layers_below_and_above_are_those_of_the_image_on_debian(rendered: Rendered):
    source = rendered.source
    debian = replace(source, foundation="debian")
    same = {p.key for p in plan(debian)} & {p.key for p in plan(source)}
    kinds = {p.kind for p in plan(source) if p.key in same}
    assert kinds == {"rootfs", "wheels"}
    assert len([p for p in plan(source) if p.kind == "conda"]) == 3
    assert {p.kind for p in plan(source) if p.key not in same} == {"conda", "bytecode"}


def test_labels_and_bill_of_materials(world, rendered: Rendered):
    layout = rendered.layout
    manifest = json.loads(layout.read(layout.find(DEFAULT_TAG)))
    config = json.loads(layout.read(manifest["config"]))["config"]
    assert config["Labels"]["torchlock.foundation"] == "conda"
    assert config["Env"][0].startswith("PATH=/opt/torchlock/bin:")
    [row] = layout.referrers(rendered.image.digest)
    materials = json.loads(layout.read(json.loads(layout.read(row))["layers"][0]))
    hashes = {c["purl"]: c["hashes"][0]["content"] for c in materials["components"]}
    packages = {p.name: p for p in world.lock.conda_packages("linux-64")}
    for name, rest in {
        "pip": "pip@23.2.1?build=pyhd8ed1ab_0&channel=channel&subdir=noarch&type=conda",
        "where": "where@1.0?build=0&channel=channel&subdir=linux-64&type=tar.bz2",
    }.items():
        assert hashes[f"pkg:conda/{rest}"] == packages[name].sha256
    assert sum(purl.startswith("pkg:pypi/") for purl in hashes) == len(world.records.wheels)


@pytest.mark.slow
def test_the_digest_is_told_where_the_layers_are_recorded_and_only_there(
    world, source: ImageSource, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    debian = replace(source, foundation="debian")
    with monkeypatch.context() as patched:  # the Debian packages here hold no interpreter
        patched.setattr("torchlock.realize.image.compiled", lambda root, sources: iter(()))
        on_debian, layers = render(debian, tmp_path / "debian", world.store)
    record_layers(debian, layers)
    with pytest.raises(TorchlockError, match="'conda packages, group 1' is not recorded") as told:
        image_digest(source)
    assert told.value.code == 2
    assert "invoke image --foundation conda --record" in told.value.hint
    image, layers = render(source, tmp_path / "out", world.store)
    record_layers(source, layers)
    assert image_digest(source) == image.digest
    assert image_digest(debian) == on_debian.digest, "what was recorded for it is kept"
    before = recorded_layers(source).layers
    render(source, tmp_path / "again", world.store, verify=True)
    assert recorded_layers(source).layers == before


HOSTILE = """
import os, pickle, sys
from pathlib import Path
os.umask(0o077)
from torchlock.artifacts import Store
from torchlock.realize.image import render
source, store, out = pickle.load(open(sys.argv[1], "rb"))
print(sys.version_info[:2], render(source, Path(out), Store(Path(store)), verify=True)[0].digest)
"""


@pytest.mark.slow
def test_another_host_renders_the_same_digest(world, rendered: Rendered, tmp_path: Path):
    asked = tmp_path / "asked"
    asked.write_bytes(pickle.dumps((rendered.source, str(world.store.root), str(tmp_path / "out"))))
    said = subprocess.run(
        [sys.executable, "-c", HOSTILE, asked],
        cwd=Path(__file__).parents[2], capture_output=True, text=True, check=True,
        env={**os.environ, "TZ": "Pacific/Kiritimati", "LC_ALL": "C", "PYTHONHASHSEED": "7",
             "SOURCE_DATE_EPOCH": "1", "TMPDIR": str(tmp_path)},
    ).stdout  # fmt: skip
    assert said.split()[-1] == rendered.image.digest


def write_conda_layer(path: Path, *locked: LockedConda) -> Blob:
    """Write packages as one layer, without byte code."""
    layer = CondaLayer(conda_half(locked, ()), [p.package.name for p in locked])
    with path.open("wb") as stream:
        return write_layer(layer.items(), stream)


def lay_out(root: Path, *paths: Path) -> Path:
    """Write packages as one layer and unpack it; return the prefix."""
    write_conda_layer(root / "layer", *map(locked_conda, paths))
    with tarfile.open(root / "layer") as archive:
        archive.extractall(root / "unpacked", **AS_IT_IS)
    return root / "unpacked" / "opt" / "torchlock"


def test_of_two_packages_with_one_path_the_later_one_has_it(tmp_path: Path):
    made = {}
    for name in ("coreutils", "procps"):
        tree = Tree()
        tree.add("bin/kill", f"kill of {name}")
        made[name] = write_package(tmp_path, tree, name=name, version="1")
    prefix = lay_out(tmp_path, *made.values())
    assert (prefix / "bin" / "kill").read_text() == "kill of procps"
    for name in made:  # each record tells of its own file, as clients' do
        record = json.loads((prefix / "conda-meta" / f"{name}-1-0.json").read_text())
        [row] = record["paths_data"]["paths"]
        assert row["sha256_in_prefix"] == hashlib.sha256(f"kill of {name}".encode()).hexdigest()


def test_what_would_be_run_at_linking_is_said_and_not_run(rendered: Rendered, prefix: Path):
    [line] = [line for line in rendered.said if line.startswith("not run")]
    assert line.endswith(": scripted: bin/.scripted-post-link.sh")
    assert (prefix / "share" / "scripted.txt").exists()
    assert not (prefix / "ran").exists()


def test_activation_scripts_are_among_what_is_not_run(tmp_path: Path):
    tree = Tree()
    tree.add("etc/conda/activate.d/thing.sh", "export LD_PRELOAD=x\n")
    locked = locked_conda(write_package(tmp_path, tree, name="thing", version="1"))
    assert conda_half([locked], ()).not_run == ("thing: etc/conda/activate.d/thing.sh",)


@pytest.mark.parametrize(
    ("files", "links", "options", "message"),
    [
        ({"share/x": b"\0/short\0"}, {}, {"placeholder": "/short"},
         "bad 1 has room for a prefix of 6 bytes, too few for /opt/torchlock"),
        ({"conda-meta/pip-1-0.json": b"{}"}, {}, {}, "where clients keep theirs"),
        ({"share/where/current/x": b"x"}, {}, {}, "below a file or link of where"),
        ({}, {"share/where": "/etc"}, {}, "below a file or link of bad"),
        ({"../../etc/passwd": b"x"}, {}, {}, "unsafe path"),
    ],
)  # fmt: skip
def test_a_package_that_does_not_fit_is_named(tmp_path: Path, files, links, options, message: str):
    tree = Tree()
    for path, data in files.items():
        tree.add(path, data)
    tree.links |= links
    bad = write_package(tmp_path, tree, name="bad", version="1", **options)
    with pytest.raises(CondaError, match=message):
        lay_out(tmp_path, demo_text(tmp_path), bad)


def pack_hard_links(
    directory: Path,
    name: str = "many",
    version: str = "1",
    paths: tuple[str, str] = ("bin/many", "libexec/many-again"),
) -> Path:
    """A package in which two paths are one file with a text prefix, as git's programs are."""
    path = directory / f"{name}-{version}-0.tar.bz2"
    data = f"#!{PLACEHOLDER}/bin/python\n".encode()
    row = {
        "path_type": "hardlink", "sha256": hashlib.sha256(data).hexdigest(),
        "size_in_bytes": len(data), "prefix_placeholder": PLACEHOLDER, "file_mode": "text",
    }  # fmt: skip
    index = {"name": name, "version": version, "build": "0", "subdir": "linux-64"}
    rows = {"paths": [{**row, "_path": path} for path in paths]}
    with tarfile.open(path, "w:bz2") as tar:
        for name, text in (("info/index.json", index), ("info/paths.json", rows)):
            info = entry(name)
            content = json.dumps(text).encode()
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
        info = entry(paths[0], mode=0o755)
        info.size, info.mtime = len(data), 1_234_567_890
        tar.addfile(info, io.BytesIO(data))
        tar.addfile(entry(paths[1], tarfile.LNKTYPE, 0o755, paths[0]))
    return path


def test_hard_links_and_times_are_kept(tmp_path: Path):
    prefix = lay_out(tmp_path, pack_hard_links(tmp_path))
    one, other = (prefix / p for p in ("bin/many", "libexec/many-again"))
    assert one.read_text() == other.read_text() == f"#!{HOME}/bin/python\n"
    assert one.samefile(other)
    assert one.stat().st_mtime == 1_234_567_890


def test_an_interpreter_that_is_a_link_to_what_is_left_out_is_refused(tmp_path: Path):
    paths = ("share/python", "bin/python3.11")
    half = conda_half([locked_conda(pack_hard_links(tmp_path, "python", "3.11.9", paths))], ())
    with pytest.raises(
        CondaError, match=r"python 3\.11\.9: bin/python3\.11 is a hard link to share"
    ):
        half.unpack_python(tmp_path / "compiler")


def test_a_directory_that_takes_no_interpreter_is_named(tmp_path: Path):
    paths = ("bin/python3.11", "bin/python")
    half = conda_half([locked_conda(pack_hard_links(tmp_path, "python", "3.11.9", paths))], ())
    (tmp_path / "compiler").write_text("in the way")
    with pytest.raises(BytecodeError, match=f"unpacked into {tmp_path}/compiler: Not a dir") as no:
        half.unpack_python(tmp_path / "compiler")
    assert "TMPDIR=" in no.value.hint


GOLDEN = "sha256:761f26b33819af6af3d0c46a662eb31ce7ffa347151cafa6c39654e245b06d04"
"""Of the layer of two small packages: it moves with the renderer's rules alone."""


def test_a_layer_has_the_recorded_digest(tmp_path: Path):
    locked = []
    for made in map(locked_conda, (demo_text(tmp_path), pack_hard_links(tmp_path))):
        url = f"http://channel.invalid/demo/linux-64/{made.archive.name}"
        locked.append(replace(made, package=replace(made.package, url=url)))
    assert write_conda_layer(tmp_path / "layer", *locked).digest == GOLDEN


def test_a_package_that_is_not_the_locked_one_is_refused(world, rootfs, tmp_path: Path):
    def changed(**fields: str) -> ImageSource:
        packages = (replace(p, **fields) if p.name == "where" else p for p in world.lock.packages)
        lock = replace(world.lock, packages=tuple(packages))
        return make_source(world, rootfs, tmp_path / str(len(fields)), lock)

    with pytest.raises(ArtifactError, match=r"where 1\.0 cannot be fetched.*the lock says"):
        render(changed(sha256="0" * 64), tmp_path / "out", world.store)
    with pytest.raises(DoesNotHold, match=r"where 1\.0 has the locked sha256, but md5"):
        render(changed(md5="0" * 32, version="1.0"), tmp_path / "out", world.store, verify=True)
    assert not (tmp_path / "out" / "index.json").exists()


def test_where_a_package_comes_from_decides_the_layer_that_says_so(rendered: Rendered):
    def keys(**fields: object) -> set[str]:
        packages = [
            replace(p, **fields) if p.name == "where" else p
            for p in rendered.source.lock.packages
        ]  # fmt: skip
        lock = replace(rendered.source.lock, packages=tuple(packages))
        layers = plan(replace(rendered.source, lock=lock))
        return {p.key for p in layers if p.kind == "conda"}

    assert keys() == keys(version="1.0")
    for fields in ({"url": "http://mirror.invalid/x/linux-64/where-1.0-0.tar.bz2"},
                   {"dependencies": {"pip": ""}}):  # fmt: skip
        assert not keys() & keys(**fields)


@pytest.mark.parametrize(("version", "said"), [("3.12.1", "3.12.1"), ("", "none")])
def test_a_lock_without_the_python_that_the_wheels_are_for_has_no_such_image(
    world, rootfs, tmp_path: Path, version: str, said: str
):
    packages = [
        replace(p, version=version) if p.name == "python" else p
        for p in world.lock.packages
        if version or p.name != "python"
    ]
    lock = replace(world.lock, packages=tuple(packages))
    source = make_source(world, rootfs, tmp_path / "repository", lock)
    with pytest.raises(TorchlockError, match=f"needs a python 3.11 .*; the lock has {said}") as no:
        render(source, tmp_path / "out", world.store)
    assert "--foundation debian" in no.value.hint
