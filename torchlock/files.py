"""Files of torchlock's own: complete when they appear, and believed only if nobody else's."""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path


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
