"""Conda packages: an artifact's file tree, as a conda client lays it out in a prefix.

Formats: `.conda` (a zip of zstandard tar archives) and `.tar.bz2`, both unpacked by the
conda-package-streaming library; what is in `info/` and how the prefix is put into files is
described in conda-build's and conda's documentation and in the conda enhancement proposals
(CEP 34 for the package, CEP 24 and 25 for `paths.json` and entry points). This module judges
what the archive says; it does not install.
"""

from __future__ import annotations

import ast
import json
import re
import tarfile
import zipfile
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import IO, Any, Literal

from conda_package_streaming.package_streaming import stream_conda_component

from torchlock.errors import TorchlockError
from torchlock.superseded import superseded
from torchlock.tree import safe_relative_path

FileMode = Literal["text", "binary"]
Noarch = Literal["python", "generic"]

MAX_SHEBANG = 127
"""Bytes of a `#!` line that Linux kernels before 5.1 read; clients rewrite longer lines."""


class CondaError(TorchlockError):
    """The archive is not a conda package that can be installed as it stands."""


@dataclass(frozen=True)
class CondaFile:
    """One row of `paths.json`: a file or link of the package.

    `path` is relative to the package's root, `size` is in bytes and `sha256` is of the
    contents in the package (`None` for links). A file with a `placeholder` has it replaced
    by the prefix when it is installed, in the way `mode` says.
    """

    path: str
    is_link: bool
    size: int
    sha256: str | None
    placeholder: str | None
    mode: FileMode | None


@dataclass(frozen=True)
class CondaPackage:
    """What the `info/` part of a package says: who it is and what it installs.

    `index` is its `index.json` as it stands; `entry_points` are the scripts to generate:
    (name, "module:function"); `link_scripts` are programs that clients run at linking time.
    """

    path: Path
    name: str
    version: str
    build: str
    subdir: str
    noarch: Noarch | None
    index: dict[str, Any]
    files: tuple[CondaFile, ...]
    entry_points: tuple[tuple[str, str], ...]
    link_scripts: tuple[str, ...]

    @property
    def record_name(self) -> str:
        """The name of its record below `conda-meta`, without `.json`."""
        return f"{self.name}-{self.version}-{self.build}"

    @property
    def prefix_limit(self) -> int | None:
        """The longest prefix, in bytes, that fits its binary files; None for any."""
        lengths = [len(f.placeholder) for f in self.files if f.placeholder and f.mode == "binary"]
        return min(lengths, default=None)


@dataclass(frozen=True)
class InstalledFile:
    """What an installation must have at `path` (relative to the prefix).

    A link has a `target`. A file has the `sha256` digests it may have: one, or two where
    clients differ on how a long `#!` line is shortened.
    """

    path: str
    executable: bool
    sha256: frozenset[str]
    target: str | None = None


def read_conda(path: Path) -> CondaPackage:
    """Read a package's `info/`; of a `.conda` nothing else is unpacked.

    Raises `CondaError` when the archive is damaged, lacks `index.json` or `paths.json`, or
    names unsafe or duplicate paths.
    """
    wanted = ("info/index.json", "info/paths.json", "info/link.json")
    found = dict.fromkeys(wanted, b"")
    for member, stream in _members(path, "info"):
        if member.name in found and stream is not None:
            with _damage_named(path):
                found[member.name] = stream.read()
        if all(found.values()):
            break
    index = _json(path, "info/index.json", found["info/index.json"])
    rows = _json(path, "info/paths.json", found["info/paths.json"]).get("paths")
    link = _json(path, "info/link.json", found["info/link.json"] or b"{}")
    noarch = link.get("noarch") or {}
    try:
        files = tuple(_conda_file(path, r) for r in rows or () if r["path_type"] != "directory")
        kind = index.get("noarch")
        package = CondaPackage(
            path=path,
            name=str(index["name"]),
            version=str(index["version"]),
            build=str(index["build"]),
            subdir=str(index.get("subdir") or ("noarch" if kind else "")),
            noarch=None if not kind else "python" if kind == "python" else "generic",
            index=index,
            files=files,
            entry_points=tuple(_entry_point(e) for e in noarch.get("entry_points") or ()),
            link_scripts=tuple(f.path for f in files if _LINK_SCRIPT.fullmatch(f.path)),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CondaError(f"{path.name}: malformed info/ ({error!r})") from None
    paths = [f.path for f in files]
    if len(set(paths)) != len(paths):
        twice = next(p for p in paths if paths.count(p) > 1)
        raise CondaError(f"{path.name}: {twice} occurs twice in paths.json")
    return package


_LINK_SCRIPT = re.compile(r"bin/\.[^/]+-(?:pre-link|post-link)\.sh")


def _conda_file(archive: Path, row: dict[str, Any]) -> CondaFile:
    try:
        path = safe_relative_path(str(row["_path"]))
    except TorchlockError as error:
        raise CondaError(f"{archive.name}: {error.message}") from None
    kind = row.get("path_type")
    if kind not in ("hardlink", "softlink"):
        raise CondaError(f"{archive.name}: {path} is of unknown type {kind!r}")
    placeholder = row.get("prefix_placeholder")
    mode = row.get("file_mode")
    if placeholder and mode not in ("text", "binary"):
        raise CondaError(f"{archive.name}: {path} has a prefix, but file mode {mode!r}")
    sha256 = row.get("sha256")
    if kind == "hardlink" and not re.fullmatch(r"[0-9a-f]{64}", str(sha256)):
        raise CondaError(f"{archive.name}: {path} has no sha256 in paths.json")
    return CondaFile(
        path=path,
        is_link=kind == "softlink",
        size=int(row.get("size_in_bytes") or 0),
        sha256=sha256 if kind == "hardlink" else None,
        placeholder=placeholder or None,
        mode=mode if placeholder else None,
    )


def _entry_point(text: str) -> tuple[str, str]:
    name, separator, target = (part.strip() for part in str(text).partition("="))
    module, colon, function = target.partition(":")
    if not (separator and colon and module and function) or "/" in name:
        raise ValueError(f"entry point {text!r}")
    return name, target


def _json(archive: Path, name: str, content: bytes) -> dict[str, Any]:
    try:
        value = json.loads(content)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        what = f"unreadable {name}" if content else f"no {name}"
        raise CondaError(f"{archive.name}: {what}, so what it installs cannot be known")
    return value


def _members(
    path: Path, component: Literal["info", "pkg"]
) -> Iterator[tuple[tarfile.TarInfo, IO[bytes] | None]]:
    """Yield the members of one part of the archive (`.tar.bz2` has only one, with both)."""
    with _damage_named(path), path.open("rb") as stream:
        for tar, member in stream_conda_component(path.name, stream, component):
            yield member, tar.extractfile(member) if member.isfile() else None


@contextmanager
def _damage_named(path: Path) -> Iterator[None]:
    try:
        yield
    # The decompressors of the different Python versions have errors of their own.
    except (tarfile.TarError, zipfile.BadZipFile, EOFError, OSError, LookupError) as error:
        raise CondaError(f"{path.name}: damaged archive ({error})") from None
    except Exception as error:
        if type(error).__name__ != "ZstdError":
            raise
        raise CondaError(f"{path.name}: damaged archive ({error})") from None


def put_prefix(data: bytes, placeholder: str, prefix: str, mode: FileMode) -> list[bytes]:
    """Return what a file's contents become with the prefix put in: one result, or a few.

    In a binary file every NUL-terminated string keeps its length; NUL bytes follow what became
    shorter. In a text file a `#!` line that a kernel could not read, for its length or a space
    in the prefix, is rewritten, and there conda and rattler differ: each way is one result.
    Raises `CondaError` when `prefix` is longer than the placeholder of a binary file.
    """
    old, new = placeholder.encode(), prefix.encode()
    if mode == "binary":
        if len(new) > len(old):
            raise CondaError(f"the prefix {prefix} is longer than {len(old)} bytes")
        return [b"".join(_padded(data, old, new))]
    first, newline, rest = data.partition(b"\n")
    line, rest = first.replace(old, new), newline + rest.replace(old, new)
    results = [line + rest]
    shebang = _SHEBANG.match(first)
    if shebang and (len(line) >= MAX_SHEBANG or b" " in new):
        program, options = (part.replace(old, new) for part in shebang.groups())
        name = program.rsplit(b"/", 1)[-1]
        results.append(b"#!/usr/bin/env " + name + options + rest)
        launcher = b"#!/bin/sh\n'''exec' \"%b\"%b \"$0\" \"$@\" #'''"
        if re.fullmatch(rb"python[0-9.]*", name):
            results.append(launcher % (program, options) + rest)
    return results


def _padded(data: bytes, old: bytes, new: bytes) -> Iterator[bytes | memoryview]:
    """Yield the pieces of a binary file; what stays is not copied, for libraries are big."""
    done, whole = 0, memoryview(data)
    for match in re.finditer(re.escape(old) + rb"[^\0]*", data):
        yield whole[done : match.start()]
        yield match[0].replace(old, new).ljust(len(match[0]), b"\0")
        done = match.end()
    yield whole[done:]


_SHEBANG = re.compile(rb"#! *([^\s]+)(.*)")


def installed_path(path: str, noarch: Noarch | None, site: str) -> str:
    """Return where a package's path goes, relative to the prefix.

    `site` is the prefix's site-packages, such as `lib/python3.11/site-packages`. Only noarch
    python packages have anything to map.
    """
    if noarch == "python":
        if path.startswith("site-packages/"):
            return f"{site}/{path.removeprefix('site-packages/')}"
        if path.startswith("python-scripts/"):
            return f"bin/{path.removeprefix('python-scripts/')}"
    return path


@dataclass(frozen=True)
class PlacedFile:
    """A file or link of a package as a client puts it into a prefix.

    `path` is relative to the prefix. A symbolic link has a `target`, its text; a hard link has
    `same_as`, the path in the prefix that it is another name of; a file has `contents`, with the
    prefix put in: one result, or a few where clients differ. `mtime` (seconds since the epoch)
    is the archive's, which byte code in the package may refer to.
    """

    path: str
    executable: bool
    mtime: int = 0
    target: str | None = None
    same_as: str | None = None
    contents: tuple[bytes, ...] = ()


def placed_files(
    package: CondaPackage, prefix: str, site: str
) -> Iterator[tuple[CondaFile, PlacedFile]]:
    """Yield what the package puts into `prefix`, in archive order, generated scripts aside.

    Unpacks the whole package once and holds one file at a time. Raises `CondaError` when its
    contents are not what its own `paths.json` says, or a binary file has no room for `prefix`.
    """
    listed = {file.path: file for file in package.files}
    seen: dict[str, tuple[bool, int]] = {}
    for member, stream in _members(package.path, "pkg"):
        file = listed.get(member.name)
        if file is None:
            continue  # directories, and info/ of a .tar.bz2
        placed = _placed(package, file, member, stream, prefix, site)
        if file.path in seen:
            raise CondaError(f"{package.path.name}: {file.path} occurs twice in the archive")
        if placed.same_as is not None:
            other = listed.get(member.linkname)
            if other is None or other.path not in seen or not _same_file(file, other):
                raise CondaError(
                    f"{package.path.name}: {file.path} is not what paths.json says: "
                    f"a hard link to {member.linkname}"
                )
            placed = replace(placed, executable=seen[other.path][0], mtime=seen[other.path][1])
        seen[file.path] = placed.executable, placed.mtime
        yield file, placed
    if missing := sorted(listed.keys() - seen.keys()):
        raise CondaError(f"{package.path.name}: {missing[0]} is in paths.json, not in the archive")


def _same_file(one: CondaFile, other: CondaFile) -> bool:
    return one.sha256 is not None and replace(one, path=other.path) == other


def _placed(
    package: CondaPackage,
    file: CondaFile,
    member: tarfile.TarInfo,
    stream: IO[bytes] | None,
    prefix: str,
    site: str,
) -> PlacedFile:
    path = installed_path(file.path, package.noarch, site)
    executable = bool(member.mode & 0o100)
    if member.issym():
        return PlacedFile(path, executable, int(member.mtime), target=member.linkname)
    if package.noarch == "python" and path.startswith("bin/"):
        executable = True
    if member.islnk():
        same_as = installed_path(member.linkname, package.noarch, site)
        return PlacedFile(path, executable, int(member.mtime), same_as=same_as)
    if stream is None:
        raise CondaError(f"{package.path.name}: {file.path} is neither file nor link")
    with _damage_named(package.path):
        data = stream.read()
    if sha256(data).hexdigest() != file.sha256:
        raise CondaError(f"{package.path.name}: {file.path} is not what paths.json says")
    contents = [data]
    if file.placeholder and file.mode:
        try:
            contents = put_prefix(data, file.placeholder, prefix, file.mode)
        except CondaError as error:
            raise CondaError(f"{package.path.name}: {file.path}: {error.message}") from None
    return PlacedFile(path, executable, int(member.mtime), contents=tuple(contents))


def installed_files(package: CondaPackage, prefix: str, site: str) -> list[InstalledFile]:
    """Return what an installation in `prefix` must have, in the order of `paths.json`.

    Generated scripts are not among it. Raises `CondaError` as `placed_files`.
    """
    found: dict[str, tuple[CondaFile, InstalledFile]] = {}
    for file, placed in placed_files(package, prefix, site):
        if file.sha256 and not file.placeholder:
            digests = frozenset({file.sha256})
        else:
            digests = frozenset(sha256(data).hexdigest() for data in placed.contents)
        if placed.same_as is not None:
            digests = found[placed.same_as][1].sha256
        found[placed.path] = (
            file,
            InstalledFile(placed.path, placed.executable, digests, placed.target),
        )
    by_name = {file.path: installed for file, installed in found.values()}
    return [by_name[file.path] for file in package.files]


def superseded_paths(package: CondaPackage, wheels: Collection[str], site: str) -> frozenset[str]:
    """Return the paths that installing the stack takes away from a conda package.

    `wheels` are canonical names.
    """
    paths = (installed_path(file.path, package.noarch, site) for file in package.files)
    scripts = (f"bin/{name}" for name, _ in package.entry_points)
    return superseded(paths, scripts, wheels, site)


def entry_point_script(target: str, python: str) -> str:
    """Return the script that runs `target` ("module:function") with `python`, as conda has it."""
    module, _, function = target.partition(":")
    program = _ENTRY_POINT_PROGRAMS[0].format(
        module=module, name=function.split(".")[0], function=function
    )
    return f"#!{python}\n{program}"


def is_entry_point_script(text: str, target: str, python: str) -> bool:
    """Say whether `text` is the script that runs `target` ("module:function") with `python`.

    Clients write the same program in slightly different words; what is compared is the parsed
    program and the interpreter, not the layout.
    """
    first, _, body = text.partition("\n")
    if first == "#!/bin/sh":  # the prefix does not fit a #! line
        launcher, _, body = body.partition("\n")
        if launcher != f"""'''exec' "{python}" "$0" "$@" #'''""":
            return False
    elif first != f"#!{python}":
        return False
    module, _, function = target.partition(":")
    name = function.split(".")[0]
    try:
        found = ast.dump(ast.parse(body))
    except (SyntaxError, ValueError):
        return False
    variants = [
        template.format(module=module, name=name, function=function)
        for template in _ENTRY_POINT_PROGRAMS
    ]
    return found in [ast.dump(ast.parse(variant)) for variant in variants]


_ENTRY_POINT_PROGRAMS = (
    # conda, mamba, rattler
    "import re\nimport sys\n\nfrom {module} import {name}\n\nif __name__ == '__main__':\n"
    "    sys.argv[0] = re.sub(r'(-script\\.pyw?|\\.exe)?$', '', sys.argv[0])\n"
    "    sys.exit({function}())\n",
    # conda from 24.1 on
    "import sys\n\nfrom {module} import {name}\n\nif __name__ == '__main__':\n"
    "    if sys.argv[0].endswith('-script.pyw'):\n        sys.argv[0] = sys.argv[0][:-11]\n"
    "    elif sys.argv[0].endswith('.exe'):\n        sys.argv[0] = sys.argv[0][:-4]\n"
    "    sys.exit({function}())\n",
)
