"""Looks at the machine and returns the loose form of evidence.

Every probe runs in a thread of its own, is allowed to fail and has a deadline; what failed or did
not end in time is recorded as evidence and never stops the others.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from torchlock.doctor import loose
from torchlock.doctor.diagnosis import HEALTHY, judge
from torchlock.doctor.evidence import Evidence
from torchlock.doctor.findings import CERTAIN
from torchlock.doctor.probes import children, programs, system
from torchlock.doctor.probes.machine import Machine

Probe = Callable[[Machine], dict[str, Any]]

FIRST: tuple[Probe, ...] = (
    children.torch_native,
    children.libcuda,
    children.nvml,
    programs.smi,
    programs.smi_query,
    programs.smi_list,
    programs.smi_wsl,
    system.context,
    system.files,
    system.cgroups,
    system.secure_boot,
    system.pci,
    system.nodes,
    system.environment,
    system.limits,
)
# Slower ones, for which a healthy machine need not wait.
DEEPER: tuple[Probe, ...] = (
    children.torch_import,
    programs.kernel_module,
    programs.kernel_log,
    programs.gpu_state,
    programs.smi_details,
    programs.packages,
    programs.engine,
)

_NO_GPU = "no-nvidia-gpu"  # nothing further to look at either


def gather(machine: Machine, *, everything: bool = False) -> Evidence:
    """The evidence of a machine: the quick probes, and the slower ones unless all is well.

    With `everything` the slower ones run in any case: somebody else is to judge a program's
    failure on a machine where CUDA works.
    """
    found = run_all(FIRST, machine, seconds=40)
    evidence = loose.read(found)
    verdict = judge(evidence)
    no_gpu = [f for f in verdict.findings if f.code == _NO_GPU and f.certainty == CERTAIN]
    if not everything and (verdict.status == HEALTHY or no_gpu):
        return evidence
    return loose.read(merge(found, run_all(DEEPER, machine, seconds=120)))


def run_all(probes: tuple[Probe, ...], machine: Machine, seconds: float) -> dict[str, Any]:
    """Runs probes side by side; none may raise or hold up the others beyond `seconds`."""
    results: dict[str, dict[str, Any]] = {}

    def run(probe: Probe) -> None:
        try:
            results[probe.__name__] = probe(machine)
        except Exception as error:  # a probe meets whatever is broken on the machine
            results[probe.__name__] = {
                "probes": {probe.__name__: f"{type(error).__name__}: {error}"}
            }

    # daemons: a thread that hangs in a broken driver must not keep this process alive
    threads = [threading.Thread(target=run, args=(probe,), daemon=True) for probe in probes]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + seconds
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    found: dict[str, Any] = {}
    for probe in probes:
        name = probe.__name__
        found = merge(found, results.get(name, {"probes": {name: f"no answer in {seconds:g} s"}}))
    return found


def merge(one: Mapping[str, Any], two: Mapping[str, Any]) -> dict[str, Any]:
    """Both loose forms; mappings are joined, and of two values that differ the second counts."""
    merged = dict(one)
    for key, value in two.items():
        old = merged.get(key)
        merged[key] = (
            {**old, **value} if isinstance(old, dict) and isinstance(value, dict) else value
        )
    return merged
