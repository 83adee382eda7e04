"""Running `validation` inside a realization, by that realization's own interpreter."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

_KEPT = ("PYTHONPATH", "PYTHONUSERBASE")
"""What can shadow locked modules must reach the check that looks for it."""

CLEARING_UP = 20
"""Seconds that `validation` gets to stop its processes and remove its scratch directories."""


def environment_inside(environ: Mapping[str, str]) -> dict[str, str]:
    """Return `environ` without the caller's own Python and pip settings."""
    return {
        key: value
        for key, value in environ.items()
        if key in _KEPT or not key.startswith(("PYTHON", "PIP_"))
    }


def run_inside(
    python: Path, root: Path, context: Mapping[str, Any], arguments: Sequence[str]
) -> int:
    """Run the `validation` below `root` with `python`; return its exit code.

    `context` is what is known of lock and files, `arguments` are those of `python -m
    validation`. Raises `OSError` when it cannot be started.
    """
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch, "context.json")
        path.write_text(json.dumps(context))
        command = [
            str(python), "-B", str(root / "validation"), "--context", str(path), *arguments,
        ]  # fmt: skip
        with subprocess.Popen(command, env=environment_inside(os.environ)) as child:
            return _wait(child)


def _wait(child: subprocess.Popen[bytes]) -> int:
    """Wait for `validation`; on Ctrl-C let it stop its own children and clear up first."""
    try:
        return child.wait()
    except KeyboardInterrupt:
        try:
            child.wait(CLEARING_UP)
        except subprocess.TimeoutExpired:
            child.kill()
        raise
    except BaseException:
        child.terminate()
        raise
