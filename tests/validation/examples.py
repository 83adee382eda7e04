"""Certificates and references as a real run makes them, small enough to read."""

from __future__ import annotations

from validation import certificate, lane
from validation.outcome import HOLDS, Outcome

A, B = f"sha256:{'a' * 64}", f"sha256:{'b' * 64}"
CPU_CLASS = {"name": "cpu x86-64 avx2", "torch": "2.7.1+cu126"}


def issued(**changes):
    """A certificate on which everything holds; `changes` replace what a test is about."""
    given = {
        "lock": A,
        "tree": "sha256-tree",
        "wheels": {"torch": "sha256-torch", "numpy": "sha256-numpy"},
        "versions": {"torch": "2.7.1+cu126", "python": "3.11.2"},
        "libraries": [
            {"name": "libc.so.6", "from": "foundation"},
            {"name": "libtorch.so", "from": "environment"},
        ],
        "reported": {"aten": "AVX2"},
        "cpu": "AMD EPYC",
        "digests": {"fp32": A},
        "losses": ["0x1.0p+0", "0x1.8p-1"],
        "classes": {"cpu": CPU_CLASS},
        **changes,
    }
    stack = Outcome(
        "stack",
        HOLDS,
        "as locked",
        details={
            "versions": given["versions"],
            "libraries": given["libraries"],
            "lane": given["reported"],
        },
    )
    trained = Outcome(
        "transformer",
        HOLDS,
        given.get("evidence", "learns"),
        digests=given["digests"],
        details={"losses": {"fp32": given["losses"]}},
        milliseconds=given.get("milliseconds", 900),
    )
    context = certificate.Context(
        {"digest": given["lock"], "verdict": HOLDS} if given["lock"] else {},
        {"verdict": HOLDS, "tree": given["tree"], "wheels": given["wheels"]},
        "venv",
    )
    return certificate.build(
        [*certificate.context_outcomes(context), stack, trained],
        context=context,
        machine={"cpu": given["cpu"], "kernel": given.get("kernel", "6.1")},
        lane={"portable": lane.PORTABLE, "gpu": lane.GPU, "overridden": {}},
        classes=given["classes"],
        milliseconds=1000,
        identify=given.get("identify", False),
    )
