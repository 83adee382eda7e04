"""`invoke env --foundation conda`: a conda prefix from the lock, without conda."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest


def run(prefix: Path, *command: str) -> str:
    done = subprocess.run(
        [prefix / "bin" / command[0], *command[1:]], capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def test_a_prefix_works_and_is_what_the_lock_says(made, world):
    prefix = made.prefix
    assert made.installed
    assert made.conda.holds
    assert made.verdict.holds
    assert made.conda.packages == 6
    assert made.verdict.tree == world.records.tree
    assert run(prefix, "python", "-c", "import sys; print(sys.prefix)") == str(prefix)
    assert run(prefix, "python", "-c", "import ssl, sqlite3, ctypes; print('ok')") == "ok"
    assert run(prefix, "where") == f"{prefix}/share/where"
    assert run(prefix, "whereami") == f"{prefix}\n{prefix}/a:{prefix}/b"
    assert run(prefix, "pip", "--version").startswith("pip ")
    assert run(prefix, "greet") == "hello from the wheel"
    assert run(prefix, "tiny") == "tiny"
