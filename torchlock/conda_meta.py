"""A conda half against its own records: for an environment that no longer has the packages.

`conda-meta` holds, for each package, the paths it placed and their sha256 as they are in this
prefix. Whoever can change the files can change the records too; what vouches for those is the
image's manifest digest. On a machine that has the packages `verify_conda` needs no record.

Format: conda's `PrefixRecord`, as `realize/image_conda.py` writes it.
"""

from __future__ import annotations

import json
import stat
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torchlock.errors import TorchlockError
from torchlock.findings import SITE, Finding, Kind
from torchlock.lock import Package
from torchlock.stamps import Reading
from torchlock.superseded import superseded

LINK = "softlink"
ENTRY_POINT = "unix_python_entry_point"


@dataclass(frozen=True)
class CondaFiles:
    """What comparing found.

    `listed` are the paths, below the prefix, that `packages` packages account for; `compared` of
    them were looked at here, the others are files of the stack's wheels by now.
    """

    findings: tuple[Finding, ...]
    listed: frozenset[str]
    packages: int
    compared: int


def compare_conda_files(
    prefix: Path, packages: Iterable[Package], wheels: Collection[str], stack: Collection[str]
) -> CondaFiles:
    """Compare the files of locked conda packages with the records of those packages.

    `wheels` are the canonical names of the stack's, which replace distributions of the same name,
    and `stack` the paths that they account for: those are not conda's any more. Raises
    `TorchlockError` for a record that cannot be read.
    """
    records = {str(record.get("sha256")): record for record in _records(prefix)}
    allowed: defaultdict[str, set[str]] = defaultdict(set)
    owners: dict[str, str] = {}
    findings: list[Finding] = []
    found = 0
    for package in packages:
        record = records.get(package.sha256)
        if record is None:
            where = "conda-meta"
            findings.append(Finding("missing", package.name, where, "it has no record there"))
            continue
        found += 1
        for row in _standing(record["paths_data"]["paths"], wheels):
            # Where two packages carry one path, clients leave either one's file.
            allowed[row["_path"]].add(_claim(row))
            owners[row["_path"]] = package.name
    reading = Reading()
    compared = sorted(allowed.keys() - set(stack))
    for path in compared:
        try:
            fault = _fault(prefix / path, allowed[path], reading)
        except FileNotFoundError:
            fault = "missing", "the file is not there"
        except OSError as error:
            fault = "unreadable", error.strerror or str(error)
        if fault:
            findings.append(Finding(fault[0], owners[path], path, fault[1]))
    return CondaFiles(tuple(findings), frozenset(allowed), found, len(compared))


def _records(prefix: Path) -> Iterator[dict[str, Any]]:
    for path in sorted((prefix / "conda-meta").glob("*.json")):
        try:
            record = json.loads(path.read_bytes())
            for row in record["paths_data"]["paths"]:
                _claim(row), row["_path"].split("/")
            yield record
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise TorchlockError(f"{path} cannot be read ({error})") from None


def _standing(rows: list[dict[str, Any]], wheels: Collection[str]) -> Iterator[dict[str, Any]]:
    """Yield the rows of a record that are not of a distribution which a wheel replaces."""
    paths = (row["_path"] for row in rows)
    scripts = (row["_path"] for row in rows if row.get("path_type") == ENTRY_POINT)
    gone = superseded(paths, scripts, wheels, SITE)
    yield from (row for row in rows if row["_path"] not in gone)


def _claim(row: Mapping[str, Any]) -> str:
    """Return what a path must hold: `link`, of which a record says no more, or a sha256."""
    if row.get("path_type") == LINK:
        return LINK
    return str(row["sha256_in_prefix"] if "sha256_in_prefix" in row else row["sha256"])


def _fault(path: Path, allowed: Collection[str], reading: Reading) -> tuple[Kind, str] | None:
    status = path.lstat()
    if stat.S_ISLNK(status.st_mode):
        return None if LINK in allowed else ("not a file", "a link stands in its place")
    if not stat.S_ISREG(status.st_mode):
        return "not a file", "another kind of node stands in its place"
    actual = reading.sha256(path, status)
    if actual in allowed:
        return None
    return "changed", f"sha256 {actual}, its record says {' or '.join(sorted(allowed))}"
