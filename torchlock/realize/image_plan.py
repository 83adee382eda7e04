"""What an image is made from, and its layers, before anything is fetched.

Layer plan, lowest first: the system's packages, its toolchain, its configuration; on the
foundation conda, that half of the lock in groups; each big wheel by itself; the other wheels in
groups chosen by a hash of their names, so that a changed package changes one group; byte code in
groups of the same kind. Layers of Debian's packages and of wheels are the same on either
foundation.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

from torchlock.artifacts import Artifact
from torchlock.errors import TorchlockError
from torchlock.lock import Lock, Package, read_lock
from torchlock.oci.layer import Blob
from torchlock.realize.image_bytecode import compiler_packages
from torchlock.realize.image_conda import python_packages, rules_of
from torchlock.realize.image_records import (
    FORMAT,
    LayerRecords,
    read_layer_records,
    records_path,
    write_layer_records,
)
from torchlock.records import read_records
from torchlock.repository import Repository
from torchlock.rootfs.lock import RootfsLock, read_rootfs_lock

PLATFORM = "linux-64"

BIG = 20_000_000
"""Wheels of at least so many bytes have a layer of their own."""

GROUPS = 5
BYTECODE_GROUPS = 3
CONDA_GROUPS = 3

FOUNDATIONS = ("debian", "conda")
"""Whose Python runs the stack: Debian's own, or that of the lock's conda half."""

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
