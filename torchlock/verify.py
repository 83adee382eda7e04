"""A realization's files against the lock: every file of every locked wheel, and nothing else.

Needs the recorded trees, not the wheels. One pass reads each installed file once; where every
path, execute bit and sha256 is the recorded one, the tree digest is the recorded one too.
Only where something differs are the digests computed from what is there.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Literal, get_args

from packaging.utils import canonicalize_name

from torchlock.bytecode import explain_bytecode
from torchlock.console import interpreter, script_fault
from torchlock.errors import TorchlockError
from torchlock.formats.wheel import INSTALLER_METADATA, Scheme
from torchlock.lock import PYTHON_VERSION
from torchlock.recompile import differing
from torchlock.records import RecordedFile, Records
from torchlock.stamps import Reading
from torchlock.tree import CHUNK, entry_on_disk, tree_digest, walk

Kind = Literal[
    "missing",
    "changed",
    "mode",
    "not a file",
    "unreadable",
    "version",
    "shadows",
    "foreign",
    "byte code",
]


@dataclass(frozen=True)
class Finding:
    """One way in which the installation is not what the lock says.

    `package` is the locked package concerned, or empty; `path` is relative to the prefix.
    """

    kind: Kind
    package: str
    path: str
    detail: str


@dataclass(frozen=True)
class Site:
    """Where a realization keeps its files.

    `home` is the prefix as its own programs name it, where that is another path than the one it
    is looked at: an image's file system that is mounted somewhere.
    """

    prefix: Path
    site_packages: Path
    home: Path | None = None

    def root(self, scheme: Scheme, package: str) -> Path:
        """Return the directory that a scheme's paths are relative to."""
        if scheme == "site":
            return self.site_packages
        if scheme == "scripts":
            return self.prefix / "bin"
        if scheme == "headers":
            return self.prefix / "include" / "site" / f"python{PYTHON_VERSION}" / package
        return self.prefix


@dataclass(frozen=True)
class Verdict:
    """What verification found: empty `findings` means that the files are the locked ones.

    `tree` is the digest of all locked paths as installed and `trees` that of each wheel (`None`
    where the files cannot be read as such a tree); `bytecode` counts byte code files that
    belong to a locked source file and match it by time and size, or by hash.
    """

    findings: tuple[Finding, ...]
    tree: str | None
    trees: Mapping[str, str | None]
    files: int
    bytes: int
    bytecode: int

    @property
    def holds(self) -> bool:
        """Whether everything is what the lock says."""
        return not self.findings


def find_site(prefix: Path) -> Site:
    """Return the layout of a prefix. Raises `TorchlockError` when it is no Python 3.11 one."""
    site_packages = prefix / "lib" / f"python{PYTHON_VERSION}" / "site-packages"
    if not site_packages.is_dir():
        raise TorchlockError(
            f"{prefix} holds no CPython {PYTHON_VERSION} environment: "
            f"{site_packages} does not exist",
            hint=f"make one with: invoke env --prefix {prefix}",
        )
    return Site(prefix, site_packages)


def verify(
    site: Site,
    records: Records,
    *,
    explained: Callable[[str], bool] = lambda path: False,
    python: Path | None = None,
    reading: Reading | None = None,
    present: Mapping[str, os.stat_result] | None = None,
    workers: int | None = None,
) -> Verdict:
    """Compare what is installed at `site` with the recorded trees of the locked wheels.

    `explained` says of a path in site-packages whether something other than the stack (a conda
    package) accounts for it. With `python`, the environment's own, byte code is also compared
    with what its source compiles to; without it, it is judged by its header alone. Every file
    is read, unless a `reading` with stamps was begun. `present` is what `walk` finds in
    site-packages, where the caller has it. Raises `TorchlockError` only when the directory
    itself cannot be read or `python` does not run; everything else is a finding.
    """
    reading = reading or Reading()
    try:
        present = dict(walk(site.site_packages)) if present is None else present
    except OSError as error:
        raise TorchlockError(f"{error.filename} cannot be read: {error.strerror}") from None
    expected = []
    for wheel in records.wheels.values():
        roots = {scheme: str(site.root(scheme, wheel.name)) for scheme in get_args(Scheme)}
        expected += [
            _Expected(wheel.name, file, f"{roots[file.scheme]}/{file.path}")
            for file in wheel.files
            if file.scheme != "site" or file.counts
        ]
    findings = _check_files(site, expected, present, reading, workers)
    findings += _console_scripts(site, records)
    foreign = list(_foreign(site, records, present, explained))
    compiled = [f.path for f in foreign if f.kind == "byte code"]
    bytecode, stale = explain_bytecode(site.site_packages, present, compiled)
    if python:
        fresh = sorted(set(compiled) - {path for path, _ in stale})
        poisoned = differing(python, site.site_packages, fresh, workers)
        bytecode, stale = bytecode - len(poisoned), [*stale, *poisoned]
    findings += [
        Finding("byte code", "", _shown(site, site.site_packages / path), why)
        for path, why in stale
    ]
    findings += [f for f in foreign if f.kind != "byte code"]
    findings += _configuration(site)
    findings = _name_versions(site, findings, records)
    trees, tree = _digests(site, records, findings, present)
    return Verdict(
        findings=tuple(findings),
        tree=tree,
        trees=trees,
        files=len(expected),
        bytes=sum(e.file.size for e in expected),
        bytecode=bytecode,
    )


@dataclass(frozen=True)
class _Expected:
    package: str
    file: RecordedFile
    path: str  # in full; a Path for each would cost as much as looking at the files


def _check_files(
    site: Site,
    expected: Sequence[_Expected],
    present: Mapping[str, os.stat_result],
    reading: Reading,
    workers: int | None,
) -> list[Finding]:
    # Several wheels may carry one path (nvidia/__init__.py): it is read once.
    by_path = {e.path: e for e in expected}

    def status_of(item: _Expected) -> os.stat_result | None:
        return present.get(item.file.path) if item.file.scheme == "site" else None

    todo, here = reading.split(by_path.values(), status_of)
    # Large files first, so that no worker is left alone with one at the end.
    batches = _batches(sorted(todo, key=lambda e: -e.file.size))

    def check(batch: Sequence[_Expected]) -> list[Finding]:
        found = []
        for item in batch:
            fault = _fault(site, item, status_of(item), reading)
            if fault:
                kind, detail = fault
                found.append(Finding(kind, item.package, _shown(site, Path(item.path)), detail))
        return found

    with ThreadPoolExecutor(workers or os.cpu_count()) as pool:
        found = [finding for findings in pool.map(check, batches) for finding in findings]
    found += check(here)
    return sorted(found, key=lambda f: (f.package, f.path))


def _batches(todo: Sequence[_Expected]) -> Iterator[Sequence[_Expected]]:
    """Yield large files alone and small ones by the hundred: a task costs as much as a file."""
    large = sum(1 for e in todo if e.file.size >= CHUNK)
    for index in range(large):
        yield todo[index : index + 1]
    for index in range(large, len(todo), 100):
        yield todo[index : index + 100]


def _fault(
    site: Site, item: _Expected, status: os.stat_result | None, reading: Reading
) -> tuple[Kind, str] | None:
    file = item.file
    try:
        if status is None:  # outside site-packages, or not found by the walk
            if file.scheme == "site":
                return "missing", "the file is not there"
            status = os.lstat(item.path)
        if not stat.S_ISREG(status.st_mode):
            return "not a file", "a link or another kind of node stands in its place"
        if file.scheme == "scripts":
            return _script_fault(site, item) or _mode_fault(file, status)
        if status.st_size != file.size:
            return "changed", f"{status.st_size} bytes, the lock says {file.size}"
        actual = reading.sha256(item.path, status)
        if actual != file.sha256:
            return "changed", f"sha256 {actual}, the lock says {file.sha256}"
    except FileNotFoundError:
        return "missing", "the file is not there"
    except OSError as error:
        return "unreadable", error.strerror or str(error)
    return _mode_fault(file, status)


def _mode_fault(file: RecordedFile, status: os.stat_result) -> tuple[Kind, str] | None:
    if bool(status.st_mode & stat.S_IXUSR) == file.executable:
        return None
    if file.executable:
        return "mode", "not executable, the lock says it is"
    return "mode", "executable, the lock says not"


def _script_fault(site: Site, item: _Expected) -> tuple[Kind, str] | None:
    """Compare a script, whose first line installers rewrite when it is `#!python`."""
    path = Path(item.path)
    contents = path.read_bytes()
    if sha256(contents).hexdigest() == item.file.sha256:
        return None
    first, newline, rest = contents.partition(b"\n")
    # A long or odd interpreter path makes installers write a /bin/sh line and two more.
    if first == b"#!/bin/sh" and rest.startswith(b"'''exec' "):
        rest = rest.split(b"\n", 2)[2] if rest.count(b"\n") >= 2 else b""
    if first.startswith(b"#!") and any(
        sha256(original + newline + rest).hexdigest() == item.file.sha256
        for original in (b"#!python", b"#!pythonw", b"#!python\r")
    ):
        return _program_fault(site, path, contents.decode("utf-8", "replace"))
    return "changed", "the script is not the wheel's, its first line apart"


def _console_scripts(site: Site, records: Records) -> Iterator[Finding]:
    """Yield a finding for each generated script that does not run its entry point."""
    owners: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for wheel in records.wheels.values():
        for name, target in wheel.scripts:
            owners[name].append((wheel.name, target))
    for name, claims in sorted(owners.items()):
        path = site.root("scripts", "") / name
        fault = _console_fault(site, path, [target for _, target in claims])
        if fault:
            yield Finding(fault[0], claims[-1][0], _shown(site, path), fault[1])


def _console_fault(site: Site, path: Path, targets: Sequence[str]) -> tuple[Kind, str] | None:
    try:
        status = path.lstat()
        if not stat.S_ISREG(status.st_mode):
            return "not a file", "a link or another kind of node stands in its place"
        text = path.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return "missing", "the console script is not there"
    except OSError as error:
        return "unreadable", error.strerror or str(error)
    fault = script_fault(text, targets)
    if fault:
        return "changed", fault
    wrong = _program_fault(site, path, text)
    return wrong or (None if status.st_mode & stat.S_IXUSR else ("mode", "not executable"))


def _program_fault(site: Site, path: Path, text: str) -> tuple[Kind, str] | None:
    """Say that a script of a venv starts another python than the venv's own."""
    program = Path(interpreter(text))
    own = (site.home or site.prefix) / "bin"
    if not (site.prefix / "pyvenv.cfg").exists() or program.parent == own:
        return None
    with contextlib.suppress(OSError):
        if site.home is None and program.parent.samefile(path.parent):
            return None
    return "changed", f"it starts {program}, not this environment's python"


def _foreign(
    site: Site,
    records: Records,
    present: Mapping[str, os.stat_result],
    explained: Callable[[str], bool],
) -> Iterator[Finding]:
    """Yield what no locked wheel explains; byte code is yielded for `explain_bytecode`."""
    known = {f.path for w in records.wheels.values() for f in w.files if f.counts}
    dist_infos = {path.split("/", 1)[0] for path in known if ".dist-info/" in path}
    modules = _modules(known)
    for path in sorted(present.keys() - known):
        top, _, rest = path.partition("/")
        if rest in INSTALLER_METADATA and top in dist_infos:
            continue
        if explained(path):
            continue
        if path.endswith((".pyc", ".pyo")):
            # The source it belongs to decides; a lone one can be imported by itself.
            yield Finding("byte code", "", path, "")
            continue
        shown = _shown(site, site.site_packages / path)
        owner = modules.get(_import_name(path))
        if owner and not rest:
            yield Finding("shadows", owner, shown, f"stands beside or before {owner}'s module")
        elif not rest and (path.endswith(".pth") or _import_name(path) in _AT_START):
            yield Finding("foreign", "", shown, "Python runs it at every start")
        else:
            yield Finding("foreign", "", shown, "no locked artifact explains it")


_AT_START = frozenset({"sitecustomize", "usercustomize"})


def _configuration(site: Site) -> Iterator[Finding]:
    """Yield a finding where a venv lets the host's own site-packages in."""
    path = site.prefix / "pyvenv.cfg"
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return  # another kind of realization
    for line in lines:
        key, _, value = line.partition("=")
        if key.strip().lower() == "include-system-site-packages" and value.strip() != "false":
            detail = "lets in the host's own site-packages, which the lock does not know"
            yield Finding("foreign", "", path.name, detail)


def _modules(paths: Iterable[str]) -> dict[str, str]:
    """Map the locked top-level modules to the top-level name that provides them."""
    modules = {}
    for path in paths:
        name = _import_name(path)
        if name and path.endswith((".py", ".so", ".pyi")):
            modules[name] = path.split("/", 1)[0]
    return modules


def _import_name(path: str) -> str:
    top, _, rest = path.partition("/")
    if rest:
        return "" if top.endswith(".dist-info") else top
    match = re.fullmatch(r"(\w+)(\.[\w-]+)?\.(py|so|pyc)", top)
    return match[1] if match else (top if top.isidentifier() else "")


def _name_versions(site: Site, findings: Sequence[Finding], records: Records) -> list[Finding]:
    """Tell another version of a locked package from mere foreign files, and put it first."""
    below = re.escape(_shown(site, site.site_packages))
    versions: dict[str, Finding] = {}
    rest = []
    for finding in findings:
        match = re.match(rf"({below}/([^/]+)-([^/-]+)\.dist-info)/", finding.path)
        wheel = records.wheels.get(canonicalize_name(match[2])) if match else None
        if finding.kind == "foreign" and match and wheel and match[3] != wheel.version:
            versions[match[1]] = Finding(
                "version",
                wheel.name,
                match[1],
                f"{match[3]} is installed, the lock says {wheel.version}",
            )
        else:
            rest.append(finding)
    return [*versions.values(), *rest]


def _digests(
    site: Site,
    records: Records,
    findings: Sequence[Finding],
    present: Mapping[str, os.stat_result],
) -> tuple[dict[str, str | None], str | None]:
    trees: dict[str, str | None] = {w.name: w.tree for w in records.wheels.values()}
    tree: str | None = records.tree
    touched = {f.path for f in findings if f.kind not in ("foreign", "shadows", "byte code")}
    if not touched:
        return trees, tree
    below = _shown(site, site.site_packages)
    differing = {}
    for wheel in records.wheels.values():
        paths = [f.path for f in wheel.files if f.counts]
        if touched & {f"{below}/{path}" for path in paths}:
            differing[wheel.name] = paths
    for name, paths in differing.items():
        trees[name] = _digest_on_disk(site.site_packages, present, paths)
    if differing:
        everything = {f.path for w in records.wheels.values() for f in w.files if f.counts}
        tree = _digest_on_disk(site.site_packages, present, everything)
    return trees, tree


def _digest_on_disk(
    root: Path, present: Mapping[str, os.stat_result], paths: Iterable[str]
) -> str | None:
    try:
        return tree_digest(entry_on_disk(root, path) for path in paths if path in present)
    except (OSError, TorchlockError):
        return None


def _shown(site: Site, path: Path) -> str:
    return (
        path.relative_to(site.prefix).as_posix() if path.is_relative_to(site.prefix) else str(path)
    )
