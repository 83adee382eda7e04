"""Artifacts: fetched by URL, verified by sha256 before anything reads them, kept by content.

Layout of the store, below the user's cache directory or `TORCHLOCK_CACHE`:

    sha256/<hex>/<file name>   complete and verified when written, read-only
    partial/<hex>              a download under way or interrupted; resumed by the next
    locks/<hex>.lock           held while one process downloads; others wait and then reuse

Everything read from the store is hashed again first, unless the caller goes by stamps: a file
that no longer has its name's digest is thrown away and fetched anew. This module knows nothing
of formats.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import shutil
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import platformdirs
import requests
import urllib3
from filelock import FileLock

from torchlock.errors import TorchlockError
from torchlock.files import absolute
from torchlock.http import PASSING_STATUS, new_session, retry_after, whole_number
from torchlock.progress import Progress, Report, silent
from torchlock.stamps import Reading
from torchlock.tree import CHUNK
from torchlock.urls import public

RECEIVED = 1 << 16
"""Bytes received at a time: what a broken connection loses and Ctrl-C waits for."""

ATTEMPTS = 5
"""Failures in a row, none of which got further than before, after which a URL is given up."""

BACKOFF = 0.5
"""Seconds; doubled with each failure."""

PARALLEL = 6
VANISHED_STATUS = frozenset({404, 410})
NO_URL = (
    requests.exceptions.MissingSchema,
    requests.exceptions.InvalidSchema,
    requests.exceptions.InvalidURL,
)
REFUSED_STATUS = frozenset({401, 403, 407, 451})


class ArtifactError(TorchlockError):
    """An artifact could not be fetched, or is not what the lock says."""


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
    _checked: set[Path] = field(default_factory=set, compare=False, repr=False)

    def path(self, artifact: Artifact) -> Path:
        """Return where an artifact is kept, whether or not it is there."""
        return self.root / "sha256" / artifact.sha256 / artifact.filename

    def verified(self, artifact: Artifact, reading: Reading | None = None) -> Path | None:
        """Return the artifact's path if it is there and has its digest, else None.

        A file with another digest is removed. Each artifact is hashed once per `Store`, or not
        at all where a `reading` with stamps says that it is unchanged since it was.
        """
        path = self.path(artifact)
        if path in self._checked:
            return path
        try:
            actual = (reading or Reading()).sha256(path, path.stat())
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise ArtifactError(f"{path} cannot be read: {error.strerror}") from None
        if actual != artifact.sha256:
            self._discard(path, artifact, actual)
            return None
        self._checked.add(path)
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
        _prepare(store)
        have.update(_download_all(missing, store, mirrors(missing), progress, settings))
    return [path for artifact in wanted if (path := have[artifact]) is not None]


def _prepare(store: Store) -> None:
    try:
        for name in ("sha256", "partial", "locks"):
            (store.root / name).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _not_writable(store, error) from None
    if not os.access(store.root / "sha256", os.W_OK):
        raise _not_writable(store, OSError(errno.EACCES, os.strerror(errno.EACCES)))


def _not_writable(store: Store, error: OSError) -> ArtifactError:
    return ArtifactError(
        f"the artifact store {store.root} cannot be written: {error.strerror}",
        hint="set TORCHLOCK_CACHE to a directory that can, or fill this one as its owner",
    )


def _download_all(
    missing: list[Artifact], store: Store, mirrors: Mirrors, progress: Progress, settings: str
) -> dict[Artifact, Path]:
    stop = threading.Event()
    done: dict[Artifact, Path] = {}
    with progress("fetching", len(missing)) as report, ThreadPoolExecutor(PARALLEL) as pool:
        downloads = [
            _Download(a, store, mirrors.get(a.sha256, ()), settings, stop, report) for a in missing
        ]
        try:
            jobs = {pool.submit(d.run): d for d in downloads}
            for job in as_completed(jobs):
                done[jobs[job].artifact] = job.result()
        except BaseException:
            # Ctrl-C or a fault: the others stop where they are and leave what they have under
            # partial/, for the next run.
            stop.set()
            for download in downloads:
                download.interrupt()
            pool.shutdown(cancel_futures=True)
            raise
    return done


class _Stopped(Exception):  # noqa: N818 - not an error: another download failed or Ctrl-C
    pass


class _WrongContents(Exception):  # noqa: N818 - becomes an ArtifactError after the last attempt
    def __init__(self, url: str, actual: str, resumed: bool) -> None:
        super().__init__(url)
        self.url, self.actual, self.resumed = url, actual, resumed


@dataclass
class _Download:
    artifact: Artifact
    store: Store
    mirrors: Sequence[str]
    settings: str
    stop: threading.Event
    report: Report
    _answer: requests.Response | None = None
    _item: int | None = None
    _shown: int = 0

    def run(self) -> Path:
        sha256 = self.artifact.sha256
        lock = FileLock(self.store.root / "locks" / f"{sha256}.lock")
        try:
            with _patiently(lock, self.stop):
                path = self.store.verified(self.artifact) or self._download()
            size = path.stat().st_size
        except OSError as error:
            raise self._disk_fault(error) from None
        self.report.finish(self._show(size, size))
        return path

    def interrupt(self) -> None:
        """Wake the thread that waits for the server; called from another one."""
        raw = self._answer.raw if self._answer is not None else None
        if isinstance(raw, urllib3.HTTPResponse):
            with contextlib.suppress(ValueError, RuntimeError, OSError):
                raw.shutdown()

    def _show(self, total: int | None, have: int) -> int:
        """Tell the display how much is there; return the artifact's one item in it."""
        if self._item is None:
            self._item = self.report.start(self.artifact.label, total, have)
        else:
            self.report.advance(self._item, have - self._shown)
        self._shown = have
        return self._item

    def _download(self) -> Path:
        urls = [*self.mirrors, self.artifact.url]
        faults: list[str] = []
        for url in urls:
            fault = self._try_url(url)
            if fault is None:
                return self._publish()
            faults.append(fault)
        raise ArtifactError(
            f"{self.artifact.label} cannot be fetched: " + "; ".join(dict.fromkeys(faults)),
            hint=self._hint(faults),
        )

    def _hint(self, faults: list[str]) -> str:
        if any("the lock says" in fault for fault in faults):
            return (
                "do not install it: the file at that address is not the one that was locked. "
                "Check the mirror or proxy; if the lock is at fault: git checkout conda-lock.yml"
            )
        if any("refuses" in fault for fault in faults):
            return (
                f"check credentials (.netrc), proxy and {self.settings}; a file that is gone may "
                "be answered so, too: then lock another version with: invoke lock --upgrade "
                + self.artifact.label.split()[0]
            )
        if any("is gone" in fault for fault in faults):
            return (
                f"try again, or point your {self.settings} at a mirror that has it; else lock "
                "another version: invoke lock --upgrade " + self.artifact.label.split()[0]
            )
        return f"check the network, proxy and {self.settings}, then run the same command again"

    def _try_url(self, url: str) -> str | None:
        """Download from one URL; return None when complete and verified, else the fault."""
        failures, reached = 0, 0
        while True:
            pause = 0.0
            try:
                self._receive(url)
                return None
            except _WrongContents as wrong:
                self._partial.unlink(missing_ok=True)
                fault = (
                    f"{public(url)} serves sha256 {wrong.actual}, "
                    f"the lock says {self.artifact.sha256}"
                )
                if not wrong.resumed:  # else the fault may lie in what was there: start anew
                    return fault
            except requests.HTTPError as error:
                status = error.response.status_code
                fault = f"{public(url)} {_meaning(status)} (HTTP {status})"
                pause = retry_after(error.response)
                if status not in PASSING_STATUS:
                    return fault
            except requests.RequestException as error:
                if self.stop.is_set():
                    raise _Stopped from None
                fault = f"{public(url)}: {_reason(error)}"
                if _is_distrust(error) or isinstance(error, NO_URL):
                    return fault
            have = self._partial.stat().st_size if self._partial.exists() else 0
            failures = 1 if have > reached else failures + 1
            reached = max(have, reached)
            if failures == ATTEMPTS:
                return fault
            if self.stop.wait(max(pause, min(BACKOFF * 2**failures, 8.0))):
                raise _Stopped

    @property
    def _partial(self) -> Path:
        return self.store.root / "partial" / self.artifact.sha256

    def _receive(self, url: str) -> None:
        digest, have = _resume_point(self._partial)
        if digest.hexdigest() == self.artifact.sha256:  # interrupted just before it was published
            return
        session = new_session()
        headers = {"Accept-Encoding": "identity"}
        if have:
            headers["Range"] = f"bytes={have}-"
        with session, session.get(url, headers=headers, stream=True, timeout=(15, 30)) as answer:
            if answer.status_code == 416:  # what is here is at least as long as the file
                raise _WrongContents(url, digest.hexdigest(), resumed=True)
            answer.raise_for_status()
            if have and answer.status_code != 206:
                digest, have = hashlib.sha256(), 0
            length = whole_number(answer.headers.get("Content-Length", ""))
            total = None if length is None else have + length
            self._answer = answer
            self._show(total, have)
            self._write(answer, digest, have)
        received = self._partial.stat().st_size
        if total is not None and received < total:
            raise requests.ConnectionError(f"ended after {received} of {total} bytes")
        if digest.hexdigest() != self.artifact.sha256:
            raise _WrongContents(url, digest.hexdigest(), resumed=bool(have))

    def _write(self, answer: requests.Response, digest: hashlib._Hash, have: int) -> None:
        with self._partial.open("r+b" if have else "wb") as stream:
            stream.seek(have)
            for chunk in answer.iter_content(RECEIVED):
                if self.stop.is_set():
                    raise _Stopped
                stream.write(chunk)
                digest.update(chunk)
                have += len(chunk)
                self._show(None, have)
            stream.flush()
            os.fsync(stream.fileno())

    def _publish(self) -> Path:
        path = self.store.path(self.artifact)
        path.parent.mkdir(exist_ok=True)
        self._partial.chmod(0o444)
        self._partial.replace(path)
        self.store._checked.add(path)
        return path

    def _disk_fault(self, error: OSError) -> ArtifactError:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            free = shutil.disk_usage(self.store.root).free
            return ArtifactError(
                f"no space left in {self.store.root} for {self.artifact.label} "
                f"({free / 1e9:.1f} GB free)",
                hint="free some space, or set TORCHLOCK_CACHE to a larger disk; "
                "the same command then goes on where this one stopped",
            )
        return _not_writable(self.store, error)


@contextlib.contextmanager
def _patiently(lock: FileLock, stop: threading.Event) -> Iterator[None]:
    """Hold `lock`, waiting for another process's download without going deaf to Ctrl-C."""
    while True:
        try:
            lock.acquire(timeout=0)
            break
        except TimeoutError:
            if stop.wait(0.2):
                raise _Stopped from None
    try:
        yield
    finally:
        lock.release()


def _resume_point(partial: Path) -> tuple[hashlib._Hash, int]:
    digest, have = hashlib.sha256(), 0
    with contextlib.suppress(FileNotFoundError), partial.open("rb") as stream:
        while chunk := stream.read(CHUNK):
            digest.update(chunk)
            have += len(chunk)
    return digest, have


def _meaning(status: int) -> str:
    if status in VANISHED_STATUS:
        return "is gone"
    return "refuses it" if status in REFUSED_STATUS else "cannot be had now"


def _is_distrust(error: requests.RequestException) -> bool:
    """Whether the certificate was refused; other TLS faults are those of a connection."""
    return isinstance(error, requests.exceptions.SSLError) and "certificate" in str(error).lower()


def _reason(error: requests.RequestException) -> str:
    if isinstance(error, requests.exceptions.ProxyError):
        return "the proxy cannot be reached"
    if _is_distrust(error):
        return f"the certificate is not trusted ({_last_cause(error)})"
    if isinstance(error, requests.Timeout):
        return "no answer in time"
    if isinstance(error, NO_URL):
        return f"is no URL that can be fetched ({_last_cause(error)})"
    return f"cannot be reached ({_last_cause(error)})"


def _last_cause(error: BaseException) -> str:
    while error.__cause__ or error.__context__:
        error = error.__cause__ or error.__context__ or error
    return public(str(error)) or type(error).__name__
