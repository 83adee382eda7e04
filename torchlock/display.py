"""Progress of long work: a live display on a terminal, plain lines otherwise."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.progress import Progress as Live

from torchlock.progress import Report

PLAIN_EVERY = 10.0
"""Seconds between plain lines."""


@contextmanager
def shown(verb: str, items: int) -> Iterator[Report]:
    """Show progress on standard error: live on a terminal, plain lines elsewhere."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield _Plain(verb, items)
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Live(*columns, console=console, transient=True) as live:
        yield _Live(live)


@dataclass(frozen=True)
class _Live:
    live: Live

    def start(self, label: str, total: int | None, done: int) -> int:
        return int(self.live.add_task(label, total=total, completed=done))

    def advance(self, item: int, count: int) -> None:
        self.live.advance(TaskID(item), count)

    def finish(self, item: int) -> None:
        self.live.remove_task(TaskID(item))


@dataclass
class _Plain:
    verb: str
    items: int
    _finished: int = 0
    _bytes: int = 0
    _next: float = field(default_factory=lambda: time.monotonic() + PLAIN_EVERY)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def start(self, label: str, total: int | None, done: int) -> int:
        return 0

    def advance(self, item: int, count: int) -> None:
        with self._lock:
            self._bytes += count
            if time.monotonic() >= self._next:
                self._next = time.monotonic() + PLAIN_EVERY
                self._print()

    def finish(self, item: int) -> None:
        with self._lock:
            self._finished += 1
            if self._finished == self.items:
                self._print()

    def _print(self) -> None:
        print(  # noqa: T201 - this is the display
            f"{self.verb}: {self._finished} of {self.items} files, {self._bytes / 1e6:.0f} MB",
            file=sys.stderr,
            flush=True,
        )
