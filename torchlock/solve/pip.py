"""The pip half: a resolution with uv, one wheel per package, dependencies from its metadata."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from email.parser import HeaderParser
from typing import Any

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.tags import Tag, compatible_tags, cpython_tags
from packaging.utils import canonicalize_name, parse_wheel_filename

from torchlock.errors import TorchlockError
from torchlock.index import UnresolvedError, resolve
from torchlock.lock import PYTHON_VERSION, Package, fits
from torchlock.solve.request import RequestError


@dataclass(frozen=True)
class Target:
    """How PEP 508 names a platform of the lock, and its platform tags, best first."""

    markers: Mapping[str, str]
    platform_tags: tuple[str, ...]


def _manylinux(machine: str) -> tuple[str, ...]:
    # PEP 600 tags down from glibc 2.28, the floor of the stack's own wheels, and the old names.
    legacy = {17: "manylinux2014", 12: "manylinux2010", 5: "manylinux1"}
    tags: list[str] = []
    for minor in range(28, 4, -1):
        tags.append(f"manylinux_2_{minor}_{machine}")
        if minor in legacy:
            tags.append(f"{legacy[minor]}_{machine}")
    return (*tags, f"linux_{machine}")


_COMMON_MARKERS = {
    "implementation_name": "cpython",
    "implementation_version": f"{PYTHON_VERSION}.0",
    "os_name": "posix",
    "platform_python_implementation": "CPython",
    "platform_release": "",
    "platform_version": "",
    "python_full_version": f"{PYTHON_VERSION}.0",
    "python_version": PYTHON_VERSION,
}
_LINUX = {"sys_platform": "linux", "platform_system": "Linux"}
_MACOS = {"sys_platform": "darwin", "platform_system": "Darwin"}

TARGETS: Mapping[str, Target] = {
    "linux-64": Target(
        {**_COMMON_MARKERS, **_LINUX, "platform_machine": "x86_64"},
        _manylinux("x86_64"),
    ),
    "linux-aarch64": Target(
        {**_COMMON_MARKERS, **_LINUX, "platform_machine": "aarch64"},
        _manylinux("aarch64"),
    ),
    "osx-arm64": Target(
        {**_COMMON_MARKERS, **_MACOS, "platform_machine": "arm64"},
        tuple(f"macosx_{major}_0_{arch}" for major in (14, 13, 12, 11)
              for arch in ("arm64", "universal2")),
    ),
}  # fmt: skip

ReadMetadata = Callable[[Package], str]
"""Gives the METADATA text of a locked wheel."""


def solve_pip(
    requirements: Sequence[Requirement],
    *,
    platform: str,
    locked: Iterable[Package],
    upgrade: str | None,
    read_metadata: ReadMetadata,
) -> list[Package]:
    """Resolve `requirements` and return one wheel per package, sorted by name.

    `locked` versions and wheels are kept wherever the request still allows them, except
    `upgrade`. Raises `RequestError` with uv's explanation when there is no resolution, or when
    a package has no wheel that runs on the platform.
    """
    before = {package.name: package for package in locked}
    resolved = _uv_compile(requirements, platform, before.values(), upgrade)
    chosen = [_choose(row, platform, before) for row in resolved]
    return sorted(
        _with_dependencies(chosen, requirements, platform, before, read_metadata),
        key=lambda package: package.name,
    )


def _uv_compile(
    requirements: Sequence[Requirement],
    platform: str,
    locked: Iterable[Package],
    upgrade: str | None,
) -> list[dict[str, Any]]:
    options = ["--upgrade-package", upgrade] if upgrade else []
    try:
        return resolve(map(str, requirements), platform, *options, preferences=_preferences(locked))
    except UnresolvedError as error:
        raise RequestError(
            f"the pip half for {platform} has no resolution:\n{error.said}",
            hint="relax the requirements in environment.yml, or check the network and index",
        ) from None


def _preferences(locked: Iterable[Package]) -> str:
    rows = [
        f'[[packages]]\nname = "{p.name}"\nversion = "{p.version}"\n'
        f'wheels = [{{ url = "{p.url}", hashes = {{ sha256 = "{p.sha256}" }} }}]\n'
        for p in locked
    ]
    return "".join(['lock-version = "1.0"\ncreated-by = "torchlock"\n', *rows]) if rows else ""


def _choose(row: dict[str, Any], platform: str, before: Mapping[str, Package]) -> Package:
    """Choose the wheel: the one already locked if still offered, else the best by tags."""
    name, version = canonicalize_name(row["name"]), row["version"]
    wheels = {w["url"]: w["hashes"]["sha256"] for w in row.get("wheels", [])}
    kept = before.get(name)
    if kept and kept.version == version and wheels.get(kept.url) == kept.sha256:
        url = kept.url
    else:
        ranked = [(rank, u) for u in wheels if (rank := wheel_rank(_filename(u), platform))]
        if not ranked:
            raise RequestError(f"{name} {version} has no wheel for CPython 3.11 on {platform}")
        url = max(ranked)[1]
    return Package(
        name=name,
        version=version,
        manager="pip",
        platform=platform,
        url=url,
        sha256=wheels[url],
        md5=None,
        dependencies=kept.dependencies if kept and kept.url == url else {},
    )


def _filename(url: str) -> str:
    return url.split("#", maxsplit=1)[0].rsplit("/", 1)[-1]


def wheel_rank(filename: str, platform: str) -> tuple[int, str] | None:
    """Rank a wheel for CPython 3.11 on a platform, higher is better; None if it does not run.

    The order is that of the packaging library's tags, which pip uses; equal tags are told apart
    by the longer compressed tag set and then by name, so that the choice is one.
    """
    order = _tag_order(platform)
    _, _, _, tags = parse_wheel_filename(filename)
    ranks = [order[tag] for tag in tags if tag in order]
    fitting = [t for t in tags if fits(t.interpreter, t.abi, t.platform, platform)]
    return (-min(ranks), filename) if ranks and fitting else None


def _tag_order(platform: str) -> dict[Tag, int]:
    version = tuple(int(part) for part in PYTHON_VERSION.split("."))
    platforms = TARGETS[platform].platform_tags
    tags = [
        *cpython_tags(version, platforms=platforms),
        *compatible_tags(version, interpreter=f"cp{version[0]}{version[1]}", platforms=platforms),
    ]
    return {tag: rank for rank, tag in reversed(list(enumerate(tags)))}


def _with_dependencies(
    chosen: Sequence[Package],
    requirements: Sequence[Requirement],
    platform: str,
    before: Mapping[str, Package],
    read_metadata: ReadMetadata,
) -> list[Package]:
    """Note each package's active dependencies and constraints, from its own metadata.

    The notes of a kept wheel are kept, unless extras can change them.
    """
    requires = _read_requirements(chosen, read_metadata)
    extras = _active_extras(requires, requirements, TARGETS[platform].markers)
    packages = []
    for package in chosen:
        active = [
            r
            for r in requires[package.name]
            if _is_active(r, extras.get(package.name, set()), TARGETS[platform].markers)
        ]
        notes: dict[str, SpecifierSet] = {}
        for r in active:
            name = canonicalize_name(r.name)
            notes[name] = notes.get(name, SpecifierSet()) & r.specifier
        notes.pop(package.name, None)  # an extra that names its own package
        packages.append(
            replace(
                package,
                dependencies={
                    n: ",".join(sorted(str(s) for s in spec)) or "*"
                    for n, spec in sorted(notes.items())
                },
            )
        )
    return packages


def _read_requirements(
    chosen: Sequence[Package], read_metadata: ReadMetadata
) -> dict[str, list[Requirement]]:
    def requires(package: Package) -> list[Requirement]:
        headers = HeaderParser().parsestr(read_metadata(package))
        if canonicalize_name(headers.get("Name", "")) != package.name:
            raise TorchlockError(f"the metadata at {package.url} is not that of {package.name}")
        return [Requirement(line) for line in headers.get_all("Requires-Dist", [])]

    with ThreadPoolExecutor(16) as pool:
        return dict(zip([p.name for p in chosen], pool.map(requires, chosen), strict=True))


def _active_extras(
    requires: Mapping[str, list[Requirement]],
    roots: Iterable[Requirement],
    markers: Mapping[str, str],
) -> dict[str, set[str]]:
    extras: dict[str, set[str]] = {}
    todo = list(roots)
    seen: set[tuple[str, frozenset[str]]] = set()
    while todo:
        requirement = todo.pop()
        name = canonicalize_name(requirement.name)
        extras.setdefault(name, set()).update(requirement.extras)
        state = (name, frozenset(extras[name]))
        if state not in seen and name in requires:
            seen.add(state)
            todo += [r for r in requires[name] if _is_active(r, extras[name], markers)]
    return extras


def _is_active(requirement: Requirement, extras: set[str], markers: Mapping[str, str]) -> bool:
    if requirement.marker is None:
        return True
    return any(requirement.marker.evaluate({**markers, "extra": extra}) for extra in (*extras, ""))
