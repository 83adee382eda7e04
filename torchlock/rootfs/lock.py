"""The root file system's lock: which Debian packages, from where, with which sha256.

`rootfs-lock.json`, made by `invoke lock --rootfs` from `request.json` and the signed index of
the archive. Every package has two places: the pool, which drops a version once a newer one
replaces it, and the snapshot archive, which keeps them all.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import quote

from torchlock.artifacts import Artifact, ArtifactError, Mirrors, Store, fetch
from torchlock.errors import TorchlockError
from torchlock.files import write_atomically
from torchlock.progress import Progress, silent
from torchlock.rootfs import debversion
from torchlock.rootfs.archive import ArchiveError, fetch_suite
from torchlock.rootfs.control import Relation, relations
from torchlock.rootfs.sources import apt_uris
from torchlock.urls import public

HERE = Path(__file__).parent
LOCK = HERE / "rootfs-lock.json"
REQUEST = HERE / "request.json"
FORMAT = 1
LAYERS = ("system", "toolchain")


class RootfsLockError(TorchlockError):
    """The rootfs lock is damaged, or cannot be made or fetched."""


@dataclass(frozen=True)
class DebPackage:
    """One locked Debian package. `layer` is `system` or `toolchain`; `pool` is its path below
    the archive's URL."""

    name: str
    version: str
    architecture: str
    archive: str
    layer: str
    pool: str
    size: int
    sha256: str
    snapshot_url: str

    @property
    def url(self) -> str:
        """Where it can always be had: the snapshot archive."""
        return self.snapshot_url

    @property
    def filename(self) -> str:
        """Its file name in the archive."""
        return self.pool.rpartition("/")[2]

    @property
    def label(self) -> str:
        """Name and version, for messages."""
        return f"{self.name} {self.version}"


@dataclass(frozen=True)
class Archive:
    """One archive: its URL, that of its snapshots, and the suites the lock was made from."""

    url: str
    snapshots: str
    suites: Mapping[str, Mapping[str, str]]


@dataclass(frozen=True)
class RootfsLock:
    """A whole rootfs lock; `date` is that of the newest index it was made from (UTC)."""

    codename: str
    architecture: str
    date: str
    archives: Mapping[str, Archive]
    packages: tuple[DebPackage, ...]

    @cached_property
    def digest(self) -> str:
        """Identity of what it gives: `sha256:` and hex over packages, date and archives."""
        text = json.dumps(_as_json(self), sort_keys=True, separators=(",", ":"))
        return "sha256:" + hashlib.sha256(text.encode()).hexdigest()

    def layer(self, name: str) -> tuple[DebPackage, ...]:
        """Return the packages of one layer, sorted by name."""
        return tuple(p for p in self.packages if p.layer == name)


def read_rootfs_lock(path: Path = LOCK) -> RootfsLock:
    """Read a rootfs lock. Raises `RootfsLockError` when it is absent or damaged."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if content["format"] != FORMAT:
            raise ValueError(f"format {content['format']} is not {FORMAT}")
        archives = {name: Archive(**row) for name, row in content["archives"].items()}
        lock = RootfsLock(
            content["codename"],
            content["architecture"],
            content["date"],
            archives,
            tuple(_package(row, archives) for row in content["packages"]),
        )
    except FileNotFoundError:
        raise RootfsLockError(
            f"{path} does not exist", hint="make it with: invoke lock --rootfs"
        ) from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise RootfsLockError(
            f"{path} is damaged ({type(error).__name__}: {error})",
            hint="restore it with git, or make it again with: invoke lock --rootfs",
        ) from None
    for package in lock.packages:
        if package.layer not in LAYERS or len(package.sha256) != 64:
            raise RootfsLockError(f"{path}: {package.label} has a malformed layer or sha256")
    return lock


def _package(row: dict[str, Any], archives: Mapping[str, Archive]) -> DebPackage:
    archive = archives[row["archive"]]
    return DebPackage(**row, snapshot_url=f"{archive.snapshots}/{quote(row['pool'])}")


def _as_json(lock: RootfsLock) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "codename": lock.codename,
        "architecture": lock.architecture,
        "date": lock.date,
        "archives": {name: asdict(archive) for name, archive in lock.archives.items()},
        "packages": [
            {k: v for k, v in asdict(p).items() if k != "snapshot_url"} for p in lock.packages
        ],
    }


def rootfs_lock_text(lock: RootfsLock) -> str:
    """Return a lock as the text of its file."""
    return json.dumps(_as_json(lock), indent=1) + "\n"


def fetch_debs(lock: RootfsLock, store: Store, progress: Progress = silent) -> list[Path]:
    """Bring every package into the store, verified; return their paths in the lock's order.

    The user's own mirror and the pool are tried before the snapshot archive. Raises
    `RootfsLockError` when a version is to be had nowhere any more.
    """

    def mirrors(missing: Sequence[Artifact]) -> Mirrors:
        places = {name: _places(name, lock) for name in lock.archives}
        return {
            p.sha256: [f"{url}/{quote(p.pool)}" for url in places[p.archive]]
            for p in missing
            if isinstance(p, DebPackage)
        }

    try:
        return fetch(lock.packages, store, mirrors=mirrors, progress=progress)
    except ArtifactError as error:
        raise RootfsLockError(
            error.message,
            hint="if the archive has replaced this version and the snapshot archive cannot be "
            "reached from here, lock the root file system again: invoke lock --rootfs",
        ) from None


def _places(archive: str, lock: RootfsLock) -> list[str]:
    """Return the URLs of an archive: the user's own mirrors first, then the lock's."""
    own = lock.archives[archive]
    uris = [uri for suite in own.suites for uri in apt_uris(suite)]
    return list(dict.fromkeys([*uris, own.url]))


def make_rootfs_lock(known: RootfsLock | None, request: Path = REQUEST) -> RootfsLock:
    """Make a rootfs lock from the archive's present, signed index.

    Where the archives are is taken from the `known` lock and from the user's apt sources.
    Raises `ArchiveError` or `RootfsLockError`.
    """
    wanted = json.loads(request.read_text(encoding="utf-8"))
    index: dict[str, list[tuple[str, dict[str, str]]]] = {}
    archives: dict[str, Archive] = {}
    dates: list[datetime] = []
    for name, suites in wanted["archives"].items():
        places = _known_places(name, suites, known)
        seen: dict[str, Mapping[str, str]] = {}
        for suite in suites:
            release, rows = fetch_suite(places, suite, wanted["architecture"])
            dates.append(release.date)
            seen[suite] = {"date": _stamp(release.date), "inrelease": release.sha256}
            for row in rows:
                index.setdefault(row["Package"], []).append((name, row))
        archives[name] = Archive(
            known.archives[name].url if known else public(places[0]),
            _snapshots(known.archives[name].snapshots if known else "", max(dates)),
            seen,
        )
    system = closure(index, [*_essential(index), *wanted["system"]])
    everything = closure(index, [*system, *wanted["toolchain"]])
    packages = tuple(
        _locked(*everything[name], "system" if name in system else "toolchain", archives)
        for name in sorted(everything)
    )
    return RootfsLock(
        wanted["codename"], wanted["architecture"], _stamp(max(dates)), archives, packages
    )


def relock_rootfs(path: Path = LOCK) -> tuple[RootfsLock | None, RootfsLock]:
    """Make the rootfs lock at `path` anew; return what was there, if anything, and what is."""
    known = read_rootfs_lock(path) if path.exists() else None
    made = make_rootfs_lock(known)
    write_atomically(path, rootfs_lock_text(made).encode())
    return known, made


def _known_places(name: str, suites: Sequence[str], known: RootfsLock | None) -> list[str]:
    places = [uri for suite in suites for uri in apt_uris(suite)]
    if known:
        places.append(known.archives[name].url)
    if not places:
        raise ArchiveError(
            f"nothing says where the archive of {suites[0]} is",
            hint="restore rootfs-lock.json with git, or add the suite to /etc/apt/sources.list",
        )
    return list(dict.fromkeys(places))


def _stamp(date: datetime) -> str:
    return date.strftime("%Y-%m-%dT%H:%M:%SZ")


def _snapshots(before: str, date: datetime) -> str:
    """Return the snapshot URL for an index of `date`.

    Snapshots are taken some hours after the archive changes; a day later it is surely in.
    """
    base = before.rpartition("/")[0] if before else ""
    return f"{base}/{(date + timedelta(days=1)).strftime('%Y%m%dT%H%M%SZ')}" if base else ""


Index = Mapping[str, Sequence[tuple[str, Mapping[str, str]]]]
Found = Mapping[str, tuple[str, Mapping[str, str]]]


def _essential(index: Index) -> list[str]:
    return [n for n, rows in index.items() if any(r.get("Essential") == "yes" for _, r in rows)]


def closure(index: Index, wanted: Iterable[str]) -> Found:
    """Return the newest version of each wanted package and of all that these depend on.

    Recommendations are left out. Of alternatives, one that is there already is taken, else the
    first that exists. Raises `RootfsLockError` for a dependency that cannot be met.
    """
    newest = {
        name: max(rows, key=lambda row: debversion.key(row[1]["Version"]))
        for name, rows in index.items()
    }
    providers: dict[str, list[str]] = {}
    for name, (_, row) in sorted(newest.items()):
        for group in relations(row.get("Provides", "")):
            for relation in group:
                providers.setdefault(relation.name, []).append(name)
    found: dict[str, tuple[str, Mapping[str, str]]] = {}
    todo = list(dict.fromkeys(wanted))
    asked = set(todo)
    for name in todo:
        if name not in newest:
            raise RootfsLockError(f"the archive has no package {name}")
    while todo:
        name = todo.pop(0)
        found[name] = newest[name]
        row = newest[name][1]
        for field in ("Pre-Depends", "Depends"):
            for group in relations(row.get(field, "")):
                choice = _choose(group, newest, providers, asked)
                if choice is None:
                    raise RootfsLockError(f"{name} depends on {group}, which the archive lacks")
                if choice not in asked:
                    asked.add(choice)
                    todo.append(choice)
    return found


def _choose(
    group: Sequence[Relation], newest: Found, providers: Mapping[str, list[str]], asked: set[str]
) -> str | None:
    candidates = []
    for relation in group:
        if relation.name in newest and _holds(relation, newest[relation.name][1]):
            candidates.append(relation.name)
        candidates += providers.get(relation.name, [])
    return next((c for c in candidates if c in asked), candidates[0] if candidates else None)


def _holds(relation: Relation, row: Mapping[str, str]) -> bool:
    return not relation.operator or debversion.satisfies(
        row["Version"], relation.operator, relation.version
    )


def _locked(
    archive: str, row: Mapping[str, str], layer: str, archives: Mapping[str, Archive]
) -> DebPackage:
    return DebPackage(
        name=row["Package"],
        version=row["Version"],
        architecture=row["Architecture"],
        archive=archive,
        layer=layer,
        pool=row["Filename"],
        size=int(row["Size"]),
        sha256=row["SHA256"],
        snapshot_url=f"{archives[archive].snapshots}/{quote(row['Filename'])}",
    )
