"""Downloads: in parallel, resumed where an earlier one stopped, complete only with their digest."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import shutil
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

import requests
import urllib3
from filelock import FileLock

from torchlock.artifacts import Artifact, ArtifactError, Mirrors, Store, not_writable
from torchlock.http import PASSING_STATUS, new_session, retry_after, whole_number
from torchlock.progress import Progress, Report
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


def download(
    missing: Sequence[Artifact], store: Store, mirrors: Mirrors, progress: Progress, settings: str
) -> dict[Artifact, Path]:
    """Bring artifacts into a store that is prepared for them; `fetch` says how, and raises what."""
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
                return self.store.take(self.artifact, self._partial)
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

    def _disk_fault(self, error: OSError) -> ArtifactError:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            free = shutil.disk_usage(self.store.root).free
            return ArtifactError(
                f"no space left in {self.store.root} for {self.artifact.label} "
                f"({free / 1e9:.1f} GB free)",
                hint="free some space, or set TORCHLOCK_CACHE to a larger disk; "
                "the same command then goes on where this one stopped",
            )
        return not_writable(self.store, error)


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
