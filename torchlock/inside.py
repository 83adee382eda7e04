"""The environment in which `validation` is started inside a realization."""

from __future__ import annotations

from collections.abc import Mapping

_KEPT = ("PYTHONPATH", "PYTHONUSERBASE")
"""What can shadow locked modules must reach the check that looks for it."""


def environment_inside(environ: Mapping[str, str]) -> dict[str, str]:
    """Return `environ` without the caller's own Python and pip settings."""
    return {
        key: value
        for key, value in environ.items()
        if key in _KEPT or not key.startswith(("PYTHON", "PIP_"))
    }
