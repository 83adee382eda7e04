"""Rendering the image against compressing the same tree: CPU, wall time, memory, size.

    python benchmarks/image.py [DIR]

Needs root, the wheels and Debian's packages in the artifact store, `buildah`, and about 20 GB
in DIR (default: a temporary directory). All sides are measured in one run, each in a process
of its own whose children are counted.

Buildah and tar are given the installed tree: Debian's packages unpacked, byte code compiled. A
render with nothing recorded makes those first. What that takes is measured by itself, and the
render is shown whole and without it: the second is what the two sides have in common, writing
compressed layers of the same content (for the render, from wheels that it verifies and
inflates). What no render with nothing recorded can do without, whatever it is written in, is
measured too: sha256 over the wheels, over what they inflate to and over as many bytes written,
and the inflating.

A render whose layers are recorded is measured three times: without the frames of the wheels'
layers, as on a machine that has rendered none of them (it then hashes what it writes); with the
frames that it kept, every wheel read again; and with every wheel unchanged since then.
"""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from hashlib import sha256
from itertools import chain
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from torchlock.artifacts import Store, default_store
from torchlock.formats.zipstream import raw_members
from torchlock.oci import gzipped
from torchlock.oci.layout import Layout
from torchlock.realize.image import render, standard_library, wheel_sources
from torchlock.realize.image_bytecode import compiled, compiler_packages, unpack_compiler
from torchlock.realize.image_plan import ImageSource, image_source
from torchlock.repository import this_repository
from torchlock.rootfs.convert import Rootfs
from torchlock.tree import CHUNK


@dataclass(frozen=True)
class Cost:
    """What a step took: CPU and wall time in seconds, the largest process in MB."""

    cpu: float
    wall: float
    memory: float


def measured(step: Callable[[], None]) -> Cost:
    """Run a step in a child process and return what it and its children took."""
    began = time.monotonic()
    child = os.fork()
    if child == 0:
        try:
            step()
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            print(f"    (largest process {peak / 1e3:.0f} MB)", flush=True)
        except BaseException as error:
            print(f"failed: {error}", file=sys.stderr, flush=True)
            os._exit(1)
        os._exit(0)
    _, status, usage = os.wait4(child, 0)
    if status:
        raise SystemExit("a step failed")
    return Cost(usage.ru_utime + usage.ru_stime, time.monotonic() - began, usage.ru_maxrss / 1e3)


def shell(command: str) -> Callable[[], None]:
    def step() -> None:
        subprocess.run(["bash", "-euo", "pipefail", "-c", command], check=True)

    return step


def show(name: str, cost: Cost, *, against: Cost | None = None, size: int = 0) -> None:
    ratio = f"{against.cpu / cost.cpu:6.1f}x less CPU than buildah" if against else ""
    bytes_ = f"{size / 1e9:6.2f} GB" if size else " " * 9
    print(
        f"{name:44} {cost.cpu:7.1f} s CPU {cost.wall:7.1f} s wall {cost.memory:6.0f} MB "
        f"{bytes_} {ratio}",
        flush=True,
    )


def without(image: ImageSource, name: str) -> ImageSource:
    """Return a source whose lock differs in one small wheel."""
    lock = replace(image.lock, packages=tuple(p for p in image.lock.packages if p.name != name))
    return replace(image, lock=lock)


def fresh_store(root: Path) -> Store:
    """Return a store that shares the artifacts but knows no layer."""
    shared = default_store()
    root.mkdir()
    for name in ("sha256", "partial", "locks"):
        (root / name).symlink_to(shared.root / name)
    return Store(root)


def make_content(image: ImageSource) -> None:
    """Unpack Debian's packages and compile all byte code, as a render does, and write nothing."""
    store, rootfs = default_store(), Rootfs()
    for _ in rootfs.package_items(map(store.path, image.rootfs.packages), first=True):
        pass
    sources = standard_library(rootfs)
    wheels = [store.path(wheel) for wheel in image.wheels]
    with tempfile.TemporaryDirectory() as scratch:
        unpack_compiler(map(store.path, compiler_packages(image.rootfs)), Path(scratch))
        for _ in compiled(Path(scratch), chain(sources, wheel_sources(wheels))):
            pass


def hash_and_inflate(image: ImageSource) -> None:
    """Do what digests and diff IDs of the wheels' layers take, and nothing else."""
    store = default_store()
    for wheel in map(store.path, image.wheels):
        outer, inner, compressed = sha256(), sha256(), sha256()
        with wheel.open("rb", buffering=0) as stream, zipfile.ZipFile(wheel) as archive:
            while chunk := stream.read(CHUNK):
                outer.update(chunk)
            for member in raw_members(wheel, archive, partial(pread, stream.fileno())):
                inflater, left = gzipped.inflater(), member.length
                stream.seek(member.offset)
                while left and member.deflated:
                    chunk = stream.read(min(left, CHUNK))
                    left -= len(chunk)
                    compressed.update(chunk)
                    while chunk and not inflater.eof:
                        inner.update(inflater.decompress(chunk, CHUNK))
                        chunk = inflater.unconsumed_tail


def pread(handle: int, offset: int, length: int) -> bytes:
    return os.pread(handle, length, offset)


def layers_size(layout: Path) -> int:
    return sum(p.stat().st_size for p in (layout / "blobs" / "sha256").iterdir())


def main() -> None:
    base = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(tempfile.mkdtemp())
    base.mkdir(exist_ok=True)
    print(f"load average at the start {os.getloadavg()[0]:.1f}", flush=True)
    image, store, out = image_source(this_repository()), fresh_store(base / "store"), base / "out"

    def rendering(target: Path, what: ImageSource = image, *, verify: bool = False):
        # A new Store each time: it remembers what it has verified.
        return lambda: render(what, target, Store(store.root), verify=verify) and None

    cold = measured(rendering(out, verify=True))
    content = measured(lambda: make_content(image))
    ours = layers_size(out)
    floor = measured(lambda: hash_and_inflate(image))
    for frame in (store.root / "layers").glob("*.frame"):
        frame.unlink()
    unframed = measured(rendering(base / "unframed"))
    shutil.rmtree(base / "unframed")
    (store.root / "stamps").unlink(missing_ok=True)
    read = measured(rendering(base / "read"))
    shutil.rmtree(base / "read")
    warm = measured(rendering(base / "warm"))
    shutil.rmtree(base / "warm")
    same = measured(rendering(out))
    one = measured(rendering(out, without(image, "tqdm")))

    tree = base / "tree"
    tree.mkdir()
    made, _ = render(image, out, Store(store.root))
    for _, blob in made.layers:
        archive = Layout(out).blob(blob.digest)
        subprocess.run(["tar", "-xzf", str(archive), "-C", str(tree)], check=True)
    shutil.rmtree(out)

    gzipped = base / "gzip.size"
    tar = measured(shell(f"tar -C {tree} -cf - . | gzip -6 | wc -c > {gzipped}"))
    container = subprocess.run(
        ["buildah", "from", "scratch"], check=True, capture_output=True, text=True
    ).stdout.strip()
    subprocess.run(["buildah", "add", "-q", container, str(tree), "/"], check=True)
    shutil.rmtree(tree)
    built = measured(
        shell(f"buildah commit -q --disable-compression=false {container} oci:{base}/buildah:b")
    )
    theirs = layers_size(base / "buildah")
    subprocess.run(["buildah", "rm", container], check=True, capture_output=True)

    print(f"\nload average {' '.join(f'{n:.1f}' for n in os.getloadavg())}, {os.cpu_count()} cores")
    show("buildah commit --disable-compression=false", built, size=theirs)
    show("tar | gzip -6", tar, against=built, size=int(gzipped.read_text()))
    layers = Cost(cold.cpu - content.cpu, cold.wall - content.wall, cold.memory)
    show("render, nothing recorded (--verify)", cold, against=built, size=ours)
    show("  of it: unpacking and compiling", content)
    show("  of it: the rest, writing layers", layers, against=built, size=ours)
    show("  no render does without: hashing, inflating", floor, against=built)
    show("render, layers recorded, the first here", unframed, against=built, size=ours)
    show("render, layers recorded, wheels read", read, against=built, size=ours)
    show("render, layers recorded, wheels unchanged", warm, against=built, size=ours)
    show("render again, nothing changed", same, against=built)
    show("render, one small wheel changed", one, against=built)
    shutil.rmtree(base)


if __name__ == "__main__":
    main()
