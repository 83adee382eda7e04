"""Progress of long work, as the workers tell it; `display` shows it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol


class Report(Protocol):
    """What a worker tells the display; safe to call from several threads."""

    def start(self, label: str, total: int | None, done: int) -> int:
        """Announce an item of `total` bytes, `done` of them there already; return its id."""

    def advance(self, item: int, count: int) -> None:
        """Report `count` more bytes; fewer than none when some have to be had again."""

    def finish(self, item: int) -> None:
        """Report that an item is complete."""


Progress = Callable[[str, int], AbstractContextManager[Report]]
"""Opens a display for a verb and a number of items."""


class _Silent:
    def start(self, label: str, total: int | None, done: int) -> int:
        return 0

    def advance(self, item: int, count: int) -> None:
        pass

    def finish(self, item: int) -> None:
        pass


@contextmanager
def silent(verb: str, items: int) -> Iterator[Report]:
    """Show nothing."""
    yield _Silent()
