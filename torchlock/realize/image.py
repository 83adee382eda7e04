"""The image realization: an OCI layout straight from the locks.

No engine, no root, no chroot, nothing executed but the pinned compiler for byte code. The
manifest's digest is a function of the lock, the rootfs lock, and this repository's rules and
files (their layer formats are counted by `image_records.FORMAT`).
"""

from __future__ import annotations

import hashlib
import os
import shlex
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import IO

from torchlock.artifacts import (
    Artifact,
    ArtifactError,
    Mirrors,
    Store,
    UnverifiedError,
    fetch,
)
from torchlock.errors import DoesNotHold
from torchlock.formats.wheel import WheelError, read_wheel
from torchlock.formats.zipstream import ZipStreamError
from torchlock.lock import PYTHON_VERSION, Package
from torchlock.oci.frame import Frame
from torchlock.oci.layer import Blob, Item, LayerError, copy_framed, copy_layer, write_layer
from torchlock.oci.layout import Layout
from torchlock.oci.reference import DEFAULT_TAG, parse_name
from torchlock.onepass import OnePass, UnreadableError
from torchlock.progress import Progress, silent
from torchlock.realize.foundation import fetch_foundation
from torchlock.realize.image_bytecode import (
    TMPDIR,
    BytecodeError,
    compiled,
    compiler_packages,
    unpack_compiler,
)
from torchlock.realize.image_conda import CondaHalf, CondaLayer, conda_half
from torchlock.realize.image_documents import Image, contents_layer, documents_of
from torchlock.realize.image_plan import PLATFORM, ImageSource, Planned, plan, recorded_layers
from torchlock.realize.image_records import LayerCache
from torchlock.realize.image_wheels import SITE, Opening, wheels_items
from torchlock.realize.place import read_stamps
from torchlock.rootfs.convert import Rootfs
from torchlock.rootfs.lock import LAYERS, fetch_debs
from torchlock.stamps import Reading


def render(
    source: ImageSource,
    out: Path,
    store: Store,
    *,
    tag: str = DEFAULT_TAG,
    verify: bool = False,
    mirrors: Callable[[Sequence[Artifact]], Mirrors] = lambda _: {},
    progress: Progress = silent,
    say: Callable[[str], None] = lambda _: None,
) -> tuple[Image, dict[str, tuple[str, Blob]]]:
    """Write the image into the layout at `out` under `tag`; return it and its layers by key.

    Layers whose digest is known and that are in the layout are left as they are; wheel layers
    that are known are copied from wheels that are verified, or unchanged since they were; the
    others are written and hashed. With `verify` every artifact is read, every layer is made anew
    and compared with what is known: `DoesNotHold` names the first that differs. Raises
    `ImageNameError` for a tag that engines would not take, and `LayoutError` when another render
    is working on `out`. A killed render leaves no layout that looks complete, and the next one
    goes on from the layers that are.
    """
    parse_name(tag)
    layout = Layout(out)
    with layout.alone():
        job = _Render(source, layout, store, verify, mirrors, progress, say)
        layers = job.run()
        content, blob = contents_layer(source)
        if not layout.has(blob.digest, blob.size):
            layout.add(lambda stream: _write_all(stream, content, blob.digest))
        image = documents_of(source, [(p.title, layers[p.key]) for p in job.planned], blob)
        for made in image.documents:
            layout.add_document(made)
        layout.publish(tag, image.manifest, [image.referrer])
        if left := layout.unreached():
            size = sum(path.stat().st_size for path in left) / 1e6
            remove = shlex.join(("umoci", "gc", "--layout", str(out)))
            say(f"{len(left)} blobs in {out} are in no image, {size:.0f} MB; to remove: {remove}")
    return image, {p.key: (p.title, layers[p.key]) for p in job.planned}


def _write_all(stream: IO[bytes], content: bytes, digest: str) -> str:
    stream.write(content)
    return digest


class _Render:
    """One run of `render`: what is known, and the jobs that make the rest."""

    def __init__(
        self,
        source: ImageSource,
        layout: Layout,
        store: Store,
        verify: bool,
        mirrors: Callable[[Sequence[Artifact]], Mirrors],
        progress: Progress,
        say: Callable[[str], None],
    ) -> None:
        self.source, self.layout, self.store, self.verify = source, layout, store, verify
        self.mirrors, self.progress, self.say = mirrors, progress, say
        self.cache = LayerCache(store.root / "layers")
        self.recorded = recorded_layers(source).layers
        self.planned = plan(source)
        self.paths: dict[str, Path] = {}
        self.half: CondaHalf | None = None
        self.system_compiler = self.compiler = Path()
        self.unkept = False

    def known(self, planned: Planned) -> Blob | None:
        return self.recorded.get(planned.key) or self.cache.known(planned.key)

    def run(self) -> dict[str, Blob]:
        have = {p.key: blob for p in self.planned if (blob := self._present(p)) is not None}
        missing = [p for p in self.planned if p.key not in have]
        if not missing:
            return have
        stamps = read_stamps(self.store)
        self.reading = Reading(stamps)
        self._fetch(missing)
        try:
            return have | self._make(missing)
        finally:
            stamps.write()

    def _make(self, missing: Sequence[Planned]) -> dict[str, Blob]:
        made: dict[str, Blob] = {}
        rootfs = [p for p in self.planned if p.kind == "rootfs"] if _any_rootfs(missing) else []
        jobs: list[Callable[[], dict[str, Blob]]] = []
        if rootfs:
            jobs.append(lambda: self._rootfs(rootfs))
        for p in sorted(missing, key=lambda p: (p.kind != "bytecode", -self._input_size(p))):
            if p.kind != "rootfs":
                jobs.append(lambda p=p: {p.key: self._layer(p)})  # type: ignore[misc]
        self.say(f"writing {len(missing)} of {len(self.planned)} layers")
        with ExitStack() as stack, ThreadPoolExecutor(min(4, os.cpu_count() or 1)) as pool:
            if any(p.kind != "wheels" for p in missing):
                self._unpack_compilers(stack)
            futures = [pool.submit(job) for job in jobs]
            try:
                for future in futures:
                    made.update(future.result())
            except BaseException:
                for future in futures:
                    future.cancel()
                raise
        if self.reading.read or self.reading.unchanged:
            self.say(f"wheels of known layers: {self.reading.told}")
        return made

    def _present(self, planned: Planned) -> Blob | None:
        """Return the layer if it needs no work: it is in the layout, or kept whole."""
        known = self.known(planned)
        if known is None or self.verify:
            return None
        if self.layout.has(known.digest, known.size):
            return known
        kept = self.cache.blob(known.digest)
        if planned.kind != "wheels" and kept.exists():
            with suppress(LayerError):  # what is kept is damaged
                self.layout.add(lambda stream: _copy(kept, stream, known.digest))
                return known
        return None

    def _copies(self, planned: Planned) -> bool:
        """Say whether the layer is copied out of wheels, its digest being known."""
        return planned.kind == "wheels" and not self.verify and self.known(planned) is not None

    def _fetch(self, missing: Sequence[Planned]) -> None:
        if self.source.conda and any(p.kind in ("conda", "bytecode") for p in missing):
            self._fetch_conda()
        self._fetch_wheels(missing)
        if any(p.kind != "wheels" for p in missing):
            debs = fetch_debs(self.source.rootfs, self.store, self.progress)
            self.paths.update(
                (d.sha256, p) for d, p in zip(self.source.rootfs.packages, debs, strict=True)
            )

    def _fetch_wheels(self, missing: Sequence[Planned]) -> None:
        # What a known layer is copied from is verified by `_copy_wheels`, while it is read.
        wanted = [
            wheel
            for p in missing
            for wheel in _wheels_of(p)
            if not self._copies(p) or not self.store.has(wheel)
        ]
        fetch(wanted, self.store, mirrors=self.mirrors, progress=self.progress)
        wheels = {wheel for p in missing for wheel in _wheels_of(p)}
        self.paths.update((wheel.sha256, self.store.path(wheel)) for wheel in wheels)

    def _fetch_conda(self) -> None:
        try:
            locked = fetch_foundation(
                self.source.lock, PLATFORM, self.store, progress=self.progress
            )
        except ArtifactError as error:
            other = "an image without conda packages: invoke image --foundation debian"
            raise ArtifactError(error.message, hint=f"{error.hint}; {other}") from None
        self.paths.update((p.package.sha256, p.archive) for p in locked)
        self.half = conda_half(locked, self.source.wheels)
        if self.half.not_run:
            self.say(f"not run, as nothing is in a render: {', '.join(self.half.not_run)}")

    def _input_size(self, planned: Planned) -> int:
        return sum(self.paths[a.sha256].stat().st_size for a in planned.artifacts)

    def _paths(self, artifacts: Iterable[Artifact]) -> list[Path]:
        return [self.paths[a.sha256] for a in artifacts]

    def _layer(self, planned: Planned) -> Blob:
        if planned.kind == "bytecode":
            wheels = self._paths(_wheels_of(planned))
            return self._write(planned, compiled(self.compiler, wheel_sources(wheels)))
        if self.half and planned.kind == "conda":
            names = {p.name for p in planned.artifacts if isinstance(p, Package)}
            layer = CondaLayer(self.half, names)
            return self._write(planned, _conda_items(layer, self.compiler))
        known = self.known(planned)
        if known is None or not self._copies(planned):
            return self._write(planned, wheels_items(self._opened(planned)))
        try:
            return self._copy_wheels(planned, known)
        except _NOT_AS_LOCKED:
            # Read, now, whatever the stamps say: what is not the locked wheel is fetched anew.
            fetch(
                _wheels_of(planned),
                Store(self.store.root),
                mirrors=self.mirrors,
                progress=self.progress,
            )
            return self._copy_wheels(planned, known, framed=False)

    def _copy_wheels(self, planned: Planned, known: Blob, *, framed: bool = True) -> Blob:
        """Copy a known layer out of its wheels, by its frame or, once, to take that down."""
        wheels, made = self._opened(planned), Frame()
        kept = self.cache.frame(known.digest) if framed else None

        def copy(stream: IO[bytes]) -> str:
            if kept:
                copy_framed(kept, wheels, stream, known)
            else:
                digest, size = copy_layer(wheels_items(wheels), stream, made)
                _check_same(planned, known, replace(known, digest=digest, size=size))
            return known.digest

        self.layout.add(copy)
        if not kept:
            self._keep(planned, known, made)
        return known

    def _opened(self, planned: Planned) -> Iterator[Opening]:
        """Yield the wheels of a layer, each to be opened and verified in its turn."""
        for artifact in planned.artifacts:
            yield self.store.opened(artifact, self.reading)

    def _unpack_compilers(self, stack: ExitStack) -> None:
        """Unpack the interpreters that the system's and the stack's byte code is made by."""
        packages = compiler_packages(self.source.rootfs)
        self.system_compiler = stack.enter_context(_compiler(self._paths(packages)))
        self.compiler = self.system_compiler
        if self.half:
            # conda's Python has no C library of its own: Debian's, whatever the host has.
            libc = self._paths(p for p in packages if p.name == "libc6")
            self.compiler = stack.enter_context(_compiler(libc))
            self.half.unpack_python(self.compiler)

    def _rootfs(self, planned: Sequence[Planned]) -> dict[str, Blob]:
        """Write the three layers of the root file system; the last needs what the first saw."""
        rootfs = Rootfs()
        made = {}
        for p, name in zip(planned, LAYERS, strict=False):
            debs = self._paths(p.artifacts)
            made[p.key] = self._write(p, rootfs.package_items(debs, first=name == LAYERS[0]))
        items = self._configuration(rootfs, self.system_compiler)
        made[planned[-1].key] = self._write(planned[-1], items)
        return made

    def _configuration(self, rootfs: Rootfs, compiler: Path) -> Iterator[Item]:
        yield from rootfs.configuration_items(self.source.rootfs)
        yield from compiled(compiler, standard_library(rootfs))

    def _write(self, planned: Planned, items: Iterable[Item]) -> Blob:
        made: list[Blob] = []
        frame = Frame() if planned.kind == "wheels" else None

        def write(stream: IO[bytes]) -> str:
            made.append(write_layer(items, stream, frame))
            return made[0].digest

        self.layout.add(write)
        blob, known = made[0], self.known(planned)
        if known is not None:
            _check_same(planned, known, blob)
        self._keep(planned, blob, frame)
        return blob

    def _keep(self, planned: Planned, blob: Blob, frame: Frame | None) -> None:
        """Note the layer, and keep what took work: another layout gets it by copying.

        A store that cannot take it costs the next render time, and this one nothing.
        """
        try:
            self.cache.remember(planned.key, blob)
            if frame and not frame.is_full:
                self.cache.keep_frame(blob.digest, frame)
            if not frame:
                self.cache.keep(blob.digest, self.layout.blob(blob.digest))
        except OSError as error:
            if not self.unkept:
                self.unkept = True
                self.say(
                    f"layers are not kept in {self.cache.root} ({error.strerror}); a render into "
                    "another layout makes them again"
                )


_NOT_AS_LOCKED = (
    UnverifiedError,
    UnreadableError,
    LayerError,
    WheelError,
    ZipStreamError,
    DoesNotHold,
)
"""What copying a layer raises when its wheels are not the locked ones, whatever shows it first."""


def _check_same(planned: Planned, known: Blob, blob: Blob) -> None:
    if blob != known:
        raise DoesNotHold(
            f"the layer {planned.title!r} came out as {blob.digest}, recorded is {known.digest}",
            hint="the inputs are verified, so the renderer differs: check that the pinned "
            "requirements are installed; after a change of format: invoke image --record",
        )


def _wheels_of(planned: Planned) -> list[Package]:
    return [a for a in planned.artifacts if isinstance(a, Package) and a.manager == "pip"]


def _conda_items(layer: CondaLayer, compiler: Path) -> Iterator[Item]:
    yield from layer.items()
    yield from compiled(compiler, layer.sources)


def _any_rootfs(missing: Iterable[Planned]) -> bool:
    return any(p.kind == "rootfs" for p in missing)


def _copy(path: Path, stream: IO[bytes], digest: str) -> str:
    actual = hashlib.sha256()
    with path.open("rb", buffering=0) as source:
        for piece in OnePass(path, source, actual).pieces(0, os.fstat(source.fileno()).st_size):
            stream.write(piece)
    if actual.hexdigest() != digest.removeprefix("sha256:"):
        raise LayerError(f"{path} does not have its name's digest")
    return digest


@contextmanager
def _compiler(debs: Sequence[Path]) -> Iterator[Path]:
    try:
        scratch = tempfile.TemporaryDirectory(prefix="torchlock-")
    except OSError as error:
        raise BytecodeError(f"no temporary directory can be made ({error})", hint=TMPDIR) from None
    with scratch as directory:
        unpack_compiler(debs, Path(directory))
        yield Path(directory)


def standard_library(rootfs: Rootfs) -> list[tuple[str, bytes]]:
    """Return the Python sources of the packages that `rootfs` saw, as (path, contents)."""
    return [
        (path, source)
        for path, source in sorted(rootfs.sources.items())
        if path.startswith(f"usr/lib/python{PYTHON_VERSION}/") and "/lib2to3/tests/" not in path
    ]


def wheel_sources(wheels: Iterable[Path]) -> Iterator[tuple[str, bytes]]:
    """Yield the Python sources of wheels as (path in the image, contents), each path once."""
    seen: set[str] = set()
    for path in wheels:
        with read_wheel(path) as wheel:
            for file in wheel.files:
                where = f"{SITE}/{file.entry.path}"
                if file.scheme == "site" and where.endswith(".py") and where not in seen:
                    seen.add(where)
                    yield where, wheel.archive.read(file.member)
