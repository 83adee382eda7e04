"""Where a torchlock repository keeps its files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Repository:
    """The files of one repository, below `root`."""

    root: Path

    @property
    def environment(self) -> Path:
        """What is asked for."""
        return self.root / "environment.yml"

    @property
    def lock(self) -> Path:
        """The lock itself; everything else follows from it."""
        return self.root / "conda-lock.yml"

    @property
    def pylock(self) -> Path:
        """The pip half as a PEP 751 view."""
        return self.root / "pylock.toml"

    @property
    def records(self) -> Path:
        """The recorded trees of the locked wheels."""
        return self.root / "torchlock" / "records"


def this_repository() -> Repository:
    """Return the repository this package is run from."""
    return Repository(Path(__file__).resolve().parent.parent)
