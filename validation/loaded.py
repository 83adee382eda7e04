"""Where this process's shared libraries and modules came from: the environment, or elsewhere."""

from __future__ import annotations

import re
import sys
import sysconfig
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

ENVIRONMENT = "environment"
FOUNDATION = "foundation"
DRIVER = "driver"
ELSEWHERE = "elsewhere"

# Libraries that the stack brings itself; a copy from anywhere else is a hijack.
_STACK_LIBRARY = re.compile(
    r"lib(torch|c10|shm|caffe2|cud|cublas|cufft|cufile|curand|cusolver|cusparse|cupti|nvrtc|"
    r"nvJitLink|nvToolsExt|nccl|triton|mkl|dnnl|iomp|gomp-)"
)
# The kernel driver's own libraries come from the host, as they must.
_DRIVER_LIBRARY = re.compile(
    r"lib(cuda|nvidia-[a-z0-9-]+|nvcuvid|cudadebugger|nvdxgdmal|dxcore)\.so"
)


@dataclass(frozen=True, order=True)
class Origin:
    """A loaded file: its name, the part of the system it came from, and its path."""

    name: str
    place: str
    path: str


def libraries(maps: str, roots: Iterable[Path]) -> list[Origin]:
    """The shared libraries in `maps` (the text of /proc/self/maps), sorted by name."""
    inside = tuple(roots)
    found = set()
    for line in maps.splitlines():
        # address permissions offset device inode path; the path may hold spaces.
        fields = line.split(maxsplit=5)
        if len(fields) == 6 and re.search(r"\.so(\.|$)", fields[5].removesuffix(" (deleted)")):
            path = Path(fields[5].removesuffix(" (deleted)"))
            found.add(Origin(path.name, _place(path, inside), str(path)))
    return sorted(found)


def _place(path: Path, inside: tuple[Path, ...]) -> str:
    if _within(path, inside):
        return ENVIRONMENT
    if _DRIVER_LIBRARY.match(path.name):
        return DRIVER
    return ELSEWHERE if _STACK_LIBRARY.match(path.name) else FOUNDATION


def modules(named: dict[str, str], roots: Iterable[Path]) -> list[Origin]:
    """Modules (name -> file) that came from none of `roots`, sorted by name."""
    inside = tuple(roots)
    return sorted(
        Origin(name, ELSEWHERE, file)
        for name, file in named.items()
        if Path(file).is_absolute() and not _within(Path(file), inside)
    )


def environment_roots() -> list[Path]:
    """The directories that make up this environment, links resolved.

    A Nix environment or an image may hold links: what site-packages links to counts as inside.
    """
    roots = {Path(sys.prefix).resolve(), Path(sys.prefix)}
    for key in ("purelib", "platlib"):
        directory = Path(sysconfig.get_paths()[key])
        if directory.is_dir():
            roots.add(directory.resolve())
            roots.update(entry.resolve() for entry in directory.iterdir() if entry.is_symlink())
    return sorted(roots)


def standard_library_roots() -> list[Path]:
    """Where the interpreter's own modules live."""
    base = {Path(sysconfig.get_paths()[key]) for key in ("stdlib", "platstdlib")}
    return sorted(base | {path.resolve() for path in base})


def _within(path: Path, roots: tuple[Path, ...]) -> bool:
    return any(candidate.is_relative_to(r) for r in roots for candidate in (path, path.resolve()))
