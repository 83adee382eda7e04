"""Artifacts: fetched by URL, verified by sha256 before anything uses them, kept by content.

Layout of the store, below the user's cache directory or `TORCHLOCK_CACHE`:

    sha256/<hex>/<file name>   complete and verified when written, read-only
    partial/<hex>              a download under way or interrupted; resumed by the next
    locks/<hex>.lock           held while one process downloads; others wait and then reuse

Everything read from the store is hashed again, before (`fetch`) or while it is read
(`Store.opened`), unless the caller goes by stamps: a file that no longer has its name's digest is
thrown away and fetched anew. This module knows nothing of formats.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import platformdirs

from torchlock.errors import TorchlockError
from torchlock.files import absolute
from torchlock.onepass import OnePass
from torchlock.progress import Progress, silent
from torchlock.stamps import Reading, stamp_of


class ArtifactError(TorchlockError):
    """An artifact could not be fetched, or is not what the lock says."""


class UnverifiedError(ArtifactError):
    """What was read of a kept artifact was not it; `fetch` has it fetched anew."""


class Artifact(Protocol):
    """What the store needs to know of a locked package."""

    @property
    def label(self) -> str:
        """Name and version, for messages."""

    @property
    def url(self) -> str:
        """Where the lock says it is."""

    @property
    def sha256(self) -> str:
        """Its digest, lower-case hex."""

    @property
    def filename(self) -> str:
        """Its file name."""


Mirrors = Mapping[str, Sequence[str]]
"""sha256 -> URLs to try before the lock's own, from the user's mirror configuration."""


@dataclass(frozen=True)
class Store:
    """A content-addressed store of artifacts below `root`."""

    root: Path
    _checked: dict[Path, bytes] = field(default_factory=dict, compare=False, repr=False)

    def path(self, artifact: Artifact) -> Path:
        """Return where an artifact is kept, whether or not it is there."""
        return self.root / "sha256" / artifact.sha256 / artifact.filename

    def verified(self, artifact: Artifact, reading: Reading | None = None) -> Path | None:
        """Return the artifact's path if it is there and has its digest, else None.

        A file with another digest is removed. Each artifact is hashed once per `Store` unless it
        changes, or not at all where a `reading` with stamps says that it is unchanged since it was.
        """
        path = self.path(artifact)
        try:
            status = path.stat()
            if self._checked.get(path) == stamp_of(status):
                return path
            actual = (reading or Reading()).sha256(path, status)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise ArtifactError(f"{path} cannot be read: {error.strerror}") from None
        if actual != artifact.sha256:
            self._discard(path, artifact, actual)
            return None
        self._checked[path] = stamp_of(status)
        return path

    def has(self, artifact: Artifact) -> bool:
        """Say whether an artifact is there, verified or not."""
        return os.path.exists(self.path(artifact))  # noqa: PTH110 - false where one may not look

    @contextlib.contextmanager
    def opened(self, artifact: Artifact, reading: Reading) -> Iterator[OnePass]:
        """Open an artifact that is there, to be verified while it is read.

        What was made of it counts only once the block has ended: there the rest is read, and
        `UnverifiedError` raised for a file that has not the artifact's digest, or that changed
        meanwhile. A file that is unchanged since this store verified it, or by `reading`'s
        stamps, is not hashed again. Raises `UnverifiedError`, too, when it cannot be opened.
        """
        path = self.path(artifact)
        try:
            file = path.open("rb", buffering=0)
        except OSError as error:
            raise UnverifiedError(f"{path} cannot be read: {error.strerror}") from None
        with file:
            status = os.fstat(file.fileno())
            stamp = stamp_of(status)
            is_known = self._checked.get(path) == stamp or reading.holds(status, artifact.sha256)
            digest = None if is_known else hashlib.sha256()
            opened = OnePass(path, file, digest)
            yield opened
            if digest:
                opened.finish()
            differs = digest and digest.hexdigest() != artifact.sha256
            if differs or stamp_of(os.fstat(file.fileno())) != stamp:
                raise UnverifiedError(f"{path} is not what the lock says, or is being changed")
        if not is_known:
            reading.note(status, artifact.sha256)
        self._checked[path] = stamp

    def take(self, artifact: Artifact, complete: Path) -> Path:
        """Move a file that has just been verified into the store; return its path."""
        path = self.path(artifact)
        path.parent.mkdir(exist_ok=True)
        complete.chmod(0o444)
        complete.replace(path)
        self._checked[path] = stamp_of(path.stat())
        return path

    def _discard(self, path: Path, artifact: Artifact, actual: str) -> None:
        try:
            path.unlink()
        except OSError as error:
            raise ArtifactError(
                f"{path} has sha256 {actual}, the lock says {artifact.sha256}, "
                f"and it cannot be removed: {error.strerror}",
                hint="remove the file, or set TORCHLOCK_CACHE to another directory",
            ) from None


def default_store() -> Store:
    """Return the store in `TORCHLOCK_CACHE`, or in the user's cache directory."""
    configured = os.environ.get("TORCHLOCK_CACHE")
    root = Path(configured) if configured else Path(platformdirs.user_cache_dir("torchlock"))
    return Store(absolute(root.expanduser()))


def fetch(
    artifacts: Iterable[Artifact],
    store: Store,
    *,
    mirrors: Callable[[Sequence[Artifact]], Mirrors] = lambda _: {},
    progress: Progress = silent,
    reading: Reading | None = None,
    settings: str = "index settings",
) -> list[Path]:
    """Make sure every artifact is in the store and verified; return their paths in order.

    `mirrors` is asked once, only for what is missing; `settings` are the user's that it goes by,
    in words. Downloads run in parallel and resume
    where an earlier one stopped. What is there is hashed, or judged by `reading`. Raises
    `ArtifactError` naming the artifact when one cannot be had: no network, a vanished URL, wrong
    contents, a full disk, a store that cannot be written. What was complete before the fault
    stays.
    """
    wanted = list(dict.fromkeys(artifacts))
    with ThreadPoolExecutor(min(32, os.cpu_count() or 1)) as pool:
        present = pool.map(lambda artifact: store.verified(artifact, reading), wanted)
        have = dict(zip(wanted, present, strict=True))
    missing = [artifact for artifact, path in have.items() if path is None]
    if missing:
        from torchlock.download import download  # noqa: PLC0415 - a tenth of a second

        _prepare(store)
        have.update(download(missing, store, mirrors(missing), progress, settings))
    return [path for artifact in wanted if (path := have[artifact]) is not None]


def _prepare(store: Store) -> None:
    try:
        for name in ("sha256", "partial", "locks"):
            (store.root / name).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise not_writable(store, error) from None
    if not os.access(store.root / "sha256", os.W_OK):
        raise not_writable(store, OSError(errno.EACCES, os.strerror(errno.EACCES)))


def not_writable(store: Store, error: OSError) -> ArtifactError:
    """Return the error for a store that cannot take an artifact."""
    return ArtifactError(
        f"the artifact store {store.root} cannot be written: {error.strerror}",
        hint="set TORCHLOCK_CACHE to a directory that can, or fill this one as its owner",
    )
