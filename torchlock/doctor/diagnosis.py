"""From evidence to a verdict: findings, or what was ruled out and what to collect next."""

from __future__ import annotations

import re
from dataclasses import dataclass

from torchlock.doctor import parse, tables
from torchlock.doctor.evidence import Evidence
from torchlock.doctor.findings import Finding, in_order
from torchlock.doctor.rules import RULES, children, facts

HEALTHY = "healthy"
FINDINGS = "findings"
UNDETERMINED = "undetermined"
EXIT_CODES = {HEALTHY: 0, FINDINGS: 1, UNDETERMINED: 2}


@dataclass(frozen=True)
class Diagnosis:
    """The verdict: `status` is `healthy`, `findings` or `undetermined`.

    `looked_at` says in a line each what the evidence shows, `ruled_out` the causes it excludes,
    `collect` the commands whose output would decide; the last two only where nothing fits.
    `not_judged` says what a probe failed to see, and why.
    """

    status: str
    findings: tuple[Finding, ...] = ()
    looked_at: tuple[str, ...] = ()
    ruled_out: tuple[str, ...] = ()
    collect: tuple[str, ...] = ()
    not_judged: tuple[str, ...] = ()


def judge(evidence: Evidence) -> Diagnosis:
    """Applies every rule. A pure function."""
    findings = in_order(RULES, evidence, _known(evidence))
    looked, unseen = _looked_at(evidence), _not_judged(evidence)
    if findings:
        return Diagnosis(FINDINGS, findings, looked, not_judged=unseen)
    if not _symptom(evidence) and _torch_works(evidence):
        return Diagnosis(HEALTHY, (), looked, not_judged=unseen)
    return Diagnosis(UNDETERMINED, (), looked, _ruled_out(evidence), _collect(evidence), unseen)


def _known(evidence: Evidence) -> dict[str, str]:
    """Values for the commands: what there is only one of."""
    known: dict[str, str] = {}
    driver = facts.driver_version(evidence)
    if driver:
        known |= {"driver": driver, "branch": driver.partition(".")[0]}
    if len(evidence.gpus) == 1:
        known["index"] = str(evidence.gpus[0].index)
    capabilities = {capability for _, capability in facts.capabilities(evidence)}
    if len(capabilities) == 1:
        known["capability"] = ".".join(map(str, capabilities.pop()))
    return known


def _symptom(evidence: Evidence) -> bool:
    return (
        bool(evidence.error)
        or evidence.torch.available is False
        or evidence.libcuda.found is False
        or evidence.libcuda.init not in (None, 0)
        or bool(evidence.grep(r"\S", source="^(observed|symptom)"))
    )


def _torch_works(evidence: Evidence) -> bool:
    """Whether torch itself said that CUDA is available, and its process then ended well."""
    ended = children.torch_ended(evidence)
    return evidence.torch.available is True and (ended is None or ended.rc in (None, 0))


def _not_judged(evidence: Evidence) -> tuple[str, ...]:
    """What could not be seen: children that ended badly, probes that failed, torch's silence."""
    unseen = [
        line.text
        for name in children.NAMES
        if (line := children.ended(evidence, name)) and line.rc not in (None, 0)
    ]
    unseen += evidence.grep("", source="^probes: ")
    if evidence.torch.available is None:
        unseen += evidence.grep("", source="^nativeLoad$")
        if unseen or evidence.libcuda.init == 0:
            unseen.append("torch: nothing says whether CUDA is available to it")
    return tuple(unseen)


def _looked_at(evidence: Evidence) -> tuple[str, ...]:
    said = [f"error: {line}" for line in evidence.error.splitlines()[:3] if line.strip()]
    system, driver, torch = evidence.system, evidence.driver, evidence.torch
    if system.os or system.kernel:
        where = (
            f"in {evidence.container.engine or 'a container'}, "
            if evidence.container.inside
            else ""
        )
        said.append(f"system: {where}{system.os or 'unknown'}, kernel {system.kernel or 'unknown'}")
    if driver.module or driver.absent:
        said.append(
            f"kernel driver: {driver.module or 'none (/proc/driver/nvidia/version is missing)'}"
        )
    smi = evidence.smi.get("here")
    if smi:
        said.append(f"nvidia-smi: {smi.failure or f'driver {smi.driver}, {len(smi.gpus)} GPU(s)'}")
    if evidence.pci is not None:
        names = "; ".join(f"{d.slot} ({d.driver or 'no driver'})" for d in evidence.pci)
        said.append(f"NVIDIA devices on the PCI bus: {names or 'none'}")
    if evidence.nodes is not None:
        named = ", ".join(f"{path} {node.opened}".strip() for path, node in evidence.nodes.items())
        said.append(f"device nodes: {named or 'none'}")
    cuda = evidence.libcuda
    if cuda.found is not None:
        found = cuda.path or "found" if cuda.found else "not found by the loader"
        init = (
            ""
            if cuda.init is None
            else f", cuInit {cuda.init} ({tables.CUINIT.get(cuda.init, 'see cuda.h')})"
        )
        said.append(f"libcuda.so.1: {found}{init}")
    if torch.version or torch.cuda is not None:
        cuda_version = {None: "unknown", "": "none"}.get(torch.cuda, torch.cuda)
        said.append(
            f"torch: {torch.version or 'unknown'}, CUDA {cuda_version}, available: "
            f"{torch.available}"
        )
    return tuple(said)


def _ruled_out(evidence: Evidence) -> tuple[str, ...]:
    out = []
    if facts.smi(evidence).works:
        out.append("no driver, or one that is not loaded: nvidia-smi reaches it")
    if facts.gpu_nodes(evidence) and all(
        n.opened in ("", "ok") for n in facts.gpu_nodes(evidence).values()
    ):
        opened = any(n.opened == "ok" for n in facts.gpu_nodes(evidence).values())
        out.append(
            "missing device nodes" + (" or permissions: they open" if opened else ": they exist")
        )
    if evidence.libcuda.found and not re.search("stubs|compat", evidence.libcuda.path):
        out.append(f"a missing, stub or compat libcuda: it is {evidence.libcuda.path or 'found'}")
    if evidence.libcuda.init == 0:
        out.append("the driver and its libraries: cuInit succeeds")
    if evidence.torch.cuda:
        out.append(f"a torch without CUDA: it is built with {evidence.torch.cuda}")
    wheel, driver = facts.wheel_cuda(evidence), facts.driver_version(evidence)
    if wheel and driver and wheel[0] in tables.DRIVER_FLOOR:
        out.append(f"a driver too old for torch: {driver} >= {tables.DRIVER_FLOOR[wheel[0]]}")
    if "CUDA_VISIBLE_DEVICES" in evidence.env and not evidence.env["CUDA_VISIBLE_DEVICES"]:
        out.append("CUDA_VISIBLE_DEVICES: it is not set")
    return tuple(out)


def _collect(evidence: Evidence) -> tuple[str, ...]:
    wanted = []
    if "here" not in evidence.smi:
        wanted.append("nvidia-smi; nvidia-smi -L    # on the host too, if this is a container")
    if evidence.libcuda.init is None:
        wanted.append(
            "python -m torchlock.doctor --save evidence.json    # on the machine that fails"
        )
    if not evidence.torch.version:
        wanted.append("python -m torch.utils.collect_env")
    if evidence.nodes is None:
        wanted.append("ls -l /dev/nvidia* /dev/nvidia-caps /dev/dxg")
    if not evidence.grep("", source="dmesg|journal"):
        wanted.append("sudo dmesg | grep -iE 'nvrm|nvidia|xid|nouveau'")
    if evidence.pci is None and not evidence.container.inside:
        wanted.append("lspci -nnk -d 10de:; lsmod | grep -iE 'nvidia|nouveau|nova'")
    if re.search("nccl|gloo|c10d|distributed", evidence.error, re.I):
        wanted.append(
            "the same run with NCCL_DEBUG=INFO TORCH_DISTRIBUTED_DEBUG=DETAIL, from every rank"
        )
    elif re.search(r"\.so|symbol|cud|cublas", evidence.error, re.I) and not evidence.libraries:
        wanted.append(
            "LD_DEBUG=libs python -c 'import torch' 2>&1 | grep -E 'find library"
            "|trying' ; pip check"
        )
    elif parse.version(facts.torch_release(evidence)) and not wanted:
        wanted.append("CUDA_LAUNCH_BLOCKING=1 <the failing command>, with its whole output")
        wanted.append(
            "strace -f -e trace=openat,ioctl python -c 'import torch; "
            "torch.cuda.init()' 2>&1 | grep -E 'nvidia|libcuda|= -1'"
        )
    if "no kernel image" in evidence.error:
        wanted.insert(0, "nvidia-smi --query-gpu=name,compute_cap --format=csv,noheader")
        wanted.insert(1, "python -c 'import torch; print(torch.cuda.get_arch_list())'")
    return tuple(wanted)
