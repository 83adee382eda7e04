"""Which foundation a prefix gets: conda packages, or the host's own CPython."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from torchlock.artifacts import Store
from torchlock.errors import TorchlockError
from torchlock.lock import Lock
from torchlock.realize.marker import read_marker

Foundation = Literal["conda", "venv"]
"""What carries the stack: conda packages, or the host's own CPython."""


def choose_foundation(
    asked: str, prefix: Path, lock: Lock, platform: str, store: Store
) -> tuple[Foundation, str]:
    """Return the foundation for `prefix` and why it is that, in words.

    `asked` is `conda`, `venv`, or `auto`: what the prefix has already, else conda where its
    packages can be had, else the host's own CPython. Raises `TorchlockError` for another word.
    """
    known: dict[str, Foundation] = {"conda": "conda", "venv": "venv"}
    if asked in known:
        return known[asked], "as asked for"
    if asked != "auto":
        raise TorchlockError(
            f"there is no foundation {asked!r}", hint="invoke env --foundation auto|conda|venv"
        )
    marker = read_marker(prefix)
    if marker:
        return known.get(marker.foundation, "venv"), "as it was made"
    from torchlock.realize.foundation import why_no_conda  # noqa: PLC0415 - only `auto` needs it

    fault = why_no_conda(lock, platform, store)
    if fault:
        return "venv", f"the conda channel cannot be used: {fault}"
    return "conda", "the conda packages can be had"
