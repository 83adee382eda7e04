"""The conda half put into a prefix: rattler, in a process of its own (`link_conda.py`)."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torchlock.artifacts import Store
from torchlock.channels import channel_of
from torchlock.errors import TorchlockError
from torchlock.files import write_atomically
from torchlock.lock import Package
from torchlock.realize.foundation import LockedConda
from torchlock.realize.place import after_failure, conda_cache
from torchlock.repository import this_repository


@dataclass(frozen=True)
class Linked:
    """What linking came to: packages whose link scripts did what they should, and what failed."""

    ran: frozenset[str] = frozenset()
    failed_scripts: tuple[str, ...] = ()
    error: str = ""

    def check(self) -> None:
        """Raise `TorchlockError` when something failed."""
        if self.error:
            raise TorchlockError(
                f"the conda packages could not be linked: {self.error}",
                hint=after_failure(self.error),
            )
        if self.failed_scripts:
            raise TorchlockError(
                f"link scripts failed: {', '.join(self.failed_scripts)}",
                hint="run them by hand to see why, or make the prefix without them "
                "(that is the default)",
            )


def link_packages(
    prefix: Path,
    foundation: Sequence[LockedConda],
    platform: str,
    store: Store,
    *,
    again: Collection[str] = (),
    scripts: bool = False,
) -> Linked:
    """Link the packages that the prefix has not, and remove those that it has and are not given.

    Packages named in `again` are linked afresh; `scripts` says whether link scripts are run. What
    fails is in the result; `TorchlockError` is raised when rattler left no record of a package.
    """
    with _cache(store) as cache:
        result = _run_link_conda(
            {
                "prefix": str(prefix),
                "cache": str(cache),
                "platform": platform,
                "link_scripts": scripts,
                "again": sorted(again),
                "packages": [_row(p) for p in foundation],
            }
        )
    failed = tuple(result.get("failed_scripts", ()))
    linked = Linked(frozenset(result.get("ran", ())), failed, result.get("error", ""))
    records = {
        p.content.name: prefix / "conda-meta" / f"{p.content.record_name}.json" for p in foundation
    }
    if not linked.error:
        for p in foundation:
            _finish_record(records[p.content.name], p.package)
    for script in failed:  # its package is not installed, so that the next run tries again
        records[script.partition(":")[0]].unlink(missing_ok=True)
    return linked


def _row(locked: LockedConda) -> dict[str, Any]:
    return {
        "index": locked.content.index,
        "archive": str(locked.archive.absolute()),
        "channel": channel_of(locked.package),
        "sha256": locked.package.sha256,
        "md5": locked.package.md5,
        "size": locked.archive.stat().st_size,
    }


def _run_link_conda(request: dict[str, Any]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as scratch:
        asked, answered = Path(scratch, "request.json"), Path(scratch, "result.json")
        asked.write_text(json.dumps(request), encoding="utf-8")
        done = subprocess.run(
            [sys.executable, "-m", "torchlock.realize.link_conda", asked, answered],
            cwd=this_repository().root,
            capture_output=True,
            text=True,
            check=False,
        )
        try:
            result: dict[str, Any] = json.loads(answered.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            said = done.stderr.strip().splitlines()
            result = {"error": said[-1] if said else f"rattler ended with {done.returncode}"}
    return result


@contextmanager
def _cache(store: Store) -> Iterator[Path]:
    """Give rattler a cache of unpacked packages; one of its own where the store is read-only."""
    cache = conda_cache(store)
    try:
        cache.mkdir(parents=True, exist_ok=True)
        (cache / ".writable").touch()
    except OSError:
        with tempfile.TemporaryDirectory(prefix="torchlock-") as scratch:
            yield Path(scratch)
    else:
        yield cache


def _finish_record(path: Path, package: Package) -> None:
    """Note in `conda-meta` where the lock says the package comes from, not the store."""
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        raise TorchlockError(
            f"rattler left no record of {package.label}: {path} cannot be read",
            hint="run the same command again; it goes on where this one stopped",
        ) from None
    if record.get("url") != package.url:
        record["url"], record["channel"] = package.url, channel_of(package)
        write_atomically(path, (json.dumps(record, indent=2) + "\n").encode())
