"""Files: hashed with bounded memory, complete when they appear, believed if nobody else's."""

from __future__ import annotations

import os
import stat
import tempfile
import threading
from hashlib import sha256
from io import FileIO
from pathlib import Path

from torchlock.tree import CHUNK

_OF_THREAD = threading.local()


def sha256_of(path: Path) -> str:
    """Return the sha256 of a file, as hex."""
    with path.open("rb", buffering=0) as stream:
        return sha256_of_rest(stream)


def sha256_of_rest(stream: FileIO) -> str:
    """Return the sha256, as hex, of what is still to be read from an open file."""
    if not hasattr(_OF_THREAD, "buffer"):
        _OF_THREAD.buffer = memoryview(bytearray(CHUNK))
    buffer: memoryview = _OF_THREAD.buffer
    digest = sha256()
    while count := stream.readinto(buffer):
        digest.update(buffer[:count])
    return digest.hexdigest()


def write_atomically(path: Path, contents: bytes) -> None:
    """Replace `path` by `contents` (mode 0644), or leave it as it was."""
    handle, scratch = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(contents)
        Path(scratch).chmod(0o644)
        Path(scratch).replace(path)
    except BaseException:
        Path(scratch).unlink(missing_ok=True)
        raise


def is_ours_alone(status: os.stat_result) -> bool:
    """Say whether a file belongs to this user and no other can write it."""
    return status.st_uid == os.getuid() and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def absolute(path: Path) -> Path:
    """Return a path from the root on, without `.` and `..`; symbolic links stay as they are.

    `a/../b` becomes `b`, as it does in shells and in conda.
    """
    return Path(os.path.abspath(path))  # noqa: PTH100 - pathlib leaves `..` in, or resolves links
