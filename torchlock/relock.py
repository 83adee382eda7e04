"""`invoke lock`: from the request to the lock and its views, and what changed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import rattler
from packaging.utils import canonicalize_name

from torchlock.artifacts import Store
from torchlock.channels import channel_locations
from torchlock.errors import TorchlockError
from torchlock.files import write_atomically
from torchlock.lock import Lock, LockError, Package, parse_lock, read_lock
from torchlock.pylock import render_pylock
from torchlock.repository import Repository
from torchlock.solve.conda import ChannelLocation, solve_conda
from torchlock.solve.metadata import read_metadata
from torchlock.solve.pip import solve_pip
from torchlock.solve.request import RequestError, read_request
from torchlock.solve.write import render_lock


@dataclass(frozen=True)
class Change:
    """One row of what changed: `before` or `after` is empty for what is new or gone."""

    platform: str
    manager: str
    name: str
    before: str
    after: str


def relock(repository: Repository, store: Store, *, upgrade: str | None = None) -> list[Change]:
    """Make the lock again from `environment.yml`, write it and its views, return the changes.

    What need not change is kept; `upgrade` names one package that may move to its newest
    version. Raises `RequestError` when there is no solution; the files are then as they were.
    """
    request = read_request(repository.environment)
    old = _old_lock(repository.lock)
    packages: list[Package] = []
    known = {package.name for package in old.packages} if old else set()
    if upgrade and upgrade not in known:
        upgrade = canonicalize_name(upgrade)
    if upgrade and upgrade not in known:
        raise RequestError(
            f"{upgrade} is not in the lock, so it cannot be upgraded",
            hint="to add it: put it into environment.yml and run: invoke lock",
        )
    channels = [location for c in request.channels for location in _locations(c.url)]
    for platform in request.platforms:
        conda, wheels = _halves(old, platform)
        packages += solve_conda(
            request.conda[platform],
            platform=platform,
            channels=channels,
            virtual_packages=request.virtual_packages[platform],
            locked=[p for p in conda if p.name != upgrade],
        )
        packages += solve_pip(
            request.pip,
            platform=platform,
            locked=wheels,
            upgrade=upgrade if upgrade in {w.name for w in wheels} else None,
            read_metadata=lambda package: read_metadata(package, store),
        )
    text = render_lock(request, packages, repository.lock.name)
    new = parse_lock(text, repository.lock.name)
    write_atomically(repository.lock, text.encode())
    write_atomically(repository.pylock, render_pylock(new).encode())
    return changes(old.packages if old else (), new.packages)


def _old_lock(path: Path) -> Lock | None:
    if not path.exists():
        return None
    try:
        return read_lock(path)
    except LockError as error:
        raise TorchlockError(
            f"the present lock is damaged, so what need not change cannot be kept: {error.message}",
            hint=f"restore it (git checkout {path.name}), or start anew: rm {path.name}",
        ) from None


def _halves(old: Lock | None, platform: str) -> tuple[Sequence[Package], Sequence[Package]]:
    if old is None or platform not in old.platforms:
        return (), ()
    return old.conda_packages(platform), old.wheels(platform)


def _locations(name: str) -> list[ChannelLocation]:
    canonical = rattler.Channel(name).base_url
    return [ChannelLocation(canonical, place) for place in channel_locations(name, canonical)]


def changes(before: Sequence[Package], after: Sequence[Package]) -> list[Change]:
    """Return what differs between two sets of packages, sorted by platform, half and name."""
    old = {(p.platform, p.manager, p.name): p for p in before}
    new = {(p.platform, p.manager, p.name): p for p in after}
    rows = []
    for key in sorted(old.keys() | new.keys()):
        left, right = old.get(key), new.get(key)
        if left and right and (left.url, left.sha256) == (right.url, right.sha256):
            continue
        shown = [_shown(left), _shown(right)]
        if shown[0] == shown[1]:  # the same version as another file
            shown = [f"{_shown(left)} {left.filename}" if left else "",
                     f"{_shown(right)} {right.filename}" if right else ""]  # fmt: skip
        rows.append(Change(*key, *shown))
    return rows


def _shown(package: Package | None) -> str:
    return package.version if package else ""
