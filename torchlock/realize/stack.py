"""Installing the stack: exactly the lock's wheels, by uv, from verified files.

uv gets no index, no network, no resolution to do, and the hash of every wheel. It unpacks each
wheel once, into a cache beside the artifact store, and links files into the prefix (where the
file system allows it the two then share bytes; `verify` is what says that they are right).
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from packaging.utils import canonicalize_name

from torchlock.artifacts import Store
from torchlock.errors import TorchlockError
from torchlock.lock import Package
from torchlock.realize.obstacles import dist_infos
from torchlock.realize.place import after_failure, wheel_cache
from torchlock.uv import uv_command, uv_environment


def install_stack(
    python: Path,
    wheels: Sequence[Package],
    store: Store,
    *,
    again: Sequence[str] = (),
) -> None:
    """Install `wheels`, which are verified and in `store`, for the interpreter `python`.

    Wheels that are installed already in their locked version stay untouched, except those named
    in `again`, which are unpacked afresh and replaced. Raises `TorchlockError` with uv's own
    words when it fails.
    """
    with _wheelhouse(store, wheels) as (wheelhouse, cache):
        links = wheelhouse.as_uri()  # in which uv finds no comma and no fragment
        if again:  # a changed file may be linked into uv's cache: forget what was unpacked
            _uv(["cache", "clean", "--cache-dir", str(cache), *again])
        requirements = "".join(f"{w.name}=={w.version} --hash=sha256:{w.sha256}\n" for w in wheels)
        _uv(
            ["pip", "install", "--python", str(python), "--requirements", "-",
             "--require-hashes", "--no-deps", "--no-index", "--find-links", links,
             "--only-binary", ":all:", "--cache-dir", str(cache),
             *(f"--reinstall-package={name}" for name in again)],
            requirements,
        )  # fmt: skip


def introduce(python: Path, store: Store) -> None:
    """Have uv look at a new interpreter while there is time for it; it remembers in its cache.

    Whatever is wrong with the interpreter, `install_stack` says.
    """
    with _wheelhouse(store, ()) as (_, cache):
        _run_uv(["python", "find", str(python), "--no-project", "--cache-dir", str(cache)])


def unfinished(site_packages: Path, wheels: Sequence[Package]) -> list[str]:
    """Return the names of wheels whose installation was broken off, as far as that shows here.

    uv takes a wheel for installed once its `.dist-info` is there, but unpacks files, scripts and
    `.data` in turn and writes itself into RECORD last.
    """
    found = []
    names = {w.name for w in wheels}
    for directory in site_packages.glob("*.dist-info"):
        name = canonicalize_name(directory.name.partition("-")[0])
        if name not in names:
            continue
        try:
            record = (directory / "RECORD").read_text(encoding="utf-8", errors="replace")
        except OSError:
            record = ""
        if f"{directory.name}/INSTALLER," not in record:
            found.append(str(name))
    return sorted(found)


def remove_from_stack(
    python: Path, site_packages: Path, wheels: Sequence[str], store: Store
) -> None:
    """Uninstall wheels (`name==version`) that an earlier lock had and the present one has not.

    One that has been replaced by another version since is somebody else's.
    """
    there = dist_infos(site_packages, wheels)
    names = sorted(str(canonicalize_name(path.name.partition("-")[0])) for path in there)
    if names:
        with _wheelhouse(store, ()) as (_, cache):
            _uv(["pip", "uninstall", "--python", str(python), "--cache-dir", str(cache), *names])


def remove_leftovers(site_packages: Path) -> None:
    """Remove the temporary files and directories of an installation that was broken off."""
    for path in list(site_packages.rglob(".tmp*")):
        if re.fullmatch(r"\.tmp[A-Za-z0-9]{6}", path.name):  # as uv names them
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)


def _run_uv(arguments: list[str], given: str = "") -> subprocess.CompletedProcess[str]:
    command = [
        *uv_command(), *arguments, "--no-config", "--no-progress",
        "--color", "never", "--no-python-downloads",
    ]  # fmt: skip
    environment = {**uv_environment(), "UV_BREAK_SYSTEM_PACKAGES": "1"}
    return subprocess.run(
        command, env=environment, input=given, capture_output=True, text=True, check=False
    )


def _uv(arguments: list[str], given: str = "") -> None:
    done = _run_uv(arguments, given)
    if done.returncode == 0:
        return
    said = done.stderr.strip()
    if os.strerror(errno.ENOSPC) in said:
        raise TorchlockError(
            f"no space left while the wheels were unpacked or installed:\n{said}",
            hint=after_failure(said),
        )
    raise TorchlockError(
        f"uv could not install the wheels:\n{said or f'it ended with {done.returncode}'}",
        hint=after_failure(said),
    )


@contextmanager
def _wheelhouse(store: Store, wheels: Sequence[Package]) -> Iterator[tuple[Path, Path]]:
    """Give uv a directory of links to the wheels, and its cache directory.

    Both lie in the store, under one path for every run, by which uv recognises what it has
    unpacked already. A store that cannot be written gets temporary ones.
    """
    directory, cache = store.root / "wheelhouse", wheel_cache(store)
    scratch = None
    try:
        directory.mkdir(parents=True, exist_ok=True)
        cache.mkdir(exist_ok=True)
        (directory / ".writable").touch()
    except OSError:
        scratch = Path(tempfile.mkdtemp(prefix="torchlock-"))
        directory, cache = scratch / "wheelhouse", scratch / "uv"
        directory.mkdir()
    try:
        # Of two wheels of one version uv would take the one it prefers, not the locked one.
        names = {wheel.filename for wheel in wheels}
        releases = {_release(name) for name in names}
        for link in directory.iterdir():
            if link.name not in names and _release(link.name) in releases:
                link.unlink(missing_ok=True)
        for wheel in wheels:
            _link(directory / wheel.filename, store.path(wheel))
        yield directory, cache
    finally:
        if scratch:
            shutil.rmtree(scratch, ignore_errors=True)


def _release(wheel: str) -> tuple[str, ...]:
    """Return the name and the version that a wheel's file name begins with."""
    return tuple(wheel.split("-")[:2])


def _link(link: Path, target: Path) -> None:
    with suppress(OSError):
        if os.readlink(link) == str(target):  # noqa: PTH115 - Path would tidy it
            return
    fresh = link.with_name(f".{link.name}.{os.getpid()}")
    fresh.symlink_to(target)
    fresh.replace(link)
