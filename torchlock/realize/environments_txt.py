"""conda's list of the environments of a user: `~/.conda/environments.txt`, one path a line.

`conda env list` shows what is in it, wherever that lies. Clients append a line when they have
made an environment, and take out those that are no environments any more.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from torchlock.condarc import read_condarc
from torchlock.errors import TorchlockError

_OF_CONDA_BUILD = ("placehold_pl", "skeleton_")
"""Parts of the paths of prefixes that conda-build makes and takes away."""


def register_environment(prefix: Path) -> None:
    """Add a prefix, an absolute path, to the user's list, as conda's `register_env` (24.7) does.

    Not where the setting `register_envs` is false. A list that cannot be written is left alone:
    the environment is whole without it, and conda goes on as well.
    """
    path = Path(os.path.expanduser("~/.conda/environments.txt"))  # noqa: PTH111 - may have no home
    if not path.is_absolute() or any(part in str(prefix) for part in _OF_CONDA_BUILD):
        return
    location = os.fsencode(prefix)
    with contextlib.suppress(OSError, TorchlockError):  # settings at fault are no consent
        listed = path.read_bytes() if path.exists() else b""
        if location in (line.strip() for line in listed.splitlines()):
            return
        if not read_condarc().register_envs:
            return
        path.parent.mkdir(exist_ok=True)
        start = b"" if not listed or listed.endswith(b"\n") else b"\n"
        with path.open("ab") as stream:
            stream.write(start + location + b"\n")
