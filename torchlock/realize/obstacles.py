"""What stands in the way of an installation: found before anything is written or removed.

`invoke env` replaces and removes only what it made. uv and rattler know no such bounds: they
overwrite a file that has the path of one of theirs, and go through a directory that is a link.
"""

from __future__ import annotations

import csv
import json
import os
import posixpath
import re
import stat
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from packaging.utils import canonicalize_name

from torchlock.errors import DoesNotHold
from torchlock.findings import SITE, Finding
from torchlock.report import describe

Present = Mapping[str, os.stat_result]
"""What `walk` finds in a prefix: everything that is no directory."""


def blocked(
    prefix: Path, paths: Iterable[str], present: Present, links: Mapping[str, str]
) -> list[Finding]:
    """Return what is no directory where `paths` need one, and directories in their own places.

    `paths` are relative to the prefix; `links` are links to directories that belong there, with
    their targets.
    """
    found: dict[str, str] = {
        path: _what_it_is(prefix / path, status)
        for path, status in present.items()
        if path.endswith("/__pycache__")  # Python and uv would go through it
    }
    clear: set[str] = set()
    for path in paths:
        if path in present:
            continue  # no directory, so it can be replaced
        above = next((a for a in _above(path) if a in present and a not in clear), None)
        if above is None:
            if _is_directory(prefix / path):
                found[path] = "a directory stands in the place of a file of the lock"
        elif above in links and os.readlink(prefix / above) == links[above]:  # noqa: PTH115
            clear.add(above)
        else:
            found[above] = _what_it_is(prefix / above, present[above])
    return [Finding("foreign", "", path, what) for path, what in sorted(found.items())]


def below_site(present: Present) -> dict[str, os.stat_result]:
    """Return what of `present` is in site-packages, by its path there."""
    below = f"{SITE}/"
    return {p.removeprefix(below): s for p, s in present.items() if p.startswith(below)}


def gone(before: Iterable[str], now: Iterable[str]) -> list[str]:
    """Return those of the wheels (`name==version`) before whose names are locked no more."""
    names = {wheel.partition("==")[0] for wheel in now}
    return sorted(wheel for wheel in before if wheel.partition("==")[0] not in names)


def _above(path: str) -> Iterator[str]:
    """Yield the directories that a path is below, the uppermost first."""
    end = path.find("/")
    while end > 0:
        yield path[:end]
        end = path.find("/", end + 1)


def _what_it_is(path: Path, status: os.stat_result) -> str:
    what = f"a link to {path.readlink()}" if stat.S_ISLNK(status.st_mode) else "a file"
    return f"{what} stands in the place of a directory of the lock"


def _is_directory(path: Path) -> bool:
    try:
        return stat.S_ISDIR(path.lstat().st_mode)
    except OSError:
        return False


def overwritten(
    findings: Iterable[Finding], present: Present, ours: Collection[str]
) -> list[Finding]:
    """Return files at paths of the lock that hold something else, except those that are `ours`.

    Byte code is not somebody's own: Python makes it again.
    """
    kinds = {"changed", "not a file", "unreadable"}
    return [
        Finding("foreign", f.package, f.path, "a file of the lock would take its place")
        for f in findings
        if f.kind in kinds and f.path in present and f.path not in ours and "/__pyc" not in f.path
    ]


def strange_packages(prefix: Path, expected: Collection[str], ours: Collection[str]) -> list[str]:
    """Return conda packages, as in `conda-meta`, that are neither locked nor `ours`.

    Another version of a locked package counts as that package; a second record of it does not.
    """
    names = {_name(record): record for record in expected}
    there = {path.stem for path in (prefix / "conda-meta").glob("*.json")}
    return sorted(
        record
        for record in there - set(expected) - set(ours)
        if names.get(_name(record)) is None or names[_name(record)] in there
    )


def _name(record: str) -> str:
    return record.rsplit("-", 2)[0]


def installed_paths(prefix: Path, packages: Collection[str], wheels: Collection[str]) -> set[str]:
    """Return the paths that installed packages list as theirs, relative to the prefix.

    `packages` are named as in `conda-meta`, `wheels` `name==version`.
    """
    paths: set[str] = set()
    for record in packages:
        paths.update(_listed(prefix / "conda-meta" / f"{record}.json"))
    for directory in dist_infos(prefix / SITE, wheels):
        try:
            text = (directory / "RECORD").read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue
        rows = [row[0] for row in csv.reader(text.splitlines()) if row]
        paths.update(posixpath.normpath(f"{SITE}/{path}") for path in rows)
    return paths


def _listed(record: Path) -> list[str]:
    try:
        files = json.loads(record.read_bytes())["files"]
        return [str(path) for path in files]
    except (OSError, ValueError, KeyError, TypeError):
        return []


def dist_infos(site_packages: Path, wheels: Collection[str]) -> list[Path]:
    """Return the `.dist-info` directories of those of `wheels` that are installed.

    They are named `name==version`; another version of one is not it.
    """
    wanted = {_release(*wheel.split("==", 1)) for wheel in wheels if "==" in wheel}
    found = (re.fullmatch(r"([^-]+)-([^-]+)\.dist-info", p.name) for p in _entries(site_packages))
    return [site_packages / m[0] for m in found if m and _release(m[1], m[2]) in wanted]


def _entries(directory: Path) -> list[Path]:
    try:
        return sorted(directory.iterdir())
    except OSError:
        return []


def _release(name: str, version: str) -> tuple[str, str]:
    return canonicalize_name(name), re.sub(r"[^a-z0-9]+", ".", version.lower())


def refuse(prefix: Path, findings: Sequence[Finding]) -> None:
    """Raise `DoesNotHold` when there are findings, before anything is changed."""
    if findings:
        raise DoesNotHold(
            f"{prefix} holds what torchlock did not make, and it is in the way; nothing has been "
            f"changed:\n{describe(findings)}",
            hint=f"move away what is named (the paths are below {prefix}) and run this again",
        )
