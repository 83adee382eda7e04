"""Where this process's shared libraries and modules came from: the environment, or elsewhere."""

from __future__ import annotations

import re
import sysconfig
from collections.abc import Iterable, Mapping
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


def libraries(maps: str, sites: Iterable[Path]) -> list[Origin]:
    """The shared libraries in `maps` (the text of /proc/self/maps), sorted by name.

    `sites` are the environment's site-packages. What else its prefix holds (conda's libstdc++)
    is foundation, as the host's would be.
    """
    inside = tuple(sites)
    found = set()
    for line in maps.splitlines():
        # address permissions offset device inode path; the path may hold spaces.
        fields = line.split(maxsplit=5)
        if len(fields) == 6 and re.search(r"\.so(\.|$)", fields[5].removesuffix(" (deleted)")):
            path = Path(fields[5].removesuffix(" (deleted)"))
            found.add(Origin(path.name, _place(path, inside), str(path)))
    return sorted(found)


def _place(path: Path, sites: tuple[Path, ...]) -> str:
    if _within(path, sites):
        return ENVIRONMENT
    if _DRIVER_LIBRARY.match(path.name):
        return DRIVER
    return ELSEWHERE if _STACK_LIBRARY.match(path.name) else FOUNDATION


def modules(named: Mapping[str, str], roots: Iterable[Path]) -> list[Origin]:
    """Modules (name -> file) that came from none of `roots`, sorted by name."""
    inside = tuple(roots)
    return sorted(
        Origin(name, ELSEWHERE, file)
        for name, file in named.items()
        if Path(file).is_absolute() and not _within(Path(file), inside)
    )


def site_packages() -> list[Path]:
    """This environment's site-packages, as named and with links resolved."""
    named = {Path(sysconfig.get_paths()[key]) for key in ("purelib", "platlib")}
    return sorted(named | {path.resolve() for path in named})


def standard_library() -> list[Path]:
    """Where the interpreter's own modules live, as named and with links resolved."""
    named = {Path(sysconfig.get_paths()[key]) for key in ("stdlib", "platstdlib")}
    # Another site-packages below it (Debian's and conda's are) is not the standard library.
    return sorted(named | {path.resolve() for path in named})


def _within(path: Path, roots: tuple[Path, ...]) -> bool:
    return any(_belongs(path, root) for root in roots)


def _belongs(path: Path, root: Path) -> bool:
    if path.is_relative_to(root):
        # Not below a site-packages of the interpreter that is not the environment's own.
        inner = path.relative_to(root).parts[:-1]
        return not {"site-packages", "dist-packages"}.intersection(inner)
    # In a tree of links (Nix) a file's real path is elsewhere: is it what the root leads to?
    parts = path.parts
    if root.name not in parts:
        return False
    rest = parts[len(parts) - parts[::-1].index(root.name) :]
    return root.joinpath(*rest).resolve() == path.resolve()
