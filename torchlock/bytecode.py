"""Byte code against the source it belongs to.

A `.pyc` is explained only when it lies where Python would look for it, the source it belongs to
is there, and the time and size, or the hash, in its header are that source's (PEP 3147, PEP 552).
"""

from __future__ import annotations

import os
import re
import stat
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
    if not all(stat.S_ISREG(present[p].st_mode) for p in (path, source)):
        return "it or its source is a link or another kind of node"
    try:
        return _header_reason(root, path, source, present[source])
    except OSError as error:
        return f"it or its source cannot be read: {error.strerror}"


def _header_reason(root: Path, path: str, source: str, status: os.stat_result) -> str:
    with (root / path).open("rb") as stream:
        header = stream.read(16)
    if len(header) < 16 or header[:4] != MAGIC:
        return f"its magic number is not that of CPython {PYTHON_VERSION}"
    flags = int.from_bytes(header[4:8], "little")
    if flags == 0:
        return _time_reason(header, status)
    if flags in (0b01, 0b11):
        expected = source_hash((root / source).read_bytes())
        return "" if header[8:16] == expected else "it was made from another source"
    return f"its flags {flags:#x} are unknown"


def _time_reason(header: bytes, source: os.stat_result) -> str:
    time, size = (int.from_bytes(header[i : i + 4], "little") for i in (8, 12))
    if time != int(source.st_mtime) & 0xFFFFFFFF:
        return "it was made from a source of another time"
    if size != source.st_size & 0xFFFFFFFF:
        return "it was made from a source of another size"
    return ""


def source_hash(source: bytes) -> bytes:
    """Return the hash of a source that hash-based byte code of CPython 3.11 carries.

    SipHash-1-3 (J.-P. Aumasson, D. J. Bernstein) keyed with the magic number, as PEP 552 has it;
    the running Python's own may be another version's.
    """
    key = int.from_bytes(MAGIC, "little")
    state = _sip_start(key, 0)
    whole = len(source) - len(source) % 8
    for offset in range(0, whole, 8):
        state = _sip_word(state, int.from_bytes(source[offset : offset + 8], "little"))
    last = int.from_bytes(source[whole:], "little") | (len(source) & 0xFF) << 56
    a, b, c, d = _sip_word(state, last)
    state = a, b, c ^ 0xFF, d
    for _ in range(3):
        state = _sip_round(*state)
    return (state[0] ^ state[1] ^ state[2] ^ state[3]).to_bytes(8, "little")


_State = tuple[int, int, int, int]
_MASK = (1 << 64) - 1


def _sip_start(low: int, high: int) -> _State:
    return (
        low ^ 0x736F6D6570736575,
        high ^ 0x646F72616E646F6D,
        low ^ 0x6C7967656E657261,
        high ^ 0x7465646279746573,
    )


def _sip_word(state: _State, word: int) -> _State:
    a, b, c, d = state
    a, b, c, d = _sip_round(a, b, c, d ^ word)
    return a ^ word, b, c, d


def _sip_round(a: int, b: int, c: int, d: int) -> _State:
    a = (a + b) & _MASK
    c = (c + d) & _MASK
    b = (b << 13 & _MASK | b >> 51) ^ a
    d = (d << 16 & _MASK | d >> 48) ^ c
    a = (a << 32 & _MASK | a >> 32) + d & _MASK
    c = c + b & _MASK
    b = (b << 17 & _MASK | b >> 47) ^ c
    d = (d << 21 & _MASK | d >> 43) ^ a
    c = c << 32 & _MASK | c >> 32
    return a, b, c, d
