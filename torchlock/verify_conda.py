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
from dataclasses import dataclass, replace
from pathlib import Path
from shlex import quote
from types import MappingProxyType
from typing import get_args

from torchlock.bytecode import explain_bytecode
from torchlock.errors import TorchlockError
from torchlock.files import sha256_of
from torchlock.findings import SITE, Finding, Kind, Site, set_id_fault
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
from torchlock.recompile import differing
from torchlock.records import Records
from torchlock.stamps import Reading
from torchlock.tree import walk
from torchlock.verify_files import instead_of_a_file

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

    @property
    def sound(self) -> bool:
        """Whether nothing but byte code differs, so that the prefix's own Python can be asked."""
        return all(f.kind == "byte code" for f in self.findings)

    def explains(self, path: str) -> bool:
        """Say whether a conda package accounts for a path relative to site-packages."""
        full = f"{SITE}/{path}"
        return full in self.explained or full in self.scripted


@dataclass(frozen=True)
class _Expected:
    package: str
    file: InstalledFile
    entry_point: str = ""  # "module:function" of a generated script, else empty
    others: tuple[_Expected, ...] = ()  # what other packages have at this path: one is there


def is_conda_prefix(prefix: Path) -> bool:
    """Say whether a conda client (or `invoke env --foundation conda`) made this prefix."""
    return (prefix / "conda-meta").is_dir()


@dataclass(frozen=True)
class Expectation:
    """What locked conda packages, opened, must have in a prefix that goes by the names `roots`.

    `files` must be there. `set_aside` may be: where several packages have one path, rattler keeps
    the files that it does not put there below `__clobbers__/PACKAGE`.
    """

    roots: tuple[str, ...]
    packages: tuple[tuple[Package, CondaPackage], ...]
    files: Mapping[str, _Expected]
    set_aside: Mapping[str, _Expected]


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
        files = _by_path(e for tree in trees for e in tree)
    return Expectation(roots, opened, files, _set_aside(files))


def verify_conda(
    prefix: Path,
    expectation: Expectation,
    records: Records,
    *,
    written: Mapping[str, str] = MappingProxyType({}),
    python: Path | None = None,
    reading: Reading | None = None,
    present: Mapping[str, os.stat_result] | None = None,
    workers: int | None = None,
) -> CondaVerdict:
    """Compare a prefix with what the locked conda packages must have there.

    `records` say what the stack accounts for, `written` what link scripts left (`contents_of`).
    With `python`, the prefix's own, byte code that no package brought is also compared with what
    its source compiles to, if nothing else was found: a changed Python is not asked. Every file
    is read, unless a `reading` with stamps was begun; `present` is what `walk` finds in the
    prefix, where the caller has it. Raises `TorchlockError` when the prefix is no conda prefix or
    `python` does not run; everything else is a finding.
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
    stack = stack_paths(prefix, records)
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
    aside = [e for path, e in expectation.set_aside.items() if path in present]
    doubts = []
    digests = reading.known(present, (item.file.path for item in (*todo, *aside)))
    for item in (*todo, *aside):
        status, digest = present.get(item.file.path), digests.get(item.file.path)
        if status is None or digest not in item.file.sha256 or _mode_fault(status, item.file):
            doubts.append((item, status, digest))
    with ThreadPoolExecutor(workers or os.cpu_count()) as pool:
        checked = pool.map(lambda doubt: _check(prefix, roots, doubt, reading), doubts)
        findings = [found for found in checked if found]
    findings += left_over + list(_records(prefix, opened, replaced, present))
    known = (
        expected.keys()
        | expectation.set_aside.keys()
        | stack
        | {f"conda-meta/{p.record_name}.json" for _, p in opened}
    )
    scripted = {p: digest for p, digest in written.items() if p in present and p not in known}
    altered = altered_since(prefix, scripted)
    findings += [
        Finding("changed", "", path, "it is not as a link script left it") for path in altered
    ]
    findings += _foreign(prefix, present, known | scripted.keys())
    fresh, stale = _bytecode(prefix, present, known | scripted.keys())
    poisoned = differing(python, prefix, fresh, workers) if python and not findings else []
    findings += [Finding("byte code", "", path, why) for path, why in (*stale, *poisoned)]
    return CondaVerdict(
        findings=tuple(sorted(findings, key=lambda f: (f.package, f.path))),
        explained=frozenset(e.file.path for e in todo),
        superseded=tuple(sorted(replaced)),
        packages=len(opened),
        files=len(todo),
        bytecode=len(fresh) - len(poisoned),
        scripted=tuple(sorted(scripted.keys() - set(altered))),
    )


def unaccounted(prefix: Path, expectation: Expectation, records: Records) -> list[str]:
    """Return the paths that neither the stack nor a conda package accounts for, sorted.

    Byte code is left out: it is judged by its source, whoever compiled it.
    """
    noted = {f"conda-meta/{p.record_name}.json" for _, p in expectation.packages}
    named = expectation.files.keys() | expectation.set_aside.keys()
    known = named | noted | CLIENT_FILES | stack_paths(prefix, records)
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


def stack_paths(prefix: Path, records: Records) -> set[str]:
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
    """Index by path; where several packages carry one path, clients leave the file of any."""
    by_path: dict[str, _Expected] = {}
    for item in found:
        first = by_path.setdefault(item.file.path, item)
        if first is not item:
            by_path[item.file.path] = replace(first, others=(*first.others, item))
    return by_path


def _set_aside(files: Mapping[str, _Expected]) -> dict[str, _Expected]:
    """Return, by path, what may be kept of packages that have a path in common with others."""
    shared = (e for first in files.values() if first.others for e in (first, *first.others))
    return {
        (path := f"__clobbers__/{e.package}/{e.file.path}"): replace(
            e, file=replace(e.file, path=path), others=()
        )
        for e in shared
    }


def _check(
    prefix: Path,
    roots: Sequence[str],
    doubt: tuple[_Expected, os.stat_result | None, str | None],
    reading: Reading,
) -> Finding | None:
    item, status, digest = doubt
    path = prefix / item.file.path
    fault: tuple[Kind, str] | None
    try:
        if status is None:
            fault = instead_of_a_file(path.lstat())
        else:
            fault = _fault(path, status, digest, roots, item, reading)
            if any(not _fault(path, status, digest, roots, e, reading) for e in item.others):
                fault = None
    except (FileNotFoundError, NotADirectoryError):
        fault = ("missing", "the file is not there")
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
    if fault := set_id_fault(status):
        return fault
    if bool(status.st_mode & stat.S_IXUSR) != file.executable:
        return "mode", "not executable, the package's is" if file.executable else (
            "executable, the package's is not"
        )
    return None


def _records(
    prefix: Path,
    opened: Iterable[tuple[Package, CondaPackage]],
    replaced: Collection[str],
    present: Mapping[str, os.stat_result],
) -> Iterator[Finding]:
    """Yield what is wrong with the records in `conda-meta`: who is installed, by its own word.

    conda itself deletes the record of a package whose Python part was `replaced`.
    """
    noted = {p for p in present if re.fullmatch(r"conda-meta/[^/]+\.json", p)}
    by_name = defaultdict(list)
    for path in sorted(noted):
        by_name[path.removeprefix("conda-meta/").rsplit("-", 2)[0]].append(path)
    for locked, package in opened:
        path = f"conda-meta/{package.record_name}.json"
        others = [other for other in by_name.pop(package.name, ()) if other != path]
        if path in noted:
            if fault := _record_fault(prefix / path, locked, package):
                yield Finding(fault[0], package.name, path, fault[1])
            for other in others:
                yield Finding("foreign", package.name, other, "a second record of this package")
        elif others:
            yield Finding("version", package.name, others[0], f"{Path(others[0]).stem} is "
                          f"installed, the lock says {locked.filename}")  # fmt: skip
        elif package.name not in replaced:
            detail = f"it is not installed, the lock says {locked.filename}"
            yield Finding("missing", package.name, path, detail)
    for name, paths in sorted(by_name.items()):
        for path in paths:
            yield Finding("foreign", name, path, "this conda package is not in the lock")


def _record_fault(path: Path, locked: Package, package: CondaPackage) -> tuple[Kind, str] | None:
    record = _read_json(path)
    for key, value in (
        ("name", package.name),
        ("version", package.version),
        ("build", package.build),
    ):
        if record.get(key) != value:
            return "changed", f"its {key} is {record.get(key)!r}, the package's is {value!r}"
    digests = {"sha256": locked.sha256, "md5": locked.md5}
    said = {kind: record[kind] for kind in digests if record.get(kind)}
    for kind, digest in said.items():
        if digest != digests[kind]:
            return "version", f"installed from {kind} {digest}, the lock says {digests[kind]}"
    return None if said else ("changed", "it has no digest of what was installed")


def _read_json(path: Path) -> dict[str, object]:
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _unknown(present: Mapping[str, object], known: Collection[str], *, compiled: bool) -> list[str]:
    """Return paths that nothing accounts for: byte code anywhere, or other files.

    The other files in site-packages are left to the judgement of the stack.
    """
    return [
        path
        for path in sorted(present.keys() - known - CLIENT_FILES)
        if not path.startswith(SITE + "/")
        and path.endswith((".pyc", ".pyo")) == compiled
        and not re.fullmatch(r"conda-meta/[^/]+\.json", path)
    ]


def _bytecode(
    prefix: Path, present: Mapping[str, os.stat_result], known: Collection[str]
) -> tuple[list[str], list[tuple[str, str]]]:
    """Return the byte code that its source explains, and (path, reason) for other byte code."""
    compiled = _unknown(present, known, compiled=True)
    _, stale = explain_bytecode(prefix, present, compiled)
    return sorted(set(compiled) - {path for path, _ in stale}), stale


def _foreign(
    prefix: Path, present: Mapping[str, os.stat_result], known: Collection[str]
) -> Iterator[Finding]:
    """Yield the files outside site-packages, byte code apart, that nothing accounts for."""
    for path in _unknown(present, known, compiled=False):
        detail = "no locked artifact explains it"
        if path == "conda-meta/state":
            variables = _variables(prefix / path)
            if not variables:
                continue
            detail = (
                f"activation sets {', '.join(variables)} by it (conda env config vars); "
                "conda env config vars unset takes them back"
            )
        yield Finding("foreign", "", path, detail)


def _variables(state: Path) -> list[str]:
    """Return the variables that conda's state file sets; conda keeps the name of an unset one."""
    variables = _read_json(state).get("env_vars") or {}
    if not isinstance(variables, dict):
        return ["what cannot be read"]
    return sorted(name for name, value in variables.items() if value != "***unset***")
