"""Writing `conda-lock.yml`: through conda-lock's own modules, byte for byte as it would.

conda-lock documents no API for this; the version is pinned and a test runs the real
`conda-lock lock --check-input-hash` over the result.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from pathlib import Path

from conda_lock.lockfile import write_conda_lock_file
from conda_lock.lockfile.v2prelim.models import HashModel, LockedDependency, Lockfile, LockMeta

from torchlock.lock import Package
from torchlock.solve.request import Request


def render_lock(request: Request, packages: Iterable[Package], name: str) -> str:
    """Return the text of the lock file `name` that answers `request` with `packages`."""
    content = Lockfile(
        package=[_locked(package) for package in packages],
        metadata=LockMeta(
            content_hash=dict(request.content_hash),
            channels=list(request.channels),
            platforms=list(request.platforms),
            sources=[request.path.name],
        ),
    )
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch, name)
        write_conda_lock_file(content, path, metadata_choices=None)
        return path.read_text(encoding="utf-8")


def _locked(package: Package) -> LockedDependency:
    # conda-lock leaves out fields that were never set: no md5 key for wheels.
    digests = {"md5": package.md5} if package.md5 else {}
    return LockedDependency(
        name=package.name,
        version=package.version,
        manager=package.manager,
        platform=package.platform,
        dependencies=dict(package.dependencies),
        url=package.url,
        hash=HashModel(**digests, sha256=package.sha256),
        categories={"main"},
    )
