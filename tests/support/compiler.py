"""The C compiler of the machine, for the programs and libraries that tests make."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest


def compile_c(source: Path, made: Path, *options: str) -> None:
    """Compile and link one file; `options` follow it. Skips where there is no compiler."""
    if shutil.which("cc") is None:
        pytest.skip("no C compiler (cc) to make what this needs")
    subprocess.run(["cc", "-o", made, source, *options], check=True)
