"""`invoke validate`: the lock, the files, then the numbers, and one certificate of all three."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torchlock.check import Check, check_lock
from torchlock.errors import TorchlockError
from torchlock.lock import read_lock
from torchlock.realize.interpreter import host_platform
from torchlock.realize.marker import NAME as MARKER
from torchlock.realize.marker import read_marker
from torchlock.records import Records, read_records
from torchlock.report import describe
from torchlock.repository import Repository
from torchlock.verify import Verdict, find_site, verify


@dataclass(frozen=True)
class Realization:
    """A place where the lock has been made real, and what carries the stack there."""

    prefix: Path
    foundation: str

    @property
    def python(self) -> Path:
        """The interpreter inside."""
        return self.prefix / "bin" / "python"


def find_realization(prefix: Path | None) -> Realization | None:
    """Return the realization at `prefix`, or the one this runs in, or None.

    Raises `TorchlockError` when `prefix` is given and holds none.
    """
    if prefix is None:
        here = Path(sys.prefix)
        return _realization(here) if (here / MARKER).is_file() else None
    find_site(prefix)
    return _realization(prefix)


def _realization(prefix: Path) -> Realization:
    if (prefix / MARKER).is_file():
        marker = read_marker(prefix)
        if marker:
            return Realization(prefix, marker.foundation)
    if (prefix / "conda-meta").is_dir():
        return Realization(prefix, "conda")
    return Realization(prefix, "nix" if prefix.is_relative_to("/nix/store") else "venv")


def validate(
    repository: Repository,
    realization: Realization,
    arguments: Sequence[str],
    *,
    say: Callable[[str], None],
) -> int:
    """Judge lock and files, run `validation` inside the realization, return its exit code.

    `arguments` are handed on to `python -m validation`, which prints the table of everything
    and writes the certificate.
    """
    faults = [check for check in check_lock(repository) if check.fault]
    for fault in faults:
        say(f"{fault.name}: {fault.fault}\n  next: {fault.hint}")
    records = read_records(repository.records, host_platform())
    site = find_site(realization.prefix)
    say(f"checking the files of {realization.prefix}")
    verdict = verify(site, records)
    if not verdict.holds:
        say(f"{realization.prefix} is not what the lock says:\n{describe(verdict.findings)}")
        say(f"  next: invoke env --prefix {realization.prefix}")
    context = {
        "lock": _lock_context(repository, faults),
        "files": _files_context(verdict, records),
        "foundation": realization.foundation,
    }
    return _run_inside(repository, realization, context, arguments)


def _lock_context(repository: Repository, faults: Sequence[Check]) -> dict[str, str]:
    return {
        "digest": read_lock(repository.lock).digest,
        "verdict": "does not hold" if faults else "holds",
        "evidence": "; ".join(fault.fault for fault in faults),
    }


def _files_context(verdict: Verdict, records: Records) -> dict[str, Any]:
    found = verdict.findings
    first = f"{found[0].kind}: {found[0].path}" if found else ""
    return {
        "verdict": "holds" if verdict.holds else "does not hold",
        "tree": verdict.tree,
        "wheels": dict(verdict.trees),
        "evidence": f"{len(found)} findings, the first: {first}"
        if found
        else f"{verdict.files} files of {len(records.wheels)} wheels, "
        f"{verdict.bytes / 1e9:.2f} GB, tree {verdict.tree}; {verdict.bytecode} byte code files "
        "match their source by header",
    }


def _run_inside(
    repository: Repository,
    realization: Realization,
    context: dict[str, Any],
    arguments: Sequence[str],
) -> int:
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "PIP_"))}
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch, "context.json")
        path.write_text(json.dumps(context))
        command = [
            str(realization.python), "-B", str(repository.root / "validation"),
            "--context", str(path), *arguments,
        ]  # fmt: skip
        try:
            return subprocess.run(command, env=environment, check=False).returncode
        except OSError as error:
            raise TorchlockError(
                f"{realization.python} cannot be started: {error.strerror}",
                hint=f"invoke env --prefix {realization.prefix}",
            ) from None
