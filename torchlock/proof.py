"""`invoke validate`: the lock, the files, then the numbers, and one certificate of all three."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from shlex import quote
from typing import Any

from torchlock.artifacts import ArtifactError, default_store
from torchlock.check import Check, check_lock
from torchlock.errors import TorchlockError
from torchlock.expected_gpu import cuda_is_expected, why_absent
from torchlock.findings import SITE, Finding, find_site
from torchlock.inside import files_context, run_inside
from torchlock.lock import Lock, read_lock
from torchlock.realize.foundation import judge_foundation
from torchlock.realize.interpreter import host_platform
from torchlock.realize.marker import NAME as MARKER
from torchlock.realize.marker import read_marker
from torchlock.records import Records, read_records
from torchlock.report import describe
from torchlock.repository import Repository
from torchlock.verify import verify
from torchlock.verify_conda import CondaVerdict

_STORE_NAME = re.compile(r"[0-9a-df-np-sv-z]{32}-.+")
"""How a path in a Nix store is named, wherever the store lies: hash in Nix's base 32, name."""


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
    """Return the realization at `prefix`, or the one that is active here, or None.

    Active is what this Python belongs to, or what VIRTUAL_ENV or CONDA_PREFIX name, if torchlock,
    conda-lock or Nix made it.

    Raises `TorchlockError` when `prefix` is given and holds none.
    """
    if prefix is None:
        named = (os.environ.get(name, "") for name in ("VIRTUAL_ENV", "CONDA_PREFIX"))
        for here in (Path(sys.prefix), *(Path(name) for name in named if name)):
            if (here / MARKER).is_file() or _holds_torch(here):
                return _realization(here)
        return None
    try:
        find_site(prefix)
    except TorchlockError as error:
        if not _in_nix_store(prefix):
            raise
        hint = "invoke validate --prefix $(nix build --no-link --print-out-paths)"
        raise TorchlockError(error.message, hint=hint) from None
    return _realization(prefix)


def _holds_torch(prefix: Path) -> bool:
    """Whether a prefix that conda or Nix made carries a torch to be judged."""
    site_packages = prefix / SITE
    foreign = (prefix / "conda-meta").is_dir() or _in_nix_store(prefix)
    return foreign and (site_packages / "torch").is_dir()


def _in_nix_store(prefix: Path) -> bool:
    parts = Path(os.path.realpath(prefix)).parts  # a loop of links is no fault
    return any(above == "store" and _STORE_NAME.fullmatch(part) for above, part in pairwise(parts))


def _realization(prefix: Path) -> Realization:
    if (prefix / MARKER).is_file():
        marker = read_marker(prefix)
        if marker:
            return Realization(prefix, marker.foundation)
    if (prefix / "conda-meta").is_dir():
        return Realization(prefix, "conda")
    return Realization(prefix, "nix" if _in_nix_store(prefix) else "venv")


def validate(
    repository: Repository,
    realization: Realization,
    arguments: Sequence[str],
    *,
    device: str = "auto",
    say: Callable[[str], None],
) -> int:
    """Judge lock and files, run `validation` inside the realization, return its exit code.

    `arguments` are handed on to `python -m validation`, which prints the table of everything
    and writes the certificate. Where CUDA is expected on `device` and absent, the doctor is
    asked why, and its first finding goes into the certificate.
    """
    faults = [check for check in check_lock(repository) if check.fault]
    for fault in faults:
        say(f"{fault.name}: {fault.fault}\n  next: {fault.hint}")
    records = read_records(repository.records, host_platform())
    say(f"checking the files of {realization.prefix}")
    lock = read_lock(repository.lock)
    judged = _judge_files(lock, realization, records)
    if judged.findings:
        say(f"{realization.prefix} is not what the lock says:\n{describe(judged.findings)}")
        say(f"  next: {_repair(realization)}")
    context = {
        "lock": _lock_context(lock, faults),
        "files": judged.context,
        "foundation": realization.foundation,
        "doctor": _ask_doctor(realization, device, say),
    }
    return _run_inside(repository, realization, context, ["--device", device, *arguments])


def _ask_doctor(
    realization: Realization, device: str, say: Callable[[str], None]
) -> dict[str, Any] | None:
    if device == "cpu" or not cuda_is_expected(device):
        return None
    answer = why_absent(realization.python)
    if answer:
        finding = answer["finding"]
        said = f"{finding['cause']} ({finding['certainty']})" if finding else "nothing known fits"
        say(f"CUDA is expected and absent: {said}\n  next: invoke doctor")
    return answer


def _lock_context(lock: Lock, faults: Sequence[Check]) -> dict[str, str]:
    return {
        "digest": lock.digest,
        "verdict": "does not hold" if faults else "holds",
        "evidence": "; ".join(fault.fault for fault in faults),
    }


@dataclass(frozen=True)
class _Files:
    """What was found wrong with the files, and what the certificate says of them."""

    findings: tuple[Finding, ...]
    context: dict[str, Any]


def _judge_files(lock: Lock, realization: Realization, records: Records) -> _Files:
    """Judge the stack's files and, in a conda prefix, those of the conda half as well."""
    conda, unjudged = None, ""
    if realization.foundation == "conda":
        conda, unjudged = _judge_conda(lock, realization, records)
        if conda and conda.scripted:
            unjudged = (
                f"{len(conda.scripted)} files that link scripts wrote, which no lock can prove, "
                f"the first: {conda.scripted[0]}"
            )
    # Elsewhere byte code may come from another patch release, whose code differs in places; and
    # a Python that is not what the lock says is not asked.
    asked = conda.sound if conda else realization.foundation == "venv"
    python = realization.python if asked else None
    verdict = verify(
        find_site(realization.prefix),
        records,
        explained=conda.explains if conda else lambda _: bool(unjudged),
        python=python,
    )
    findings = (*(conda.findings if conda else ()), *verdict.findings)
    compared = f"; {conda.files} files of {conda.packages} conda packages" if conda else ""
    told = files_context(
        verdict,
        records,
        findings,
        compiled=python is not None,
        unjudged=unjudged,
        more=compared,
    )
    return _Files(findings, told)


def _judge_conda(
    lock: Lock, realization: Realization, records: Records
) -> tuple[CondaVerdict | None, str]:
    """Return the verdict on the conda half, or None and why it could not be judged."""
    prefix = realization.prefix
    try:
        marker = read_marker(prefix) if (prefix / MARKER).is_file() else None
        verdict = judge_foundation(
            lock,
            host_platform(),
            prefix,
            records,
            default_store(),
            written=marker.written if marker else {},
            python=realization.python,
        )
        return verdict, ""
    except ArtifactError as error:
        return None, f"the conda packages to compare with are not to be had: {error.message}"


def _repair(realization: Realization) -> str:
    """What to type when files differ: `invoke env` puts right only what it made."""
    if (realization.prefix / MARKER).is_file():
        return f"invoke env --prefix {quote(str(realization.prefix))}"
    if realization.foundation == "nix":
        return f"nix store repair --recursive {quote(str(realization.prefix.resolve()))}"
    return "make it again with what made it, or one that can be repaired: invoke env --prefix DIR"


def _run_inside(
    repository: Repository,
    realization: Realization,
    context: dict[str, Any],
    arguments: Sequence[str],
) -> int:
    try:
        return run_inside(realization.python, repository.root, context, arguments)
    except OSError as error:
        raise TorchlockError(
            f"{realization.python} cannot be started: {error.strerror}",
            hint=f"invoke env --prefix {quote(str(realization.prefix))}",
        ) from None
