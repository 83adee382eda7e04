"""Where the user's index mirror serves the locked wheels.

uv answers: it is given the exact versions, no dependencies and the user's index settings, and
names the files. A file counts only under its locked sha256, so a mirror can never change what
is installed; what it lacks is fetched from the URL in the lock.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

from torchlock import userconfig
from torchlock.artifacts import Artifact, Mirrors
from torchlock.lock import PYTHON_VERSION
from torchlock.uv import uv_command, uv_environment

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


def index_mirrors(missing: Sequence[Artifact]) -> Mirrors:
    """Map the sha256 of missing wheels to their URLs on the user's index mirror.

    Empty where no mirror is configured, and where the mirror does not answer for all of them:
    the lock's own URLs are then used.
    """
    index = userconfig.index_url() or ""
    wheels = [a for a in missing if a.filename.endswith(".whl")]
    if not wheels or not (index or userconfig.uv_has_an_index()):
        return {}
    found: dict[str, list[str]] = {}
    for url, sha256 in _ask(wheels):
        found.setdefault(sha256, []).append(_with_credentials(url, index))
    return found


def _ask(wheels: Sequence[Artifact]) -> list[tuple[str, str]]:
    with tempfile.TemporaryDirectory() as scratch:
        source, output = Path(scratch, "requirements.in"), Path(scratch, "pylock.toml")
        source.write_text("".join(f"{_pin(w.filename)}\n" for w in wheels))
        command = [
            *uv_command(), "pip", "compile", str(source), "--output-file", str(output),
            "--format", "pylock.toml", "--no-deps", "--only-binary", ":all:", "--quiet",
            "--python-version", PYTHON_VERSION, "--python-platform", "x86_64-manylinux_2_28",
        ]  # fmt: skip
        done = subprocess.run(command, env=uv_environment(index=True), check=False)
        if done.returncode:
            return []
        packages = tomllib.loads(output.read_text()).get("packages", ())
    return [
        (wheel["url"], wheel["hashes"]["sha256"])
        for package in packages
        for wheel in package.get("wheels", ())
        if "url" in wheel and "sha256" in wheel["hashes"]  # not so where a mirror has md5 alone
    ]


def _pin(filename: str) -> str:
    name, version = filename.split("-")[:2]
    return f"{name}=={version.replace('_', '+', 1)}"


def _with_credentials(url: str, index: str) -> str:
    """Give a URL the user and password of the index, if it is on the same host."""
    parts, configured = urlsplit(url), urlsplit(index)
    user, at, _ = configured.netloc.rpartition("@")
    if at and parts.hostname == configured.hostname and "@" not in parts.netloc:
        return urlunsplit(parts._replace(netloc=f"{user}@{parts.netloc}"))
    return url
