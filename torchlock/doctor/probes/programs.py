"""Programs that are asked: nvidia-smi always, the others only where something is wrong."""

from __future__ import annotations

import re
from typing import Any

from torchlock.doctor.probes.machine import NOT_FOUND, Machine, Run

_QUERY = "--query-gpu=index,name,uuid,compute_cap,mig.mode.current,compute_mode"
_LOG = re.compile(
    r"NVRM|nvidia|Xid|nouveau|nova|PM: (suspend|hibernation)|signature|lockdown"
    r"|oom-kill|BAR \d|avc:|apparmor=|gVisor|IO_PAGE_FAULT|DMAR: .*fault",
    re.I,
)
_LOG_LINES = 200
_PARTS = re.compile(
    r"\s*(Fabric|Clocks (Event|Throttle) Reasons|vGPU Software Licensed Product|MIG Mode"
    r"|GPU Reset Status|GPU Recovery Action.*|Addressing Mode.*)\s*$"
)


def _said(run: Run) -> dict[str, Any]:
    return {"rc": run.rc, "out": run.out}


def smi(machine: Machine) -> dict[str, Any]:
    """nvidia-smi's table."""
    return {"cmd": {"nvidia-smi": _said(machine.run(["nvidia-smi"], seconds=15))}}


def smi_query(machine: Machine) -> dict[str, Any]:
    """Names, UUIDs, compute capabilities, MIG and compute modes."""
    return _if_it_works(machine, "nvidia-smi", _QUERY, "--format=csv,noheader")


def smi_list(machine: Machine) -> dict[str, Any]:
    """The GPUs and their MIG instances."""
    return _if_it_works(machine, "nvidia-smi", "-L")


def _if_it_works(machine: Machine, *argv: str) -> dict[str, Any]:
    run = machine.run(argv, seconds=15)
    return {"cmd": {" ".join(argv): _said(run)}} if run.rc == 0 else {}


def smi_wsl(machine: Machine) -> dict[str, Any]:
    """The nvidia-smi that Windows provides, under WSL."""
    path = "/usr/lib/wsl/lib/nvidia-smi"
    if not machine.path(path).exists():
        return {}
    return {"cmd": {path: _said(machine.run([str(machine.path(path))], seconds=15))}}


def _each(
    machine: Machine, commands: tuple[tuple[str, ...], ...], seconds: float = 10
) -> dict[str, Any]:
    """The outputs of those commands that exist."""
    found = {}
    for argv in commands:
        run = machine.run(argv, seconds=seconds)
        if run.rc != NOT_FOUND:
            found[" ".join(argv)] = _said(run)
    return {"cmd": found}


def kernel_module(machine: Machine) -> dict[str, Any]:
    """Whether a module for the running kernel exists, who signed it, what owns the GPU."""
    return _each(
        machine,
        (
            ("dkms", "status"),
            ("modinfo", "nvidia"),
            ("modinfo", "-F", "license", "nvidia"),
            ("lspci", "-nnk", "-d", "10de:"),
            ("prime-select", "query"),
        ),
    )


def kernel_log(machine: Machine) -> dict[str, Any]:
    """The driver's lines of the kernel log, where this user may read it."""
    for argv in (("dmesg",), ("journalctl", "-k", "-b", "--no-pager", "-o", "short-monotonic")):
        run = machine.run(argv, seconds=10)
        if run.rc == 0 and run.out.strip():
            lines = [line for line in run.out.splitlines() if _LOG.search(line)]
            return {"cmd": {f"{argv[0]} | grep nvidia": "\n".join(lines[-_LOG_LINES:])}}
    return {}


def smi_details(machine: Machine) -> dict[str, Any]:
    """The parts of `nvidia-smi -q` that tell a state: fabric, licence, clocks, recovery."""
    run = machine.run(["nvidia-smi", "-q"], seconds=20)
    kept, depth = [], -1
    for line in run.out.splitlines() if run.rc == 0 else ():
        indent = len(line) - len(line.lstrip())
        if indent <= depth:
            depth = -1
        if depth < 0 and _PARTS.match(line):
            depth = indent
        if depth >= 0 and line.strip():
            kept.append(line)
    return {"cmd": {"nvidia-smi -q (parts)": "\n".join(kept)}} if kept else {}


def gpu_state(machine: Machine) -> dict[str, Any]:
    """ECC, row remapping, compute mode, links, fabric and confidential computing."""
    return _each(
        machine,
        (
            ("nvidia-smi", "-q", "-d", "ECC,ROW_REMAPPER,COMPUTE"),
            ("nvidia-smi", "topo", "-m"),
            ("nvidia-smi", "--query-compute-apps=pid,used_memory", "--format=csv,noheader"),
            ("nvidia-smi", "conf-compute", "-f"),
            ("nvidia-smi", "conf-compute", "-grs"),
            ("nv-fabricmanager", "--version"),
            ("systemctl", "is-active", "nvidia-fabricmanager"),
        ),
    )


def packages(machine: Machine) -> dict[str, Any]:
    """Driver packages of the distribution, and the loader's cache."""
    found = {}
    dpkg = machine.run(
        ["dpkg-query", "-W", "-f", "${db:Status-Abbrev} ${Package} ${Version}\\n"], seconds=10
    )
    rpm = machine.run(["rpm", "-qa"], seconds=10) if dpkg.rc else Run(NOT_FOUND, "")
    for name, run in (("dpkg -l | grep nvidia", dpkg), ("rpm -qa | grep nvidia", rpm)):
        lines = [
            x
            for x in run.out.splitlines()
            if run.rc == 0 and re.search("nvidia|libcuda|cuda-(compat|drivers)", x)
        ]
        if lines:
            found[name] = "\n".join(lines)
    cache = machine.run(
        ["ldconfig", "-p"],
        seconds=10,
        extra={"PATH": machine.environ.get("PATH", "") + ":/sbin:/usr/sbin"},
    )
    lines = [
        x.strip()
        for x in cache.out.splitlines()
        if re.search(r"lib(cuda|nvidia-ml|cud|nccl|cublas|nvJit)", x)
    ]
    if cache.rc == 0:
        found["ldconfig -p | grep -E 'cuda|nvidia'"] = "\n".join(lines)
    return {"cmd": found}


def engine(machine: Machine) -> dict[str, Any]:
    """SELinux, Slurm's view of the job."""
    found = _each(machine, (("getenforce",),))
    job = machine.environ.get("SLURM_JOB_ID", "")
    if job.isdecimal():
        run = machine.run(["scontrol", "show", "job", job], seconds=10)
        lines = [
            x.strip() for x in run.out.splitlines() if run.rc == 0 and re.search(r"TRES|Gres", x)
        ]
        if lines:
            found["cmd"][f"scontrol show job {job} | grep TRES"] = "\n".join(lines)
    return found
