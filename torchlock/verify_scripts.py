"""The programs in `bin`: those that wheels carry, and those made for their entry points."""

from __future__ import annotations

import contextlib
import stat
from collections import defaultdict
from collections.abc import Iterator, Sequence
from hashlib import sha256
from pathlib import Path

from torchlock.console import interpreter, script_fault
from torchlock.findings import Finding, Kind, Site, set_id_fault
from torchlock.records import Records


def wheel_script_fault(site: Site, name: str, digest: str) -> tuple[Kind, str] | None:
    """Compare the script at path `name` with the sha256 that it has in its wheel.

    Installers rewrite its first line when that is `#!python`. Raises `OSError`.
    """
    path = Path(name)
    contents = path.read_bytes()
    if sha256(contents).hexdigest() == digest:
        return None
    first, newline, rest = contents.partition(b"\n")
    # A long or odd interpreter path makes installers write a /bin/sh line and two more.
    if first == b"#!/bin/sh" and rest.startswith(b"'''exec' "):
        rest = rest.split(b"\n", 2)[2] if rest.count(b"\n") >= 2 else b""
    if first.startswith(b"#!") and any(
        sha256(original + newline + rest).hexdigest() == digest
        for original in (b"#!python", b"#!pythonw", b"#!python\r")
    ):
        return _program_fault(site, path, contents.decode("utf-8", "replace"))
    return "changed", "the script is not the wheel's, its first line apart"


def console_scripts(site: Site, records: Records) -> Iterator[Finding]:
    """Yield a finding for each generated script that does not run its entry point."""
    owners: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for wheel in records.wheels.values():
        for name, target in wheel.scripts:
            owners[name].append((wheel.name, target))
    for name, claims in sorted(owners.items()):
        path = site.root("scripts", "") / name
        fault = _console_fault(site, path, [target for _, target in claims])
        if fault:
            yield Finding(fault[0], claims[-1][0], site.shown(path), fault[1])


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
