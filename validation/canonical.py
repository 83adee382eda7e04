"""Canonical JSON: one text for one value, so that a file has one digest."""

from __future__ import annotations

import hashlib
import json
from typing import Any


def dump(value: Any) -> str:
    """Sorted keys, two spaces, plain ASCII, a newline at the end.

    Raises TypeError for a float: its text could differ between writers.
    """
    _refuse_floats(value)
    return json.dumps(value, indent=2, sort_keys=True, ensure_ascii=True) + "\n"


def digest(value: Any) -> str:
    """"sha256:..." of the canonical text."""
    return f"sha256:{hashlib.sha256(dump(value).encode()).hexdigest()}"


def _refuse_floats(value: Any) -> None:
    if isinstance(value, float):
        raise TypeError(f"a float has no canonical text: {value!r}")
    if isinstance(value, dict):
        for item in value.values():
            _refuse_floats(item)
    elif isinstance(value, list | tuple):
        for item in value:
            _refuse_floats(item)
