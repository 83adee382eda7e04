"""The conda foundation: a lock's packages, verified and read, and whether they can be had."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from urllib.parse import urlsplit

import requests

from torchlock.artifacts import Artifact, Mirrors, Store, fetch
from torchlock.channels import package_mirrors
from torchlock.errors import DoesNotHold, TorchlockError
from torchlock.formats.conda import CondaPackage, read_conda
from torchlock.http import new_session
from torchlock.lock import Lock, Package
from torchlock.progress import Progress, silent
from torchlock.records import Records
from torchlock.stamps import Reading
from torchlock.verify_conda import CondaVerdict, Expectation, expect, verify_conda


@dataclass(frozen=True)
class LockedConda:
    """A locked conda package, its verified archive, and what the archive says of itself."""

    package: Package
    archive: Path
    content: CondaPackage


def fetch_foundation(
    lock: Lock,
    platform: str,
    store: Store,
    *,
    progress: Progress = silent,
    reading: Reading | None = None,
) -> list[LockedConda]:
    """Return the platform's conda packages, fetched, verified by sha256 and md5, and read.

    Raises `ArtifactError` when one cannot be had, `DoesNotHold` when its md5, which is all that
    `conda-lock install` hands to conda, is not the locked one.
    """
    packages = lock.conda_packages(platform)
    paths = fetch(
        packages,
        store,
        mirrors=lambda missing: _mirrors_of(lock, missing),
        progress=progress,
        reading=reading,
        settings="channel settings (.condarc)",
    )
    for package, path in zip(packages, paths, strict=True):
        _check_md5(package, path)
    return [LockedConda(p, path, read_conda(path)) for p, path in zip(packages, paths, strict=True)]


def judge_foundation(
    lock: Lock,
    platform: str,
    prefix: Path,
    records: Records,
    store: Store,
    *,
    written: Mapping[str, str] = MappingProxyType({}),
    python: Path | None = None,
) -> CondaVerdict:
    """Verify the conda half of the prefix at `prefix`, whoever made it.

    `written` is what link scripts left there, by the marker's word; `python` as for
    `verify_conda`. What must be there is read
    from the packages themselves, so those not in the store are fetched. Raises `TorchlockError`
    when they cannot be had: then it cannot be judged.
    """
    foundation = fetch_foundation(lock, platform, store)
    expectation = expect_foundation(prefix, foundation)
    return verify_conda(prefix, expectation, records, written=written, python=python)


def expect_foundation(prefix: Path, foundation: Sequence[LockedConda]) -> Expectation:
    """Unpack the packages and return what they must have in `prefix`."""
    return expect(prefix, [(p.package, p.archive) for p in foundation])


def _mirrors_of(lock: Lock, missing: Sequence[Artifact]) -> Mirrors:
    wanted = {artifact.sha256 for artifact in missing}
    return package_mirrors(lock, [p for p in lock.packages if p.sha256 in wanted])


def _check_md5(package: Package, path: Path) -> None:
    with path.open("rb") as stream:
        digest = hashlib.md5(usedforsecurity=False)
        while chunk := stream.read(1 << 20):
            digest.update(chunk)
    if package.md5 and digest.hexdigest() != package.md5:
        raise DoesNotHold(
            f"{package.label} has the locked sha256, but md5 {digest.hexdigest()}; the lock says "
            f"{package.md5}, which `conda-lock install` would go by",
            hint="restore the lock (git checkout conda-lock.yml) or make it again: invoke lock",
        )


def check_prefix_length(prefix: Path, locked: Sequence[LockedConda]) -> None:
    """Raise `TorchlockError` when a package's binary files have no room for the prefix."""
    length = len(os.fsencode(prefix))
    limits = {p.content.prefix_limit or length: p.package.label for p in locked}
    shortest = min(limits, default=length)
    if length > shortest:
        raise TorchlockError(
            f"{prefix} is {length} bytes long; {limits[shortest]} has room for a prefix of "
            f"{shortest}",
            hint="choose a shorter place: invoke env --foundation conda --prefix DIR",
        )


def why_no_conda(lock: Lock, platform: str, store: Store) -> str:
    """Return why the conda half cannot be had here, or the empty string when it can.

    It can when the store has it all, or a channel (or a mirror of it in `.condarc`) answers.
    """
    missing = [p for p in lock.conda_packages(platform) if not store.path(p).exists()]
    if not missing:
        return ""
    first = missing[0]
    faults = []
    for url in [*package_mirrors(lock, [first]).get(first.sha256, ()), first.url]:
        try:
            with (
                new_session() as session,
                session.get(url, headers={"Range": "bytes=0-0"}, stream=True, timeout=10) as answer,
            ):
                if answer.ok:
                    return ""
                faults.append(f"{urlsplit(url).hostname} answers HTTP {answer.status_code}")
        except requests.RequestException as error:
            faults.append(f"{urlsplit(url).hostname} does not ({type(error).__name__})")
    return "; ".join(dict.fromkeys(faults))
