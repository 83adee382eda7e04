"""A diagnosis as text for people and as JSON."""

from __future__ import annotations

import dataclasses
import json

from torchlock.doctor.diagnosis import HEALTHY, UNDETERMINED, Diagnosis
from torchlock.doctor.findings import Finding


def to_json(diagnosis: Diagnosis) -> str:
    """The diagnosis as JSON: `status`, `findings` (root cause first), `looked_at` and the rest."""
    return json.dumps(dataclasses.asdict(diagnosis), indent=1)


def to_text(diagnosis: Diagnosis) -> str:
    """The diagnosis as text, root cause first, ending in a newline."""
    if diagnosis.status == HEALTHY:
        lines = [
            "CUDA works here: no fault found.",
            *_block("not judged", diagnosis.not_judged),
            *_block("looked at", diagnosis.looked_at),
        ]
    elif diagnosis.status == UNDETERMINED:
        alone = all(line.startswith("error: ") for line in diagnosis.looked_at)
        what = "The message alone does not decide" if alone else "Nothing known fits the evidence"
        if not diagnosis.looked_at:
            what = "There is nothing to judge"
        lines = [
            f"{what}, so no cause is named.",
            *_block("not judged", diagnosis.not_judged),
            *_block("looked at", diagnosis.looked_at),
            *_block("ruled out", diagnosis.ruled_out),
            *_block("collect next", diagnosis.collect),
        ]
    else:
        first, *rest = diagnosis.findings
        lines = _finding(first)
        for other in rest:
            lines += ["", "also:", *_finding(other)]
        lines += _block("not judged", diagnosis.not_judged)
        lines += _block("looked at", diagnosis.looked_at)
    return "\n".join(lines) + "\n"


def _finding(finding: Finding) -> list[str]:
    return [
        f"{finding.cause}",
        f"  ({finding.code}, {finding.kind}, {finding.certainty})",
        *_block("evidence", finding.evidence),
        *_block("to fix it", finding.fix),
        *_block("told apart from", finding.apart),
        *_block("follows from it", finding.consequences),
    ]


def _block(title: str, lines: tuple[str, ...]) -> list[str]:
    return [f"  {title}:", *(f"    {line}" for line in lines)] if lines else []
