"""Lay out wheels as one `site-packages`: `python unpack.py WHEELHOUSE DESTINATION`.

DESTINATION gets the files that count for the tree digest (docs/design.md), with the contents
they have in the wheels and no others. Runs in a Nix build: standard library and `packaging`.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from torchlock.errors import TorchlockError
from torchlock.formats.wheel import Wheel, WheelError, read_wheel
from torchlock.tree import CHUNK, Entry, merge


def unpack(wheelhouse: Path, destination: Path) -> None:
    """Write the merged tree of all wheels in `wheelhouse` below `destination`.

    Raises `TreeConflictError` when two wheels disagree about a path and `WheelError` when one
    contradicts its own RECORD.
    """
    with ExitStack() as stack:
        wheels = [stack.enter_context(read_wheel(path)) for path in sorted(wheelhouse.iterdir())]
        trees = {wheel.path.name: _claimed(wheel) for wheel in wheels}
        merge(trees)
        owners = {entry.path: name for name, entries in trees.items() for entry in entries}
        own = {
            name: [entry for entry in entries if owners[entry.path] == name]
            for name, entries in trees.items()
        }
        # Decompressing and hashing leave the interpreter's lock: threads are enough. The largest
        # wheel goes first, so that no core is left with it at the end.
        names = sorted(own, key=lambda name: -sum(entry.size for entry in own[name]))
        with ThreadPoolExecutor(int(os.environ.get("NIX_BUILD_CORES", "0")) or None) as pool:
            for _ in pool.map(lambda name: _write(name, own[name], destination), names):
                pass


def _claimed(wheel: Wheel) -> list[Entry]:
    """The wheel's tree with the sha256 RECORD claims, computed where RECORD is silent."""
    return [e if e.sha256 else replace(e, sha256=_sha256(e)) for e in wheel.tree()]


def _sha256(entry: Entry) -> str:
    digest = hashlib.sha256()
    if entry.opens:
        with entry.opens() as stream:
            while chunk := stream.read(CHUNK):
                digest.update(chunk)
    return digest.hexdigest()


def _write(wheel: str, entries: Iterable[Entry], destination: Path) -> None:
    for entry in entries:
        path = destination / entry.path
        path.parent.mkdir(parents=True, exist_ok=True)
        digest = hashlib.sha256()
        if entry.opens is None:
            raise WheelError(f"{wheel}: {entry.path} has no contents")
        with entry.opens() as stream, path.open("xb") as out:
            while chunk := stream.read(CHUNK):
                digest.update(chunk)
                out.write(chunk)
        path.chmod(0o555 if entry.executable else 0o444)
        if digest.hexdigest() != entry.sha256:
            raise WheelError(
                f"{wheel}: {entry.path} has sha256 {digest.hexdigest()}, "
                f"its RECORD says {entry.sha256}"
            )


if __name__ == "__main__":
    try:
        unpack(Path(sys.argv[1]), Path(sys.argv[2]))
    except TorchlockError as error:
        sys.exit(f"torchlock: {error}")
