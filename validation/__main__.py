"""Proves by numbers that this environment works: `python -m validation`, or `python validation`.

Exits 0 (holds), 1 (does not hold) or 2 (could not be judged).
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

if not __package__:  # started as `python validation`: this directory is sys.path[0]
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from validation import canonical, certificate, lane, machine, references, report
from validation.checks import CHECKS, Nodes
from validation.outcome import (
    DOES_NOT_HOLD,
    EXIT_CODES,
    HOLDS,
    NOT_JUDGED,
    Outcome,
    ValidationError,
    overall,
)
from validation.running import Request, run_all

INTERRUPTED = 130


def parser() -> argparse.ArgumentParser:
    """The options of `python -m validation`."""
    options = argparse.ArgumentParser(prog="validation", description=__doc__)
    names = [check.name for check in CHECKS]
    options.add_argument("--only", nargs="+", choices=names, default=[], metavar="CHECK")
    options.add_argument("--device", choices=["auto", "cpu", "cuda"], default="auto")
    options.add_argument("--context", type=Path, help="what the parent judged: lock and files")
    options.add_argument("--record", action="store_true", help="record the digests as reference")
    options.add_argument("--replace", action="store_true", help="... over different ones")
    options.add_argument("--references", type=Path, default=references.DIRECTORY)
    options.add_argument("--nnodes", type=int, default=1)
    options.add_argument("--node-rank", type=int, default=0)
    options.add_argument("--rdzv-endpoint", default="", metavar="HOST:PORT")
    options.add_argument("--json", metavar="FILE", help="the certificate; - for standard output")
    options.add_argument(
        "--identify", action="store_true", help="keep host, user and paths in the certificate"
    )
    return options


def main(arguments: Sequence[str]) -> int:
    """Runs what `arguments` ask for and returns the exit code."""
    options = parser().parse_args(arguments)
    try:
        return _validate(options)
    except ValidationError as fault:
        print(fault, file=sys.stderr)  # noqa: T201
        return EXIT_CODES[NOT_JUDGED]
    except OSError as error:  # no room or no right to make a scratch directory
        print(f"the checks could not be started: {error}", file=sys.stderr)  # noqa: T201
        return EXIT_CODES[NOT_JUDGED]
    except KeyboardInterrupt:
        print("interrupted; nothing was judged", file=sys.stderr)  # noqa: T201
        return INTERRUPTED


def _validate(options: argparse.Namespace) -> int:
    request = _request(options)
    context = certificate.read_context(options.context) if options.context else None
    context = context or certificate.Context()
    begun = time.monotonic()
    outcomes = certificate.context_outcomes(context)
    outcomes += run_all(request, lambda line: print(line, file=sys.stderr, flush=True))  # noqa: T201
    classes = machine_classes(outcomes)
    outcomes += judge_repetition(outcomes)
    if options.record:
        _record(options, context, outcomes, classes)
    outcomes += judge_numbers(outcomes, classes, context, options.references)
    issued = certificate.build(
        outcomes,
        context=context,
        machine=machine.facts(),
        lane={
            "portable": lane.PORTABLE,
            "gpu": lane.GPU,
            "overridden": _overridden(),
        },
        classes=classes,
        milliseconds=round((time.monotonic() - begun) * 1000),
        identify=options.identify,
    )
    stream = sys.stderr if options.json == "-" else sys.stdout
    report.show(map(report.row, outcomes), stream)
    for name, value in _overridden().items():
        print(f"overridden for the checks: {name}={value}", file=stream)
    print(f"\n{overall(outcomes)} ({issued['milliseconds'] / 1000:.1f} s)", file=stream)
    if options.json:
        canonical.write(options.json, issued)
    return EXIT_CODES[overall(outcomes)]


def _request(options: argparse.Namespace) -> Request:
    nodes = Nodes(options.nnodes, options.node_rank, options.rdzv_endpoint)
    if nodes.count < 1 or not 0 <= nodes.rank < nodes.count:
        raise ValidationError(f"there is no node {nodes.rank} among {nodes.count}")
    host, _, port = nodes.endpoint.rpartition(":")
    if nodes.count > 1 and not (host and port.isdecimal()):
        raise ValidationError(
            "several nodes need an endpoint on node 0 that all of them reach",
            hint="--rdzv-endpoint HOST:PORT",
        )
    if options.record and (options.only or nodes.count > 1):
        raise ValidationError(
            "a reference holds all checks of one machine", hint="--record without --only"
        )
    return Request(tuple(options.only), options.device, nodes)


def machine_classes(outcomes: Sequence[Outcome]) -> dict[str, dict[str, str]]:
    """The classes this machine belongs to: "cpu", and "gpu" where one was judged."""
    found = {outcome.name: outcome for outcome in outcomes}
    classes: dict[str, dict[str, str]] = {}
    versions = found["stack"].details.get("versions", {}) if "stack" in found else {}
    if versions:
        kept = ("torch", "torchvision", "torchaudio")
        classes["cpu"] = {
            "name": "cpu x86-64 avx2",
            **{name: versions.get(name, "missing") for name in kept},
        }
    gpu = found["gpu"].details.get("class") if "gpu" in found else None
    if gpu:
        classes["gpu"] = gpu
    return classes


def collected(outcomes: Sequence[Outcome], lane_name: str) -> dict[str, dict[str, str]]:
    """The digests to compare, check -> result -> digest, of the checks in one lane."""
    inside = {check.name for check in CHECKS if check.lane == lane_name}
    return {o.name: o.digests for o in outcomes if o.name in inside and o.digests}


def judge_repetition(outcomes: Sequence[Outcome]) -> list[Outcome]:
    """A row where two processes made the same run and got different bits."""
    if _repeated(outcomes) is not False:
        return []
    once, again = (o.digests for o in outcomes if o.name in ("transformer", "resume"))
    said = f"{canonical.digest(once)}, {canonical.digest(again)}"
    evidence = f"two processes made the same run and got different bits: {said}"
    return [Outcome("repetition", DOES_NOT_HOLD, evidence)]


def _repeated(outcomes: Sequence[Outcome]) -> bool | None:
    """Whether the transformer's runs, made again by the resume check, left the same bits."""
    found = {outcome.name: outcome.digests for outcome in outcomes}
    once, again = found.get("transformer"), found.get("resume")
    return once == again if once and again else None


def judge_numbers(
    outcomes: Sequence[Outcome],
    classes: dict[str, dict[str, str]],
    context: certificate.Context,
    directory: Path,
) -> list[Outcome]:
    """The rows that compare the numbers with the recorded references."""
    found = {outcome.name: outcome for outcome in outcomes}
    rows = []
    repeats = _repeated(outcomes) is True
    for kind, name, lane_name in (
        ("cpu", "reference", "portable"),
        ("gpu", "gpu reference", "gpu"),
    ):
        digests = collected(outcomes, lane_name)
        if digests and kind in classes:
            row = references.judge(
                name,
                classes[kind],
                digests,
                lock=context.lock_digest,
                tree=context.tree,
                repeats=repeats if kind == "cpu" else found["gpu"].verdict == HOLDS,
                directory=directory,
            )
            rows.append(row)
    return rows


def _record(
    options: argparse.Namespace,
    context: certificate.Context,
    outcomes: Sequence[Outcome],
    classes: dict[str, dict[str, str]],
) -> None:
    faults = [
        o for o in outcomes if o.verdict == DOES_NOT_HOLD or (o.needed and o.verdict != HOLDS)
    ]
    if faults:
        first = faults[0]
        raise ValidationError(
            f"nothing is recorded: {first.name} {first.verdict}: {first.evidence}"
        )
    for kind, lane_name in (("cpu", "portable"), ("gpu", "gpu")):
        digests = collected(outcomes, lane_name)
        if not digests or kind not in classes:
            continue
        facts = machine.facts()
        reference = references.Reference(
            classes[kind],
            context.lock_digest,
            context.tree,
            digests,
            {
                "command": "invoke validate --record",
                "cpu": facts["cpu"],
                "driver": facts["driver"],
                "glibc": facts["glibc"],
                "lane": dict(lane.PORTABLE if kind == "cpu" else lane.GPU),
            },
        )
        said = references.record(reference, replace=options.replace, directory=options.references)
        print(said, file=sys.stderr)  # noqa: T201


def _overridden() -> dict[str, str]:
    return lane.overridden(os.environ, {**lane.PORTABLE, **lane.GPU})


if __name__ == "__main__":
    # Stopped by a time limit, it cleans up as it does after Ctrl-C.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    sys.exit(main(sys.argv[1:]))
