"""Byte code against the source it belongs to.

A `.pyc` is explained only when it lies where Python would look for it, the source it belongs to
is there, and the time and size, or the hash, in its header are that source's (PEP 3147, PEP 552).
"""

from __future__ import annotations

import _imp
import os
import re
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from torchlock.lock import PYTHON_VERSION

MAGIC = (3495).to_bytes(2, "little") + b"\r\n"
"""The magic number of CPython 3.11 (Lib/importlib/_bootstrap_external.py)."""

_CACHED = re.compile(
    rf"(?P<below>.*/)?__pycache__/(?P<module>[^/]+)"
    rf"\.cpython-{PYTHON_VERSION.replace('.', '')}(\.opt-[12])?(\.pytest-[\d.]+)?\.pyc"
)


def explain_bytecode(
    root: Path, present: Mapping[str, os.stat_result], paths: Iterable[str]
) -> tuple[int, list[tuple[str, str]]]:
    """Judge the byte code `paths` below `root`, given the lstat of everything present.

    Returns how many are explained, and (path, reason) for those that are not.
    """
    explained, stale = 0, []
    for path in paths:
        reason = _reason(root, present, path)
        if reason:
            stale.append((path, reason))
        else:
            explained += 1
    return explained, stale


def _reason(root: Path, present: Mapping[str, os.stat_result], path: str) -> str:
    match = _CACHED.fullmatch(path)
    if not match:
        return f"byte code of another Python, or without its source (CPython {PYTHON_VERSION})"
    source = f"{match['below'] or ''}{match['module']}.py"
    if source not in present:
        return f"its source {source} does not exist"
    try:
        with (root / path).open("rb") as stream:
            header = stream.read(16)
    except OSError as error:
        return f"it cannot be read: {error.strerror}"
    if len(header) < 16 or header[:4] != MAGIC:
        return f"its magic number is not that of CPython {PYTHON_VERSION}"
    flags = int.from_bytes(header[4:8], "little")
    if flags == 0:
        return _time_reason(header, present[source])
    if flags in (0b01, 0b11):
        return _hash_reason(header, (root / source).read_bytes())
    return f"its flags {flags:#x} are unknown"


def _time_reason(header: bytes, source: os.stat_result) -> str:
    time, size = (int.from_bytes(header[i : i + 4], "little") for i in (8, 12))
    if time != int(source.st_mtime) & 0xFFFFFFFF:
        return "it was made from a source of another time"
    if size != source.st_size & 0xFFFFFFFF:
        return "it was made from a source of another size"
    return ""


def _hash_reason(header: bytes, source: bytes) -> str:
    if sys.version_info < (3, 11):
        return "not judged: hash-based byte code needs Python 3.11 or newer to be checked"
    # The raw key of PEP 552 is the magic number; 3.11 and newer hash it alike (SipHash13).
    expected = _imp.source_hash(int.from_bytes(MAGIC, "little"), source)
    return "" if header[8:16] == expected else "it was made from another source"
