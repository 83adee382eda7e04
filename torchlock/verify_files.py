"""The files that wheels carry, against the recorded trees: each is looked at once."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from torchlock.findings import SET_ID, Finding, Kind, Site, set_id_fault
from torchlock.records import RecordedFile, Records
from torchlock.stamps import Reading
from torchlock.tree import CHUNK
from torchlock.verify_scripts import wheel_script_fault


@dataclass(frozen=True)
class _Doubt:
    """A file that is not known to be right; `status` and `digest` as far as they are known."""

    package: str
    file: RecordedFile
    path: str  # in full; a Path for each would cost as much as looking at the files
    status: os.stat_result | None = None
    digest: str | None = None


def check_files(
    site: Site,
    records: Records,
    present: Mapping[str, os.stat_result],
    reading: Reading,
    workers: int | None = None,
) -> list[Finding]:
    """Return which files of the locked wheels are not as recorded, sorted by wheel and path.

    `present` is what `walk` finds in site-packages; a file is read by `reading`, large ones first
    and `workers` at a time.
    """
    # Large files first, so that no worker is left alone with one at the end.
    doubts = [*_doubts(site, records, present, reading), *_elsewhere(site, records)]
    todo = sorted(doubts, key=lambda d: -d.file.size)

    def check(batch: Sequence[_Doubt]) -> list[Finding]:
        found = []
        for item in batch:
            fault = _fault(site, item, reading)
            if fault:
                kind, detail = fault
                found.append(Finding(kind, item.package, site.shown(Path(item.path)), detail))
        return found

    with ThreadPoolExecutor(workers or os.cpu_count()) as pool:
        found = [finding for findings in pool.map(check, _batches(todo)) for finding in findings]
    return sorted(found, key=lambda f: (f.package, f.path))


def _elsewhere(site: Site, records: Records) -> Iterable[_Doubt]:
    """Return the files outside site-packages, none of which has been looked at."""
    doubts = [
        _Doubt(name, file, f"{site.root(file.scheme, name)}/{file.path}")
        for name, file in records.expected
        if file.scheme != "site"
    ]
    return {doubt.path: doubt for doubt in doubts}.values()


def _doubts(
    site: Site, records: Records, present: Mapping[str, os.stat_result], reading: Reading
) -> Iterator[_Doubt]:
    """Yield those of site-packages that are not known to be plain files, or programs, as locked.

    Mostly there are next to none, so this loop is what checking costs.
    """
    known = reading.known(present, records.counted)
    for path, (name, file) in records.counted.items():
        digest = known.get(path)
        if digest != file.sha256 or present[path].st_mode & _KIND != (
            _PROGRAM if file.executable else _PLAIN
        ):
            yield _Doubt(name, file, f"{site.site_packages}/{path}", present.get(path), digest)


_PLAIN = stat.S_IFREG
_PROGRAM = stat.S_IFREG | stat.S_IXUSR
# What tells programs, plain files and other nodes.
_KIND = stat.S_IFMT(0o177777) | stat.S_IXUSR | SET_ID


def _batches(todo: Sequence[_Doubt]) -> Iterator[Sequence[_Doubt]]:
    """Yield large files alone and small ones by the hundred: a task costs as much as a file."""
    large = sum(1 for d in todo if d.file.size >= CHUNK)
    for index in range(large):
        yield todo[index : index + 1]
    for index in range(large, len(todo), 100):
        yield todo[index : index + 100]


def _fault(site: Site, item: _Doubt, reading: Reading) -> tuple[Kind, str] | None:
    file, status = item.file, item.status
    try:
        if status is None:  # outside site-packages, or not found by the walk
            status = os.lstat(item.path)
            if file.scheme == "site":
                return instead_of_a_file(status)
        if not stat.S_ISREG(status.st_mode):
            return "not a file", "a link or another kind of node stands in its place"
        if file.scheme == "scripts":
            return wheel_script_fault(site, item.path, file.sha256) or _mode_fault(file, status)
        if status.st_size != file.size:
            return "changed", f"{status.st_size} bytes, the lock says {file.size}"
        actual = item.digest or reading.sha256(item.path, status)
        if actual != file.sha256:
            return "changed", f"sha256 {actual}, the lock says {file.sha256}"
    except (FileNotFoundError, NotADirectoryError):
        return "missing", "the file is not there"
    except OSError as error:
        return "unreadable", error.strerror or str(error)
    return _mode_fault(file, status)


def instead_of_a_file(status: os.stat_result) -> tuple[Kind, str]:
    """Say what is found, by its lstat, at the path of a file that the walk did not find."""
    if stat.S_ISDIR(status.st_mode):
        return "not a file", "a directory stands in its place"
    return "missing", "a link to another directory stands in the place of one above it"


def _mode_fault(file: RecordedFile, status: os.stat_result) -> tuple[Kind, str] | None:
    if fault := set_id_fault(status):
        return fault
    if bool(status.st_mode & stat.S_IXUSR) == file.executable:
        return None
    if file.executable:
        return "mode", "not executable, the lock says it is"
    return "mode", "executable, the lock says not"
