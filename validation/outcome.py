"""What a check says, and how outcomes add up to an exit code."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

from validation.children import Ended

HOLDS = "holds"
DOES_NOT_HOLD = "does not hold"
NOT_JUDGED = "not judged"
VERDICTS = (HOLDS, DOES_NOT_HOLD, NOT_JUDGED)

EXIT_CODES = {HOLDS: 0, DOES_NOT_HOLD: 1, NOT_JUDGED: 2}


class ValidationError(Exception):
    """A foreseeable fault: `message` names the thing and the evidence, `hint` what to do next."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}\n  next: {self.hint}" if self.hint else self.message


class CheckFaultError(Exception):
    """Ends a check early: `verdict` is "does not hold" or "not judged"."""

    def __init__(self, evidence: str, verdict: str = DOES_NOT_HOLD) -> None:
        super().__init__(evidence)
        self.evidence = evidence
        self.verdict = verdict


def failed(process: str, ended: Ended, *, detail: str = "") -> CheckFaultError:
    """The fault for a `process` that failed; `detail` may say more than its last words.

    A machine that did not give what was needed leaves the check without a judgement.
    """
    evidence = f"{process} {ended.fault.partition(';')[0] if detail else ended.fault}"
    evidence += f": {detail}" if detail else ""
    if ended.lacking:
        return CheckFaultError(f"{evidence}; the machine lacks {ended.lacking}", NOT_JUDGED)
    return CheckFaultError(evidence)


@dataclass(frozen=True)
class Outcome:
    """The result of one check.

    `digests` maps the name of a result to "sha256:...", `details` holds what else the
    certificate carries. `needed` is false where "not judged" is the honest answer on a sound
    machine (no GPU, no compiler) and must not make the whole "could not be judged".
    """

    name: str
    verdict: str
    evidence: str
    question: str = ""
    digests: dict[str, str] = field(default_factory=dict)
    details: dict[str, Any] = field(default_factory=dict)
    needed: bool = True
    milliseconds: int = 0
    cpu_milliseconds: int = 0

    def to_json(self) -> dict[str, Any]:
        """All fields, as JSON types."""
        return asdict(self)


def from_json(value: object) -> Outcome:
    """The outcome written by `Outcome.to_json`; raises ValueError for anything else."""
    if not isinstance(value, dict):
        raise ValueError("not an object")
    try:
        outcome = Outcome(**value)
    except TypeError as error:
        raise ValueError(str(error)) from error
    texts = (outcome.name, outcome.evidence, outcome.question)
    if outcome.verdict not in VERDICTS or not all(isinstance(text, str) for text in texts):
        raise ValueError(f"no such verdict: {outcome.verdict!r}")
    if not isinstance(outcome.digests, dict) or not isinstance(outcome.details, dict):
        raise ValueError("digests and details are objects")
    if not all(isinstance(digest, str) for digest in outcome.digests.values()):
        raise ValueError("a digest is text")
    if not isinstance(outcome.milliseconds, int) or not isinstance(outcome.cpu_milliseconds, int):
        raise ValueError("times are whole milliseconds")
    return outcome


def overall(outcomes: Iterable[Outcome]) -> str:
    """The verdict over all: one fault decides, then one needed judgement that is missing."""
    listed = list(outcomes)
    if any(outcome.verdict == DOES_NOT_HOLD for outcome in listed):
        return DOES_NOT_HOLD
    if not listed or any(o.needed and o.verdict == NOT_JUDGED for o in listed):
        return NOT_JUDGED
    # Only what a sound machine may lack was left out; at least one thing must have been judged.
    return HOLDS if any(o.verdict == HOLDS for o in listed) else NOT_JUDGED
