"""Torchlock in processes of its own, so that they can be interrupted and killed."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torchlock

ROOT = Path(torchlock.__file__).parent.parent


def start(code: str, *arguments: object, environment: dict[str, str] | None = None):
    """Start Python on `code` in a session of its own; standard output and error are piped."""
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, arguments)],
        cwd=ROOT,
        env={**os.environ, **(environment or {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def wait_until(condition: Callable[[], bool], what: str, seconds: float = 60) -> None:
    """Wait for a condition; fail naming `what` when it does not come."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise AssertionError(f"waited {seconds} s in vain for {what}")
        time.sleep(0.005)
