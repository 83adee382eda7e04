"""Faults a user can meet, each with what to do next.

Every foreseeable fault is raised as a `TorchlockError`; `tasks.py` prints it without a
traceback and exits with its code (see "Exit codes" in docs/design.md).
"""

from __future__ import annotations

HOLDS = 0
DOES_NOT_HOLD = 1
NOT_JUDGED = 2


class TorchlockError(Exception):
    """A fault that names the thing, the evidence and the next command.

    `message` is one sentence that names the thing and the evidence; `hint` is what to type
    or change next, or empty; `code` is the exit code the fault leads to.
    """

    code = NOT_JUDGED

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}\n  next: {self.hint}" if self.hint else self.message


class DoesNotHold(TorchlockError):  # noqa: N818 - it reads as the verdict it is
    """Something was judged, and it is not what the lock or a record says."""

    code = DOES_NOT_HOLD
