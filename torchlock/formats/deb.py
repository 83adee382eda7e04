"""Debian packages: an `ar` archive of a control tar and a data tar (deb(5)).

Nothing is executed: maintainer scripts are data like everything else.
"""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import tarfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal, cast

from torchlock.errors import TorchlockError
from torchlock.tree import safe_relative_path

_BUFFER = 64 << 10
"""Bytes read at a time; the standard library's own choices cost a tenth more."""

FileKind = Literal["file", "link", "symlink", "directory"]


class DebError(TorchlockError):
    """The archive is not a Debian package that can be unpacked."""


@dataclass(frozen=True)
class DebFile:
    """One entry of a package's data: paths are relative, `target` is the tar's link name.

    `mode` is the permission bits with setuid, setgid and sticky; `size` is a file's, in bytes.
    """

    path: str
    kind: FileKind
    mode: int
    uid: int
    gid: int
    target: str
    size: int
    _damage: str
    _stream: IO[bytes] | None

    def read(self, count: int = -1) -> bytes:
        """Read a file's contents, or `count` bytes of them: once, and before the next entry.

        Raises `DebError` for damaged data.
        """
        with _damage_named(self._damage):
            return self._stream.read(count) if self._stream else b""


@dataclass(frozen=True)
class Deb:
    """A package opened: its control members by name (`control`, `md5sums`, `postinst`, ...)."""

    path: Path
    control: dict[str, bytes]
    _data: tuple[str, int, int]

    def files(self) -> Iterator[DebFile]:
        """Yield the data's entries in archive order; a file is not read until it is asked to be.

        Raises `DebError` for damaged data, unsafe names, devices and other special files.
        """
        name, offset, length = self._data
        with _tar(self.path, name, offset, length) as archive:
            for member in archive:
                path = _safe(self.path, member.name)
                if path:
                    yield _file(self.path, archive, member, path, name)


def read_deb(path: Path) -> Deb:
    """Open a package and read its control part. Raises `DebError` when it is not a package."""
    parts = _ar_members(path)
    if next(iter(parts), "") != "debian-binary":
        raise DebError(f"{path.name}: not a Debian package")
    found = {}
    for stem in ("control.tar", "data.tar"):
        names = [name for name in parts if name.startswith(stem)]
        if len(names) != 1:
            raise DebError(f"{path.name}: {len(names)} members named {stem}, one is expected")
        found[stem] = (names[0], *parts[names[0]])
    with _tar(path, *found["control.tar"]) as archive:
        control = {
            _safe(path, member.name): cast(IO[bytes], archive.extractfile(member)).read()
            for member in archive
            if member.isreg()
        }
    if "control" not in control:
        raise DebError(f"{path.name}: its control part has no control file")
    return Deb(path, control, found["data.tar"])


def _ar_members(path: Path) -> dict[str, tuple[int, int]]:
    """Return name -> (offset, length) of an `ar` archive's members, in order."""
    members: dict[str, tuple[int, int]] = {}
    with path.open("rb") as stream:
        size = stream.seek(0, io.SEEK_END)
        stream.seek(0)
        if stream.read(8) != b"!<arch>\n":
            raise DebError(f"{path.name}: not an ar archive")
        while header := stream.read(60):
            length = header[48:58].strip()
            if header[58:] != b"`\n" or not length.isdigit():
                raise DebError(f"{path.name}: damaged ar header")
            name = header[:16].decode("ascii", "replace").strip().rstrip("/")
            offset = stream.tell()
            if name in members or offset + int(length) > size:
                raise DebError(f"{path.name}: ar member {name} is cut off or occurs twice")
            members[name] = (offset, int(length))
            stream.seek(offset + int(length) + int(length) % 2)
    return members


class _Part(io.RawIOBase):
    """A read-only window on a part of a file."""

    def __init__(self, stream: IO[bytes], offset: int, length: int) -> None:
        self._stream, self._left = stream, length
        stream.seek(offset)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._stream.read(min(len(buffer), self._left))
        buffer[: len(data)] = data
        self._left -= len(data)
        return len(data)


@contextmanager
def _tar(path: Path, name: str, offset: int, length: int) -> Iterator[tarfile.TarFile]:
    with path.open("rb") as stream:
        part = cast(IO[bytes], io.BufferedReader(_Part(stream, offset, length), _BUFFER))
        with _damage_named(f"{path.name}: {name}"):
            unpacked = cast(Any, _unpacked(path, name, part))
            with tarfile.open(fileobj=unpacked, mode="r|", bufsize=_BUFFER) as archive:
                yield archive


@contextmanager
def _damage_named(what: str) -> Iterator[None]:
    try:
        yield
    except (tarfile.TarError, lzma.LZMAError, zlib.error, EOFError, OSError) as error:
        raise DebError(f"{what} cannot be read ({error})") from None


def _unpacked(path: Path, name: str, part: IO[bytes]) -> IO[bytes]:
    match name.partition(".tar")[2]:
        case "":
            return part
        case ".xz":
            return cast(IO[bytes], io.BufferedReader(cast(Any, lzma.LZMAFile(part)), _BUFFER))
        case ".gz":
            return cast(IO[bytes], gzip.GzipFile(fileobj=part))
        case ".bz2":
            return cast(IO[bytes], bz2.BZ2File(part))
    raise DebError(f"{path.name}: {name} is compressed in a way this tool does not read")


def _safe(path: Path, name: str) -> str:
    """Return a member's path without `./`, empty for the root itself."""
    name = name.removeprefix("./").rstrip("/")
    if name in ("", "."):
        return ""
    try:
        return safe_relative_path(name)
    except TorchlockError as error:
        raise DebError(f"{path.name}: {error.message}") from None


def _file(
    path: Path, archive: tarfile.TarFile, member: tarfile.TarInfo, name: str, part: str
) -> DebFile:
    kind: FileKind
    target, stream = "", None
    if member.isdir():
        kind = "directory"
    elif member.issym():
        kind, target = "symlink", member.linkname
    elif member.islnk():
        kind, target = "link", _safe(path, member.linkname)
    elif member.isreg():
        kind, stream = "file", archive.extractfile(member)
    else:
        raise DebError(f"{path.name}: {name} is a device or another special file")
    return DebFile(
        path=name,
        kind=kind,
        mode=member.mode & 0o7777,
        uid=member.uid,
        gid=member.gid,
        target=target,
        size=member.size if stream else 0,
        _damage=f"{path.name}: {part}",
        _stream=stream,
    )
