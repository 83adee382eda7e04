"""Runs one check in this process and writes its outcome to a file: `-m validation.worker`."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import json
import resource
import sys
from pathlib import Path

from validation.checks import Check, Nodes, Settings, named
from validation.children import die_with_parent
from validation.outcome import Outcome


def main(arguments: list[str]) -> None:
    """`arguments`: the check's name, its scratch directory, nnodes, node rank, endpoint."""
    name, scratch, count, rank, endpoint = arguments
    die_with_parent()
    settings = Settings(Path(scratch), Nodes(int(count), int(rank), endpoint))
    check = named(name)
    module = importlib.import_module(check.module)
    with _guard(check):
        outcome: Outcome = module.run(settings)
    outcome = dataclasses.replace(outcome, cpu_milliseconds=_cpu_milliseconds())
    result = settings.scratch / "outcome.json"
    # Written last and whole: a file that is there is complete.
    part = result.with_suffix(".part")
    part.write_text(json.dumps(outcome.to_json()))
    part.rename(result)


def _guard(check: Check) -> contextlib.AbstractContextManager[object]:
    """Watches the operations of a check whose bits have to be the same on every CPU."""
    if not check.guarded:
        return contextlib.nullcontext()
    guard: contextlib.AbstractContextManager[object] = importlib.import_module(
        "validation.guard"  # it imports torch
    ).PortableGuard()
    return guard


def _cpu_milliseconds() -> int:
    own, children = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return round(1000 * (own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime))


if __name__ == "__main__":
    main(sys.argv[1:])
