"""The conda half of the lock as layers of the image: what a client links into a prefix.

Straight from the packages, nothing executed: files with the prefix put in, generated scripts,
and the records in `conda-meta` by which clients know them. Link scripts are not run. What a
wheel of the stack replaces is left out, as it is wherever the lock is made real.

Files keep their archive's times: byte code that a package brings refers to its source's.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torchlock.channels import channel_of
from torchlock.conda_meta import ENTRY_POINT, LINK
from torchlock.errors import TorchlockError
from torchlock.findings import SITE
from torchlock.formats.conda import (
    CondaError,
    CondaFile,
    PlacedFile,
    entry_point_script,
    installed_path,
    placed_files,
    superseded_paths,
)
from torchlock.lock import PYTHON_VERSION, Package
from torchlock.oci.layer import Item, file_item
from torchlock.oci.tarball import Member
from torchlock.realize.foundation import LockedConda
from torchlock.realize.image_bytecode import TMPDIR, BytecodeError, cached
from torchlock.realize.image_wheels import INTERPRETER, PREFIX

HOME = f"/{PREFIX}"
"""The prefix, as its files name it."""

_LATEST = 8**11 - 1
"""The latest time, in seconds, that a tar header holds."""


def python_packages(packages: Sequence[Package]) -> tuple[Package, ...]:
    """Return python and all that it needs of a conda half, sorted by name.

    Raises `TorchlockError` when there is no python, or one that the wheels are not for.
    """
    by_name = {p.name: p for p in packages}
    version = by_name["python"].version if "python" in by_name else "none"
    if not version.startswith(f"{PYTHON_VERSION}."):
        raise TorchlockError(
            f"the conda half needs a python {PYTHON_VERSION} to run the stack; the lock has "
            f"{version}",
            hint=f"ask for python {PYTHON_VERSION}.* in environment.yml: invoke lock; or: "
            "invoke image --foundation debian",
        )
    needed: dict[str, Package] = {}
    todo = ["python"]
    while todo:
        name = todo.pop()
        if name in by_name and name not in needed:
            needed[name] = by_name[name]
            todo += needed[name].dependencies
    return tuple(needed[name] for name in sorted(needed))


def rules_of(packages: Iterable[Package], wheels: Iterable[Package]) -> str:
    """Return what decides the conda layers besides their own packages' bytes, as sha256 hex.

    That is every package and what it depends on, for where two carry one path the later one has
    it; where each comes from, which its record says; and the names of the wheels, which replace
    distributions of the same name.
    """
    rows = sorted([p.sha256, p.url, str(p.md5), sorted(p.dependencies)] for p in packages)
    decided = [rows, sorted(w.name for w in wheels)]
    return hashlib.sha256(json.dumps(decided).encode()).hexdigest()


@dataclass(frozen=True)
class CondaHalf:
    """The conda half, and by which package each path of the prefix is taken."""

    packages: Sequence[LockedConda]
    owners: Mapping[str, str]

    @property
    def not_run(self) -> tuple[str, ...]:
        """The programs that a client would run when it links or activates, as "name: path"."""
        return tuple(
            f"{p.content.name}: {f.path}"
            for p in self.packages
            for f in p.content.files
            if f.path in p.content.link_scripts or f.path.startswith("etc/conda/activate.d/")
        )

    def unpack_python(self, directory: Path) -> None:
        """Unpack the interpreter and its libraries into `directory`/usr, beside Debian's loader.

        Raises `BytecodeError` when the directory does not take them.
        """
        prefix = directory / "usr"
        needed = {p.name for p in python_packages([p.package for p in self.packages])}
        for locked in self.packages:
            if locked.package.name not in needed:
                continue
            _check_room(locked, str(prefix), TMPDIR)
            unpacked: set[str] = set()
            for _, placed in placed_files(locked.content, str(prefix), SITE):
                if self.owners.get(placed.path) == locked.content.name and _runs(placed.path):
                    _check_link(locked, placed, unpacked, "which no interpreter needs")
                    unpacked.add(placed.path)
                    try:
                        _unpack(prefix, placed)
                    except OSError as error:
                        raise BytecodeError(
                            f"the image's interpreter cannot be unpacked into {directory}: "
                            f"{error.strerror}",
                            hint=TMPDIR,
                        ) from None


def conda_half(locked: Sequence[LockedConda], wheels: Iterable[Package]) -> CondaHalf:
    """Decide which package's file stands at each path; nothing is unpacked.

    Packages are linked dependencies first, then by name; of two that carry one path the later
    one has it, as with clients. Raises `CondaError`
    when a package has no room for the image's prefix, has a record of its own in `conda-meta`,
    or a path of one lies below a file or link of another.
    """
    names = {w.name for w in wheels}
    owners: dict[str, str] = {}
    for package in _linking_order(locked):
        content = package.content
        _check_room(
            package, HOME, f"lock another build of it: invoke lock --upgrade {content.name}"
        )
        superseded = superseded_paths(content, names, SITE)
        paths = [installed_path(f.path, content.noarch, SITE) for f in content.files]
        paths += [f"bin/{name}" for name, _ in content.entry_points]
        for path in paths:
            if path.startswith("conda-meta/"):
                raise CondaError(
                    f"{package.package.label} carries {path}, where clients keep theirs"
                )
            if path not in superseded:
                owners[path] = content.name
        owners[f"conda-meta/{content.record_name}.json"] = content.name
    for path, owner in sorted(owners.items()):
        above = path
        while "/" in above:
            above = above.rpartition("/")[0]
            if above in owners:
                raise CondaError(
                    f"conda's {owner} carries {path}, below a file or link of {owners[above]}"
                )
    return CondaHalf(tuple(locked), owners)


def _check_room(locked: LockedConda, prefix: str, hint: str) -> None:
    limit = locked.content.prefix_limit
    if limit is not None and limit < len(prefix.encode()):
        raise CondaError(
            f"{locked.package.label} has room for a prefix of {limit} bytes, too few for {prefix}",
            hint=hint,
        )


def _linking_order(locked: Sequence[LockedConda]) -> list[LockedConda]:
    by_name = {p.package.name: p for p in locked}
    order: dict[str, LockedConda] = {}
    visited: set[str] = set()

    def visit(name: str) -> None:
        if name in visited or name not in by_name:
            return
        visited.add(name)
        for needed in sorted(by_name[name].package.dependencies):
            visit(needed)
        order[name] = by_name[name]

    for name in sorted(by_name):
        visit(name)
    return list(order.values())


def _check_link(locked: LockedConda, placed: PlacedFile, written: Container[str], why: str) -> None:
    """Raise `CondaError` for a hard link to what was left out."""
    if placed.same_as is not None and placed.same_as not in written:
        raise CondaError(
            f"{locked.package.label}: {placed.path} is a hard link to {placed.same_as}, {why}"
        )


def _runs(path: str) -> bool:
    """Say whether the interpreter needs this file to compile."""
    library = f"lib/python{PYTHON_VERSION}/"
    return (
        path == f"bin/python{PYTHON_VERSION}"
        or (path.startswith(library) and not path.startswith((SITE, f"{library}test/")))
        or re.fullmatch(r"lib/[^/]+\.so[.\d]*", path) is not None
    )


def _unpack(prefix: Path, placed: PlacedFile) -> None:
    path = prefix / placed.path
    path.parent.mkdir(parents=True, exist_ok=True)
    if placed.target is not None:
        path.symlink_to(placed.target)
    elif placed.same_as is not None:
        path.hardlink_to(prefix / placed.same_as)
    else:
        path.write_bytes(placed.contents[0])
        path.chmod(0o755 if placed.executable else 0o644)


@dataclass
class CondaLayer:
    """One layer of the conda half, and the sources that no package brings byte code for.

    `sources`, as (path in the image, contents), are complete when the items have gone by.
    """

    half: CondaHalf
    names: Collection[str]
    sources: list[tuple[str, bytes]] = field(default_factory=list)

    def items(self) -> Iterator[Item]:
        """Yield the entries of the packages in `names`, by package and in archive order.

        Raises `CondaError` for a package that is not what it says.
        """
        for package in sorted(self.half.packages, key=lambda p: p.package.name):
            if package.package.name in self.names:
                yield from self._package(package)

    def _package(self, locked: LockedConda) -> Iterator[Item]:
        content = locked.content
        rows: dict[str, dict[str, Any]] = {}
        written: set[str] = set()
        for file, placed in placed_files(content, HOME, SITE):
            if placed.same_as is None:
                rows[placed.path] = _row(file, placed)
            else:
                rows[placed.path] = {**rows[placed.same_as], "_path": placed.path}
            if self.half.owners.get(placed.path) != content.name:
                continue
            _check_link(locked, placed, written, "whose place another package's file takes")
            written.add(placed.path)
            self._note_source(placed)
            yield _item(placed)
        for name, target in content.entry_points:
            path, script = f"bin/{name}", entry_point_script(target, INTERPRETER).encode()
            if path in rows:  # a package that ships a script under an entry point's name keeps it
                continue
            rows[path] = {**_contents(script), "_path": path, "path_type": ENTRY_POINT}
            if self.half.owners.get(path) == content.name:
                yield file_item(f"{PREFIX}/{path}", script, 0o755)
        record = json.dumps(_record(locked, rows), indent=2) + "\n"
        yield file_item(f"{PREFIX}/conda-meta/{content.record_name}.json", record.encode())

    def _note_source(self, placed: PlacedFile) -> None:
        path = placed.path
        compiles = path.startswith(f"lib/python{PYTHON_VERSION}/") and path.endswith(".py")
        if compiles and placed.contents and cached(path) not in self.half.owners:
            self.sources.append((f"{PREFIX}/{path}", placed.contents[0]))


def _item(placed: PlacedFile) -> Item:
    path, mtime = f"{PREFIX}/{placed.path}", min(max(placed.mtime, 0), _LATEST)
    if placed.target is not None:
        return Item(Member(path, "symlink", 0o777, target=placed.target, mtime=mtime))
    mode = 0o755 if placed.executable else 0o644
    if placed.same_as is not None:
        return Item(Member(path, "link", mode, target=f"{PREFIX}/{placed.same_as}", mtime=mtime))
    data = placed.contents[0]
    return Item(Member(path, "file", mode, len(data), mtime=mtime), data)


def _row(file: CondaFile, placed: PlacedFile) -> dict[str, Any]:
    """Return a row of `paths_data` in a record of `conda-meta`."""
    if placed.target is not None:
        return {"_path": placed.path, "path_type": LINK, **_contents(b"")}
    in_package = {"_path": placed.path, "path_type": "hardlink", "sha256": file.sha256}
    prefix = {"file_mode": file.mode, "prefix_placeholder": file.placeholder}
    return {
        **in_package,
        **(prefix if file.placeholder else {}),
        "sha256_in_prefix": hashlib.sha256(placed.contents[0]).hexdigest(),
        "size_in_bytes": file.size,
    }


def _contents(data: bytes) -> dict[str, Any]:
    return {"sha256": hashlib.sha256(data).hexdigest(), "size_in_bytes": len(data)}


def _record(locked: LockedConda, rows: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    """Return a package's record: its `index.json`, where it comes from, and its files.

    Format: conda's `PrefixRecord`, as conda, mamba and rattler read and write it.
    """
    package = locked.package
    return {
        **locked.content.index,
        "channel": channel_of(package),
        "fn": package.filename,
        "url": package.url,
        "md5": package.md5,
        "sha256": package.sha256,
        "size": locked.archive.stat().st_size,
        "requested_specs": [],
        "files": sorted(rows),
        "paths_data": {"paths_version": 1, "paths": [rows[path] for path in sorted(rows)]},
        "link": {"source": "", "type": 3},  # copied, not linked
    }
