"""What files held when they were last read, so that what nobody touched is not read again.

A stamp is a file's device, inode, size, and the times of its last modification and of its last
change. As with git's index, a file whose stamp is the one noted when it was read is taken to hold
what it held then: the kernel moves the time of change with every write, chmod and link, and no
program can put it back. What a stamp cannot show is a medium that decays, a clock that was set
back, whoever can write the disk past its file system, and stores through a shared mapping where
the kernel does not count them: on tmpfs, and into a page that is still waiting to be written.
`invoke env` goes by stamps, and a render of recorded layers; `invoke validate` reads every file.

An installer that links a file out of its cache moves the time of change too. So the cache's
stamps are compared just before it runs (`before_linking`), and a file that then has the inode,
size and time of modification of one that was unchanged is that file.

The notes are one JSON file, rows of [device, inode, size, mtime, ctime, sha256], times in
nanoseconds. They are the user's own word: a file that another user could write is not believed.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
import threading
import time
from collections.abc import Callable, Iterable
from hashlib import sha256
from pathlib import Path
from typing import TypeVar

from torchlock.files import write_atomically
from torchlock.tree import CHUNK, walk

TICK = 20_000_000
"""Nanoseconds; longer than the kernel's clock for time stamps takes to move (10 ms at most).

A change within one tick of another leaves the same time, so a file that changed that recently
is not noted.
"""

LIMIT = 200_000
"""Rows kept, the latest: some six installations of the stack."""

Item = TypeVar("Item")
Inode = tuple[int, int]
Times = tuple[int, int, int]  # size, mtime, ctime


class Stamps:
    """Digests of files by their stamps; those noted in this run are kept with `write`."""

    def __init__(self, path: Path, rows: Iterable[tuple[Inode, Times, str]] = ()) -> None:
        self._path = path
        self._old = {inode: (times, digest) for inode, times, digest in rows}
        self._fresh: dict[Inode, tuple[Times, str]] = {}
        self._linked: dict[Inode, tuple[int, int, str]] = {}

    @classmethod
    def read(cls, path: Path) -> Stamps:
        """Return what is noted at `path`; nothing where it cannot be read or believed."""
        try:
            with path.open("rb") as stream:
                status = os.fstat(stream.fileno())
                if status.st_uid != os.getuid() or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
                    return cls(path)
                rows = json.load(stream)
            return cls(path, (((d, i), (s, m, c), h) for d, i, s, m, c, h in rows))
        except (OSError, ValueError, TypeError):
            return cls(path)

    def digest(self, status: os.stat_result) -> str | None:
        """Return the sha256 of an unchanged file that was read, None when it must be read."""
        inode, times = _inode(status), _times(status)
        for known in (self._fresh, self._old):
            if inode in known and known[inode][0] == times:
                return known[inode][1]
        linked = self._linked.get(inode)
        return linked[2] if linked and linked[:2] == times[:2] else None

    def note(self, status: os.stat_result, digest: str, began: int) -> None:
        """Note what a file holds; `began` is when, before `status` was taken (Unix time, ns)."""
        # Whole milliseconds are the mark of a file system that keeps no fine times.
        if status.st_ctime_ns < began - TICK and status.st_ctime_ns % 1_000_000:
            self._fresh[_inode(status)] = (_times(status), digest)

    def before_linking(self, cache: Path) -> None:
        """Follow the unchanged files below `cache` through the links that are made next."""
        with contextlib.suppress(OSError):  # no cache yet
            for _, status in walk(cache):
                inode = _inode(status)
                times, digest = self._old.get(inode, ((), ""))
                if times == _times(status):
                    self._linked[inode] = (status.st_size, status.st_mtime_ns, digest)

    def after_linking(self) -> None:
        """Follow them no longer: the caches may hold other files from here on."""
        self._linked.clear()

    def write(self) -> None:
        """Keep what was noted; a directory that cannot be written is left as it is."""
        if all(self._old.get(inode) == row for inode, row in self._fresh.items()):
            return
        kept = {i: row for i, row in self._old.items() if i not in self._fresh} | self._fresh
        rows = [[*inode, *times, digest] for inode, (times, digest) in kept.items()]
        with contextlib.suppress(OSError):
            write_atomically(self._path, json.dumps(rows[-LIMIT:]).encode())


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
        self._local = threading.local()

    @property
    def told(self) -> str:
        """What was done, for people."""
        return f"{self.read} read, {self.unchanged} unchanged since they were read"

    def will_read(self, status: os.stat_result | None) -> bool:
        """Say whether learning what a file holds takes reading it."""
        return not (status and self._stamps and self._stamps.digest(status))

    def split(
        self, items: Iterable[Item], status_of: Callable[[Item], os.stat_result | None]
    ) -> tuple[list[Item], list[Item]]:
        """Return those of `items` whose files are to be read, and the others.

        Threads help with what is read; they only hinder each other with the rest.
        """
        read: list[Item] = []
        rest: list[Item] = []
        for item in items:
            (read if self.will_read(status_of(item)) else rest).append(item)
        return read, rest

    def sha256(self, path: str | Path, status: os.stat_result) -> str:
        """Return the sha256 of a file, given its status; raise `OSError` if it cannot be read."""
        digest = self._stamps.digest(status) if self._stamps else None
        with self._counting:
            self.read += digest is None
            self.unchanged += digest is not None
        digest = digest or self._hash(path)
        if self._stamps:
            self._stamps.note(status, digest, self._began)
        return digest

    def _hash(self, path: str | Path) -> str:
        if not hasattr(self._local, "buffer"):
            self._local.buffer = memoryview(bytearray(CHUNK))
        buffer = self._local.buffer
        digest = sha256()
        with open(path, "rb", buffering=0) as stream:  # noqa: PTH123 - a Path costs as much as a file
            while count := stream.readinto(buffer):
                digest.update(buffer[:count])
        return digest.hexdigest()


def _inode(status: os.stat_result) -> Inode:
    return status.st_dev, status.st_ino


def _times(status: os.stat_result) -> Times:
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns
