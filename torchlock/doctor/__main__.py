"""`python -m torchlock.doctor`: why CUDA is unavailable, and what to type."""

from __future__ import annotations

import argparse
import contextlib
import getpass
import json
import os
import socket
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

from torchlock.doctor import loose, report
from torchlock.doctor.diagnosis import EXIT_CODES, judge
from torchlock.doctor.evidence import SCHEMA, Evidence, from_json
from torchlock.doctor.probes import gather
from torchlock.doctor.probes.machine import Machine
from torchlock.doctor.redact import redact
from torchlock.errors import NOT_JUDGED, TorchlockError

_EVIDENCE_LIMIT = 64 * 2**20


def read_evidence(path: str) -> Evidence:
    """Evidence from a file (`-` is standard input): what --save wrote, or the loose form.

    Raises TorchlockError where it cannot be read or is not a JSON object.
    """
    try:
        with contextlib.ExitStack() as stack:
            file = sys.stdin.buffer if path == "-" else stack.enter_context(Path(path).open("rb"))
            data = file.read(_EVIDENCE_LIMIT + 1)
    except (OSError, ValueError) as error:
        raise TorchlockError(f"cannot read the evidence {path}: {_reason(error)}") from error
    if len(data) > _EVIDENCE_LIMIT:
        raise TorchlockError(f"the evidence {path} is larger than 64 MB")
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise TorchlockError(
            f"the evidence {path} is not JSON: {error}",
            hint="for a mere error message: python -m torchlock.doctor --error 'TEXT'",
        ) from error
    if not isinstance(value, dict):
        raise TorchlockError(f"the evidence {path} is not a JSON object")
    if value.get("schema") == SCHEMA:
        return from_json(value)
    inner = value.get("evidence")
    return loose.read(inner if isinstance(inner, dict) else value)


def write(path: str, text: str) -> None:
    """Writes a file under its name only when complete; `-` is standard output.

    Raises TorchlockError where it cannot be written.
    """
    if path == "-":
        say(text + "\n")
        return
    target, data = Path(path), (text + "\n").encode(errors="backslashreplace")
    try:
        if target.exists() and not target.is_file():  # a device or a pipe: nothing to replace
            target.write_bytes(data)
        else:
            _replace(target.resolve(), data)
    except (OSError, ValueError, RuntimeError) as error:
        raise TorchlockError(f"cannot write {path}: {_reason(error)}") from error


def _replace(target: Path, data: bytes) -> None:
    """Puts a whole file in the place of `target`; leaves nothing behind where that fails."""
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=".doctor-")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        Path(name).replace(target)
    except BaseException:
        with contextlib.suppress(OSError):
            Path(name).unlink()
        raise


def _reason(error: Exception) -> str:
    return (isinstance(error, OSError) and error.strerror) or str(error)


def printable(text: str, stream: TextIO) -> str:
    """`text` with what the stream's encoding lacks, and undecodable bytes, as `\\x` escapes."""
    encoding = stream.encoding or "utf-8"
    return text.encode(encoding, "backslashreplace").decode(encoding)


def say(text: str) -> None:
    """Writes to standard output.

    Raises TorchlockError where it cannot be written (a full disk, a closed pipe).
    """
    try:
        sys.stdout.write(printable(text, sys.stdout))
        sys.stdout.flush()
    except OSError as error:
        # else the interpreter would try the same text again as it ends
        with contextlib.suppress(OSError, ValueError), Path(os.devnull).open("w") as null:
            os.dup2(null.fileno(), sys.stdout.fileno())
        raise TorchlockError(f"cannot write standard output: {_reason(error)}") from error


def _complain(text: str) -> None:
    with contextlib.suppress(OSError):
        sys.stderr.write(printable(f"doctor: {text}\n", sys.stderr))


def _names() -> tuple[list[str], list[str]]:
    """The host and user names of this machine, to be replaced."""
    users = []
    with contextlib.suppress(OSError, KeyError):
        users = [getpass.getuser()]
    return [socket.gethostname()], users


def diagnose(options: argparse.Namespace) -> int:
    """Gathers or reads evidence, judges it and reports; the exit code."""
    if options.error is not None:
        evidence = loose.read({"error": options.error})
    elif options.evidence is not None:
        evidence = read_evidence(options.evidence)
    else:
        evidence = gather(Machine(python=options.python), everything=options.save is not None)
    if options.save is not None:
        write(options.save, redact(evidence, *_names()).to_json())
    diagnosis = judge(evidence)
    if options.json != "-" and options.save != "-":
        say(report.to_text(diagnosis))
    if options.json is not None:
        write(options.json, report.to_json(diagnosis))
    return EXIT_CODES[diagnosis.status]


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(
        prog="doctor",
        description="Says why CUDA is unavailable to PyTorch, and what to type. "
        "Exit: 0 healthy, 1 findings, 2 could not be judged.",
    )
    source = made.add_mutually_exclusive_group()
    source.add_argument(
        "--evidence", metavar="FILE", help="judge evidence gathered elsewhere (- is standard input)"
    )
    source.add_argument("--error", metavar="TEXT", help="judge an error message alone")
    made.add_argument(
        "--save", metavar="FILE", help="save the evidence, without names and addresses"
    )
    made.add_argument(
        "--json", metavar="FILE", help="write the findings as JSON (- is standard output)"
    )
    made.add_argument(
        "--python",
        metavar="PATH",
        default=sys.executable,
        help="the Python whose torch is looked at",
    )
    return made


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the doctor; returns the exit code."""
    try:
        return diagnose(parser().parse_args(argv))
    except TorchlockError as error:
        _complain(str(error))
        return error.code
    except KeyboardInterrupt:
        _complain("interrupted")
        return NOT_JUDGED


if __name__ == "__main__":
    sys.exit(main())
