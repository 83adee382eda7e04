"""Layers: gzip-compressed tar archives written in one pass, digests taken on the way.

A layer is a sequence of gzip members. Headers, padding and ordinary contents gather in packed
members of `PACK` bytes of archive each; a file that is already a DEFLATE stream becomes one
spliced member of its own, between packed ones. Entries come in the order they are given, each
missing parent directory once, before its first entry.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Protocol

from torchlock.errors import TorchlockError
from torchlock.oci import gzipped, tarball
from torchlock.oci.tarball import Member

PACK = 4 << 20
"""Archive bytes in one packed member; part of the format."""

_READ = 256 << 10
_SMALL = 64 << 10
_INFLATE = 4 << 20


class LayerError(TorchlockError):
    """A layer cannot be written as it is described."""


@dataclass(frozen=True)
class Stream:
    """Bytes inside a file: a raw DEFLATE stream or, unless `deflated`, the bytes themselves.

    `offset` and `length` locate them, in bytes; `size` and `crc32` are those of what the stream
    inflates to, as its archive claims; `name` is for messages.
    """

    path: Path
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


@dataclass(frozen=True)
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
    """Where the bytes go, and the digests of both sides."""

    out: IO[bytes]
    hashed: bool
    outer: hashlib._Hash = field(default_factory=hashlib.sha256)
    inner: hashlib._Hash = field(default_factory=hashlib.sha256)
    size: int = 0
    pending: bytearray = field(default_factory=bytearray)
    gathered: list[bytes] = field(default_factory=list)
    held: int = 0
    source: tuple[Path, IO[bytes]] | None = None

    def write(self, data: bytes) -> None:
        """Write small pieces together: most files of a wheel are a few kilobytes."""
        if len(data) >= _SMALL:
            self.drain()
            self._put(data)
            return
        self.gathered.append(data)
        self.held += len(data)
        if self.held >= _READ:
            self.drain()

    def drain(self) -> None:
        if self.gathered:
            self._put(b"".join(self.gathered))
            self.gathered.clear()
            self.held = 0

    def _put(self, data: bytes) -> None:
        self.out.write(data)
        self.size += len(data)
        if self.hashed:
            self.outer.update(data)

    def plain(self, data: bytes) -> None:
        view = memoryview(data)
        while len(self.pending) + len(view) >= PACK:
            room = PACK - len(self.pending)
            self.pending += view[:room]
            self.flush()
            view = view[room:]
        self.pending += view

    def flush(self) -> None:
        if self.pending:
            if self.hashed:
                self.inner.update(self.pending)
            self.write(gzipped.packed_member(self.pending))
            self.pending.clear()

    def stream(self, stream: Stream) -> None:
        source = self._opened(stream.path)
        source.seek(stream.offset)
        if not stream.deflated:
            self._pack_stored(source, stream)
            return
        self.flush()
        self.write(gzipped.HEADER)
        if self.hashed:
            self._copy_checked(source, stream)
        else:
            self._copy(source, stream)
        self.write(gzipped.trailer(stream.crc32, stream.size))

    def _opened(self, path: Path) -> IO[bytes]:
        """Return the file at `path`; a wheel's streams come one after the other."""
        if self.source is None or self.source[0] != path:
            self.close()
            self.source = path, path.open("rb", buffering=_READ)
        return self.source[1]

    def close(self) -> None:
        if self.source:
            self.source[1].close()
            self.source = None

    def _pack_stored(self, source: IO[bytes], stream: Stream) -> None:
        left, crc = stream.length, 0
        while left:
            left -= len(chunk := _read(source, min(left, _READ), stream))
            crc = gzipped.crc32(chunk, crc)
            self.plain(chunk)
        if crc != stream.crc32:
            raise LayerError(
                f"{stream.name}: has CRC-32 {crc:08x}, its archive claims {stream.crc32:08x}"
            )

    def copy(self, contents: Contents, member: Member) -> None:
        left = member.size
        while left:
            chunk = contents.read(min(left, _READ))
            if not chunk:
                raise LayerError(f"{member.path}: {left} of its {member.size} bytes are missing")
            left -= len(chunk)
            self.plain(chunk)

    def _copy(self, source: IO[bytes], stream: Stream) -> None:
        left = stream.length
        while left:
            left -= len(chunk := _read(source, min(left, _READ), stream))
            self.write(chunk)

    def _copy_checked(self, source: IO[bytes], stream: Stream) -> None:
        inflater, left, size, crc = gzipped.inflater(), stream.length, 0, 0
        while left:
            left -= len(chunk := _read(source, min(left, _READ), stream))
            self.write(chunk)
            while chunk and not inflater.eof:
                try:
                    # The bound keeps a stream that lies about its size from filling memory.
                    data = inflater.decompress(chunk, _INFLATE)
                except Exception as error:  # zlib.error and isal's are different classes
                    raise LayerError(f"{stream.name}: damaged DEFLATE stream ({error})") from None
                chunk = inflater.unconsumed_tail
                size += len(data)
                crc = gzipped.crc32(data, crc)
                self.inner.update(data)
                if size > stream.size:
                    raise LayerError(
                        f"{stream.name}: inflates to more than the {stream.size} bytes "
                        "its archive claims"
                    )
            if inflater.eof and (inflater.unused_data or chunk):
                raise LayerError(f"{stream.name}: the DEFLATE stream ends early")
        if not inflater.eof:
            raise LayerError(f"{stream.name}: the DEFLATE stream is cut off")
        if (size, crc) != (stream.size, stream.crc32):
            raise LayerError(
                f"{stream.name}: inflates to {size} bytes with CRC-32 {crc:08x}, its archive "
                f"claims {stream.size} and {stream.crc32:08x}"
            )


def _read(source: IO[bytes], count: int, stream: Stream) -> bytes:
    chunk = source.read(count)
    if not chunk:
        raise LayerError(f"{stream.path}: ends inside {stream.name}")
    return chunk


def write_layer(items: Iterable[Item], out: IO[bytes]) -> Blob:
    """Write a layer to `out` and return its digests; memory stays bounded.

    Every spliced stream is inflated on the way: size and CRC-32 have to be what its archive
    claims. Raises `LayerError` for damaged streams and for two entries with one path.
    """
    with closing(_Sink(out, hashed=True)) as sink:
        _write(items, sink)
    return Blob(f"sha256:{sink.outer.hexdigest()}", sink.size, f"sha256:{sink.inner.hexdigest()}")


def copy_layer(items: Iterable[Item], out: IO[bytes], recorded: Blob) -> None:
    """Write a layer whose digests are already known from the same inputs, without hashing.

    Sound only where the inputs were verified by their own sha256: those and the rules of this
    module imply the bytes. Raises `LayerError` when the size is not the recorded one.
    """
    with closing(_Sink(out, hashed=False)) as sink:
        _write(items, sink)
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
    missing = []
    while "/" in path:
        path = path.rpartition("/")[0]
        if path in directories:
            break
        missing.append(path)
        directories.add(path)
    return missing[::-1]
