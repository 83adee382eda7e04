"""Layers: gzip-compressed tar archives written in one pass, digests taken on the way.

A layer is a sequence of gzip members. Headers, padding and ordinary contents gather in packed
members of `PACK` bytes of archive each; a file that is already a DEFLATE stream becomes one
spliced member of its own, between packed ones. Entries come in the order they are given, each
missing parent directory once, before its first entry.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Protocol

from torchlock.errors import TorchlockError
from torchlock.oci import gzipped, tarball
from torchlock.oci.frame import Frame
from torchlock.oci.tarball import Member

PACK = 4 << 20
"""Archive bytes in one packed member; part of the format."""

_READ = 256 << 10
_SMALL = 64 << 10
"""Pieces below this are gathered before they are written: most files of a wheel are small."""

_INFLATE = 4 << 20


class LayerError(TorchlockError):
    """A layer cannot be written as it is described."""


class Source(Protocol):
    """A file that streams are read from, its ranges mostly in the order of their offsets."""

    @property
    def path(self) -> Path:
        """Where it is, for messages."""

    def pieces(self, offset: int, length: int) -> Iterator[memoryview]:
        """Yield the bytes of a range, fewer where the source ends; one is good until the next."""


@dataclass(frozen=True, slots=True)
class Stream:
    """Bytes inside a source: a raw DEFLATE stream or, unless `deflated`, the bytes themselves.

    `offset` and `length` locate them, in bytes; `size` and `crc32` are those of what the stream
    inflates to, as its archive claims; `name` is for messages.
    """

    source: Source
    offset: int
    length: int
    size: int
    crc32: int
    name: str
    deflated: bool = True


class Contents(Protocol):
    """A file's contents, read once and in pieces when the entry is written."""

    def read(self, count: int, /) -> bytes:
        """Return the next bytes, at most `count` of them; none at the end."""


@dataclass(frozen=True, slots=True)
class Item:
    """One entry of a layer: its header, and the contents of a file."""

    member: Member
    contents: bytes | Stream | Contents = b""


def file_item(path: str, contents: bytes, mode: int = 0o644, *, uid: int = 0, gid: int = 0) -> Item:
    """Return a regular file with contents held in memory."""
    return Item(Member(path, "file", mode, len(contents), uid=uid, gid=gid), contents)


def symlink_item(path: str, target: str) -> Item:
    """Return a symbolic link."""
    return Item(Member(path, "symlink", 0o777, target=target))


def directory_item(path: str, mode: int = 0o755, *, uid: int = 0, gid: int = 0) -> Item:
    """Return a directory."""
    return Item(Member(path, "directory", mode, uid=uid, gid=gid))


def stream_item(path: str, stream: Stream, mode: int = 0o644) -> Item:
    """Return a regular file whose contents are a DEFLATE stream elsewhere."""
    return Item(Member(path, "file", mode, stream.size), stream)


@dataclass(frozen=True)
class Blob:
    """A written layer: its digest and size compressed, and its digest uncompressed (diff ID)."""

    digest: str
    size: int
    diff_id: str


@dataclass
class _Sink:
    """Where the bytes go, and the digests of both sides as far as they are wanted."""

    out: IO[bytes]
    outer: hashlib._Hash | None = None
    inner: hashlib._Hash | None = None
    size: int = 0
    pending: bytearray = field(default_factory=bytearray)
    gathered: bytearray = field(default_factory=bytearray)
    frame: Frame | None = None

    def write(self, data: bytes | memoryview) -> None:
        """Write bytes that the layer has of itself; `gather` takes those of its sources, too."""
        if self.frame:
            self.frame.add(data)
        self.gather(data)

    def gather(self, data: bytes | memoryview) -> None:
        if len(data) < _SMALL:
            self.gathered += data
            if len(self.gathered) < _READ:
                return
            self.drain()
        else:
            self.drain()
            self._put(data)

    def drain(self) -> None:
        if self.gathered:
            self._put(self.gathered)
            self.gathered.clear()

    def _put(self, data: bytes | bytearray | memoryview) -> None:
        self.out.write(data)
        self.size += len(data)
        if self.outer:
            self.outer.update(data)

    def plain(self, data: bytes | memoryview) -> None:
        if len(self.pending) + len(data) < PACK:
            self.pending += data
            return
        view = memoryview(data)
        while len(self.pending) + len(view) >= PACK:
            room = PACK - len(self.pending)
            self.pending += view[:room]
            self.flush()
            view = view[room:]
        self.pending += view

    def flush(self) -> None:
        if self.pending:
            if self.inner:
                self.inner.update(self.pending)
            self.write(gzipped.packed_member(self.pending))
            self.pending.clear()

    def stream(self, stream: Stream) -> None:
        if not stream.deflated:
            self._pack_stored(stream)
            return
        self.flush()
        self.write(gzipped.HEADER)
        if self.frame:
            self.frame.add_range(stream.source.path.name, stream.offset, stream.length)
        if self.inner:
            self._copy_checked(stream, self.inner)
        else:
            self.copy_range(stream.source, stream.offset, stream.length, stream.name)
        self.write(gzipped.trailer(stream.crc32, stream.size))

    def copy_range(self, source: Source, offset: int, length: int, name: str) -> None:
        for piece in _pieces(source, offset, length, name):
            self.gather(piece)

    def _pack_stored(self, stream: Stream) -> None:
        crc = 0
        for piece in _pieces(stream.source, stream.offset, stream.length, stream.name):
            crc = gzipped.crc32(piece, crc)
            self.plain(piece)
        if crc != stream.crc32:
            raise _fault(stream, f"has CRC-32 {crc:08x}, its archive claims {stream.crc32:08x}")

    def copy(self, contents: Contents, member: Member) -> None:
        left = member.size
        while left:
            chunk = contents.read(min(left, _READ))
            if not chunk:
                raise LayerError(f"{member.path}: {left} of its {member.size} bytes are missing")
            left -= len(chunk)
            self.plain(chunk)

    def _copy_checked(self, stream: Stream, inner: hashlib._Hash) -> None:
        inflater, size, crc = gzipped.inflater(), 0, 0
        for piece in _pieces(stream.source, stream.offset, stream.length, stream.name):
            self.gather(piece)
            chunk: bytes | memoryview = piece
            while chunk and not inflater.eof:
                try:
                    # The bound keeps a stream that lies about its size from filling memory.
                    data = inflater.decompress(chunk, _INFLATE)
                except Exception as error:  # zlib.error and isal's are different classes
                    raise _fault(stream, f"damaged DEFLATE stream ({error})") from None
                chunk = inflater.unconsumed_tail
                size += len(data)
                crc = gzipped.crc32(data, crc)
                inner.update(data)
                if size > stream.size:
                    raise _fault(
                        stream,
                        f"inflates to more than the {stream.size} bytes its archive claims",
                    )
            if inflater.eof and (inflater.unused_data or chunk):
                raise _fault(stream, "the DEFLATE stream ends early")
        if not inflater.eof:
            raise _fault(stream, "the DEFLATE stream is cut off")
        if (size, crc) != (stream.size, stream.crc32):
            raise _fault(
                stream,
                f"inflates to {size} bytes with CRC-32 {crc:08x}, its archive "
                f"claims {stream.size} and {stream.crc32:08x}",
            )


def _pieces(source: Source, offset: int, length: int, name: str) -> Iterator[memoryview]:
    left = length
    for piece in source.pieces(offset, length):
        left -= len(piece)
        yield piece
    if left:
        raise LayerError(f"{source.path.name}: ends inside {name}")


def _fault(stream: Stream, what: str) -> LayerError:
    return LayerError(f"{stream.source.path.name}: {stream.name}: {what}")


def write_layer(items: Iterable[Item], out: IO[bytes], frame: Frame | None = None) -> Blob:
    """Write a layer to `out` and return its digests; memory stays bounded.

    Every spliced stream is inflated on the way: size and CRC-32 have to be what its archive
    claims. A `frame` takes the layer down. Raises `LayerError` for damaged streams and for two
    entries with one path.
    """
    sink = _Sink(out, outer := hashlib.sha256(), inner := hashlib.sha256(), frame=frame)
    _write(items, sink)
    return Blob(f"sha256:{outer.hexdigest()}", sink.size, f"sha256:{inner.hexdigest()}")


def copy_layer(items: Iterable[Item], out: IO[bytes], frame: Frame) -> tuple[str, int]:
    """Write a layer without inflating it, and take it down in `frame`; return digest and size.

    Sound only where the inputs are verified by their own sha256 and the digest is compared with
    one that `write_layer` gave: the diff ID is then that layer's.
    """
    sink = _Sink(out, outer := hashlib.sha256(), frame=frame)
    _write(items, sink)
    return f"sha256:{outer.hexdigest()}", sink.size


def copy_framed(
    frame: Frame,
    sources: Iterable[AbstractContextManager[Source]],
    out: IO[bytes],
    recorded: Blob,
) -> None:
    """Write the layer that `frame` took down, from the same sources in the same order, unhashed.

    Sound only where the sources are verified by their own sha256 and the frame was taken down from
    this very layer. Raises `LayerError` when a source is too short, or the size is not `recorded`.
    """
    sink, at = _Sink(out), 0
    between = memoryview(frame.between)
    for source in sources:
        with source as opened:
            for before, offset, length in frame.rows.get(opened.path.name, ()):
                sink.gather(between[at : at + before])
                sink.copy_range(opened, offset, length, f"a stream at {offset}")
                at += before
    sink.gather(between[at:])
    sink.drain()
    if sink.size != recorded.size:
        raise LayerError(f"wrote {sink.size} bytes of a layer recorded with {recorded.size}")


def _write(items: Iterable[Item], sink: _Sink) -> None:
    gzipped.check_encoder()
    directories: set[str] = set()
    seen: set[str] = set()
    for item in items:
        member = item.member
        path = member.path
        if path in seen or (path in directories and member.kind != "directory"):
            raise LayerError(f"{path} occurs twice in one layer")
        for parent in _missing_parents(path, directories):
            sink.plain(tarball.header(Member(parent, "directory", 0o755)))
        if member.kind == "directory":
            if path in directories:
                continue
            directories.add(path)
        else:
            seen.add(path)
        sink.plain(tarball.header(member))
        if isinstance(item.contents, Stream):
            sink.stream(item.contents)
        elif isinstance(item.contents, bytes):
            sink.plain(item.contents)
        else:
            sink.copy(item.contents, member)
        sink.plain(tarball.padding(member.size))
    sink.plain(tarball.END)
    sink.flush()
    sink.drain()


def _missing_parents(path: str, directories: set[str]) -> list[str]:
    missing: list[str] = []
    while (path := path.rpartition("/")[0]) and path not in directories:
        missing.append(path)
        directories.add(path)
    return missing[::-1]
