from __future__ import annotations

import io

from validation.outcome import DOES_NOT_HOLD, HOLDS, NOT_JUDGED, Outcome
from validation.report import Row, render, row, show

ROWS = [
    Row("transformer", HOLDS, "16 steps each in fp32, bf16, fp16", 9.66),
    Row("files", DOES_NOT_HOLD, "changed: torch/lib/libtorch_cpu.so is not what the lock says"),
    Row("gpu", NOT_JUDGED, "no device", 2.3),
]


def test_the_table_is_aligned_and_long_evidence_goes_on_under_itself():
    assert render(ROWS, width=69) == (
        "check        verdict        evidence                             time\n"
        "transformer  holds          16 steps each in fp32, bf16, fp16   9.7 s\n"
        "files        does not hold  changed: torch/lib/libtorch_cpu.so\n"
        "                            is not what the lock says\n"
        "gpu          not judged     no device                           2.3 s\n"
    )


def test_a_narrow_terminal_still_gets_a_table():
    assert "no device" in render(ROWS, width=20)
    assert render([], width=80).startswith("check")


def test_colours_go_to_a_terminal_only(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    monkeypatch.delenv("NO_COLOR", raising=False)
    terminal, file = Terminal(), io.StringIO()
    show(ROWS, terminal)
    show(ROWS, file)
    assert "\x1b[32mholds" in terminal.getvalue()
    assert "\x1b" not in file.getvalue()


def test_an_outcome_becomes_a_row_with_its_seconds():
    assert row(Outcome("x", HOLDS, "e", milliseconds=1500)) == Row("x", HOLDS, "e", 1.5)
    assert row(Outcome("x", HOLDS, "e")).seconds is None
