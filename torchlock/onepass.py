"""A file read once, front to back: its ranges are handed out, and all of it hashed, on the way.

So what is verified is what is used, and each byte is read once for both. A range that lies
before what was handed out last has to be read again; archives hardly ever ask for that.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from io import FileIO
from pathlib import Path

from torchlock.errors import TorchlockError

CHUNK = 256 << 10
"""Bytes read at a time: what is read, hashed and written next stays in a core's own cache."""


class UnreadableError(TorchlockError):
    """The file cannot be read where it was asked for."""


class OnePass:
    """An open file whose bytes go through `digest`, if any, as far as ranges were asked for.

    Others may move the position of `file` meanwhile.
    """

    def __init__(self, path: Path, file: FileIO, digest: hashlib._Hash | None = None) -> None:
        self.path, self.file, self._digest = path, file, digest
        self._buffer = memoryview(bytearray(CHUNK))
        self._chunk = self._buffer[:0]
        self._start = 0  # where in the file the chunk is from

    def pieces(self, offset: int, length: int) -> Iterator[memoryview]:
        """Yield the bytes of a range, fewer where the file ends; a piece is good until the next.

        Raises `UnreadableError` where the file cannot be read.
        """
        if offset < self._start:
            yield from self._again(offset, length)
            return
        while length:
            at = offset - self._start
            if piece := self._chunk[at : at + length]:
                yield piece
                offset += len(piece)
                length -= len(piece)
            elif not self._advance():
                return

    def read(self, offset: int, length: int) -> bytes:
        """Return the bytes of a range, fewer where the file ends. Raises as `pieces` does."""
        return b"".join(map(bytes, self.pieces(offset, length)))

    def finish(self) -> None:
        """Read what is left of the file, so that all of it went through the digest."""
        while self._advance():
            pass

    def _advance(self) -> bool:
        """Go on to the next chunk; say whether there is one."""
        self._start += len(self._chunk)
        self._chunk = self._read(self._start, self._buffer)
        if self._digest:
            self._digest.update(self._chunk)
        return bool(self._chunk)

    def _again(self, offset: int, length: int) -> Iterator[memoryview]:
        buffer = memoryview(bytearray(min(length, CHUNK)))
        while piece := self._read(offset, buffer[:length]):
            yield piece
            offset += len(piece)
            length -= len(piece)

    def _read(self, offset: int, buffer: memoryview) -> memoryview:
        try:
            self.file.seek(offset)
            return buffer[: self.file.readinto(buffer)]
        except OSError as error:
            raise UnreadableError(f"{self.path} cannot be read: {error.strerror}") from None
