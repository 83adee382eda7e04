"""Writing files so that they appear under their name only when complete."""

from __future__ import annotations

import os
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
