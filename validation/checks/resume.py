"""Resume: a run that is saved, and loaded in a new process, against the run that never stopped."""

from __future__ import annotations

import sys
from pathlib import Path

from validation import training
from validation.checks import Settings
from validation.children import start_and_wait
from validation.guard import PortableGuard
from validation.model import SMALL
from validation.outcome import DOES_NOT_HOLD, HOLDS, Outcome, failed

STOP = SMALL.steps // 2 - 1
SECONDS = 400


def run(settings: Settings) -> Outcome:
    """Saves after STOP steps, goes on to the end, and lets a second process do the rest again."""
    whole: dict[str, str] = {}
    for precision in training.PRECISIONS:
        going = training.start(SMALL, precision)
        training.train(going, STOP)
        training.save(going, settings.scratch / f"{precision}.pt")
        training.train(going)
        whole[precision] = training.run_digest(going)
    ended = start_and_wait(
        [sys.executable, "-m", "validation.checks.resume", str(settings.scratch)], seconds=SECONDS
    )
    if ended.fault:
        fault = failed("the process that resumes", ended)
        return Outcome("resume", fault.verdict, fault.evidence)
    resumed = {p: (settings.scratch / f"{p}.digest").read_text() for p in training.PRECISIONS}
    different = [p for p in training.PRECISIONS if whole[p] != resumed[p]]
    if different:
        return Outcome(
            "resume",
            DOES_NOT_HOLD,
            f"{', '.join(different)}: {resumed[different[0]]} after resuming at step {STOP},"
            f" {whole[different[0]]} without",
            digests=whole,
        )
    return Outcome(
        "resume",
        HOLDS,
        f"saved after step {STOP} of {SMALL.steps}, resumed in a new process: same bits in"
        f" {', '.join(training.PRECISIONS)}",
        digests=whole,
    )


def resume(scratch: Path) -> None:
    """Loads each precision's run from `scratch`, ends it and writes its digest beside it."""
    for precision in training.PRECISIONS:
        with PortableGuard():
            run = training.start(SMALL, precision)
            training.load(run, scratch / f"{precision}.pt")
            training.train(run)
        (scratch / f"{precision}.digest").write_text(training.run_digest(run))


if __name__ == "__main__":
    resume(Path(sys.argv[1]))
