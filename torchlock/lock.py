"""The lock: `conda-lock.yml` as typed records, and whether it is consistent in itself.

Format: conda-lock v1 (the schema conda-lock publishes as conda-lock-v1). This module knows
the entries; it does not know how anything is fetched or installed.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal
from urllib.parse import unquote, urlsplit

import yaml
from packaging.utils import (
    InvalidWheelFilename,
    canonicalize_name,
    parse_wheel_filename,
)
from packaging.version import InvalidVersion, Version

from torchlock.errors import TorchlockError
from torchlock.urls import is_public

Manager = Literal["conda", "pip"]

PLATFORMS: Mapping[str, tuple[str, ...]] = {
    # platform of the lock -> platform tags that a wheel for it may carry, as patterns
    "linux-64": (r"any", r"linux_x86_64", r"manylinux\w*_x86_64"),
    "linux-aarch64": (r"any", r"linux_aarch64", r"manylinux\w*_aarch64"),
    "osx-arm64": (r"any", r"macosx_\d+_\d+_(arm64|universal2)"),
}
"""The platforms a lock may name; the stack's wheels exist for linux-64 alone today."""

PYTHON_VERSION = "3.11"
"""The CPython the stack's wheels are for."""


class LockError(TorchlockError):
    """The lock is damaged, inconsistent, or not for this platform."""


@dataclass(frozen=True)
class Package:
    """One locked artifact: what it is, where it comes from, and its digests (lower-case hex).

    `name` is canonical (PEP 503) for wheels and conda's own for conda packages;
    `dependencies` maps names to version constraints, as the index states them.
    """

    name: str
    version: str
    manager: Manager
    platform: str
    url: str
    sha256: str
    md5: str | None
    dependencies: Mapping[str, str] = field(hash=False)

    @property
    def filename(self) -> str:
        """The artifact's file name, from its URL."""
        return unquote(urlsplit(self.url).path.rsplit("/", 1)[-1])

    @property
    def label(self) -> str:
        """Name and version, for messages."""
        return f"{self.name} {self.version}"


@dataclass(frozen=True)
class Lock:
    """A whole lock file.

    `content_hash` maps each platform to conda-lock's hash of the request it answers.
    """

    packages: tuple[Package, ...]
    platforms: tuple[str, ...]
    channels: tuple[str, ...]
    sources: tuple[str, ...]
    content_hash: Mapping[str, str]

    def wheels(self, platform: str) -> tuple[Package, ...]:
        """Return the stack: the wheels of a platform, sorted by name."""
        return self._half("pip", platform)

    def conda_packages(self, platform: str) -> tuple[Package, ...]:
        """Return the foundation: the conda packages of a platform, sorted by name."""
        return self._half("conda", platform)

    def _half(self, manager: Manager, platform: str) -> tuple[Package, ...]:
        if platform not in self.platforms:
            raise LockError(
                f"the lock has no platform {platform}; it has {', '.join(self.platforms)}",
                hint=f"add {platform} to `platforms:` in environment.yml and run: invoke lock",
            )
        found = (p for p in self.packages if (p.manager, p.platform) == (manager, platform))
        return tuple(sorted(found, key=lambda p: p.name))

    @cached_property
    def digest(self) -> str:
        """The lock's identity: `sha256:` and hex, over its artifacts alone.

        Comments, order, dependency notes and conda-lock's metadata do not enter: two locks
        with one digest realize to the same bytes.
        """
        rows = sorted(
            [p.platform, p.manager, p.name, p.version, p.url, p.sha256] for p in self.packages
        )
        text = json.dumps(rows, separators=(",", ":"), ensure_ascii=True)
        return "sha256:" + hashlib.sha256(text.encode()).hexdigest()


def read_lock(path: Path) -> Lock:
    """Read and check a lock file.

    Raises `LockError`, naming the entry and the field, when the file is absent, is no
    conda-lock v1 file, lacks a field, has a malformed hash, an unknown platform, two
    artifacts for one package, or a wheel that does not fit its entry.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise LockError(f"{path} does not exist", hint="make it with: invoke lock") from None
    except (OSError, UnicodeDecodeError) as error:
        raise LockError(f"{path} cannot be read: {error}") from None
    return parse_lock(text, str(path))


def parse_lock(text: str, name: str = "conda-lock.yml") -> Lock:
    """Parse a lock's text; `name` is used in messages. Raises `LockError` as `read_lock`."""
    try:
        # CSafeLoader reads ten times faster; the pure one is there where libyaml is not.
        content = yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # noqa: S506
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise LockError(f"{name} is not YAML: {_one_line(error)}", hint=_RESTORE) from None
    if not isinstance(content, dict) or content.get("version") != 1:
        raise LockError(f"{name} is not a conda-lock v1 file (no `version: 1`)", hint=_RESTORE)
    metadata = _field(content, "metadata", dict, name)
    platforms = tuple(_strings(metadata, "platforms", f"{name}: metadata"))
    for platform in platforms:
        if platform not in PLATFORMS:
            raise LockError(
                f"{name}: unknown platform {platform!r}; known are {', '.join(PLATFORMS)}",
                hint="correct `platforms:` in environment.yml and run: invoke lock",
            )
    rows = _field(content, "package", list, name)
    packages = tuple(_package(row, i, name, platforms) for i, row in enumerate(rows))
    _check_unique(packages, name)
    channels = tuple(
        str(c["url"] if isinstance(c, dict) and "url" in c else c)
        for c in _field(metadata, "channels", list, f"{name}: metadata")
    )
    for channel in channels:
        _check_public(channel, f"{name}: metadata")
    return Lock(
        packages=packages,
        platforms=platforms,
        channels=channels,
        sources=tuple(_strings(metadata, "sources", f"{name}: metadata")),
        content_hash=dict(_field(metadata, "content_hash", dict, f"{name}: metadata")),
    )


_RESTORE = "restore it with: git checkout conda-lock.yml; or make it again with: invoke lock"


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())


def _field(row: Mapping[Any, Any], key: str, kind: type, where: str) -> Any:
    value = row.get(key)
    if value is None:
        raise LockError(f"{where}: field `{key}` is missing", hint=_RESTORE)
    if not isinstance(value, kind):
        raise LockError(
            f"{where}: field `{key}` is a {type(value).__name__}, not a {kind.__name__}"
            + (" (an unquoted number?)" if isinstance(value, (int, float)) else ""),
            hint=_RESTORE,
        )
    return value


def _strings(row: Mapping[Any, Any], key: str, where: str) -> list[str]:
    values = _field(row, key, list, where)
    for value in values:
        if not isinstance(value, str):
            raise LockError(f"{where}: `{key}` has {value!r}, not a name", hint=_RESTORE)
    return list(values)


def _package(row: object, index: int, lock: str, platforms: tuple[str, ...]) -> Package:
    where = f"{lock}: package {index + 1}"
    if not isinstance(row, dict):
        raise LockError(f"{where} is not a mapping", hint=_RESTORE)
    name = _field(row, "name", str, where)
    where = f"{lock}: {name}"
    version = _field(row, "version", str, where)
    manager = _field(row, "manager", str, where)
    platform = _field(row, "platform", str, where)
    url = _field(row, "url", str, where)
    hashes = _field(row, "hash", dict, where)
    dependencies = row.get("dependencies", {})
    if manager not in ("conda", "pip"):
        raise LockError(f"{where}: manager {manager!r} is neither conda nor pip", hint=_RESTORE)
    if platform not in platforms:
        raise LockError(
            f"{where}: platform {platform!r} is not among the lock's ({', '.join(platforms)})",
            hint=_RESTORE,
        )
    if not isinstance(dependencies, dict):
        raise LockError(f"{where}: field `dependencies` is not a mapping", hint=_RESTORE)
    _check_url(url, where)
    package = Package(
        name=canonicalize_name(name) if manager == "pip" else name,
        version=version,
        manager=manager,
        platform=platform,
        url=url,
        sha256=_hash(hashes, "sha256", 64, where),
        md5=_hash(hashes, "md5", 32, where) if "md5" in hashes or manager == "conda" else None,
        dependencies={str(k): str(v) for k, v in dependencies.items()},
    )
    if manager == "pip":
        _check_wheel(package, where)
    elif not package.filename.endswith((".conda", ".tar.bz2")):
        raise LockError(f"{where}: {package.filename!r} is no conda package", hint=_RESTORE)
    return package


def _hash(hashes: Mapping[Any, Any], kind: str, length: int, where: str) -> str:
    value = _field(hashes, kind, str, f"{where}: hash")
    if not re.fullmatch(rf"[0-9a-f]{{{length}}}", value):
        raise LockError(
            f"{where}: {kind} {value!r} is not {length} lower-case hex digits", hint=_RESTORE
        )
    return str(value)


def _check_url(url: str, where: str) -> None:
    if not re.fullmatch(r"[!#-\[\]-~]+", url):
        raise LockError(f"{where}: {url!r} has characters no URL has", hint=_RESTORE)
    parts = urlsplit(url)
    if parts.scheme not in ("https", "http", "file") or not parts.path.strip("/"):
        raise LockError(f"{where}: {url!r} is not the URL of a file", hint=_RESTORE)
    _check_public(url, where)


def _check_public(url: str, where: str) -> None:
    if not is_public(url):
        raise LockError(
            f"{where}: the URL carries credentials, which a lock must not",
            hint="take them out; put them into .netrc or your client's configuration",
        )


def _check_wheel(package: Package, where: str) -> None:
    try:
        name, version, _, tags = parse_wheel_filename(package.filename)
        locked = Version(package.version)
    except (InvalidWheelFilename, InvalidVersion) as error:
        raise LockError(f"{where}: {package.filename!r} is no wheel ({error})") from None
    if name != package.name or version != locked:
        raise LockError(
            f"{where}: {package.filename} is a wheel of {name} {version}, not of {package.label}",
            hint=_RESTORE,
        )
    if not any(fits(tag.interpreter, tag.abi, tag.platform, package.platform) for tag in tags):
        raise LockError(
            f"{where}: {package.filename} does not run on CPython {PYTHON_VERSION} "
            f"of {package.platform}",
            hint="lock it again with: invoke lock --upgrade " + package.name,
        )


def fits(interpreter: str, abi: str, tag_platform: str, platform: str) -> bool:
    """Say whether one wheel tag fits CPython 3.11 on a platform of the lock."""
    minor = int(PYTHON_VERSION.split(".")[1])
    if match := re.fullmatch(r"cp3(\d+)", interpreter):
        exact = int(match[1]) == minor and abi in (f"cp3{minor}", "none", "abi3")
        stable = int(match[1]) <= minor and abi == "abi3"
        interpreter_fits = exact or stable
    else:
        generic = re.fullmatch(r"py3(\d*)", interpreter)
        interpreter_fits = bool(generic) and abi == "none" and int(generic[1] or 0) <= minor  # type: ignore[index]
    return interpreter_fits and any(
        re.fullmatch(pattern, tag_platform) for pattern in PLATFORMS[platform]
    )


def _check_unique(packages: Iterable[Package], lock: str) -> None:
    seen: dict[tuple[str, str, str], Package] = {}
    for package in packages:
        key = (package.platform, package.manager, package.name)
        if key in seen:
            raise LockError(
                f"{lock}: two {package.manager} artifacts for {package.name} on "
                f"{package.platform}: {seen[key].filename} and {package.filename}",
                hint=_RESTORE,
            )
        seen[key] = package
