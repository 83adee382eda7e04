"""docs/doctor.md, from the rules: `python -m torchlock.doctor.docs > docs/doctor.md`."""

from __future__ import annotations

import sys

from torchlock.doctor.evidence import Evidence
from torchlock.doctor.findings import Rule
from torchlock.doctor.rules import RULES

_HEAD = """# What the doctor knows

Made from the rules by `python -m torchlock.doctor.docs`; do not edit. In `<...>` stands what the
doctor fills in from the evidence; commands are shown for an unknown distribution and Docker, and
the doctor gives those of the distribution and container engine it finds.

Exit codes: 0 healthy (torch itself said that CUDA is available), 1 findings, 2 nothing known fits
or torch could not be asked (it then says what was not judged, what it ruled out and what to
collect). A finding is *certain*, *likely* or *possible*; the root cause comes first, and what
merely follows from it is folded under it.
"""


def text() -> str:
    """The whole page."""
    parts = [_HEAD]
    for kind in dict.fromkeys(rule.kind for rule in RULES):
        parts.append(f"## {kind}\n")
        parts += [_section(rule) for rule in RULES if rule.kind == kind]
    return "\n".join(parts)


def _section(rule: Rule) -> str:
    fix = "\n".join(f"    {step}" for step in rule.commands(Evidence()))
    apart = "".join(f"- {each}\n" for each in rule.apart)
    return f"### {rule.code}\n\n{rule.cause}\n\nEvidence: {rule.shows}\n\nFix:\n\n{fix}\n" + (
        f"\nTold apart from:\n\n{apart}" if apart else ""
    )


if __name__ == "__main__":
    sys.stdout.write(text())
