"""The places that a realization works in: its prefix, alone, and the caches beside the store."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import tempfile
import unicodedata
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from torchlock.artifacts import Store
from torchlock.condarc import read_condarc
from torchlock.errors import TorchlockError
from torchlock.lock import Package
from torchlock.realize.marker import ELSEWHERE
from torchlock.records import Records
from torchlock.stamps import Stamps

_UNUSABLE = {"conda": "'\"\\:", "venv": '"$`:'}
"""Characters that no path may have in which the foundation is to work."""

SPARE = 200_000_000
"""Bytes that must stay free beyond what the stack takes."""


def wheel_cache(store: Store) -> Path:
    """Return where uv keeps the wheels it has unpacked."""
    return store.root / "uv"


def conda_cache(store: Store) -> Path:
    """Return where rattler keeps the conda packages it has unpacked."""
    return store.root / "conda"


def read_stamps(store: Store) -> Stamps:
    """Return what is noted of the files that were read below `store` and in prefixes."""
    return Stamps.read(store.root / "stamps")


def named_prefix(name: str) -> Path:
    """Return where conda clients keep the environment `name`, or would make it.

    As conda decides: where it is already, else in the first of its directories of environments
    that can be written. Raises `TorchlockError` for what is no name, and where none can be.
    """
    if not name or name in (".", "..", "base", "root") or any(c in name for c in "/ :#\\"):
        raise TorchlockError(
            f"{name!r} is no name of an environment", hint="invoke env --name pt27"
        )
    directories = read_condarc().environment_directories
    for directory in directories:
        if (directory / name).is_dir():
            return directory / name
    for directory in directories:
        if _is_writable(directory):
            return directory / name
    raise TorchlockError(
        f"none of conda's directories of environments can be written: "
        f"{', '.join(map(str, directories))}",
        hint="name one in envs_dirs in .condarc, or choose a place: invoke env --prefix DIR",
    )


def check_prefix_name(prefix: Path, foundation: str) -> None:
    """Raise `TorchlockError` before anything is written for a prefix that could not work.

    Paths are written into scripts of sh and Python and into PATH, not always quoted: in conda
    packages within both kinds of quotes, by venv within the shell's double ones.
    """
    for character in os.fspath(prefix):
        unusable = character in _UNUSABLE[foundation]
        if unusable or unicodedata.category(character) in ("Cc", "Cs", "Zl", "Zp"):
            raise TorchlockError(
                f"{os.fspath(prefix)!r} cannot be a {foundation} prefix: {character!r} in its path "
                "breaks what is written into scripts",
                hint=ELSEWHERE,
            )


def after_failure(said: str) -> str:
    """Return what to do next when a program that fills a prefix failed with these words."""
    if os.strerror(errno.ENOSPC) in said or os.strerror(errno.EDQUOT) in said:
        return (
            "free some space (the stack needs 5.7 GB beside 3.1 GB of wheels), choose another "
            "--prefix, or set TORCHLOCK_CACHE to a larger disk; the same command then completes "
            "the prefix"
        )
    return "run the same command again; it goes on where this one stopped"


def check_writable(prefix: Path) -> None:
    """Raise before gigabytes are fetched for a prefix that could not be made."""
    if not _is_writable(prefix):
        raise TorchlockError(
            f"{prefix} cannot be written: {os.strerror(errno.EACCES)}", hint=ELSEWHERE
        )


def _is_writable(directory: Path) -> bool:
    """Say whether files can be made in a directory, which need not exist."""
    place = existing(directory)
    return place.is_dir() and os.access(place, os.W_OK | os.X_OK)


def check_space(
    prefix: Path, store: Store, wheels: Sequence[Package], records: Records, *, conda: int = 0
) -> None:
    """Raise before anything is written when the disks cannot hold what is to come.

    `conda` is what the conda packages, which are in the store, come to when unpacked, in bytes.
    """
    sizes = {w.wheel: (w.wheel_size, w.size) for w in records.wheels.values()}
    download = sum(sizes.get(w.sha256, (0, 0))[0] for w in wheels if not store.path(w).exists())
    unpacked = {wheel_cache(store): sum(size for _, size in sizes.values()),
                conda_cache(store): conda}  # fmt: skip
    cache_disk, prefix_disk = existing(store.root), existing(prefix)
    needs = {cache_disk: download + sum(n for cache, n in unpacked.items() if not cache.exists())}
    if cache_disk.stat().st_dev != prefix_disk.stat().st_dev:
        needs[prefix_disk] = sum(unpacked.values())  # else what is unpacked is linked into place
    for place, need in needs.items():
        free = shutil.disk_usage(place).free
        if free < need + SPARE:
            raise TorchlockError(
                f"no space for the environment on the disk of {place}: "
                f"{free / 1e9:.1f} GB free, {(need + SPARE) / 1e9:.1f} GB needed",
                hint="free some space, choose another --prefix, or set TORCHLOCK_CACHE",
            )


def existing(path: Path) -> Path:
    """Return `path`, or the nearest directory above it that exists."""
    while not os.path.exists(path):  # noqa: PTH110 - false, too, where one may not look
        path = path.parent
    return path


@contextmanager
def alone(prefix: Path, store: Store) -> Iterator[None]:
    """Keep two runs from writing one prefix at the same time."""
    # Unlike Path.resolve, this takes a loop of links for a name like any other.
    place = os.fsencode(os.path.realpath(prefix))
    name = f"prefix-{hashlib.sha256(place).hexdigest()}.lock"
    directory = store.root / "locks"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        (directory / name).touch()
    except OSError:
        directory = Path(tempfile.gettempdir())
    lock = FileLock(directory / name)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise TorchlockError(
            f"another torchlock is working on {prefix}", hint="wait for it, then run this again"
        ) from None
    try:
        yield
    finally:
        lock.release()
