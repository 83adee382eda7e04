"""What the user's package index has: uv resolves against it, and answers with a pylock.toml."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from torchlock.lock import PYTHON_VERSION
from torchlock.urls import public
from torchlock.uv import uv_command, uv_environment

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

UV_PLATFORMS: Mapping[str, str] = {
    "linux-64": "x86_64-manylinux_2_28",
    "linux-aarch64": "aarch64-manylinux_2_28",
    "osx-arm64": "aarch64-apple-darwin",
}
"""The lock's platforms as uv names them."""

NO_RESOLUTION = 1
"""uv's exit status when the index answers and has not what is asked for."""


class UnresolvedError(Exception):
    """There is no answer. `said` is uv's explanation; `answered` that it is the index's own."""

    def __init__(self, said: str, *, answered: bool) -> None:
        super().__init__(said)
        self.said, self.answered = said, answered


def resolve(
    requirements: Iterable[str], platform: str, *options: str, preferences: str = ""
) -> list[dict[str, Any]]:
    """Return the packages (PEP 751) of a resolution of `requirements` for the lock's `platform`.

    Only wheels count. `options` are more of `uv pip compile`'s; `preferences` is a pylock.toml
    whose versions are kept where they fit. Raises `UnresolvedError`.
    """
    with tempfile.TemporaryDirectory() as scratch:
        source, output = Path(scratch, "requirements.in"), Path(scratch, "pylock.toml")
        source.write_text("".join(f"{r}\n" for r in requirements))
        if preferences:  # uv prefers the versions of an output file that exists
            output.write_text(preferences)
        command = [
            *uv_command(), "pip", "compile", str(source), "--output-file", str(output),
            "--format", "pylock.toml", "--python-version", PYTHON_VERSION,
            "--python-platform", UV_PLATFORMS[platform],
            "--only-binary", ":all:", "--no-sources", "--no-header", "--quiet", *options,
        ]  # fmt: skip
        done = subprocess.run(
            command, env=uv_environment(index=True), capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise UnresolvedError(
                public(done.stderr.strip()), answered=done.returncode == NO_RESOLUTION
            )
        return list(tomllib.loads(output.read_text()).get("packages", ()))
