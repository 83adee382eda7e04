"""A genuine conda to drive: the conda 24.7 that conda-lock carries, started under its own name.

No registry that can be reached here has conda as a program, but conda-lock vendors conda's
sources whole, save for its shell functions. `conda run` needs those, so the program written here
does what they do: it evaluates what `conda shell.posix activate` prints and starts the command.
Everything else is conda's own.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import conda_lock._vendor

PROGRAM = """\
#!{python}
import os, subprocess, sys

os.environ["CONDA_EXE"] = os.path.abspath(__file__)
if sys.argv[1:3] == ["run", "--prefix"]:
    prefix, command = sys.argv[3], sys.argv[4:]
    activation = subprocess.run([__file__, "shell.posix", "activate", prefix],
                                capture_output=True, text=True, check=True).stdout
    os.execv("/bin/sh", ["sh", "-c", 'eval "$1"; shift; exec "$CONDA_PREFIX/bin/$0" "$@"',
                         command[0], activation, *command[1:]])
sys.path.insert(0, {named!r})
from conda.cli import main

if __name__ == "__main__":  # conda looks for a GPU's driver in a process that is spawned
    sys.exit(main())
"""


def write_client(directory: Path) -> Path:
    """Write the program `conda` into a directory and return its path."""
    named = directory / "named"
    named.mkdir()
    (named / "conda").symlink_to(Path(conda_lock._vendor.__file__).parent / "conda")
    program = directory / "conda"
    program.write_text(PROGRAM.format(python=sys.executable, named=str(named)))
    program.chmod(0o755)
    return program


def client_environment(home: Path) -> dict[str, str]:
    """An environment in which conda and pip find no settings and keep nothing outside `home`."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("CONDA", "PIP_", "PYTHON"))}
    return kept | {
        "HOME": str(home),
        "CONDARC": str(home / "no-condarc"),
        "CONDA_PKGS_DIRS": str(home / "pkgs"),
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    }
