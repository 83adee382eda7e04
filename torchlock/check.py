"""Whether the lock, its views and `environment.yml` agree; needs no network."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import rattler
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version
from rattler.exceptions import InvalidVersionError, InvalidVersionSpecError

from torchlock.errors import TorchlockError
from torchlock.lock import Lock, Package, read_lock
from torchlock.nixpkgs import read_pin
from torchlock.pylock import PLATFORM, render_pylock
from torchlock.records import check_records, read_records
from torchlock.repository import Repository
from torchlock.solve.pip import TARGETS
from torchlock.solve.request import Request, read_request


@dataclass(frozen=True)
class Check:
    """One agreement: `fault` is empty where it holds; `hint` is what to type where not."""

    name: str
    evidence: str
    fault: str = ""
    hint: str = ""


def check_lock(repository: Repository) -> list[Check]:
    """Judge every agreement. Raises `TorchlockError` when the lock itself cannot be read."""
    lock = read_lock(repository.lock)
    return [
        Check(
            "lock",
            f"{len(lock.packages)} artifacts for {', '.join(lock.platforms)}, {lock.digest}",
        ),
        _judged("environment.yml", lambda: _request(repository, lock)),
        _judged("dependencies", lambda: _dependencies(lock)),
        _judged("pylock.toml", lambda: _pylock(repository, lock)),
        _judged("recorded trees", lambda: _records(repository, lock)),
        _judged("flake.lock", lambda: _flake(repository)),
    ]


def _judged(name: str, judge: Callable[[], Check]) -> Check:
    try:
        return judge()
    except TorchlockError as error:
        return Check(name, "", error.message, error.hint)
    except (
        InvalidSpecifier,
        InvalidVersion,
        InvalidVersionSpecError,
        InvalidVersionError,
    ) as error:
        return Check(name, "", f"a version or constraint is none: {error}", "invoke lock")


def _request(repository: Repository, lock: Lock) -> Check:
    name = repository.environment.name
    request = read_request(repository.environment)
    if dict(request.content_hash) != dict(lock.content_hash):
        return Check(
            name,
            "",
            f"{name} asks for something else than what was locked (content hash "
            f"{_shown(request.content_hash)}, the lock has {_shown(lock.content_hash)})",
            "invoke lock",
        )
    unmet = [fault for platform in request.platforms for fault in _unmet(request, lock, platform)]
    if unmet:
        return Check(name, "", "; ".join(unmet), "invoke lock")
    return Check(name, f"content hash {_shown(request.content_hash)}; every request is met")


def _shown(hashes: Mapping[str, str]) -> str:
    return ", ".join(value[:12] for value in hashes.values())


def _unmet(request: Request, lock: Lock, platform: str) -> Iterator[str]:
    wheels = {p.name: p for p in lock.wheels(platform)}
    markers = {**TARGETS[platform].markers, "extra": ""}
    for requirement in request.pip:
        if requirement.marker and not requirement.marker.evaluate(markers):
            continue
        fault = _pip_fault(requirement.name, requirement.specifier, wheels)
        if fault:
            yield fault
    conda = {p.name: p for p in lock.conda_packages(platform)}
    for spec in request.conda[platform]:
        name, _, constraint = spec.partition(" ")
        fault = _conda_fault(name.rpartition("::")[2], constraint, conda)
        if fault:
            yield fault


def _dependencies(lock: Lock) -> Check:
    faults, count = [], 0
    for platform in lock.platforms:
        wheels = {p.name: p for p in lock.wheels(platform)}
        conda = {p.name: p for p in lock.conda_packages(platform)}
        for package in (*wheels.values(), *conda.values()):
            for name, constraint in package.dependencies.items():
                count += 1
                fault = (
                    _pip_fault(name, SpecifierSet("" if constraint == "*" else constraint), wheels)
                    if package.manager == "pip"
                    else _conda_fault(name, constraint, conda)
                )
                if fault:
                    faults.append(f"{package.label} needs {fault}")
    if faults:
        return Check("dependencies", "", "; ".join(faults[:5]), "invoke lock")
    return Check("dependencies", f"all {count} are met inside the lock")


def _pip_fault(name: str, specifier: SpecifierSet, wheels: dict[str, Package]) -> str:
    wheel = wheels.get(canonicalize_name(name))
    if wheel is None:
        return f"{name}, which is not locked"
    if not specifier.contains(Version(wheel.version), prereleases=True):
        return f"{name} {specifier}, locked is {wheel.version}"
    return ""


def _conda_fault(name: str, constraint: str, conda: dict[str, Package]) -> str:
    if name.startswith("__"):  # virtual: what the host must have
        return ""
    package = conda.get(name)
    if package is None:
        return f"{name}, which is not locked"
    version = constraint.split(" ", maxsplit=1)[0] or "*"
    if not rattler.VersionSpec(version).matches(rattler.Version(package.version)):
        return f"{name} {version}, locked is {package.version}"
    return ""


def _pylock(repository: Repository, lock: Lock) -> Check:
    name = repository.pylock.name
    try:
        text = repository.pylock.read_text(encoding="utf-8")
    except OSError as error:
        return Check(name, "", f"{name} cannot be read: {error.strerror}", "invoke lock")
    if text != render_pylock(lock):
        return Check(name, "", f"{name} is not the view of the lock's pip half", "invoke lock")
    return Check(name, f"the view of {len(lock.wheels(PLATFORM))} wheels")


def _records(repository: Repository, lock: Lock) -> Check:
    records = read_records(repository.records, PLATFORM)
    check_records(records, lock.wheels(PLATFORM))
    return Check("recorded trees", f"{PLATFORM}: {records.tree}")


def _flake(repository: Repository) -> Check:
    pin = read_pin(repository)
    return Check("flake.lock", f"nixpkgs {pin.revision[:12]}, {pin.nar_hash}")
