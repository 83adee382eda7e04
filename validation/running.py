"""Runs checks, each in a child process that has its lane's environment from the start."""

from __future__ import annotations

import dataclasses
import json
import os
import resource
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from validation import lane, machine
from validation.checks import CHECKS, Check, Nodes
from validation.children import Ended, start_and_wait
from validation.outcome import DOES_NOT_HOLD, NOT_JUDGED, Outcome, from_json

_REPOSITORY = Path(__file__).resolve().parent.parent
LANES = {"portable": lane.PORTABLE, "gpu": lane.GPU}


@dataclasses.dataclass(frozen=True)
class Request:
    """What to run: names of checks (all if empty), and on which device and nodes."""

    only: tuple[str, ...] = ()
    device: str = "auto"
    nodes: Nodes = dataclasses.field(default_factory=Nodes)


def run_all(request: Request, progress: Callable[[str], None]) -> list[Outcome]:
    """The outcomes in order; the stack check comes first, whatever was asked for.

    No number is judged before the stack has shown what it is and that the lane took effect.
    """
    here = machine.facts()
    lane_fault = machine.why_not_portable(here["architecture"], here["cpu flags"])
    outcomes: list[Outcome] = []
    for check in CHECKS:
        if request.only and check.name not in ("stack", *request.only):
            continue
        reason, needed = _left_out(check, request, lane_fault, outcomes)
        if reason:
            outcome = Outcome(check.name, NOT_JUDGED, reason, check.question, needed=needed)
        else:
            progress(f"{check.name}: {check.question}")
            outcome = run_check(check, request.nodes)
            if check.lane == "gpu" and request.device == "cuda":
                # What was asked for by name must be there.
                outcome = dataclasses.replace(outcome, needed=True)
        outcomes.append(outcome)
    return outcomes


def _left_out(
    check: Check, request: Request, lane_fault: str, before: Sequence[Outcome]
) -> tuple[str, bool]:
    """Why a check is not run, or "", and whether that leaves a needed judgement open."""
    if before and not before[0].details.get("versions"):
        return "the stack could not be loaded", True
    if check.lane == "gpu":
        return ("only the CPU was asked for", False) if request.device == "cpu" else ("", True)
    if lane_fault:
        return lane_fault, True
    if request.device == "cuda" and check.name != "stack":
        return "only the GPU was asked for", False
    return "", True


def run_check(
    check: Check, nodes: Nodes, *, user: Mapping[str, str] | None = None, python: str = ""
) -> Outcome:
    """Runs one check in a child; a child that fails in any way gives an outcome as well.

    `user` is the environment the lane is laid over, by default this process's own.
    """
    scratch = Path(tempfile.mkdtemp(prefix="torchlock-"))
    try:
        environment = lane.environment(os.environ if user is None else user, LANES[check.lane])
        path = [str(_REPOSITORY), environment.get("PYTHONPATH", "")]
        environment.update(
            PYTHONPATH=os.pathsep.join(filter(None, path)),
            TMPDIR=str(scratch),
            TORCHINDUCTOR_CACHE_DIR=str(scratch / "inductor"),
            TRITON_CACHE_DIR=str(scratch / "triton"),
        )
        command = [python or sys.executable, "-m", "validation.worker", check.name, str(scratch)]
        command += [str(nodes.count), str(nodes.rank), nodes.endpoint]
        cpu_before = _children_cpu()
        ended = start_and_wait(
            command, seconds=check.seconds, environment=environment, directory=scratch
        )
        outcome = read_outcome(check, scratch / "outcome.json", ended)
        return dataclasses.replace(
            outcome,
            question=check.question,
            milliseconds=round(ended.seconds * 1000),
            cpu_milliseconds=round((_children_cpu() - cpu_before) * 1000),
        )
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def read_outcome(check: Check, path: Path, ended: Ended) -> Outcome:
    """The outcome a child wrote to `path`, or one that says how the child failed.

    A program that crashes in the stack is evidence against it; one that was stopped for its
    time, or whose result cannot be read, leaves the check without a judgement.
    """
    try:
        outcome = from_json(json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        fault = ended.fault or "ended without a result"
        verdict = NOT_JUDGED if ended.timed_out or not ended.fault else DOES_NOT_HOLD
        return Outcome(check.name, verdict, f"the check's process {fault}")
    except (OSError, ValueError) as error:
        return Outcome(check.name, NOT_JUDGED, f"the check's process wrote no result: {error}")
    if outcome.name != check.name:
        return Outcome(check.name, NOT_JUDGED, f"the result is of check {outcome.name!r}")
    if ended.fault:
        return dataclasses.replace(
            outcome, verdict=DOES_NOT_HOLD, evidence=f"the check's process {ended.fault}"
        )
    return outcome


def _children_cpu() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime
