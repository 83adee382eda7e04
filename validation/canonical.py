"""Canonical JSON: one text for one value, so that a file has one digest."""

from __future__ import annotations

import contextlib
import hashlib
import json
import sys
from pathlib import Path

from validation.outcome import ValidationError


def dump(value: object) -> str:
    """Sorted keys, two spaces, plain ASCII, a newline at the end.

    Raises TypeError for a float: its text could differ between writers.
    """
    _refuse_floats(value)
    return json.dumps(value, indent=2, sort_keys=True, ensure_ascii=True) + "\n"


def digest(value: object) -> str:
    """`sha256:...` of the canonical text."""
    return f"sha256:{hashlib.sha256(dump(value).encode()).hexdigest()}"


def is_canonical(value: object, text: str) -> bool:
    """Whether `text` is the canonical text of `value`."""
    try:
        return dump(value) == text
    except TypeError:
        return False


def write(target: str, value: object) -> None:
    """Writes the canonical text to the file `target`, whole or not at all; "-" is stdout.

    Raises ValidationError when that fails.
    """
    text = dump(value)
    if target == "-":
        sys.stdout.write(text)
        return
    write_whole(Path(target), text.encode())


def write_whole(path: Path, content: bytes) -> None:
    """Writes `path` whole or not at all. Raises ValidationError when that fails."""
    part = path.with_name(f".{path.name}.part")
    try:
        part.write_bytes(content)
        part.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            part.unlink()
        raise ValidationError(f"{path} could not be written: {error.strerror}") from error


def _refuse_floats(value: object) -> None:
    if isinstance(value, float):
        raise TypeError(f"a float has no canonical text: {value!r}")
    if isinstance(value, dict):
        for item in value.values():
            _refuse_floats(item)
    elif isinstance(value, list | tuple):
        for item in value:
            _refuse_floats(item)
