"""The image realization: an OCI layout straight from the locks.

No engine, no root, no chroot, nothing executed but the pinned compiler for byte code. The
manifest's digest is a function of the lock, the rootfs lock, and this repository's rules and
files (their layer formats are counted by `image_records.FORMAT`).

Layer plan, lowest first: the system's packages, its toolchain, its configuration; on the
foundation conda, that half of the lock in groups; each big wheel by itself; the other wheels in
groups chosen by a hash of their names, so that a changed package changes one group; byte code in
groups of the same kind; the image's own files. Layers of Debian's packages and of wheels are the
same on either foundation.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from io import BytesIO
from pathlib import Path
from typing import IO, Literal

from torchlock.artifacts import Artifact, ArtifactError, Mirrors, Store, fetch, sha256_of
from torchlock.errors import DoesNotHold, TorchlockError
from torchlock.formats.wheel import read_wheel
from torchlock.lock import PYTHON_VERSION, Lock, Package, read_lock
from torchlock.oci.layer import Blob, Item, copy_layer, write_layer
from torchlock.oci.layout import Document, Layout, image_config, image_manifest, referrer_manifest
from torchlock.progress import Progress, silent
from torchlock.realize.foundation import fetch_foundation
from torchlock.realize.image_bytecode import (
    TMPDIR,
    BytecodeError,
    compiled,
    compiler_packages,
    unpack_compiler,
)
from torchlock.realize.image_conda import (
    CondaHalf,
    CondaLayer,
    conda_half,
    python_packages,
    rules_of,
)
from torchlock.realize.image_contents import (
    TOOLS,
    conda_environment,
    contents_items,
    debian_environment,
)
from torchlock.realize.image_records import (
    FORMAT,
    LayerCache,
    LayerRecords,
    read_layer_records,
    records_path,
    write_layer_records,
)
from torchlock.realize.image_sbom import sbom
from torchlock.realize.image_wheels import PREFIX, SITE, wheels_items
from torchlock.records import read_records
from torchlock.repository import Repository
from torchlock.rootfs.convert import Rootfs
from torchlock.rootfs.lock import LAYERS, RootfsLock, fetch_debs, read_rootfs_lock

PLATFORM = "linux-64"
DEFAULT_TAG = "pytorch_cuda_v2.7:latest"

BIG = 20_000_000
"""Wheels of at least so many bytes have a layer of their own."""

GROUPS = 5
BYTECODE_GROUPS = 3
CONDA_GROUPS = 3

FOUNDATIONS = ("debian", "conda")
"""Whose Python runs the stack: Debian's own, or that of the lock's conda half."""

DRIVER_FLOOR = "525.60.13"
"""The oldest NVIDIA driver for CUDA 12, by minor-version compatibility."""

Kind = Literal["rootfs", "conda", "wheels", "bytecode"]


@dataclass(frozen=True)
class Planned:
    """A layer to be: its title, what makes it, and the artifacts it is made from."""

    title: str
    kind: Kind
    artifacts: tuple[Artifact, ...]
    part: str = ""

    @cached_property
    def key(self) -> str:
        """What decides the layer's bytes, as sha256 hex: format, kind and inputs."""
        inputs = [FORMAT, self.kind, self.part, [a.sha256 for a in self.artifacts]]
        return hashlib.sha256(json.dumps(inputs).encode()).hexdigest()


@dataclass(frozen=True)
class ImageSource:
    """All that an image is made from.

    `sizes` gives the size of each wheel by sha256, as recorded from the verified wheels.
    """

    repository: Repository
    lock: Lock
    rootfs: RootfsLock
    sizes: Mapping[str, int]
    foundation: str = "debian"

    @cached_property
    def wheels(self) -> tuple[Package, ...]:
        """The stack."""
        return self.lock.wheels(PLATFORM)

    @cached_property
    def conda(self) -> tuple[Package, ...]:
        """The conda packages, none unless they are the foundation."""
        return self.lock.conda_packages(PLATFORM) if self.foundation == "conda" else ()


def image_source(repository: Repository, foundation: str = "debian") -> ImageSource:
    """Read what an image is made from. Raises `TorchlockError` for an unknown foundation."""
    if foundation not in FOUNDATIONS:
        raise TorchlockError(
            f"an image has no foundation {foundation!r}",
            hint=f"invoke image --foundation {'|'.join(FOUNDATIONS)}",
        )
    records = read_records(repository.records, PLATFORM)
    sizes = {wheel.wheel: wheel.wheel_size for wheel in records.wheels.values()}
    lock = read_lock(repository.lock)
    return ImageSource(repository, lock, read_rootfs_lock(), sizes, foundation)


@dataclass(frozen=True)
class Image:
    """A planned image whose layers are known: its documents."""

    manifest: Document
    config: Document
    layers: tuple[tuple[str, Blob], ...]
    documents: tuple[Document, ...]
    referrer: Document

    @property
    def digest(self) -> str:
        """The manifest's digest."""
        return self.manifest.digest


def plan(source: ImageSource) -> list[Planned]:
    """Return the layers of an image, lowest first, without the image's own files."""
    rootfs = source.rootfs
    layers = [
        Planned("Debian: system", "rootfs", rootfs.layer("system"), "system"),
        Planned("Debian: toolchain", "rootfs", rootfs.layer("toolchain"), "toolchain"),
        Planned(
            "Debian: configuration", "rootfs", rootfs.packages, f"configuration {rootfs.digest}"
        ),
        *_conda_layers(source),
    ]
    big = [w for w in source.wheels if _size(source, w) >= BIG]
    rest = [w for w in source.wheels if _size(source, w) < BIG]
    layers += [Planned(w.label, "wheels", (w,)) for w in sorted(big, key=lambda w: w.name)]
    for number, group in _groups(rest, GROUPS):
        layers.append(Planned(f"wheels, group {number}", "wheels", group))
    compiler = _compiler_artifacts(source)
    layers.append(Planned("byte code of the big wheels", "bytecode", (*compiler, *big)))
    for number, group in _groups(rest, BYTECODE_GROUPS):
        layers.append(Planned(f"byte code, group {number}", "bytecode", (*compiler, *group)))
    return layers


def _conda_layers(source: ImageSource) -> Iterator[Planned]:
    rules = rules_of(source.conda, source.wheels)
    for number, group in _groups(source.conda, CONDA_GROUPS):
        yield Planned(f"conda packages, group {number}", "conda", group, rules)


def _compiler_artifacts(source: ImageSource) -> tuple[Artifact, ...]:
    """Return what decides the byte code: the interpreter that will run it."""
    if source.foundation == "conda":
        return python_packages(source.conda)
    return compiler_packages(source.rootfs)


def _size(source: ImageSource, wheel: Package) -> int:
    try:
        return source.sizes[wheel.sha256]
    except KeyError:
        raise TorchlockError(
            f"the size of {wheel.label} is not recorded", hint="invoke record"
        ) from None


def _groups(wheels: Iterable[Package], count: int) -> Iterator[tuple[int, tuple[Package, ...]]]:
    groups: dict[int, list[Package]] = {}
    for wheel in sorted(wheels, key=lambda w: w.name):
        number = int(hashlib.sha256(wheel.name.encode()).hexdigest(), 16) % count
        groups.setdefault(number, []).append(wheel)
    for number in sorted(groups):
        yield number + 1, tuple(groups[number])


def recorded_layers(source: ImageSource) -> LayerRecords:
    """Return the layers recorded in the repository."""
    return read_layer_records(records_path(source.repository.records, PLATFORM))


def record_layers(source: ImageSource, layers: Mapping[str, tuple[str, Blob]]) -> None:
    """Record the layers that `render` returned, in place of those recorded before.

    What is recorded of the same locks' image on another foundation stays.
    """
    kept: dict[str, tuple[str, Blob]] = {}
    for foundation in FOUNDATIONS:
        if foundation != source.foundation:
            kept |= _recorded(replace(source, foundation=foundation))
    write_layer_records(records_path(source.repository.records, PLATFORM), {**kept, **layers})


def _recorded(source: ImageSource) -> dict[str, tuple[str, Blob]]:
    known = recorded_layers(source).layers
    try:
        return {p.key: (p.title, known[p.key]) for p in plan(source) if p.key in known}
    except TorchlockError:  # the locks give no image on this foundation
        return {}


def image_digest(source: ImageSource) -> str:
    """Return the manifest digest that the locks must give, from recorded layers alone.

    Raises `TorchlockError` when a layer is not recorded.
    """
    known = recorded_layers(source).layers
    layers = []
    for planned in plan(source):
        if planned.key not in known:
            raise TorchlockError(
                f"the layer {planned.title!r} is not recorded for these locks, so the digest of "
                f"the image on {source.foundation} cannot be told",
                hint="render the image once and record its layers: invoke image "
                f"--foundation {source.foundation} --record",
            )
        layers.append((planned.title, known[planned.key]))
    return _image(source, layers, _contents(source)[1]).digest


def _contents(source: ImageSource) -> tuple[bytes, Blob]:
    out = BytesIO()
    on_conda = source.foundation == "conda"
    environment = conda_environment() if on_conda else debian_environment(source.rootfs)
    blob = write_layer(contents_items(source.repository.root, environment), out)
    return out.getvalue(), blob


def _image(source: ImageSource, layers: Sequence[tuple[str, Blob]], contents: Blob) -> Image:
    everything = (*layers, ("torchlock: entry point, notebook, checks", contents))
    annotations = _annotations(source)
    config = image_config(
        created=source.rootfs.date,
        architecture="amd64",
        run={**_run(), "Labels": {**annotations, **_labels(source)}},
        layers=everything,
    )
    manifest = image_manifest(config, everything, annotations)
    materials = sbom("torchlock", source.wheels, source.conda, source.rootfs)
    referrer, empty = referrer_manifest(manifest, materials)
    return Image(
        manifest, config, everything, (config, materials, empty, manifest, referrer), referrer
    )


def _version(source: ImageSource, name: str) -> str:
    return next((w.version for w in source.wheels if w.name == name), "")


def _annotations(source: ImageSource) -> dict[str, str]:
    torch = _version(source, "torch")
    return {
        "org.opencontainers.image.title": "torchlock",
        "org.opencontainers.image.description": f"PyTorch {torch} with CUDA, locked",
        "org.opencontainers.image.version": torch,
        "org.opencontainers.image.created": source.rootfs.date,
        # The lock is what this image is a revision of; a commit would change with every comment.
        "org.opencontainers.image.revision": source.lock.digest,
        "org.opencontainers.image.licenses": "Apache-2.0 AND BSD-3-Clause AND LicenseRef-NVIDIA",
        "org.opencontainers.image.base.name": f"debian:{source.rootfs.codename}",
    }


def _labels(source: ImageSource) -> dict[str, str]:
    return {
        "torchlock.lock": source.lock.digest,
        "torchlock.rootfs": source.rootfs.digest,
        "torchlock.format": str(FORMAT),
        "torchlock.foundation": source.foundation,
        "torchlock.cuda": _version(source, "nvidia-cuda-runtime-cu12"),
        "torchlock.driver.minimum": DRIVER_FLOOR,
    }


def _run() -> dict[str, object]:
    system = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    return {
        "Env": [
            f"PATH=/{PREFIX}/bin:{system}",
            "LANG=C.UTF-8",
            "SHELL=/bin/bash",
            f"TORCHLOCK_TOOLS=/{TOOLS}",
            "NVIDIA_VISIBLE_DEVICES=all",
            "NVIDIA_DRIVER_CAPABILITIES=compute,utility",
            # CUDA 12.0 came with driver branch 525, the floor of every CUDA 12 runtime.
            "NVIDIA_REQUIRE_CUDA=cuda>=12.0",
        ],
        "Entrypoint": ["/usr/bin/tini", "-g", "--", f"/{PREFIX}/libexec/entrypoint"],
        "Cmd": ["serve"],
        "WorkingDir": "/workspace",
        "ExposedPorts": {"22/tcp": {}, "8888/tcp": {}},
        "StopSignal": "SIGTERM",
        "Healthcheck": {
            "Test": ["CMD", f"/{PREFIX}/libexec/health"],
            "Interval": 30_000_000_000,
            "Timeout": 10_000_000_000,
            "StartPeriod": 60_000_000_000,
            "Retries": 3,
        },
    }


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
    that are known are copied from verified wheels; the others are written and hashed. With
    `verify` every layer is made anew and compared with what is known: `DoesNotHold` names the
    first that differs. Raises `LayoutError` when another render is working on `out`. A killed
    render leaves no layout that looks complete, and the next one goes on from the layers that
    are.
    """
    layout = Layout(out)
    with layout.alone():
        job = _Render(source, layout, store, verify, mirrors, progress, say)
        layers = job.run()
        content, blob = _contents(source)
        if not layout.has(blob.digest, blob.size):
            layout.add(lambda stream: _write_all(stream, content, blob.digest))
        image = _image(source, [(p.title, layers[p.key]) for p in job.planned], blob)
        for made in image.documents:
            layout.add_document(made)
        layout.publish(tag, image.manifest, [image.referrer])
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
        self._fetch(missing)
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
                    have.update(future.result())
            except BaseException:
                for future in futures:
                    future.cancel()
                raise
        return have

    def _present(self, planned: Planned) -> Blob | None:
        """Return the layer if it needs no work: it is in the layout, or kept whole."""
        known = self.known(planned)
        if known is None or self.verify:
            return None
        if self.layout.has(known.digest, known.size):
            return known
        kept = self.cache.blob(known.digest)
        if planned.kind != "wheels" and kept.exists() and _digest_of(kept) == known.digest:
            self.layout.add(lambda stream: _copy(kept, stream, known.digest))
            return known
        return None

    def _fetch(self, missing: Sequence[Planned]) -> None:
        if self.source.conda and any(p.kind in ("conda", "bytecode") for p in missing):
            self._fetch_conda()
        wheels = {a.sha256: a for p in missing for a in _wheels_of(p)}
        paths = fetch(wheels.values(), self.store, mirrors=self.mirrors, progress=self.progress)
        self.paths.update(zip(wheels, paths, strict=True))
        if any(p.kind != "wheels" for p in missing):
            debs = fetch_debs(self.source.rootfs, self.store, self.progress)
            self.paths.update(
                (d.sha256, p) for d, p in zip(self.source.rootfs.packages, debs, strict=True)
            )

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
        known = self.known(planned)
        if planned.kind == "bytecode":
            wheels = self._paths(_wheels_of(planned))
            return self._write(planned, compiled(self.compiler, wheel_sources(wheels)))
        if self.half and planned.kind == "conda":
            names = {p.name for p in planned.artifacts if isinstance(p, Package)}
            layer = CondaLayer(self.half, names)
            return self._write(planned, _conda_items(layer, self.compiler))
        paths = self._paths(planned.artifacts)
        if known is None or self.verify:
            return self._write(planned, wheels_items(paths))
        blob = known

        def copy(stream: IO[bytes]) -> str:
            copy_layer(wheels_items(paths), stream, blob)
            return blob.digest

        self.layout.add(copy)
        return known

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

        def write(stream: IO[bytes]) -> str:
            made.append(write_layer(items, stream))
            return made[0].digest

        self.layout.add(write)
        blob, known = made[0], self.known(planned)
        if known is not None and known != blob:
            raise DoesNotHold(
                f"the layer {planned.title!r} came out as {blob.digest}, "
                f"recorded is {known.digest}",
                hint="the inputs are verified, so the renderer differs: check that the pinned "
                "requirements are installed; after a change of format: invoke image --record",
            )
        self._keep(planned, blob)
        return blob

    def _keep(self, planned: Planned, blob: Blob) -> None:
        """Note the layer, and keep it if it took work: another layout gets it by copying.

        A store that cannot take it costs the next render time, and this one nothing.
        """
        try:
            self.cache.remember(planned.key, blob)
            if planned.kind != "wheels":
                self.cache.keep(blob.digest, self.layout.blob(blob.digest))
        except OSError as error:
            if not self.unkept:
                self.unkept = True
                self.say(
                    f"layers are not kept in {self.cache.root} ({error.strerror}); a render into "
                    "another layout makes them again"
                )


def _wheels_of(planned: Planned) -> list[Package]:
    return [a for a in planned.artifacts if isinstance(a, Package) and a.manager == "pip"]


def _conda_items(layer: CondaLayer, compiler: Path) -> Iterator[Item]:
    yield from layer.items()
    yield from compiled(compiler, layer.sources)


def _any_rootfs(missing: Iterable[Planned]) -> bool:
    return any(p.kind == "rootfs" for p in missing)


def _digest_of(path: Path) -> str:
    return "sha256:" + sha256_of(path)


def _copy(path: Path, stream: IO[bytes], digest: str) -> str:
    with path.open("rb") as source:
        shutil.copyfileobj(source, stream, 1 << 20)
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
