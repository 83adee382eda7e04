"""The real stack's python, for slow tests: TORCHLOCK_STACK_PYTHON names it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def stack_python() -> str:
    python = os.environ.get("TORCHLOCK_STACK_PYTHON", "")
    if Path(python).is_file():
        return python
    reason = "TORCHLOCK_STACK_PYTHON does not name the python of an installed stack"
    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(reason)


@pytest.fixture(scope="session")
def in_stack(stack_python):
    """Runs arguments with the stack's python; environment and directory as given."""

    def run(*arguments, env=None, cwd=None, prefix=(), timeout=500):
        environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": str(REPOSITORY)}
        environment.update(env or {})
        return subprocess.run(
            [*prefix, stack_python, *map(str, arguments)],
            env=environment,
            cwd=cwd,
            timeout=timeout,
            capture_output=True,
            text=True,
            check=False,
        )

    return run
