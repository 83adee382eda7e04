"""Runs checks, each in a child process that has its lane's environment from the start."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from validation import lane, machine
from validation.checks import CHECKS, Check, Nodes
from validation.children import POLL_SECONDS, Child, Ended
from validation.outcome import DOES_NOT_HOLD, NOT_JUDGED, Outcome, failed, from_json

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
    Then two checks run at a time where there are two cores: the lane gives each one thread.
    """
    here = machine.facts()
    lane_fault = machine.why_not_portable(here["architecture"], here["cpu flags"])
    chosen = [c for c in CHECKS if not request.only or c.name in ("stack", *request.only)]
    outcomes: dict[str, Outcome] = {}
    running: dict[str, RunningCheck] = {}
    waiting = list(chosen)
    try:
        while waiting or running:
            while waiting and _may_start(waiting[0], running, here["cores"]):
                check = waiting.pop(0)
                reason, needed = _left_out(check, request, lane_fault, outcomes.get("stack"))
                if reason:
                    outcomes[check.name] = Outcome(
                        check.name, NOT_JUDGED, reason, check.question, needed=needed
                    )
                else:
                    progress(f"{check.name}: {check.question}")
                    running[check.name] = RunningCheck(check, request.nodes)
            for name, going in list(running.items()):
                outcome = going.poll()
                if outcome is not None:
                    outcomes[name] = outcome
                    del running[name]
            time.sleep(POLL_SECONDS)
    finally:
        for going in running.values():
            going.stop()
    if request.device == "cuda" and "gpu" in outcomes:
        # What was asked for by name must be there.
        outcomes["gpu"] = dataclasses.replace(outcomes["gpu"], needed=True)
    return [outcomes[check.name] for check in chosen]


def _may_start(check: Check, running: Mapping[str, RunningCheck], cores: int) -> bool:
    if not running:
        return True
    together = not check.alone and not any(going.check.alone for going in running.values())
    return together and len(running) < min(2, cores)


def _left_out(
    check: Check, request: Request, lane_fault: str, stack: Outcome | None
) -> tuple[str, bool]:
    """Why a check is not run, or "", and whether that leaves a needed judgement open."""
    if check.lane == "gpu" and request.device == "cpu":
        return "only the CPU was asked for", False
    if check.lane == "portable" and lane_fault:
        return lane_fault, True
    if stack and not lane_fault and not stack.details.get("versions"):
        return "the stack check did not get as far as torch", True
    if check.lane == "portable" and request.device == "cuda" and check.name != "stack":
        return "only the GPU was asked for", False
    return "", True


class RunningCheck:
    """One check in a child process; a child that fails in any way gives an outcome as well.

    `user` is the environment the lane is laid over, by default this process's own.
    """

    def __init__(
        self, check: Check, nodes: Nodes, *, user: Mapping[str, str] | None = None
    ) -> None:
        self.check = check
        self._scratch = Path(tempfile.mkdtemp(prefix="torchlock-"))
        environment = lane.environment(os.environ if user is None else user, LANES[check.lane])
        path = [str(_REPOSITORY), environment.get("PYTHONPATH", "")]
        environment.update(
            PYTHONPATH=os.pathsep.join(filter(None, path)),
            TMPDIR=str(self._scratch),
            TORCHINDUCTOR_CACHE_DIR=str(self._scratch / "inductor"),
            TRITON_CACHE_DIR=str(self._scratch / "triton"),
        )
        command = [sys.executable, "-m", "validation.worker", check.name, str(self._scratch)]
        command += [str(nodes.count), str(nodes.rank), nodes.endpoint]
        self._child = Child(
            command, seconds=check.seconds, environment=environment, directory=self._scratch
        )

    def poll(self) -> Outcome | None:
        """The outcome, or None while the check runs."""
        ended = self._child.poll()
        if ended is None:
            return None
        outcome = read_outcome(self.check, self._scratch / "outcome.json", ended)
        self.stop()
        return dataclasses.replace(
            outcome, question=self.check.question, milliseconds=round(ended.seconds * 1000)
        )

    def stop(self) -> None:
        """Ends the check if it still runs, and removes its scratch directory."""
        self._child.stop()
        shutil.rmtree(self._scratch, ignore_errors=True)


def read_outcome(check: Check, path: Path, ended: Ended) -> Outcome:
    """The outcome a child wrote to `path`, or one that says how the child failed.

    A program that crashes in the stack is evidence against it; one that the machine did not give
    what it needed, or whose result cannot be read, leaves the check without a judgement.
    """
    try:
        outcome = from_json(json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        if not ended.fault:
            return Outcome(check.name, NOT_JUDGED, "the check's process ended without a result")
        fault = failed("the check's process", ended)
        return Outcome(check.name, fault.verdict, fault.evidence)
    except (OSError, ValueError) as error:
        return Outcome(check.name, NOT_JUDGED, f"the check's process wrote no result: {error}")
    if outcome.name != check.name:
        return Outcome(check.name, NOT_JUDGED, f"the result is of check {outcome.name!r}")
    if ended.fault:
        return dataclasses.replace(
            outcome, verdict=DOES_NOT_HOLD, evidence=f"the check's process {ended.fault}"
        )
    return outcome
