"""What installing again puts right in a prefix, and what is somebody else's to put right."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from torchlock.errors import DoesNotHold
from torchlock.findings import Finding
from torchlock.report import describe

_REPAIRABLE = frozenset({"missing", "changed", "mode", "not a file", "unreadable", "version"})
"""Findings that installing their package again removes; the others are files of somebody else."""


def damaged_packages(findings: Sequence[Finding]) -> set[str]:
    """Return the packages that installing again would put right.

    A file that is no package's, such as one that a link script left, cannot be.
    """
    return {f.package for f in findings if f.kind in _REPAIRABLE and f.package}


def does_not_hold(prefix: Path, findings: Sequence[Finding]) -> DoesNotHold:
    """Return the error for findings that remain, with what there is to be done."""
    if all(f.package and f.kind in _REPAIRABLE - {"version"} for f in findings):
        hint = "something changes the files while they are installed; look for what does"
    else:
        hint = (
            "torchlock removes nothing that it did not install; if these files are not yours, "
            f"remove them (the paths are below {prefix}) and run the command again"
        )
    return DoesNotHold(f"{prefix} is not what the lock says:\n{describe(findings)}", hint=hint)
