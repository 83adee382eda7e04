"""What was seen on a machine, as one typed record with JSON in and out.

Every field says "not looked at" by its default (`None`, empty), so that a rule can tell
"absent" from "unknown": an empty `nodes` mapping means /dev was read and holds no NVIDIA node.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import re
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeVar, Union

SCHEMA = "torchlock-doctor-1"

HERE = "here"
HOST = "host"
ROOT = "root"
NODE = "node"


@functools.cache
def _compiled(pattern: str) -> re.Pattern[str]:
    """A pattern of a rule; there are more of them than `re` itself keeps."""
    return re.compile(pattern, re.I)


@dataclass(frozen=True)
class Line:
    """One line of text, the command or file it came from, and where that was run."""

    source: str = ""
    text: str = ""
    place: str = HERE
    rc: int | None = None

    def __str__(self) -> str:
        return f"{self.source}: {self.text.strip()[:300] or '(empty)'}"


@dataclass(frozen=True)
class System:
    """The operating system a process sees; `groups` are the groups of the user."""

    os: str = ""
    kernel: str = ""
    machine: str = ""
    glibc: str = ""
    uid: int | None = None
    groups: tuple[str, ...] | None = None
    wsl: bool = False


@dataclass(frozen=True)
class Container:
    """The container engine; `inside` is false where the evidence is from the engine's host."""

    engine: str = ""
    inside: bool = False
    rootless: bool = False
    desktop: bool = False


@dataclass(frozen=True)
class Gpu:
    """One GPU as nvidia-smi lists it; `capability` is (major, minor)."""

    index: int = 0
    name: str = ""
    uuid: str = ""
    capability: tuple[int, ...] | None = None
    migs: tuple[str, ...] = ()
    mig_mode: bool | None = None
    ecc: int | None = None
    compute_mode: str = ""


@dataclass(frozen=True)
class Smi:
    """One run of nvidia-smi; `driver` and `cuda` are empty where it printed none."""

    rc: int | None = None
    driver: str = ""
    cuda: str = ""
    failure: str = ""
    gpus: tuple[Gpu, ...] = ()

    @property
    def works(self) -> bool:
        """True where it reached the driver and listed at least its version or a GPU."""
        return not self.failure and (bool(self.driver) or bool(self.gpus))


@dataclass(frozen=True)
class PciDevice:
    """One NVIDIA device on the PCI bus; `unreadable` is lspci's `rev ff`."""

    slot: str = ""
    text: str = ""
    driver: str = ""
    modules: tuple[str, ...] = ()
    unreadable: bool = False


@dataclass(frozen=True)
class Node:
    """One device node; `opened` is `ok` or the errno name of a real open() for reading/writing."""

    mode: str = ""
    owner: str = ""
    group: str = ""
    opened: str = ""
    major: int | None = None


@dataclass(frozen=True)
class Driver:
    """The kernel side; `absent` means /proc/driver/nvidia/version was looked for in vain."""

    module: str = ""
    open_flavour: bool | None = None
    absent: bool = False
    loaded: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Libcuda:
    """The libcuda.so.1 the loader picks; `init` is cuInit's code, `version` like 12060."""

    found: bool | None = None
    path: str = ""
    error: str = ""
    init: int | None = None
    version: int | None = None


@dataclass(frozen=True)
class Torch:
    """What torch says of itself; `cuda` is empty for a build without CUDA, None if unknown."""

    version: str = ""
    cuda: str | None = None
    available: bool | None = None
    devices: int | None = None
    archs: tuple[str, ...] = ()
    file: str = ""


@dataclass(frozen=True)
class Library:
    """A shared library and the path the loader or a listing gives (empty: not found)."""

    soname: str = ""
    path: str = ""
    via: str = ""


@dataclass(frozen=True)
class Evidence:
    """All that was seen; `lines` is the text itself, the other fields are read from it.

    `smi` is keyed by place (`here`, `host`, `root`, `node`, `wsl`).
    """

    system: System = field(default_factory=System)
    container: Container = field(default_factory=Container)
    driver: Driver = field(default_factory=Driver)
    smi: Mapping[str, Smi] = field(default_factory=dict)
    gpus: tuple[Gpu, ...] = ()
    pci: tuple[PciDevice, ...] | None = None
    nodes: Mapping[str, Node] | None = None
    libcuda: Libcuda = field(default_factory=Libcuda)
    torch: Torch = field(default_factory=Torch)
    packages: Mapping[str, str] = field(default_factory=dict)
    env: Mapping[str, str | None] = field(default_factory=dict)
    libraries: tuple[Library, ...] = ()
    dlopen: Mapping[str, str] = field(default_factory=dict)
    error: str = ""
    lines: tuple[Line, ...] = ()

    def grep(self, pattern: str, *, source: str = "", place: str = "") -> tuple[str, ...]:
        """The lines that match `pattern` (case ignored), as `source: text`, without repeats.

        `source` is a pattern the source must match; `place` restricts to one place.
        """
        text, origin = _compiled(pattern), _compiled(source)
        found = {
            str(line): None
            for line in self.lines
            if (not place or line.place == place)
            and text.search(line.text)
            and origin.search(line.source)
        }
        return tuple(found)

    def first(self, pattern: str, *, source: str = "") -> re.Match[str] | None:
        """The first match of `pattern` in any line."""
        text, origin = _compiled(pattern), _compiled(source)
        for line in self.lines:
            if origin.search(line.source):
                match = text.search(line.text)
                if match:
                    return match
        return None

    def set_env(self, name: str) -> str:
        """The value of an environment variable; empty where it is unset or not looked at."""
        return self.env.get(name) or ""

    def to_json(self) -> str:
        """The record as JSON text that `from_json` reads back unchanged."""
        return json.dumps({"schema": SCHEMA} | dataclasses.asdict(self), indent=1)


T = TypeVar("T")


def from_json(value: object) -> Evidence:
    """An `Evidence` from parsed JSON; what has the wrong type counts as not looked at."""
    return _decode(Evidence, value)


def _decode(kind: type[T], value: object) -> T:
    if not isinstance(value, dict):
        return kind()
    hints = typing.get_type_hints(kind)
    known = {}
    for each in dataclasses.fields(kind):  # type: ignore[arg-type]
        if each.name in value:
            decoded = _value(hints[each.name], value[each.name])
            if decoded is not _BAD:
                known[each.name] = decoded
    return kind(**known)


_BAD = object()


def _value(hint: object, value: object) -> object:
    """`value` as the type `hint`, or `_BAD`."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (Union, types.UnionType):
        decoded = None if value is None else _value(args[0], value)
    elif origin is tuple and isinstance(value, list):
        items = (_value(args[0], item) for item in value)
        decoded = tuple(item for item in items if item is not _BAD)
    elif origin is Mapping and isinstance(value, dict):
        pairs = ((str(key), _value(args[1], item)) for key, item in value.items())
        decoded = {key: item for key, item in pairs if item is not _BAD}
    elif isinstance(hint, type) and dataclasses.is_dataclass(hint) and isinstance(value, dict):
        decoded = _decode(hint, value)
    elif isinstance(hint, type) and isinstance(value, hint):
        decoded = value if (hint is bool) == isinstance(value, bool) else _BAD
    else:
        decoded = _BAD
    return decoded
