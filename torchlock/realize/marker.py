"""Whose prefix this is: the file by which torchlock knows what it made.

A prefix without the marker is never written into; a prefix with it may be completed, repaired
and moved to another lock. `complete` is false from before the first file is written until
everything is installed and verified.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from torchlock.errors import TorchlockError
from torchlock.files import write_atomically

NAME = "torchlock.json"
FORMAT = 1
ELSEWHERE = "choose another place: invoke env --prefix DIR"


@dataclass(frozen=True)
class Marker:
    """What a prefix holds: the lock's digest, the foundation, the names of its wheels.

    `scripts` names the conda packages (as in `conda-meta`) whose link scripts were run, and
    `written` what those left: paths and their contents. While link scripts run, `before` are the
    paths that no package accounted for when they began; else it is None.
    """

    lock: str
    foundation: str
    wheels: tuple[str, ...]
    complete: bool
    scripts: tuple[str, ...] = ()
    written: Mapping[str, str] = field(default_factory=dict)
    before: tuple[str, ...] | None = None


def read_marker(prefix: Path) -> Marker | None:
    """Return the marker of a prefix, or None when the prefix is absent or empty.

    Raises `TorchlockError` when the prefix holds something that torchlock did not make, or
    cannot be looked into.
    """
    path = prefix / NAME
    try:
        data = _read(prefix)
    except NotADirectoryError:
        raise TorchlockError(f"{prefix} is not a directory", hint=ELSEWHERE) from None
    except OSError as error:
        raise TorchlockError(f"{path} cannot be read: {error.strerror}", hint=ELSEWHERE) from None
    if data is None:
        return None
    try:
        content = json.loads(data)
        if content.pop("format") != FORMAT:
            raise ValueError("another format")
        lists = {key: tuple(content.get(key, ())) for key in ("wheels", "scripts")}
        written = dict(content.get("written", {}))
        if content.get("before") is not None:
            lists["before"] = tuple(content["before"])
        texts = (*lists["scripts"], *written.values(), *lists.get("before", ()))
        if not all(isinstance(text, str) for text in texts):
            raise ValueError("not text")
        return Marker(**{**content, **lists, "written": written})
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise TorchlockError(
            f"{path} is damaged ({error})",
            hint=f"if nothing else in {prefix} is yours, remove it and run the command again",
        ) from None


def _read(prefix: Path) -> bytes | None:
    """Return what the marker's file holds; None where the prefix is absent or empty."""
    try:
        return (prefix / NAME).read_bytes()
    except FileNotFoundError:
        if not prefix.exists() or not any(prefix.iterdir()):
            return None
        raise TorchlockError(
            f"{prefix} exists and torchlock did not make it; it is left as it is", hint=ELSEWHERE
        ) from None


def write_marker(prefix: Path, marker: Marker) -> None:
    """Write the marker, making the prefix's directory if need be."""
    try:
        prefix.mkdir(parents=True, exist_ok=True)
        text = json.dumps({"format": FORMAT, **asdict(marker)}, indent=1) + "\n"
        write_atomically(prefix / NAME, text.encode())
    except OSError as error:
        raise TorchlockError(
            f"{prefix} cannot be written: {error.strerror}", hint=ELSEWHERE
        ) from None
