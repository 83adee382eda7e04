"""DistributedDataParallel over gloo, started by torch.distributed.run.

Two ranks against one process that accumulates the two halves; the repetition of four ranks;
and what happens when a rank dies.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from validation import training
from validation.checks import Nodes, Settings
from validation.checks.ddp_rank import MODEL, MODES, STEPS, SURVIVED
from validation.children import Ended, start_and_wait
from validation.outcome import DOES_NOT_HOLD, HOLDS, CheckFaultError, Outcome, failed

SECONDS = 600
MULTI_NODE_SECONDS = 900


def run(settings: Settings) -> Outcome:
    """One launch over several nodes, or three properties on this machine alone."""
    digests: dict[str, str] = {}
    nodes = settings.nodes
    ranks = 2 if nodes.count == 1 else max(1, 2 // nodes.count)
    world = ranks * nodes.count
    try:
        results = launch(settings.scratch / "first", nodes, ranks, "pair" if world == 2 else "many")
        digests |= {f"{world} ranks, {mode}": results[0][mode]["digests"][0] for mode in MODES}
        faults = disagreements(results)
        if world == 2:
            faults += _unlike_one_process(results[0])
        if nodes.count == 1 and not faults:
            four = launch(settings.scratch / "four", nodes, 4, "four")
            digests["4 ranks, fp32"] = four[0]["fp32"]["digests"][0]
            faults += disagreements(four)
    except CheckFaultError as fault:
        return Outcome("ddp", fault.verdict, fault.evidence, digests=digests)
    evidence = "; ".join(faults) or _evidence(nodes, world)
    return Outcome("ddp", DOES_NOT_HOLD if faults else HOLDS, evidence, digests=digests)


def _evidence(nodes: Nodes, world: int) -> str:
    if nodes.count > 1:
        proved = "equal one process" if world == 2 else "repeat"
        return f"{world} ranks on {nodes.count} nodes {proved} and agree after every step"
    return (
        f"2 ranks equal one process in {', '.join(MODES)}; 4 ranks repeat; ranks agree after"
        " every step; a rank that was killed ended the run"
    )


def launch(scratch: Path, nodes: Nodes, ranks: int, scene: str) -> list[dict[str, Any]]:
    """Starts `ranks` ranks on this node and returns what each wrote.

    `scene` is one of those of `validation.checks.ddp_rank.main`. Raises CheckFaultError.
    """
    scratch.mkdir()
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(ranks)]
    environment = dict(os.environ)
    if nodes.count == 1:
        # Port 0: the launcher takes a free one. The loopback needs no host name to resolve.
        command += ["--nnodes", "1", "--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0"]
        command += ["--local-addr", "127.0.0.1"]
        environment.setdefault("GLOO_SOCKET_IFNAME", "lo")
    else:
        command += ["--nnodes", str(nodes.count), "--node-rank", str(nodes.rank)]
        command += ["--rdzv-backend", "static", "--rdzv-endpoint", _endpoint(nodes, scene)]
        command += ["--rdzv-id", f"torchlock-{scene}"]
    command += ["-m", "validation.checks.ddp_rank", scene, str(scratch)]
    seconds = SECONDS if nodes.count == 1 else MULTI_NODE_SECONDS
    ended = start_and_wait(command, seconds=seconds, environment=environment)
    results = _read(scratch, ranks)
    complete = len(results) == ranks
    if complete and scene == "four":
        _judge_a_death(ended, scratch)
    elif ended.fault:
        launcher = f"torch.distributed.run with {ranks} ranks"
        raise failed(launcher, ended, detail=_rank_error(ended.output))
    elif not complete:
        raise CheckFaultError(f"{len(results)} of {ranks} ranks wrote a result")
    return results


def _endpoint(nodes: Nodes, scene: str) -> str:
    """The endpoint of a launch over several nodes.

    The next launch has the next port: a fast node must not meet the store of the one before.
    """
    host, _, port = nodes.endpoint.rpartition(":")
    return f"{host}:{int(port) + (scene == 'gpu')}"


def _rank_error(output: str) -> str:
    """The first exception of a rank, or "": it says more than the launcher's own last line."""
    errors = [line for line in output.splitlines() if "Error" in line and "[rank" in line]
    return errors[0][:300] if errors else ""


def _judge_a_death(ended: Ended, scratch: Path) -> None:
    """All ranks had written their results when one of them was killed; the run has to end."""
    if ended.timed_out:
        raise CheckFaultError(f"a rank was killed and the others still hung {SECONDS} s later")
    if not ended.fault:
        raise CheckFaultError("a rank was killed and the run ended as if nothing had happened")
    survivors = sorted(path.name for path in scratch.glob(f"*{SURVIVED}"))
    if survivors:
        raise CheckFaultError(f"a rank was killed and others went on training: {survivors}")


def _read(scratch: Path, ranks: int) -> list[dict[str, Any]]:
    found = []
    for path in sorted(scratch.glob("rank-*.json"))[:ranks]:
        try:
            found.append(json.loads(path.read_text()))
        except ValueError:
            continue
    return found


def disagreements(results: list[dict[str, Any]]) -> list[str]:
    """Each rank wrote mode -> the digests of its runs, and whether all ranks agreed throughout."""
    faults = []
    for mode in results[0]:
        runs = {digest for result in results for digest in result[mode]["digests"]}
        if not all(result[mode]["agreed"] for result in results):
            faults.append(f"{mode}: ranks hold different parameters after a step")
        elif len(runs) != 1:
            faults.append(f"{mode}: the run does not repeat itself: {', '.join(sorted(runs))}")
    return faults


def _unlike_one_process(result: dict[str, Any]) -> list[str]:
    faults = []
    for mode, (precision, count) in MODES.items():
        alone = one_process(precision, count, world=2)
        if result[mode]["digests"][0] != alone:
            faults.append(
                f"{mode}: 2 ranks give {result[mode]['digests'][0]}, one process gives {alone}"
            )
    return faults


def one_process(precision: str, count: int, *, world: int) -> str:
    """The digest one process reaches that does the ranks' work, `count` micro-batches each.

    Each rank's share is accumulated by itself and then added, in the order the ranks are in.
    The loss is divided by `world` as DDP divides the sum, so fp16 needs `world` times the scale
    to run its backward pass on the same numbers.
    """
    run = training.start(MODEL, precision, dropout=0.0, scale=training.SAFE_SCALE * world)
    for step in range(STEPS):
        run.optimizer.zero_grad()
        sums: list[Any] = []
        for rank in range(world):
            first = (step * world + rank) * count
            for index in range(first, first + count):
                training.backward(run, index, share=count * world)
            own = [parameter.grad for parameter in run.model.parameters()]
            sums = [a + b for a, b in zip(sums, own, strict=True)] if sums else own
            run.optimizer.zero_grad()
        for parameter, gradient in zip(run.model.parameters(), sums, strict=True):
            parameter.grad = gradient
        training.update(run)
    return training.weights_digest(run)
