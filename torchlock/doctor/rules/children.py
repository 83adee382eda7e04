"""Loading libcuda or torch in a child process crashed or never ended."""

from __future__ import annotations

import re

from torchlock.doctor.evidence import Evidence, Line
from torchlock.doctor.findings import LIKELY, POSSIBLE, Match, Rule, rule

KIND = "crash-or-hang"
_CUINIT = "child: cuInit"
_NATIVE = "child: loading torch's libraries"
_IMPORT = "child: import torch"
NAMES = (_CUINIT, "child: NVML", _NATIVE, _IMPORT)
# The GPU and kernel faults in which a driver stops answering, or brings its caller down.
_FAULTS = (
    "xid79-fell-off-bus",
    "gsp-timeout",
    "uncorrectable-ecc",
    "gpu-needs-reset",
    "uvm-broken-after-suspend",
    "gpu-does-not-wake",
    "nvswitch-fault",
    "fabricmanager-not-running",
    "mps-unreachable",
)
_CRASH = re.compile(r": (killed by signal (?!9\b)\d+|Illegal instruction)$")
_HANG = re.compile(r": no answer in [\d.]+ s$")


def ended(evidence: Evidence, child: str) -> Line | None:
    """The line that says how a child ended; None where it was not run."""
    return next((line for line in evidence.lines if line.source == child), None)


def torch_ended(evidence: Evidence) -> Line | None:
    """How torch's own child ended: the import's, or where that was not needed the libraries'."""
    return ended(evidence, _IMPORT) or ended(evidence, _NATIVE)


def _stage(evidence: Evidence) -> tuple[str, ...]:
    return evidence.grep(r"\S", source="^nativeStage$")


@rule(
    "cuinit-hangs",
    KIND,
    cause="The driver does not answer: cuInit hangs.",
    shows="a child process that calls cuInit alone has to be killed, although libcuda.so.1 loads.",
    fix=(
        "sudo dmesg | grep -iE 'nvrm|xid|blocked for more than'    # what the driver waits for",
        "timeout 20 nvidia-smi; ps -eo pid,stat,wchan:32,cmd | awk '$2 ~ /D/'    # and this",
        "stop what uses the GPU, then: sudo nvidia-smi --gpu-reset; where that hangs too: reboot",
    ),
    apart=("torch-hangs: cuInit answers, torch does not",),
    follows=_FAULTS,
)
def cuinit_hangs(evidence: Evidence) -> Match | None:
    """cuInit that never returns."""
    line = ended(evidence, _CUINIT)
    if line is None or not _HANG.search(line.text) or evidence.libcuda.init is not None:
        return None
    loaded = evidence.grep(r"\S", source=r"^dlopen: libcuda\.so\.1: path$")
    return Match((str(line), *loaded), LIKELY if evidence.libcuda.found else POSSIBLE)


@rule(
    "cuinit-crashes",
    KIND,
    cause="Loading libcuda.so.1 or calling cuInit crashes: the driver's library is damaged or "
    "does not belong to the loaded kernel module.",
    shows="a child process that calls cuInit alone ends by a signal.",
    fix=(
        "cat /proc/driver/nvidia/version; ldconfig -p | grep libcuda    # must be one version",
        "unset LD_PRELOAD LD_LIBRARY_PATH    # and try again",
        "reinstall the NVIDIA driver, then reboot",
    ),
    apart=("torch-crashes: cuInit alone works", "driver-library-mismatch: cuInit returns 803"),
    follows=(*_FAULTS, "cpu-instruction-missing", "driver-library-mismatch"),
)
def cuinit_crashes(evidence: Evidence) -> Match | None:
    """cuInit that brings its process down."""
    line = ended(evidence, _CUINIT)
    if line is None or not _CRASH.search(line.text) or evidence.libcuda.init is not None:
        return None
    return Match((str(line),), LIKELY)


@rule(
    "torch-crashes",
    KIND,
    cause="Loading torch, or asking it for CUDA, crashes its process.",
    shows="a child process that imports torch or loads its libraries ends by a signal.",
    fix=(
        "python -X faulthandler -c 'import torch; print(torch.cuda.is_available())'",
        "unset LD_PRELOAD LD_LIBRARY_PATH    # and try again: a foreign library crashes so too",
        "python -m pip install --force-reinstall --no-cache-dir torch==2.7.1    # in a new "
        "environment: a file of this one may be damaged",
    ),
    apart=(
        "cuinit-crashes: cuInit crashes without torch too",
        "cpu-instruction-missing: signal Illegal instruction",
    ),
    follows=(*_FAULTS, "cuinit-crashes", "cpu-instruction-missing"),
)
def torch_crashes(evidence: Evidence) -> Match | None:
    """torch that brings its process down."""
    line = torch_ended(evidence)
    if line is None or not _CRASH.search(line.text):
        return None
    return Match((str(line), *_stage(evidence)), LIKELY)


@rule(
    "torch-hangs",
    KIND,
    cause="Loading torch does not end in the time allowed, so torch cannot say whether CUDA is "
    "available: a hang in the driver, or a very slow disk or network file system.",
    shows="a child process that imports torch, or loads its libraries and counts the GPUs, has "
    "to be killed.",
    fix=(
        "time python -X importtime -c 'import torch'    # does it end, and where does it wait",
        "time python -c 'import torch; print(torch.cuda.is_available())'    # CUDA's part",
        "sudo dmesg | grep -iE 'nvrm|xid|blocked for more than|nfs|lustre'",
        "environment on a network file system: install it on a local disk",
    ),
    apart=("cuinit-hangs: cuInit hangs without torch too",),
    follows=(*_FAULTS, "cuinit-hangs"),
)
def torch_hangs(evidence: Evidence) -> Match | None:
    """torch that never answers."""
    line = torch_ended(evidence)
    if line is None or not _HANG.search(line.text) or evidence.torch.available is not None:
        return None
    certainty = LIKELY if line.source == _IMPORT else POSSIBLE
    return Match((str(line), *_stage(evidence)), certainty)


RULES: tuple[Rule, ...] = (cuinit_hangs, cuinit_crashes, torch_crashes, torch_hangs)
