"""Byte code for the image, the same wherever it is made.

CPython's compiler changes between patch releases, so the byte code is made by the very
interpreter that the rootfs lock pins: its packages are unpacked into a scratch directory and
started through their own loader, without root. Files are hash-based and unchecked (PEP 552),
and serialized with marshal version 2, which has no back references: those depend on reference
counts in the process that writes them.
"""

from __future__ import annotations

import os
import struct
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, cast

from torchlock.errors import TorchlockError
from torchlock.formats.deb import read_deb
from torchlock.lock import PYTHON_VERSION
from torchlock.oci.layer import Item, file_item
from torchlock.rootfs.convert import merged
from torchlock.rootfs.lock import DebPackage, RootfsLock

PACKAGES = ("libc6", "libexpat1", "libpython3.11-minimal", "python3.11-minimal", "zlib1g")
"""What the compiler consists of."""

TMPDIR = "name a directory that has room and may hold programs: TMPDIR=DIR invoke image"
"""What to do when the temporary directory is full, read-only or mounted noexec."""

_LIBRARIES = "usr/lib/x86_64-linux-gnu"

_WORKER = """
import _imp, importlib.util, marshal, struct, sys
read, write = sys.stdin.buffer, sys.stdout.buffer
magic = importlib.util.MAGIC_NUMBER
key = int.from_bytes(magic[:2] + b"\\r\\n", "little")
while header := read.read(8):
    name_length, length = struct.unpack("<II", header)
    name = read.read(name_length).decode()
    source = read.read(length)
    try:
        code = compile(source, name, "exec", dont_inherit=True, optimize=0)
        made = magic + struct.pack("<I", 1) + _imp.source_hash(key, source) + marshal.dumps(code, 2)
    except (SyntaxError, ValueError, RecursionError):
        made = b""
    write.write(struct.pack("<I", len(made)) + made)
    write.flush()
"""


class BytecodeError(TorchlockError):
    """The pinned compiler cannot be run here."""


def compiler_packages(rootfs: RootfsLock) -> tuple[DebPackage, ...]:
    """Return the locked packages that the compiler consists of.

    Raises `BytecodeError` when the lock lacks one.
    """
    found = {p.name: p for p in rootfs.packages}
    missing = [name for name in PACKAGES if name not in found]
    if missing:
        raise BytecodeError(
            f"the rootfs lock has no {', '.join(missing)}", hint="invoke lock --rootfs"
        )
    return tuple(found[name] for name in PACKAGES)


def unpack_compiler(debs: Iterable[Path], directory: Path) -> None:
    """Unpack the compiler's packages below `directory`.

    Raises `BytecodeError` where its programs cannot run, or the directory takes no more.
    """
    if sys.platform != "linux" or os.uname().machine != "x86_64":
        raise BytecodeError(
            "the image's byte code is made by the image's own interpreter, "
            "which needs Linux on x86-64",
            hint="render the image once on such a machine; its layers can then be copied here",
        )
    try:
        _unpack(debs, directory)
    except OSError as error:
        raise BytecodeError(
            f"the image's interpreter cannot be unpacked into {directory}: {error.strerror}",
            hint=TMPDIR,
        ) from None


def _unpack(debs: Iterable[Path], directory: Path) -> None:
    for deb in debs:
        for file in read_deb(deb).files():
            path = directory / merged(file.path)
            if file.kind == "directory" or file.path.startswith("usr/share/doc"):
                continue
            path.parent.mkdir(parents=True, exist_ok=True)
            if file.kind == "symlink":
                path.symlink_to(file.target)
            elif file.kind == "file":
                path.write_bytes(file.read())
                path.chmod(0o755 if file.mode & 0o111 else 0o644)


@contextmanager
def _running(root: Path) -> Iterator[subprocess.Popen[bytes]]:
    libraries = root / _LIBRARIES
    command = [
        str(libraries / "ld-linux-x86-64.so.2"), "--library-path", str(libraries),
        str(root / f"usr/bin/python{PYTHON_VERSION}"), "-S", "-s", "-B", "-c", _WORKER,
    ]  # fmt: skip
    environment = {"PYTHONHOME": str(root / "usr"), "PYTHONHASHSEED": "0", "LC_ALL": "C.UTF-8"}
    try:
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
        )
    except OSError as error:
        raise BytecodeError(
            f"the image's interpreter cannot be started from {root}: {error.strerror}", hint=TMPDIR
        ) from None
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def compiled(root: Path, sources: Iterable[tuple[str, bytes]]) -> Iterator[Item]:
    """Yield the byte code of sources, given as (path in the image, contents), in their order.

    A source that does not compile has none, as with installers. `root` holds the unpacked
    compiler. Raises `BytecodeError` when the compiler fails.
    """
    with _running(root) as process:
        requests, answers = cast(IO[bytes], process.stdin), cast(IO[bytes], process.stdout)
        for path, source in sources:
            made = _compile(requests, answers, path, source)
            if made:
                yield file_item(cached(path), made)


def _compile(requests: IO[bytes], answers: IO[bytes], path: str, source: bytes) -> bytes:
    name = f"/{path}".encode()
    with suppress(BrokenPipeError):  # then there is no answer either
        requests.write(struct.pack("<II", len(name), len(source)) + name + source)
        requests.flush()
    header = answers.read(4)
    if len(header) != 4:
        raise BytecodeError(
            "the pinned interpreter that makes the byte code ended early",
            hint=f"check that this machine can run Linux x86-64 programs; or {TMPDIR}",
        )
    return answers.read(int.from_bytes(header, "little"))


def cached(path: str) -> str:
    """Return where the byte code of a source is kept (PEP 3147)."""
    directory, _, name = path.rpartition("/")
    tag = PYTHON_VERSION.replace(".", "")
    return f"{directory}/__pycache__/{name.removesuffix('.py')}.cpython-{tag}.pyc"
