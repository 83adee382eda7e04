"""What files held when they were last read, so that what nobody touched is not read again.

A stamp is a file's device, inode, size, and the times of its last modification and of its last
change. As with git's index, a file whose stamp is one that was noted when it was read is taken to
hold what it held then: the kernel moves the time of change with every write, chmod and link, and
no program can put it back. What a stamp cannot show is a medium that decays, a clock that was set
back, whoever can write the disk past its file system, and stores through a shared mapping where
the kernel does not count them: on tmpfs, and into a page that is still waiting to be written.
`invoke env` goes by stamps, and a render of recorded layers; `invoke validate` reads every file.

An installer that links a file out of its cache moves the time of change too. So the cache's
stamps are compared just before it runs (`before_linking`), and a file that then has the inode,
size and time of modification of one that was unchanged is that file.

The notes are one binary file: a first line that names the format, then a row of 72 bytes for
each file, its stamp (five numbers of eight bytes, times in nanoseconds) and its sha256. They are
the user's own word: a file that another user could write is not believed.
"""

from __future__ import annotations

import contextlib
import errno
import os
import struct
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, islice
from pathlib import Path

from torchlock.files import is_ours_alone, sha256_of_rest, write_atomically
from torchlock.tree import walk

TICK = 20_000_000
"""Nanoseconds; longer than the kernel's clock for time stamps takes to move (10 ms at most).

A change within one tick of another leaves the same time, so a file that changed that recently
is not noted.
"""

LIMIT = 200_000
"""Rows kept, the latest: some six installations of the stack."""

NAME = "stamps"
FORMAT = b"torchlock stamps 1\n"

_STAMP = struct.Struct("<5Q")  # device, inode, size, modification, change
_ROW = struct.Struct(f"<{_STAMP.size}s32s")
_INODE = slice(0, 16)  # the device and the inode of a stamp
_BUT_CHANGE = slice(0, 32)  # all of it but the time of change
_64_BITS = (1 << 64) - 1  # times before 1970 and after 2554 are wrapped


class Stamps:
    """Digests of files by their stamps; those noted in this run are kept with `write`."""

    def __init__(self, path: Path, rows: Iterable[tuple[bytes, bytes]] = ()) -> None:
        self._path = path
        self._old = dict(rows)
        self._fresh: dict[bytes, bytes] = {}
        self._linked: dict[bytes, bytes] = {}

    @classmethod
    def read(cls, path: Path) -> Stamps:
        """Return what is noted at `path`; nothing where it cannot be read or believed."""
        with contextlib.suppress(OSError, struct.error), path.open("rb") as stream:
            ours = is_ours_alone(os.fstat(stream.fileno()))
            if ours and stream.read(len(FORMAT)) == FORMAT:
                return cls(path, _ROW.iter_unpack(stream.read()))
        return cls(path)

    def digests(
        self, present: Mapping[str, os.stat_result], paths: Iterable[str], began: int
    ) -> dict[str, str]:
        """Return the sha256 of the files among `paths` that are unchanged since they were read.

        Notes what it returns; `began` is when, before the statuses were taken (Unix time, ns).
        """
        old, linked, fresh, found = self._old, self._linked, self._fresh, {}
        for path in paths:
            if (status := present.get(path)) is None:
                continue
            stamp = stamp_of(status)
            digest = old.get(stamp) or linked.get(stamp[_BUT_CHANGE]) or fresh.get(stamp)
            if digest:
                found[path] = digest.hex()
                if _is_settled(status, began):
                    fresh[stamp] = digest
        return found

    def note(self, status: os.stat_result, digest: str, began: int) -> None:
        """Note what a file holds; `began` is when, before `status` was taken (Unix time, ns)."""
        if _is_settled(status, began):
            self._fresh[stamp_of(status)] = bytes.fromhex(digest)

    def before_linking(self, cache: Path) -> None:
        """Follow the unchanged files below `cache` through the links that are made next."""
        with contextlib.suppress(OSError):  # no cache yet
            for _, status in walk(cache):
                stamp = stamp_of(status)
                if digest := self._old.get(stamp):
                    self._linked[stamp[_BUT_CHANGE]] = digest

    @staticmethod
    @contextlib.contextmanager
    def settling() -> Iterator[None]:
        """Take so long, at least, that what changed before can be noted.

        Without it what is too fresh to be noted would be read again next time.
        """
        ends = time.monotonic_ns() + TICK
        yield
        time.sleep(max(0, ends - time.monotonic_ns()) / 1e9)

    def after_linking(self) -> None:
        """Follow them no longer: the caches may hold other files from here on."""
        self._linked.clear()

    def write(self) -> None:
        """Keep what was noted; a directory that cannot be written is left as it is."""
        if self._fresh.items() <= self._old.items():
            return
        seen = {stamp[_INODE] for stamp in self._fresh}
        kept = {s: digest for s, digest in self._old.items() if s[_INODE] not in seen}
        rows = kept | self._fresh
        latest = islice(rows.items(), max(0, len(rows) - LIMIT), None)
        with contextlib.suppress(OSError):
            write_atomically(self._path, FORMAT + b"".join(chain.from_iterable(latest)))


class Reading:
    """One pass over files: how it learns what they hold, and how many it `read`.

    Without stamps it reads all; with them it leaves those that are `unchanged` since they were
    read, and notes the others. It must begin before the files' status is taken. Threads may
    share it.
    """

    def __init__(self, stamps: Stamps | None = None) -> None:
        self.read = self.unchanged = 0
        self._stamps = stamps
        self._began = time.time_ns()
        self._counting = threading.Lock()

    @property
    def told(self) -> str:
        """What was done, for people."""
        return f"{self.read} read, {self.unchanged} unchanged since they were read"

    def known(self, present: Mapping[str, os.stat_result], paths: Iterable[str]) -> dict[str, str]:
        """Return the sha256 of the files among `paths` that are unchanged since they were read.

        `present` has the statuses; a path that it lacks is left out.
        """
        if self._stamps is None:
            return {}
        digests = self._stamps.digests(present, paths, self._began)
        with self._counting:
            self.unchanged += len(digests)
        return digests

    def sha256(self, path: str | Path, status: os.stat_result) -> str:
        """Return the sha256 of the file that `status` is of, read unless it is `known`.

        Raises `OSError` if it cannot be read, or has another in its place by now.
        """
        if known := self.known({"": status}, ("",)):
            return known[""]
        with open(path, "rb", buffering=0, opener=_open) as stream:
            opened = os.fstat(stream.fileno())
            if (opened.st_dev, opened.st_ino) != (status.st_dev, status.st_ino):
                raise OSError(errno.ESTALE, "it was replaced while it was looked at", str(path))
            digest = sha256_of_rest(stream)
        self.note(opened, digest)
        return digest

    def holds(self, status: os.stat_result, digest: str) -> bool:
        """Say whether the file that `status` is of is known to have that sha256, unread."""
        return self.known({"": status}, ("",)) == {"": digest}

    def note(self, status: os.stat_result, digest: str) -> None:
        """Note what a file that was read to its end holds; `status` was taken before."""
        with self._counting:
            self.read += 1
        if self._stamps:
            self._stamps.note(status, digest, self._began)


def _open(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)  # a pipe in a file's place would wait for a writer


def stamp_of(status: os.stat_result) -> bytes:
    """Return a file's stamp: a change of it, or another file in its place, makes it another."""
    return _STAMP.pack(
        status.st_dev,
        status.st_ino,
        status.st_size,
        status.st_mtime_ns & _64_BITS,
        status.st_ctime_ns & _64_BITS,
    )


def _is_settled(status: os.stat_result, began: int) -> bool:
    """Say whether a change that comes now would show in the time of change."""
    # Whole milliseconds are the mark of a file system that keeps no fine times.
    return status.st_ctime_ns < began - TICK and status.st_ctime_ns % 1_000_000 != 0
