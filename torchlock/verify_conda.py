"""A conda prefix's foundation against the lock: every file of every locked conda package.

What must be there comes from the sha256-verified packages themselves (their `paths.json`, with
the prefix put in), never from what a client noted in the prefix. The stack in site-packages is
`verify.py`'s; this module tells it which paths there a conda package accounts for.
"""

from __future__ import annotations

import json
import os
import re
import stat
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from types import MappingProxyType
from typing import get_args

from torchlock.bytecode import explain_bytecode
from torchlock.errors import TorchlockError
from torchlock.files import sha256_of
from torchlock.formats.conda import (
    CondaPackage,
    InstalledFile,
    installed_files,
    is_entry_point_script,
    read_conda,
    superseded_paths,
)
from torchlock.formats.wheel import Scheme
from torchlock.lock import PYTHON_VERSION, Package
from torchlock.records import Records
from torchlock.stamps import Reading
from torchlock.tree import walk
from torchlock.verify import Finding, Kind, Site

SITE = f"lib/python{PYTHON_VERSION}/site-packages"
"""Where a conda prefix has its site-packages."""

CLIENT_FILES = frozenset({"CACHEDIR.TAG", "conda-meta/history", "torchlock.json"})
"""Files that clients write beside the packages' own and that change nothing."""


@dataclass(frozen=True)
class CondaVerdict:
    """What verification of the foundation found; empty `findings` means that it is the lock's.

    `explained` are the paths, relative to the prefix, that conda packages account for;
    `superseded` names conda packages whose python part a wheel of the stack replaces. `scripted`
    are files that are as a link script left them: no lock says what such a file must hold.
    """

    findings: tuple[Finding, ...]
    explained: frozenset[str]
    superseded: tuple[str, ...]
    packages: int
    files: int
    bytecode: int
    scripted: tuple[str, ...] = ()

    @property
    def holds(self) -> bool:
        """Whether everything is what the lock says."""
        return not self.findings

    def explains(self, path: str) -> bool:
        """Say whether a conda package accounts for a path relative to site-packages."""
        full = f"{SITE}/{path}"
        return full in self.explained or full in self.scripted


@dataclass(frozen=True)
class _Expected:
    package: str
    file: InstalledFile
    entry_point: str = ""  # "module:function" of a generated script, else empty


def is_conda_prefix(prefix: Path) -> bool:
    """Say whether a conda client (or `invoke env --foundation conda`) made this prefix."""
    return (prefix / "conda-meta").is_dir()


@dataclass(frozen=True)
class Expectation:
    """What locked conda packages, opened, must have in a prefix that goes by the names `roots`."""

    roots: tuple[str, ...]
    packages: tuple[tuple[Package, CondaPackage], ...]
    files: Mapping[str, _Expected]


def expect(
    prefix: Path,
    packages: Sequence[tuple[Package, Path]],
    *,
    home: Path | None = None,
    workers: int | None = None,
) -> Expectation:
    """Unpack verified packages and return what they must have in `prefix`, made or not.

    `home` is the prefix as its own files name it, where that is another path (an image's file
    system that is mounted somewhere). Raises `TorchlockError` when a package cannot be read.
    """
    opened = tuple((locked, read_conda(path)) for locked, path in packages)
    # A prefix reached through a link may have been made under either of its names.
    names = (home,) if home else (prefix.absolute(), prefix.resolve())
    roots = tuple(sorted({str(name) for name in names}))
    with ThreadPoolExecutor(workers or os.cpu_count()) as pool:
        trees = pool.map(lambda item: _expected(item[1], roots), opened)
        return Expectation(roots, opened, _by_path(e for tree in trees for e in tree))


def verify_conda(
    prefix: Path,
    expectation: Expectation,
    records: Records,
    *,
    written: Mapping[str, str] = MappingProxyType({}),
    reading: Reading | None = None,
    present: Mapping[str, os.stat_result] | None = None,
    workers: int | None = None,
) -> CondaVerdict:
    """Compare a prefix with what the locked conda packages must have there.

    `records` say what the stack accounts for, `written` what link scripts left (`contents_of`).
    Every file is read, unless a `reading` with stamps was begun; `present` is what `walk` finds in
    the prefix, where the caller has it. Raises `TorchlockError` when the prefix is no conda
    prefix; everything else is a finding.
    """
    if not is_conda_prefix(prefix):
        raise TorchlockError(
            f"{prefix} is no conda prefix: it has no conda-meta",
            hint=f"make one with: invoke env --foundation conda --prefix {quote(str(prefix))}",
        )
    reading = reading or Reading()
    try:
        present = dict(walk(prefix)) if present is None else present
    except OSError as error:
        raise TorchlockError(f"{error.filename} cannot be read: {error.strerror}") from None
    opened, roots, expected = expectation.packages, expectation.roots, expectation.files
    stack = _stack_paths(prefix, records)
    replaced = {
        package.name: paths
        for _, package in opened
        if (paths := superseded_paths(package, records.wheels.keys(), SITE))
    }
    left_over = [
        Finding("foreign", e.package, path, f"left from conda's {e.package}, which a wheel "
                "of the stack replaces")
        for path, e in expected.items()
        if path in replaced.get(e.package, ()) and path in present and path not in stack
    ]  # fmt: skip
    todo = [
        e
        for path, e in expected.items()
        if path not in stack and path not in replaced.get(e.package, ())
    ]
    doubts = []
    for item in todo:
        status = present.get(item.file.path)
        digest = reading.known(status) if status else None
        if status is None or digest not in item.file.sha256 or _mode_fault(status, item.file):
            doubts.append((item, status, digest))
    with ThreadPoolExecutor(workers or os.cpu_count()) as pool:
        checked = pool.map(lambda doubt: _check(prefix, roots, doubt, reading), doubts)
        findings = [found for found in checked if found]
    findings += left_over + list(_records(prefix, opened, present))
    known = expected.keys() | stack | {f"conda-meta/{p.record_name}.json" for _, p in opened}
    scripted = {p: digest for p, digest in written.items() if p in present and p not in known}
    altered = altered_since(prefix, scripted)
    findings += [
        Finding("changed", "", path, "it is not as a link script left it") for path in altered
    ]
    bytecode, foreign = _foreign(prefix, present, known | scripted.keys())
    return CondaVerdict(
        findings=tuple(sorted([*findings, *foreign], key=lambda f: (f.package, f.path))),
        explained=frozenset(e.file.path for e in todo),
        superseded=tuple(sorted(replaced)),
        packages=len(opened),
        files=len(todo),
        bytecode=bytecode,
        scripted=tuple(sorted(scripted.keys() - set(altered))),
    )


def unaccounted(prefix: Path, expectation: Expectation, records: Records) -> list[str]:
    """Return the paths that neither the stack nor a conda package accounts for, sorted.

    Byte code is left out: it is judged by its source, whoever compiled it.
    """
    noted = {f"conda-meta/{p.record_name}.json" for _, p in expectation.packages}
    known = expectation.files.keys() | noted | CLIENT_FILES | _stack_paths(prefix, records)
    return sorted(
        path
        for path, _ in walk(prefix)
        if path not in known and "__pycache__" not in Path(path).parts
    )


def contents_of(prefix: Path, paths: Iterable[str]) -> dict[str, str]:
    """Return what each of `paths` holds, as `altered_since` compares it."""
    return {path: _contents(prefix / path) for path in paths}


def altered_since(prefix: Path, written: Mapping[str, str]) -> dict[str, str]:
    """Return those of what link scripts left that hold something else by now."""
    return {path: was for path, was in written.items() if not _holds(prefix / path, was)}


def _holds(path: Path, was: str) -> bool:
    return bool(was) and _contents(path) == was


def _contents(path: Path) -> str:
    """Return what a file or link holds, as one word; empty for what cannot be read."""
    try:
        if path.is_symlink():
            return f"link:{path.readlink()}"
        return f"sha256:{sha256_of(path)}" if path.is_file() else ""
    except OSError:
        return ""


def _stack_paths(prefix: Path, records: Records) -> set[str]:
    """Return every path that the stack's wheels account for, relative to the prefix."""
    site = Site(prefix, prefix / SITE)
    paths: set[str] = set()
    for wheel in records.wheels.values():
        roots = {
            scheme: site.root(scheme, wheel.name).relative_to(prefix).as_posix()
            for scheme in get_args(Scheme)
        }
        paths.update(f"{roots[f.scheme]}/{f.path}".removeprefix("./") for f in wheel.files)
        paths.update(f"bin/{name}" for name, _ in wheel.scripts)
    return paths


def _expected(package: CondaPackage, roots: Sequence[str]) -> list[_Expected]:
    trees = [installed_files(package, root, SITE) for root in roots]
    found = [
        _Expected(
            package.name,
            InstalledFile(
                path=variants[0].path,
                executable=variants[0].executable,
                sha256=frozenset().union(*(v.sha256 for v in variants)),
                target=variants[0].target,
            ),
        )
        for variants in zip(*trees, strict=True)
    ]
    found += [
        _Expected(package.name, InstalledFile(f"bin/{name}", True, frozenset()), target)
        for name, target in package.entry_points
    ]
    return found


def _by_path(found: Iterable[_Expected]) -> dict[str, _Expected]:
    """Index by path; where two packages carry one path, clients leave either one's file."""
    by_path: dict[str, _Expected] = {}
    for item in found:
        other = by_path.get(item.file.path)
        if other:
            file = item.file
            item = _Expected(  # noqa: PLW2901 - both are allowed
                other.package,
                InstalledFile(file.path, file.executable, file.sha256 | other.file.sha256,
                              file.target),
                item.entry_point or other.entry_point,
            )  # fmt: skip
        by_path[item.file.path] = item
    return by_path


def _check(
    prefix: Path,
    roots: Sequence[str],
    doubt: tuple[_Expected, os.stat_result | None, str | None],
    reading: Reading,
) -> Finding | None:
    item, status, digest = doubt
    fault: tuple[Kind, str] | None
    if status is None:
        fault = ("missing", "the file is not there")
    else:
        try:
            fault = _fault(prefix / item.file.path, status, digest, roots, item, reading)
        except OSError as error:
            fault = ("unreadable", error.strerror or str(error))
    return Finding(fault[0], item.package, item.file.path, fault[1]) if fault else None


def _fault(
    path: Path,
    status: os.stat_result,
    digest: str | None,
    roots: Sequence[str],
    item: _Expected,
    reading: Reading,
) -> tuple[Kind, str] | None:
    file = item.file
    if file.target is not None:
        if not stat.S_ISLNK(status.st_mode):
            return "not a file", f"the package has a link to {file.target} in its place"
        target = str(path.readlink())
        return None if target == file.target else (
            "changed", f"a link to {target}, the package's goes to {file.target}"
        )  # fmt: skip
    if not stat.S_ISREG(status.st_mode):
        return "not a file", "a link or another kind of node stands in its place"
    if item.entry_point:
        text = path.read_bytes().decode("utf-8", "replace")
        pythons = [f"{root}/bin/python{v}" for root in roots for v in (PYTHON_VERSION, "")]
        if not any(is_entry_point_script(text, item.entry_point, p) for p in pythons):
            return "changed", f"it is not the script that runs {item.entry_point}"
    else:
        actual = digest or reading.sha256(path, status)
        if actual not in file.sha256:
            wanted = " or ".join(sorted(file.sha256))
            return "changed", f"sha256 {actual}, the package with this prefix has {wanted}"
    return _mode_fault(status, file)


def _mode_fault(status: os.stat_result, file: InstalledFile) -> tuple[Kind, str] | None:
    if status.st_mode & (stat.S_ISUID | stat.S_ISGID):
        return "mode", "it is set-user-ID or set-group-ID, no conda package's file is"
    if bool(status.st_mode & stat.S_IXUSR) != file.executable:
        return "mode", "not executable, the package's is" if file.executable else (
            "executable, the package's is not"
        )
    return None


def _records(
    prefix: Path,
    opened: Iterable[tuple[Package, CondaPackage]],
    present: Mapping[str, os.stat_result],
) -> Iterator[Finding]:
    """Yield what is wrong with the records in `conda-meta`: who is installed, by its own word."""
    noted = {p for p in present if re.fullmatch(r"conda-meta/[^/]+\.json", p)}
    by_name = defaultdict(list)
    for path in sorted(noted):
        by_name[path.removeprefix("conda-meta/").rsplit("-", 2)[0]].append(path)
    for locked, package in opened:
        path = f"conda-meta/{package.record_name}.json"
        if path not in noted:
            others = by_name[package.name]
            detail = f"{Path(others[0]).stem} is installed" if others else "it is not installed"
            yield Finding("version" if others else "missing", package.name, others[0] if others
                          else path, f"{detail}, the lock says {locked.filename}")  # fmt: skip
            continue
        record = _read_json(prefix / path)
        for kind, digest in (("sha256", locked.sha256), ("md5", locked.md5)):
            if record.get(kind, digest) != digest:
                yield Finding("version", package.name, path, f"installed from {kind} "
                              f"{record[kind]}, the lock says {digest}")  # fmt: skip
    locked_names = {package.name for _, package in opened}
    for name in sorted(by_name.keys() - locked_names):
        for path in by_name[name]:
            yield Finding("foreign", name, path, "this conda package is not in the lock")


def _read_json(path: Path) -> dict[str, object]:
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _foreign(
    prefix: Path, present: Mapping[str, os.stat_result], known: Collection[str]
) -> tuple[int, list[Finding]]:
    """Return the byte code explained and the findings outside site-packages."""
    unknown = [
        path
        for path in sorted(present.keys() - set(known) - CLIENT_FILES)
        if not path.startswith(SITE + "/") and not re.fullmatch(r"conda-meta/[^/]+\.json", path)
        and not _harmless_state(prefix, path)
    ]  # fmt: skip
    compiled = [path for path in unknown if path.endswith((".pyc", ".pyo"))]
    explained, stale = explain_bytecode(prefix, present, compiled)
    findings = [Finding("byte code", "", path, why) for path, why in stale]
    findings += [
        Finding("foreign", "", path, "no locked artifact explains it")
        for path in unknown
        if path not in set(compiled)
    ]
    return explained, findings


def _harmless_state(prefix: Path, path: str) -> bool:
    # conda keeps the variables of `conda env config vars set` here; they enter activation.
    return path == "conda-meta/state" and not _read_json(prefix / path).get("env_vars")
