"""Wheels: an artifact's file tree, as an installer lays it out.

Format: the "Binary distribution format" specification of the Python packaging user guide
(PEP 427 and successors). Zip parsing is the standard library's; this module judges what the
archive says and maps its members to where they belong.
"""

from __future__ import annotations

import binascii
import csv
import hashlib
import io
import re
import stat
import struct
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from configparser import ConfigParser
from configparser import Error as ConfigError
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import IO, Literal

from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename

from torchlock.errors import TorchlockError
from torchlock.tree import CHUNK, Entry, safe_relative_path

Scheme = Literal["site", "scripts", "data", "headers"]
"""Where files go: `site` is site-packages (purelib and platlib alike), the others are the
installation schemes of the same names."""

_DATA_SCHEMES: dict[str, Scheme] = {
    "purelib": "site",
    "platlib": "site",
    "scripts": "scripts",
    "data": "data",
    "headers": "headers",
}

INSTALLER_METADATA = frozenset(
    {
        "RECORD",
        "RECORD.jws",
        "RECORD.p7s",
        "INSTALLER",
        "REQUESTED",
        "direct_url.json",
        "uv_cache.json",
        "uv_build.json",
    }
)
"""Files in a `.dist-info` directory that installers write: no part of a tree digest."""


METADATA_LIMIT = 16 << 20
"""Bytes of a metadata file that are taken into memory; torch's RECORD has 1.2 MB."""

SCRIPT_LIMIT = 128 << 20
"""Bytes of a script that are; some are programs of a few dozen MB."""

_EXECUTABLE = 0o111 << 16
"""The execute bits among a member's external attributes."""

_DAMAGE = (
    zipfile.BadZipFile,
    zipfile.LargeZipFile,
    NotImplementedError,  # a compression or version that zipfile does not know
    EOFError,
    OSError,
    ValueError,  # names that are not the UTF-8 they claim to be, impossible offsets
    RuntimeError,
    struct.error,
    OverflowError,
)
"""What the standard library raises for archives that are damaged or made to deceive."""


class WheelError(TorchlockError):
    """The archive is not a wheel that can be installed as it stands."""


@dataclass(frozen=True, slots=True)
class WheelFile:
    """One member of a wheel and where it goes.

    `entry.path` is relative to the scheme's root; `entry.sha256` is what the wheel's RECORD
    claims (`None` where RECORD is silent), not yet checked against the contents; `member` is
    the name inside the archive.
    """

    scheme: Scheme
    entry: Entry
    member: str


@dataclass(frozen=True)
class Wheel:
    """An opened wheel: its name, version and files in archive order.

    Its entries read from the open archive until the wheel is closed; use it in a `with`.
    """

    path: Path
    name: str
    version: str
    dist_info: str
    files: tuple[WheelFile, ...]
    entry_points: tuple[tuple[str, str], ...]
    archive: zipfile.ZipFile = field(compare=False, repr=False)

    def __enter__(self) -> Wheel:
        return self

    def __exit__(self, *_: object) -> None:
        self.archive.close()

    def open(self, file: WheelFile) -> AbstractContextManager[IO[bytes]]:
        """Open one of its files; reading raises `WheelError` when it is damaged."""
        return _open_member(self.path, self.archive, file.member)

    def read_script(self, file: WheelFile) -> bytes:
        """Return one of its scripts. Raises `WheelError` when it is damaged or too large."""
        return _read(self.path, self.archive, file.member, SCRIPT_LIMIT)

    def tree(self) -> list[Entry]:
        """Return the files that make up the tree digest: `site` without installers' files."""
        return [f.entry for f in self.files if f.scheme == "site" and in_tree(f.entry.path)]


def in_tree(path: str) -> bool:
    """Say whether a path of site-packages counts for the tree digest.

    Byte code and installers' metadata do not: installers write them.
    """
    if path.endswith((".pyc", ".pyo")):
        return False
    top, _, rest = path.partition("/")
    return not (rest in INSTALLER_METADATA and top.endswith(".dist-info"))


def read_wheel(path: Path, file: IO[bytes] | None = None) -> Wheel:
    """Open a wheel and return its layout; contents are read only when an entry is opened.

    It is read from `file` where that is given, which stays open when the wheel is closed.
    Raises `WheelError` when the archive is damaged, encrypted, has unsafe or duplicate names,
    links, members no scheme explains, or no consistent `.dist-info`.
    """
    try:
        filename_name, filename_version, _, _ = parse_wheel_filename(path.name)
    except InvalidWheelFilename as error:
        raise WheelError(f"{path.name}: not a wheel's file name ({error})") from None
    archive = _open_archive(path, file)
    try:
        members = _checked_members(path, archive)
        dist_info = _dist_info(path, members, str(filename_name), str(filename_version))
        record = _record(path, archive, dist_info)
        data_dir = dist_info.removesuffix(".dist-info") + ".data/"
        files = tuple(
            _wheel_file(path, archive, info, record, data_dir) for info in members.values()
        )
        _check_targets(path, files)
        return Wheel(
            path=path,
            name=str(filename_name),
            version=str(filename_version),
            dist_info=dist_info,
            files=files,
            entry_points=_entry_points(path, archive, dist_info, members),
            archive=archive,
        )
    except BaseException:
        archive.close()
        raise


def _open_archive(path: Path, file: IO[bytes] | None) -> zipfile.ZipFile:
    try:
        return zipfile.ZipFile(file or path)
    except _DAMAGE as error:
        raise WheelError(f"{path.name}: damaged archive ({error})") from None


def _checked_members(path: Path, archive: zipfile.ZipFile) -> dict[str, zipfile.ZipInfo]:
    members: dict[str, zipfile.ZipInfo] = {}
    for info in archive.infolist():
        name = info.filename
        try:  # the name as it is stored: the standard library cuts it at a NUL
            safe_relative_path(info.orig_filename.removesuffix("/"))
        except TorchlockError as error:
            raise WheelError(f"{path.name}: {error.message}") from None
        if info.is_dir():
            continue
        if name in members:
            raise WheelError(f"{path.name}: {name} occurs twice in the archive")
        if info.flag_bits & 0x1:
            raise WheelError(f"{path.name}: {name} is encrypted")
        if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise WheelError(f"{path.name}: {name} is compressed in a way wheels cannot be")
        kind = stat.S_IFMT(info.external_attr >> 16)
        if kind == stat.S_IFLNK:
            raise WheelError(f"{path.name}: {name} is a symbolic link, which wheels cannot have")
        if kind not in (0, stat.S_IFREG):
            raise WheelError(f"{path.name}: {name} is not a regular file")
        members[name] = info
    return members


def _dist_info(path: Path, members: dict[str, zipfile.ZipInfo], name: str, version: str) -> str:
    found = {m.split("/", 1)[0] for m in members if m.split("/", 1)[0].endswith(".dist-info")}
    if len(found) != 1:
        raise WheelError(f"{path.name}: {len(found)} .dist-info directories, one is expected")
    dist_info = found.pop()
    stem_name, _, stem_version = dist_info.removesuffix(".dist-info").partition("-")
    if canonicalize_name(stem_name) != name or not _same_version(stem_version, version):
        raise WheelError(f"{path.name}: contains {dist_info}, another package or version")
    for required in ("METADATA", "WHEEL", "RECORD"):
        if f"{dist_info}/{required}" not in members:
            raise WheelError(f"{path.name}: {dist_info}/{required} is missing")
    return dist_info


def _same_version(left: str, right: str) -> bool:
    # Escaped file names write local versions with "_".
    return re.sub(r"[-_]", "+", left, count=1) == right or left == right


def _record(path: Path, archive: zipfile.ZipFile, dist_info: str) -> dict[str, str]:
    """Return member name -> sha256 hex for what RECORD gives a sha256."""
    claims: dict[str, str] = {}
    text = _read(path, archive, f"{dist_info}/RECORD").decode("utf-8", "replace")
    try:
        rows = list(csv.reader(io.StringIO(text)))
    except csv.Error as error:
        raise WheelError(f"{path.name}: unreadable RECORD ({error})") from None
    for row in rows:
        if len(row) >= 2 and row[1].startswith("sha256="):
            claims[row[0]] = _record_hash(path, row[1].removeprefix("sha256="))
    return claims


def _record_hash(path: Path, value: str) -> str:
    try:  # what base64.urlsafe_b64decode does, in less time
        padded = value.replace("-", "+").replace("_", "/") + "=" * (-len(value) % 4)
        raw = binascii.a2b_base64(padded)
    except ValueError:
        raw = b""
    if len(raw) != 32:
        raise WheelError(f"{path.name}: RECORD has a malformed hash {value!r}")
    return raw.hex()


def _entry_points(
    path: Path, archive: zipfile.ZipFile, dist_info: str, members: dict[str, zipfile.ZipInfo]
) -> tuple[tuple[str, str], ...]:
    """Return the scripts to generate: (name, "module:attribute"), sorted by name."""
    member = f"{dist_info}/entry_points.txt"
    if member not in members:
        return ()
    parser = ConfigParser(delimiters=("=",), interpolation=None, strict=False)
    parser.optionxform = str  # type: ignore[method-assign,assignment]
    try:
        parser.read_string(_read(path, archive, member).decode())
    except (ConfigError, ValueError, AttributeError) as error:  # the last for odd continuations
        raise WheelError(f"{path.name}: unreadable entry_points.txt ({error})") from None
    scripts = {
        name: target.split("[")[0].strip()
        for section in ("console_scripts", "gui_scripts")
        if parser.has_section(section)
        for name, target in parser.items(section)
    }
    for name, target in scripts.items():
        # Installers make a file of the name and Python code of the target.
        if not re.fullmatch(r"\.*[\w-][\w.-]*", name) or not re.fullmatch(r"[\w.]+:[\w.]+", target):
            raise WheelError(f"{path.name}: {name!r} = {target!r} is no entry point for a script")
    return tuple(sorted(scripts.items()))


def _wheel_file(
    path: Path,
    archive: zipfile.ZipFile,
    info: zipfile.ZipInfo,
    record: dict[str, str],
    data_dir: str,
) -> WheelFile:
    member = info.filename
    scheme: Scheme = "site"
    target = member
    if member.startswith(data_dir):
        _, key, target = member.split("/", 2) if member.count("/") >= 2 else (member, "", "")
        if key not in _DATA_SCHEMES:
            raise WheelError(f"{path.name}: {member} is in no known .data scheme")
        scheme = _DATA_SCHEMES[key]
    # Installers keep no other bit of the mode; scripts are always made executable.
    executable = bool(info.external_attr & _EXECUTABLE) or scheme == "scripts"
    entry = Entry(
        target,
        info.file_size,
        executable,
        record.get(member),
        opens=partial(_open_member, path, archive, member),
    )
    return WheelFile(scheme, entry, member)


def _check_targets(path: Path, files: Iterable[WheelFile]) -> None:
    """Raise `WheelError` when two members would be installed to one place, or one below another."""
    members: dict[str, str] = {}
    directories: set[str] = set()
    for file in files:
        place = f"{file.scheme}/{file.entry.path}"
        other = members.setdefault(place, file.member)
        if other != file.member:
            raise WheelError(f"{path.name}: {other} and {file.member} go to the same place")
        parent = place.rpartition("/")[0]
        while parent and parent not in directories:
            directories.add(parent)
            parent = parent.rpartition("/")[0]
    for place, member in members.items():
        if place in directories:
            raise WheelError(f"{path.name}: {member} is a file and a directory")


@contextmanager
def _open_member(path: Path, archive: zipfile.ZipFile, member: str) -> Iterator[IO[bytes]]:
    """Open a stream over one member; the standard library checks its CRC-32 at the end."""
    try:
        stream = archive.open(member)
    except _DAMAGE as error:
        raise WheelError(f"{path.name}: {member} cannot be read ({error})") from None
    with stream:
        try:
            yield stream
        except (zipfile.BadZipFile, zlib.error, EOFError) as error:
            raise WheelError(f"{path.name}: {member} cannot be read ({error})") from None


def _read(path: Path, archive: zipfile.ZipFile, member: str, limit: int = METADATA_LIMIT) -> bytes:
    """Return what a member holds, of an archive that need not be verified yet."""
    size = archive.getinfo(member).file_size  # the standard library returns no more than that
    if size > limit:
        raise WheelError(f"{path.name}: {member} claims {size} bytes, more than {limit}")
    with _open_member(path, archive, member) as stream:
        return stream.read()


def metadata_member(names: Iterable[str]) -> str:
    """Return the name of the METADATA member. Raises `WheelError` when there is not just one."""
    found = [n for n in names if n.count("/") == 1 and n.endswith(".dist-info/METADATA")]
    if len(found) != 1:
        raise WheelError(f"{len(found)} METADATA files in a wheel, one is expected")
    return found[0]


def hashed_files(wheel: Wheel) -> list[WheelFile]:
    """Return the wheel's files with `sha256` computed from the contents.

    Raises `WheelError` when the contents differ from what the archive or RECORD claims.
    """
    hashed = []
    for file in wheel.files:
        digest, size = hashlib.sha256(), 0
        with _open_member(wheel.path, wheel.archive, file.member) as stream:
            while chunk := stream.read(CHUNK):
                digest.update(chunk)
                size += len(chunk)
        if size != file.entry.size:
            raise WheelError(
                f"{wheel.path.name}: {file.member} has {size} bytes, "
                f"the archive announces {file.entry.size}"
            )
        actual = digest.hexdigest()
        if file.entry.sha256 not in (None, actual):
            raise WheelError(
                f"{wheel.path.name}: {file.member} has sha256 {actual}, "
                f"its RECORD says {file.entry.sha256}"
            )
        hashed.append(replace(file, entry=replace(file.entry, sha256=actual)))
    return hashed
