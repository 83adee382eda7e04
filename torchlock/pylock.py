"""`pylock.toml` (PEP 751): the lock's pip half for installers that read it.

A generated view: it holds nothing that the lock does not. Upload times and sizes are left out;
Nix's TOML reader refuses dates.
"""

from __future__ import annotations

from torchlock.lock import PYTHON_VERSION, Lock

PLATFORM = "linux-64"
"""The one platform whose wheels are locked: a view holds one wheel per package."""


def render_pylock(lock: Lock) -> str:
    """Return the text of `pylock.toml`: one wheel per package, sorted by name."""
    lines = [
        "# The pip half of conda-lock.yml as PEP 751. Made by `invoke lock`; do not edit.",
        'lock-version = "1.0"',
        "environments = [\"sys_platform == 'linux' and platform_machine == 'x86_64'\"]",
        f'requires-python = "=={PYTHON_VERSION}.*"',
        'created-by = "torchlock"',
    ]
    for wheel in lock.wheels(PLATFORM):
        lines += [
            "",
            "[[packages]]",
            f'name = "{wheel.name}"',
            f'version = "{wheel.version}"',
            "",
            "[[packages.wheels]]",
            f'name = "{wheel.filename}"',
            f'url = "{wheel.url}"',
            f'hashes = {{ sha256 = "{wheel.sha256}" }}',
        ]
    return "\n".join(lines) + "\n"
