"""Frames: what a spliced layer has besides its sources' own streams.

A layer spliced out of archives consists of their DEFLATE streams and of what stands between
those: packed members, headers and trailers, a thousandth of its bytes and nearly all the work.
A frame holds the latter and says where the streams are, so that the layer can be written again
by copying alone.

Format: a line that names it; the sha256 of all that follows; a line of JSON that gives, for each
source in order, its file name and how many rows it has; the rows, 20 bytes each: how many bytes
of the frame come before a range of the source, the range's offset, its length; and those bytes.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain, islice

FORMAT = b"torchlock frame 1\n"

LIMIT = 16 << 20
"""Bytes; a frame that reaches it, of archives whose members are stored, is not worth its room."""

_ROW = struct.Struct("<IQQ")

Row = tuple[int, int, int]
"""Bytes of the frame before a range; the range's offset and its length."""


@dataclass
class Frame:
    """A frame; one that is new takes down a layer while it is written."""

    rows: dict[str, list[Row]] = field(default_factory=dict)
    between: bytearray = field(default_factory=bytearray)
    _placed: int = 0

    def add(self, data: bytes | memoryview) -> None:
        """Take down bytes that are the layer's own."""
        if not self.is_full:
            self.between += data

    @property
    def is_full(self) -> bool:
        """Say whether it has grown to the limit, and takes down no more."""
        return len(self.between) >= LIMIT

    def add_range(self, source: str, offset: int, length: int) -> None:
        """Take down bytes that a source has, which is given by its file name."""
        row = len(self.between) - self._placed, offset, length
        self.rows.setdefault(source, []).append(row)
        self._placed = len(self.between)

    def encoded(self) -> bytes:
        """Return the frame as it is kept."""
        sources = json.dumps([(name, len(rows)) for name, rows in self.rows.items()])
        rows = b"".join(_ROW.pack(*row) for row in chain.from_iterable(self.rows.values()))
        parts = (sources.encode(), b"\n", rows, self.between)
        digest = hashlib.sha256()
        for part in parts:
            digest.update(part)
        return b"".join((FORMAT, digest.digest(), *parts))


def decoded(content: bytes) -> Frame:
    """Return a frame that was kept. Raises `ValueError` for a damaged one, or another format."""
    head = len(FORMAT) + 32
    if content[:head] != FORMAT + hashlib.sha256(memoryview(content)[head:]).digest():
        raise ValueError("not a frame, or a damaged one")
    start = content.index(b"\n", head) + 1
    sources: Sequence[tuple[str, int]] = json.loads(content[head:start])
    end = start + _ROW.size * sum(count for _, count in sources)
    rows = _ROW.iter_unpack(memoryview(content)[start:end])
    return Frame(
        {name: [*islice(rows, count)] for name, count in sources}, bytearray(content[end:])
    )
