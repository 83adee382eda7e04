"""A wheel as entries of an image layer: its own DEFLATE streams, and what installers write.

Layout and the files an installer adds: the "Binary distribution format" and "Recording installed
projects" specifications of the Python packaging user guide.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import io
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager

from torchlock import findings
from torchlock.formats.wheel import INSTALLER_METADATA, Scheme, Wheel, WheelFile, read_wheel
from torchlock.formats.zipstream import RawMember, raw_members
from torchlock.lock import PYTHON_VERSION
from torchlock.oci.layer import Item, LayerError, Stream, file_item, stream_item
from torchlock.oci.tarball import Member
from torchlock.onepass import OnePass

PREFIX = "opt/torchlock"
"""Where the stack lives in the image, whatever the foundation."""

SITE = f"{PREFIX}/{findings.SITE}"

INTERPRETER = f"/{PREFIX}/bin/python{PYTHON_VERSION}"

_TO_PREFIX = "../../../"
"""From site-packages to the prefix, as RECORD writes paths."""

Opening = AbstractContextManager[OnePass]
"""A wheel that is opened when its turn comes, and closed after it."""

_SCRIPT = """#!{interpreter}
import sys
from {module} import {name}
if __name__ == "__main__":
    sys.exit({attribute}())
"""


def wheels_items(wheels: Iterable[Opening]) -> Iterator[Item]:
    """Yield the entries of several wheels for one layer, in their order.

    A file that two of them carry with the same size and CRC-32 is written once. Raises
    `LayerError` when they disagree, `WheelError` or `ZipStreamError` for a bad archive.
    """
    seen: dict[str, tuple[Member, object, str]] = {}
    for wheel in wheels:
        with wheel as opened:
            name = opened.path.name
            for item in wheel_items(opened):
                contents = item.contents
                identity = contents.crc32 if isinstance(contents, Stream) else contents
                this = item.member, identity, name
                known = seen.setdefault(item.member.path, this)
                if known is this or known == this:
                    yield item
                elif known[:2] != this[:2]:
                    raise LayerError(f"{known[2]} and {name} disagree about {item.member.path}")


def wheel_items(opened: OnePass) -> Iterator[Item]:
    """Yield the entries that an installed wheel consists of, in archive order.

    The streams of one are to be read before the next is asked for.
    """
    with read_wheel(opened.path, opened.file) as wheel:
        members = raw_members(opened.path, wheel.archive, opened.read)
        roots = _roots(wheel)
        record: list[tuple[str, str, str]] = []
        for file, member in zip(wheel.files, members, strict=True):
            if _written_by_installers(file, wheel.dist_info):
                continue
            where = f"{roots[file.scheme]}/{file.entry.path}"
            item = _item(opened, wheel, file, where, member)
            record.append(_row(wheel, file, item))
            yield item
        yield from _installed(wheel, record)


def _roots(wheel: Wheel) -> dict[Scheme, str]:
    """Return where the files of each scheme go."""
    return {
        "site": SITE,
        "scripts": f"{PREFIX}/bin",
        "data": PREFIX,
        "headers": f"{PREFIX}/include/site/python{PYTHON_VERSION}/{wheel.name}",
    }


def _written_by_installers(file: WheelFile, dist_info: str) -> bool:
    if file.scheme != "site" or not file.entry.path.startswith(dist_info):
        return False
    directory, _, name = file.entry.path.rpartition("/")
    return directory == dist_info and name in INSTALLER_METADATA


def _item(opened: OnePass, wheel: Wheel, file: WheelFile, where: str, raw: RawMember) -> Item:
    mode = 0o755 if file.entry.executable else 0o644
    if file.scheme == "scripts":
        return file_item(where, _with_interpreter(wheel.read_script(file)), mode)
    if raw.size == 0:
        return file_item(where, b"", mode)
    stream = Stream(opened, raw.offset, raw.length, raw.size, raw.crc32, raw.name, raw.deflated)
    return stream_item(where, stream, mode)


def _with_interpreter(script: bytes) -> bytes:
    """Point a script's `#!python` at the image's interpreter, as installers have to."""
    first, newline, rest = script.partition(b"\n")
    if first.startswith(b"#!python"):
        return b"#!" + INTERPRETER.encode() + newline + rest
    return script


def _row(wheel: Wheel, file: WheelFile, item: Item) -> tuple[str, str, str]:
    contents = item.contents
    if isinstance(contents, bytes):
        digest, size = hashlib.sha256(contents).digest(), len(contents)
    else:
        digest = bytes.fromhex(file.entry.sha256) if file.entry.sha256 else _hashed(wheel, file)
        size = item.member.size
    return _record_path(item.member.path), _encoded(digest), str(size)


def _hashed(wheel: Wheel, file: WheelFile) -> bytes:
    digest = hashlib.sha256()
    with wheel.open(file) as stream:
        while chunk := stream.read(1 << 20):
            digest.update(chunk)
    return digest.digest()


def _encoded(digest: bytes) -> str:
    return "sha256=" + base64.urlsafe_b64encode(digest).decode().rstrip("=")


def _record_path(path: str) -> str:
    if path.startswith(SITE + "/"):
        return path[len(SITE) + 1 :]
    return _TO_PREFIX + path[len(PREFIX) + 1 :]


def _installed(wheel: Wheel, record: list[tuple[str, str, str]]) -> Iterator[Item]:
    """Yield entry-point scripts, INSTALLER and RECORD."""
    dist_info = f"{SITE}/{wheel.dist_info}"
    written = [
        *(
            file_item(f"{PREFIX}/bin/{name}", _script(target), 0o755)
            for name, target in wheel.entry_points
        ),
        file_item(f"{dist_info}/INSTALLER", b"torchlock\n"),
    ]
    shipped = {row[0] for row in record}
    for item in written:
        path = _record_path(item.member.path)
        if path in shipped:  # a wheel that ships a script under an entry point's name keeps it
            continue
        contents = item.contents
        if isinstance(contents, bytes):
            digest = _encoded(hashlib.sha256(contents).digest())
            record.append((path, digest, str(len(contents))))
        yield item
    record.append((f"{wheel.dist_info}/RECORD", "", ""))
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(sorted(record))
    yield file_item(f"{dist_info}/RECORD", text.getvalue().encode())


def _script(target: str) -> bytes:
    module, _, attribute = target.partition(":")
    return _SCRIPT.format(
        interpreter=INTERPRETER,
        module=module.strip(),
        name=attribute.split(".")[0].strip(),
        attribute=attribute.strip(),
    ).encode()
