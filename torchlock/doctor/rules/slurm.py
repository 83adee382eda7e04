"""Slurm: whether the job and the step were given GPUs."""

from __future__ import annotations

import re

from torchlock.doctor.evidence import Evidence
from torchlock.doctor.findings import CERTAIN, LIKELY, Match, Rule, rule
from torchlock.doctor.rules import facts

KIND = "slurm"


def _slurm(evidence: Evidence) -> bool:
    return any(name.startswith("SLURM_") for name in evidence.env) or bool(
        evidence.grep(r"\b(srun|sbatch|scontrol|salloc)\b")
    )


def _allocated_by_slurm(evidence: Evidence) -> bool | None:
    """Whether the job has GPUs in its resources; None where that is not known."""
    if any(
        evidence.set_env(name)
        for name in (
            "SLURM_JOB_GPUS",
            "SLURM_STEP_GPUS",
            "SLURM_GPUS",
            "SLURM_GPUS_ON_NODE",
            "SLURM_GPUS_PER_NODE",
            "SLURM_GPUS_PER_TASK",
        )
    ):
        return True
    if evidence.grep(r"gres/gpu\S*[:=]|--(gres=gpu|gpus)|TresPerNode=\S*gpu|gpu:\S*\d"):
        return True
    tres = evidence.grep(r"TRES=|TresPer|AllocTRES|ReqTRES|#SBATCH|Gres=\(null\)")
    return False if tres else None


@rule(
    "slurm-no-gpu-requested",
    KIND,
    cause="The Slurm job was not given a GPU, so Slurm hides them "
    "(CUDA_VISIBLE_DEVICES=<value>, or the job's "
    "device cgroup).",
    shows="In a job: CUDA_VISIBLE_DEVICES is NoDevFiles or empty, or open() of the nodes "
    "= EPERM / `No devices found`; "
    "TRES without gres/gpu, no SLURM_JOB_GPUS.",
    fix=(
        "resubmit with a GPU: sbatch --gres=gpu:1 ...    # or --gpus=1; "
        "--constraint and --partition do not give one",
        "scontrol show job $SLURM_JOB_ID | grep -i tres    # must list gres/gpu",
        "do not unset CUDA_VISIBLE_DEVICES to get round it",
    ),
    apart=(
        "slurm-step-without-gpu: the job has GPUs, this srun step was given none",
        "slurm-login-node: not inside a job at all",
        "cvd-invalid: the variable was set by hand",
    ),
    follows=("slurm-step-without-gpu",),
)
def not_requested(evidence: Evidence) -> Match | None:
    """A job without GPUs."""
    if not _slurm(evidence) or (facts.driver_works(evidence) and evidence.libcuda.init == 0):
        return None
    if evidence.torch.available is True or (
        not evidence.set_env("SLURM_JOB_ID") and not evidence.grep("NoDevFiles")
    ):
        return None
    value = evidence.env.get("CUDA_VISIBLE_DEVICES")
    hidden = value in ("NoDevFiles", "")
    refused = facts.opened_with(evidence, "EPERM") + evidence.grep(r"No devices (were )?found")
    has = _allocated_by_slurm(evidence)
    if (has and value != "NoDevFiles") or not (
        hidden
        or refused
        or (has is False and facts.cuda_is_off(evidence) and facts.says_no_gpu(evidence))
    ):
        return None
    lines = (
        evidence.grep("", source="CUDA_VISIBLE_DEVICES$|^env: SLURM_JOB")
        + evidence.grep("TRES|Gres=|#SBATCH")
        + refused
    )
    return Match(
        lines,
        CERTAIN if value == "NoDevFiles" or has is False else LIKELY,
        {"value": value if value is not None else "unset"},
    )


@rule(
    "slurm-step-without-gpu",
    KIND,
    cause="The Slurm job has GPUs, but this step (srun) was not given them.",
    shows="gres/gpu in the job's TRES or SLURM_JOB_GPUS set, and in the step "
    "CUDA_VISIBLE_DEVICES is NoDevFiles, empty "
    "or the nodes are refused.",
    fix=(
        "srun --gres=gpu:<n> ...    # or --gpus-per-task=1; a step inside an "
        "interactive job: add --overlap",
        "scontrol show step $SLURM_JOB_ID.$SLURM_STEP_ID | grep -i tres",
    ),
    apart=("slurm-no-gpu-requested: the job itself has none",),
)
def step_without(evidence: Evidence) -> Match | None:
    """GPUs in the job, none in the step."""
    if (
        not _slurm(evidence)
        or not _allocated_by_slurm(evidence)
        or evidence.torch.available is True
    ):
        return None
    value = evidence.env.get("CUDA_VISIBLE_DEVICES")
    refused = facts.opened_with(evidence, "EPERM") + evidence.grep(r"No devices (were )?found")
    if value in ("NoDevFiles", "") or (refused and evidence.set_env("SLURM_JOB_ID")):
        lines = (
            evidence.grep("", source="CUDA_VISIBLE_DEVICES$|^env: SLURM_")
            + evidence.grep("gres/gpu")
            + refused
        )
        return Match(lines, LIKELY)
    return None


@rule(
    "slurm-task-sees-one-gpu",
    KIND,
    cause="Each Slurm task sees only its own GPU (as index 0), and the program picks the "
    "device by its local rank.",
    shows="`invalid device ordinal` with --gpus-per-task or --gpu-bind: one device per "
    "task, SLURM_LOCALID above 0.",
    fix=(
        "use device 0 in every task (torch.cuda.set_device(0)), or let each task "
        "see all of the node's: "
        "srun --gpus-per-node=<n> (not --gpus-per-task), or --gpu-bind=none",
        "or start one torchrun per node: --ntasks-per-node=1 with --nproc-per-node=<n>",
    ),
    apart=("invalid-device-ordinal: outside Slurm, the index is simply too high",),
)
def one_each(evidence: Evidence) -> Match | None:
    """Local rank as device index where each task has one device."""
    lines = evidence.grep(r"invalid device ordinal|device >= 0 && device < num_gpus")
    if not lines or not _slurm(evidence):
        return None
    one = (
        evidence.torch.devices == 1
        or bool(re.fullmatch(r"\d", evidence.set_env("CUDA_VISIBLE_DEVICES")))
        or bool(
            evidence.grep(r"gpus-per-task|gpu-bind|ntasks-per-gpu", source="")
            or evidence.set_env("SLURM_GPUS_PER_TASK")
        )
    )
    if not one:
        return None
    return Match(
        lines
        + evidence.grep("", source="CUDA_VISIBLE_DEVICES$|SLURM_(LOCALID|GPUS|NTASKS|GPU_BIND)")
    )


@rule(
    "slurm-login-node",
    KIND,
    cause="This is a cluster's login node, which has no GPU; the program was not "
    "submitted as a job.",
    shows="Slurm's commands are here, no SLURM_JOB_ID, no NVIDIA device.",
    fix=("srun --gres=gpu:1 --pty bash    # or sbatch with --gres=gpu:1",),
    apart=("slurm-no-gpu-requested: inside a job",),
)
def login_node(evidence: Evidence) -> Match | None:
    """Slurm without a job."""
    here = re.search(r"login|head ?node|front-?end", evidence.system.os, re.I) or evidence.grep(
        r"login", source="hostname|context"
    )
    tools = here or evidence.grep(r"/\S*(sinfo|sbatch|srun)\b", source="which|command -v|slurm")
    if (
        not tools
        or evidence.set_env("SLURM_JOB_ID")
        or facts.driver_works(evidence)
        or facts.gpu_nodes(evidence)
    ):
        return None
    if not facts.no_nodes(evidence) and not facts.no_driver_reached(evidence):
        return None
    lines = evidence.grep(r"login|sinfo|sbatch") + evidence.grep(
        "not found|cannot open", source="smi|dlopen"
    )
    return Match(lines, CERTAIN if here else LIKELY)


@rule(
    "slurm-gres-refused",
    KIND,
    cause="Slurm refuses the GPU request: this partition or node has no such generic resource.",
    shows="`Invalid generic resource (gres) specification`, `Requested node configuration is not "
    "available`.",
    fix=(
        "sinfo -o '%P %G %N'    # the partitions with GPUs, and the names of their types",
        "sbatch --partition=<partition with GPUs> --gres=gpu:1 ...",
    ),
    apart=("slurm-no-gpu-requested: the job runs, without a GPU",),
)
def refused_gres(evidence: Evidence) -> Match | None:
    """A request Slurm cannot meet."""
    lines = evidence.grep(
        r"Invalid generic resource|Requested node configuration is not available|Invalid gres"
    )
    return Match(lines) if lines else None


RULES: tuple[Rule, ...] = (refused_gres, step_without, not_requested, one_each, login_node)
