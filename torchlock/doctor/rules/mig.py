"""Multi-Instance GPU."""

from __future__ import annotations

import itertools
import re

from torchlock.doctor.evidence import Evidence
from torchlock.doctor.findings import CERTAIN, LIKELY, Match, Rule, rule
from torchlock.doctor.rules import facts

KIND = "mig"


def _instances(evidence: Evidence) -> tuple[str, ...]:
    return tuple(uuid for gpu in evidence.gpus for uuid in gpu.migs)


def _enabled(evidence: Evidence) -> bool:
    if any(gpu.mig_mode for gpu in evidence.gpus):
        return True
    # in `nvidia-smi -q` the mode stands below its heading; other modes are told in the same words
    below = itertools.pairwise(evidence.lines)
    listed = any(
        re.fullmatch(r"\s*MIG Mode\s*", heading.text)
        and re.match(r"\s*Current\s*:\s*Enabled", line.text)
        for heading, line in below
    )
    return listed or bool(evidence.grep(r"MIG (Mode|M\.)?.*\bEnabled\b|MIG.*mode.*enabled"))


@rule(
    "mig-enabled-without-instances",
    KIND,
    cause="MIG mode is enabled and no MIG instance exists, so CUDA has no device to use.",
    shows="MIG mode Enabled, `nvidia-smi -L` lists no MIG device (`No MIG devices "
    "found`), cuInit 100.",
    fix=(
        "sudo nvidia-smi mig -cgi 9,9 -C    # makes instances; profiles: nvidia-smi mig -lgip",
        "nvidia-smi -L    # must list MIG devices; instances are lost at a reboot",
        "or turn MIG off: sudo nvidia-smi -i <index> -mig 0    # with no process on the GPU",
    ),
    apart=(
        "mig-one-instance-per-process: instances exist",
        "cvd-unknown-uuid: the named instance is gone",
    ),
)
def no_instances(evidence: Evidence) -> Match | None:
    """MIG on, nothing in it."""
    if not _enabled(evidence) or _instances(evidence) or evidence.torch.available is True:
        return None
    if not facts.cuda_is_off(evidence) and not facts.says_no_gpu(evidence):
        return None
    listed = evidence.grep(
        r"No MIG devices found|No (GPU|MIG|compute) instances? found|No MIG-enabled"
    )
    compute = evidence.grep("No compute instances|No GPU instances")
    if listed or evidence.libcuda.init in (3, 100, 101, 999) or facts.says_no_gpu(evidence):
        lines = listed + compute + evidence.grep("Enabled") + facts.gpu_lines(evidence)
        return Match(lines, CERTAIN if listed else LIKELY)
    return None


@rule(
    "mig-one-instance-per-process",
    KIND,
    cause="A CUDA process sees one MIG instance only; several instances cannot be used "
    "as several GPUs of one process, "
    "nor joined by NCCL.",
    shows="Several MIG devices, device_count 1, and a program that asks for device 1 or "
    "for DDP over instances.",
    fix=(
        "one process per instance: CUDA_VISIBLE_DEVICES=<that MIG UUID> python "
        "<program>, with device 0 in each",
        "for multi-GPU training turn MIG off: sudo nvidia-smi -i <index> -mig 0",
    ),
    apart=(
        "mig-enabled-without-instances: none exist",
        "invalid-device-ordinal: no MIG",
        "duplicate-gpu: ranks on one whole GPU",
    ),
)
def one_instance(evidence: Evidence) -> Match | None:
    """More than one instance wanted by a process."""
    cvd = evidence.set_env("CUDA_VISIBLE_DEVICES")
    several = (
        len(_instances(evidence)) > 1
        or cvd.count("MIG-") > 1
        or len(re.findall("MIG-", evidence.error)) > 1
    )
    wanted = evidence.grep(
        r"device >= 0 && device < num_gpus|invalid device ordinal|Duplicate GPU "
        r"detected|device_count\W+1\b"
        r"|world.?size|nproc|DistributedDataParallel|CUDAContext\.cpp"
    )
    if not several or not (wanted or (evidence.torch.devices == 1 and cvd.count("MIG-") > 1)):
        return None
    if not evidence.error and evidence.torch.devices != 1:
        return None
    return Match(wanted + evidence.grep(r"MIG \S+ +Device|MIG-"))


@rule(
    "mig-wrong-name",
    KIND,
    cause="With MIG enabled, CUDA_VISIBLE_DEVICES=<value> does not name a MIG instance "
    "that CUDA accepts.",
    shows="MIG instances exist and CUDA_VISIBLE_DEVICES holds a GPU index above 0, a "
    "profile name or an old MIG-GPU-.../gi/ci name "
    "the driver does not take.",
    fix=(
        "nvidia-smi -L    # copy the UUID MIG-xxxxxxxx-...",
        "export CUDA_VISIBLE_DEVICES=MIG-<uuid>    # drivers before 470.42: "
        "MIG-GPU-<uuid>/<gi>/<ci>",
    ),
    apart=("cvd-unknown-uuid: a UUID that no longer exists",),
    follows=("visibility-env",),
)
def wrong_name(evidence: Evidence) -> Match | None:
    """An index or old-style name for an instance."""
    cvd = evidence.set_env("CUDA_VISIBLE_DEVICES")
    if not _instances(evidence) or not cvd or not facts.cuda_is_off(evidence):
        return None
    old = bool(re.match(r"MIG-GPU-", cvd)) and facts.branch(evidence) >= 470
    index = bool(re.match(r"\d+:\d|\d+\.|\dg\.", cvd))
    if old or index:
        return Match(
            evidence.grep("", source="CUDA_VISIBLE_DEVICES$") + evidence.grep("MIG "),
            LIKELY,
            {"value": cvd},
        )
    return None


@rule(
    "mig-change-pending",
    KIND,
    cause="A MIG mode change is pending and takes effect only when the GPU is reset.",
    shows="Current and pending MIG mode differ, `Enabled*`, `pending`.",
    fix=(
        "end every process on the GPU, then: sudo nvidia-smi --gpu-reset -i "
        "<index>    # or sudo reboot",
    ),
    apart=("mig-enabled-without-instances: the mode is in force",),
    follows=("gpu-state",),
)
def pending(evidence: Evidence) -> Match | None:
    """MIG mode waits for a reset."""
    lines = evidence.grep(
        r"MIG.*(is in )?pending|Enabled\*|Disabled\*|Warning: MIG mode is in pending"
    )
    modes = evidence.first(r"^(Enabled|Disabled), *(Enabled|Disabled)$")
    if lines or (modes and modes[1] != modes[2]):
        return Match(lines or evidence.grep("^(Enabled|Disabled), *"), LIKELY)
    return None


RULES: tuple[Rule, ...] = (pending, no_instances, one_instance, wrong_name)
