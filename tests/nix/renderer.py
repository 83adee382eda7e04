"""The wheels that render the image under Nix and that the stack lacks."""

from __future__ import annotations

import sys

from tests.nix.runner import REPOSITORY
from torchlock.lock import Package

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

LOCK = REPOSITORY / "nix" / "pylock.renderer.toml"


def renderer_wheels() -> list[Package]:
    """Read their lock."""
    return [
        Package(
            name=package["name"],
            version=package["version"],
            manager="pip",
            platform="linux-64",
            url=wheel["url"],
            sha256=wheel["hashes"]["sha256"],
            md5=None,
            dependencies={},
        )
        for package in tomllib.loads(LOCK.read_text())["packages"]
        for wheel in package["wheels"]
    ]
