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
from shlex import quote
from typing import Literal

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
            hint=f"make one with: invoke env --prefix {quote(str(prefix))}",
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
    findings = _check_files(site, records, present, reading, workers)
    findings += _console_scripts(site, records)
    foreign = list(_foreign(site, records.counted, present, explained))
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
        files=len(records.expected),
        bytes=sum(file.size for _, file in records.expected),
        bytecode=bytecode,
    )


def differing_files(
    site: Site,
    records: Records,
    *,
    reading: Reading,
    present: Mapping[str, os.stat_result],
) -> list[Finding]:
    """Return the locked wheels' files that are not as recorded, and nothing of what else is there.

    What `verify` begins with; `reading` and `present` as there.
    """
    found = _check_files(site, records, present, reading, None)
    return [*found, *_console_scripts(site, records)]


@dataclass(frozen=True)
class _Doubt:
    """A file that is not known to be right; `status` and `digest` as far as they are known."""

    package: str
    file: RecordedFile
    path: str  # in full; a Path for each would cost as much as looking at the files
    status: os.stat_result | None = None
    digest: str | None = None


def _check_files(
    site: Site,
    records: Records,
    present: Mapping[str, os.stat_result],
    reading: Reading,
    workers: int | None,
) -> list[Finding]:
    # Large files first, so that no worker is left alone with one at the end.
    doubts = [*_doubts(site, records, present, reading), *_elsewhere(site, records)]
    todo = sorted(doubts, key=lambda d: -d.file.size)

    def check(batch: Sequence[_Doubt]) -> list[Finding]:
        found = []
        for item in batch:
            fault = _fault(site, item, reading)
            if fault:
                kind, detail = fault
                found.append(Finding(kind, item.package, _shown(site, Path(item.path)), detail))
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
_SET_ID = stat.S_ISUID | stat.S_ISGID
# What tells programs, plain files and other nodes.
_KIND = stat.S_IFMT(0o177777) | stat.S_IXUSR | _SET_ID


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
            return _script_fault(site, item) or _mode_fault(file, status)
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


def set_id_fault(status: os.stat_result) -> tuple[Kind, str] | None:
    """Say that a file would run as another user or group: no package's file does."""
    if status.st_mode & _SET_ID:
        return "mode", "it is set-user-ID or set-group-ID, no locked package's file is"
    return None


def _mode_fault(file: RecordedFile, status: os.stat_result) -> tuple[Kind, str] | None:
    if fault := set_id_fault(status):
        return fault
    if bool(status.st_mode & stat.S_IXUSR) == file.executable:
        return None
    if file.executable:
        return "mode", "not executable, the lock says it is"
    return "mode", "executable, the lock says not"


def _script_fault(site: Site, item: _Doubt) -> tuple[Kind, str] | None:
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
    wrong = _program_fault(site, path, text) or set_id_fault(status)
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
    counted: Mapping[str, object],
    present: Mapping[str, os.stat_result],
    explained: Callable[[str], bool],
) -> Iterator[Finding]:
    """Yield what no locked wheel explains; byte code is yielded for `explain_bytecode`."""
    unknown = []
    for path in sorted(present.keys() - counted.keys()):
        top, _, rest = path.partition("/")
        if rest in INSTALLER_METADATA and f"{top}/WHEEL" in counted:
            continue
        if explained(path):
            continue
        if path.endswith((".pyc", ".pyo")):
            # The source it belongs to decides; a lone one can be imported by itself.
            yield Finding("byte code", "", path, "")
        else:
            unknown.append(path)
    modules = _modules(counted) if unknown else {}
    for path in unknown:
        rest = path.partition("/")[2]
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
        tree = _digest_on_disk(site.site_packages, present, records.counted)
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
