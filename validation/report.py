"""A table for people: plain text, aligned; colour on a terminal only."""

from __future__ import annotations

import os
import shutil
import textwrap
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TextIO

from validation.outcome import DOES_NOT_HOLD, HOLDS, NOT_JUDGED, Outcome

HEADINGS = ("check", "verdict", "evidence", "time")
_COLOURS = {HOLDS: "32", DOES_NOT_HOLD: "31", NOT_JUDGED: "33"}
_NARROWEST = 30


@dataclass(frozen=True)
class Row:
    """One line of the table; `seconds` is None where time says nothing."""

    check: str
    verdict: str
    evidence: str
    seconds: float | None = None


def row(outcome: Outcome) -> Row:
    """The row of a check's outcome."""
    seconds = outcome.milliseconds / 1000 if outcome.milliseconds else None
    return Row(outcome.name, outcome.verdict, outcome.evidence, seconds)


def render(rows: Iterable[Row], *, width: int = 100, colour: bool = False) -> str:
    """The rows as a table at most `width` wide; long evidence goes on under itself.

    A word that is too long, such as a path, stays whole.
    """
    cells = [(r.check, r.verdict, r.evidence, _time(r.seconds)) for r in rows]
    first, second, last = (
        max(len(line[column]) for line in [HEADINGS, *cells]) for column in (0, 1, 3)
    )
    room = max(_NARROWEST, width - first - second - last - 6)
    lines = []
    for index, (check, verdict, evidence, time) in enumerate([HEADINGS, *cells]):
        parts = [
            piece
            for text in evidence.splitlines() or [""]
            for piece in textwrap.wrap(text, room, break_on_hyphens=False, break_long_words=False)
            or [""]
        ]
        painted = verdict.ljust(second)
        if colour and index:
            painted = f"\x1b[{_COLOURS.get(verdict, '0')}m{painted}\x1b[0m"
        head = f"{check.ljust(first)}  {painted}  {parts[0].ljust(room)}  {time.rjust(last)}"
        lines.append(head.rstrip())
        indent = " " * (first + second + 4)
        lines += [indent + part for part in parts[1:]]
    return "\n".join(lines) + "\n"


def show(rows: Iterable[Row], stream: TextIO) -> None:
    """Writes the table to `stream`, in colour and to its width if that is a terminal."""
    terminal = stream.isatty()
    width = shutil.get_terminal_size().columns if terminal else 100
    stream.write(render(rows, width=width, colour=terminal and "NO_COLOR" not in os.environ))
    stream.flush()


def _time(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds:.1f} s"
