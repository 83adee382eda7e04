"""Compile modules: `python bytecode.py DESTINATION [ROOT]`; without ROOT the standard library.

The byte code is never checked against its source, which cannot change in a Nix store, and holds
no time. Files that are no Python of this version (templates, test data) are left out, as
installers do.
"""

from __future__ import annotations

import os
import py_compile
import sys
import sysconfig
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path

NOT_IMPORTED = frozenset({"__pycache__", "site-packages", "dist-packages", "test", "tests"})
"""Directories of the standard library whose modules no program imports."""


def sources(root: Path, without: frozenset[str] = frozenset()) -> Iterator[str]:
    """Yield the paths of the modules below `root`, relative to it."""
    for directory, names, files in os.walk(root):
        names[:] = [name for name in names if name not in without]
        for name in files:
            if name.endswith(".py"):
                yield str((Path(directory) / name).relative_to(root))


def compile_one(root: Path, destination: Path, source: str) -> None:
    """Compile one module to where an interpreter with a cache prefix looks for it."""
    target = destination / f"{source.removesuffix('.py')}.{sys.implementation.cache_tag}.pyc"
    mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
    with suppress(py_compile.PyCompileError, ValueError):
        py_compile.compile(
            str(root / source), str(target), doraise=True, quiet=1, invalidation_mode=mode
        )


def compile_tree(root: Path, destination: Path, without: frozenset[str]) -> None:
    """Compile every module below `root`."""
    found = sorted(sources(root, without))
    workers = int(os.environ.get("NIX_BUILD_CORES", "0")) or os.cpu_count()
    with ProcessPoolExecutor(workers) as pool:
        for _ in pool.map(partial(compile_one, root, destination), found, chunksize=64):
            pass


if __name__ == "__main__":
    destination, *given = map(Path, sys.argv[1:])
    if given:
        compile_tree(given[0], destination, frozenset())
    else:
        compile_tree(Path(sysconfig.get_path("stdlib")), destination, NOT_IMPORTED)
