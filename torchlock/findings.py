"""What verification looks at, and what it finds there."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import Literal

from torchlock.errors import TorchlockError
from torchlock.formats.wheel import Scheme
from torchlock.lock import PYTHON_VERSION

SITE = f"lib/python{PYTHON_VERSION}/site-packages"
"""Where Python packages are in a prefix."""

SET_ID = stat.S_ISUID | stat.S_ISGID
"""The bits of a mode by which a program runs as another user or group."""

Kind = Literal[
    "missing",
    "changed",
    "mode",
    "not a file",
    "unreadable",
    "version",
    "shadows",
    "foreign",
    "byte code",
]


@dataclass(frozen=True)
class Finding:
    """One way in which the installation is not what the lock says.

    `package` is the locked package concerned, or empty; `path` is relative to the prefix.
    """

    kind: Kind
    package: str
    path: str
    detail: str


@dataclass(frozen=True)
class Site:
    """Where a realization keeps its files.

    `home` is the prefix as its own programs name it, where that is another path than the one it
    is looked at: an image's file system that is mounted somewhere.
    """

    prefix: Path
    site_packages: Path
    home: Path | None = None

    def root(self, scheme: Scheme, package: str) -> Path:
        """Return the directory that a scheme's paths are relative to."""
        if scheme == "site":
            return self.site_packages
        if scheme == "scripts":
            return self.prefix / "bin"
        if scheme == "headers":
            return self.prefix / "include" / "site" / f"python{PYTHON_VERSION}" / package
        return self.prefix

    def shown(self, path: Path) -> str:
        """Return a path as findings have it: relative to the prefix, if it is below."""
        below = path.is_relative_to(self.prefix)
        return path.relative_to(self.prefix).as_posix() if below else str(path)


def find_site(prefix: Path) -> Site:
    """Return the layout of a prefix. Raises `TorchlockError` when it is no Python 3.11 one."""
    site_packages = prefix / SITE
    if not site_packages.is_dir():
        raise TorchlockError(
            f"{prefix} holds no CPython {PYTHON_VERSION} environment: "
            f"{site_packages} does not exist",
            hint=f"make one with: invoke env --prefix {quote(str(prefix))}",
        )
    return Site(prefix, site_packages)


def set_id_fault(status: os.stat_result) -> tuple[Kind, str] | None:
    """Say that a file would run as another user or group: no package's file does."""
    if status.st_mode & SET_ID:
        return "mode", "it is set-user-ID or set-group-ID, no locked package's file is"
    return None
