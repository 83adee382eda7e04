"""`invoke validate` from inside an environment that holds the stack and nothing of the tool.

For the image (`python -m torchlock.selfcheck`) and for Nix; arguments are those of `python -m
validation`. Imports what the standard library and the locked wheels offer. Lock and recorded
trees are those that lie beside this package: whoever can change the environment can change them
too, so what vouches for them is the image's manifest digest, or the store path.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import validation.__main__
from torchlock.conda_meta import CondaFiles, compare_conda_files
from torchlock.errors import NOT_JUDGED, TorchlockError
from torchlock.findings import SITE, Finding, find_site
from torchlock.inside import files_context, run_inside
from torchlock.lock import Lock, read_lock
from torchlock.records import Records, check_records, read_records
from torchlock.repository import Repository, this_repository
from torchlock.verify import verify

PLATFORM = "linux-64"
INTERRUPTED = 130


@dataclass(frozen=True)
class Environment:
    """Where the stack is and what carries it.

    `compiler` is the interpreter that made the byte code, where that is known: it is then
    compared with what its source compiles to, and elsewhere judged by its header.
    """

    prefix: Path
    foundation: str
    compiler: Path | None = None


def image_environment() -> Environment:
    """Return the environment of the running Python in an image: its byte code was made by it."""
    prefix = Path(sys.prefix)
    foundation = "conda" if (prefix / "conda-meta").is_dir() else "debian"
    return Environment(prefix, foundation, Path(sys.executable))


def run(environment: Environment, arguments: Sequence[str]) -> int:
    """Judge lock and files, then run `validation`; return its exit code."""
    validation.__main__.parser().parse_args(arguments)  # before minutes are spent
    repository = this_repository()
    try:
        told, findings = context(repository, environment)
        for finding in findings[:10]:
            _say(f"  {finding.kind}: {finding.path}: {finding.detail}")
        return run_inside(Path(sys.executable), repository.root, told, arguments)
    except KeyboardInterrupt:
        _say("interrupted; nothing was judged")
        return INTERRUPTED
    except TorchlockError as error:
        _say(f"error: {error}")
        return error.code
    except OSError as error:
        _say(f"error: {error.filename or 'validation'}: {error.strerror or error}")
        return NOT_JUDGED


def context(
    repository: Repository, environment: Environment
) -> tuple[dict[str, Any], tuple[Finding, ...]]:
    """Return what `validation` is told of lock and files, and what is wrong with the files.

    Raises `TorchlockError` when the recorded trees are not those of the lock.
    """
    lock = read_lock(repository.lock)
    records = read_records(repository.records, PLATFORM)
    check_records(records, lock.wheels(PLATFORM))
    _say(f"checking the files of {environment.prefix}")
    conda = _conda_files(environment, lock, records)
    verdict = verify(
        find_site(environment.prefix),
        records,
        explained=lambda path: f"{SITE}/{path}" in conda.listed,
        python=environment.compiler,
    )
    findings = (*verdict.findings, *conda.findings)
    compared = f"{conda.compared} files of {conda.packages} conda packages"
    files = files_context(
        verdict,
        records,
        findings,
        compiled=environment.compiler is not None,
        more=f"; {compared} are as conda-meta says" if conda.packages else "",
    )
    told = {
        "lock": _lock_part(lock),
        "files": files,
        "foundation": environment.foundation,
    }
    return told, findings


def _conda_files(environment: Environment, lock: Lock, records: Records) -> CondaFiles:
    """Compare the conda half where it carries the stack; elsewhere there is none."""
    wheels = records.wheels.values()
    return compare_conda_files(
        environment.prefix,
        lock.conda_packages(PLATFORM) if environment.foundation == "conda" else (),
        {w.name for w in wheels},
        {f"{SITE}/{f.path}" for w in wheels for f in w.files if f.scheme == "site"},
    )


def _lock_part(lock: Lock) -> dict[str, str]:
    evidence = f"{lock.digest}; the recorded trees are those of its wheels"
    return {"digest": lock.digest, "verdict": "holds", "evidence": evidence}


def _say(message: str) -> None:
    print(message, file=sys.stderr, flush=True)  # noqa: T201


if __name__ == "__main__":
    sys.exit(run(image_environment(), sys.argv[1:]))
