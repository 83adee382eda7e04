"""File trees and their digest.

A tree is a set of entries below one root: regular files (with or without the execute bit)
and symbolic links; directories are implied. The digest is the sha256 of the tree's NAR
serialization (sorted names, execute bit, contents; no times, no owners), written the way
Nix writes hashes (`sha256-` and base64), so that `nix hash path DIR` gives the same value
for the same tree on disk. Format: E. Dolstra, "The Purely Functional Software Deployment
Model" (2006), figure 5.2.
"""

from __future__ import annotations

import base64
import hashlib
import os
import stat
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Union

from torchlock.errors import TorchlockError

CHUNK = 1 << 20
"""Bytes read at a time; bounds memory whatever the size of a file."""

OpenBytes = Callable[[], AbstractContextManager[IO[bytes]]]


@dataclass(frozen=True, slots=True)
class Entry:
    """One file or symbolic link of a tree.

    `path` is relative to the tree's root, in posix form; `size` is in bytes; `sha256` is the
    hex digest of the contents where it is already known. A symbolic link has a `target` and
    no contents; a file has `opens`, which gives a stream over its contents.
    """

    path: str
    size: int
    executable: bool = False
    sha256: str | None = None
    target: str | None = None
    opens: OpenBytes | None = field(default=None, compare=False, repr=False)


Node = Union[Entry, "dict[str, Node]"]


class TreeConflictError(TorchlockError):
    """Two entries claim one path with different contents, or a file is also a directory."""


_CONTROL = frozenset({"Cc", "Cs", "Zl", "Zp"})
"""Unicode's categories of control characters, surrogates, line and paragraph separators."""


def safe_relative_path(name: str) -> str:
    """Return `name` if it is a plain relative posix path that stays below its root.

    Raises `TorchlockError` for absolute paths, `..`, empty or `.` components, backslashes,
    drive letters and control characters (NUL, line ends), which listings cannot carry.
    """
    between = f"/{name}/"  # every component has a slash on either side
    if (
        "//" in between
        or "/./" in between
        or "/../" in between
        or "\\" in name
        # Printable names have no such character; the standard library looks at all at once.
        or (not name.isprintable() and any(unicodedata.category(c) in _CONTROL for c in name))
        or name.partition("/")[0].endswith(":")
    ):
        raise TorchlockError(f"unsafe path {name!r}: it does not name a file below the root")
    return name


def merge(trees: Mapping[str, Iterable[Entry]]) -> list[Entry]:
    """Merge named trees into one, sorted by path.

    The same path may come from several trees when its contents, execute bit and target are
    the same. Raises `TreeConflictError` naming both trees otherwise. Every entry needs a
    known `sha256` or a `target`.
    """
    merged: dict[str, tuple[str, Entry]] = {}
    for owner, entries in trees.items():
        for entry in entries:
            other_owner, other = merged.setdefault(entry.path, (owner, entry))
            if _identity(other) != _identity(entry):
                raise TreeConflictError(
                    f"{other_owner} and {owner} disagree about {entry.path}: "
                    f"{_describe(other)} and {_describe(entry)}"
                )
    return [merged[path][1] for path in sorted(merged)]


def _identity(entry: Entry) -> tuple[bool, str | None, str | None]:
    return (entry.executable, entry.sha256, entry.target)


def _describe(entry: Entry) -> str:
    if entry.target is not None:
        return f"link to {entry.target}"
    return f"sha256 {entry.sha256}{' (executable)' if entry.executable else ''}"


def tree_digest(entries: Iterable[Entry]) -> str:
    """Return the NAR sha256 of a tree of entries, in the form `sha256-<base64>`.

    Raises `TreeConflictError` when a path occurs twice or is both a file and a directory.
    """
    digest = hashlib.sha256()
    for chunk in serialize(entries):
        digest.update(chunk)
    return "sha256-" + base64.b64encode(digest.digest()).decode()


def serialize(entries: Iterable[Entry]) -> Iterator[bytes]:
    """Yield the NAR serialization of a tree, in pieces of at most about `CHUNK` bytes."""
    yield _string(b"nix-archive-1")
    yield from _serialize_node(_nest(entries))


def _nest(entries: Iterable[Entry]) -> dict[str, Node]:
    root: dict[str, Node] = {}
    for entry in entries:
        *parents, name = entry.path.split("/")
        here = root
        for parent in parents:
            below = here.setdefault(parent, {})
            if isinstance(below, Entry):
                raise TreeConflictError(f"{below.path} is a file and a directory of one tree")
            here = below
        if name in here:
            raise TreeConflictError(f"{entry.path} occurs twice in one tree")
        here[name] = entry
    return root


def _serialize_node(node: Node) -> Iterator[bytes]:
    yield _string(b"(") + _string(b"type")
    if isinstance(node, Entry):
        yield from _serialize_entry(node)
    else:
        yield _string(b"directory")
        # NAR sorts names bytewise, which differs from sorting whole paths.
        for name in sorted(node, key=_encode):
            yield _string(b"entry") + _string(b"(")
            yield _string(b"name") + _string(_encode(name)) + _string(b"node")
            yield from _serialize_node(node[name])
            yield _string(b")")
    yield _string(b")")


def _serialize_entry(entry: Entry) -> Iterator[bytes]:
    if entry.target is not None:
        yield _string(b"symlink") + _string(b"target") + _string(_encode(entry.target))
        return
    if entry.opens is None:
        raise TorchlockError(f"{entry.path} has no contents to hash")
    yield _string(b"regular")
    if entry.executable:
        yield _string(b"executable") + _string(b"")
    yield _string(b"contents") + entry.size.to_bytes(8, "little")
    seen = 0
    with entry.opens() as stream:
        while chunk := stream.read(CHUNK):
            seen += len(chunk)
            yield chunk
    if seen != entry.size:
        raise TorchlockError(f"{entry.path} has {seen} bytes, {entry.size} were announced")
    yield b"\0" * (-entry.size % 8)


def _encode(name: str) -> bytes:
    """Encode a name for the digest: UTF-8 whatever the locale, other bytes as they are."""
    return name.encode("utf-8", "surrogateescape")


def _string(value: bytes) -> bytes:
    """Encode a NAR string: 64-bit little-endian length, bytes, padding to 8."""
    return len(value).to_bytes(8, "little") + value + b"\0" * (-len(value) % 8)


def entry_on_disk(root: Path, path: str) -> Entry:
    """Return the entry for `root/path` as it is on disk, its contents not yet read.

    Raises `TorchlockError` for a directory, device, socket or pipe, which no tree can hold.
    """
    full = root / path
    status = full.lstat()
    if stat.S_ISLNK(status.st_mode):
        return Entry(path, 0, target=os.readlink(full))  # noqa: PTH115 - Path would tidy it
    if not stat.S_ISREG(status.st_mode):
        raise TorchlockError(f"{full} is neither a file nor a link")
    return Entry(
        path,
        status.st_size,
        executable=bool(status.st_mode & stat.S_IXUSR),
        opens=lambda: full.open("rb"),
    )


def walk(root: Path) -> Iterator[tuple[str, os.stat_result]]:
    """Yield (relative posix path, lstat) of everything below `root` that is no directory.

    Links are never followed: a link to a directory is one entry.
    """
    stack = [""]
    while stack:
        below = stack.pop()
        directory = f"{root}/{below}" if below else str(root)
        start = f"{below}/" if below else ""
        # By its descriptor, so that the kernel need not go down the path for every file.
        opened = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
        try:
            with os.scandir(opened) as found:
                for item in found:
                    path = start + item.name
                    if item.is_dir(follow_symlinks=False):
                        stack.append(path)
                    else:
                        yield path, item.stat(follow_symlinks=False)
        except OSError as error:
            raise OSError(error.errno, error.strerror, directory) from None
        finally:
            os.close(opened)


def tree_on_disk(root: Path) -> list[Entry]:
    """Return every file and link below `root`, sorted by path."""
    return sorted((entry_on_disk(root, path) for path, _ in walk(root)), key=lambda e: e.path)
