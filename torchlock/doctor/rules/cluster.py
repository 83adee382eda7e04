"""Kubernetes and Slurm: whether the scheduler gave the job a GPU, and how it reached it."""

from __future__ import annotations

import re

from torchlock.doctor.evidence import Evidence
from torchlock.doctor.findings import CERTAIN, LIKELY, Match, Rule, message_rule, rule
from torchlock.doctor.rules import facts

KUBERNETES = "kubernetes"
SLURM = "slurm"


def _pod(evidence: Evidence) -> bool:
    return evidence.container.engine == "kubernetes" or bool(evidence.set_env("KUBERNETES_SERVICE_HOST"))


def _requests_gpu(evidence: Evidence) -> bool | None:
    """Whether the pod's spec asks for a GPU; None where the spec is not known."""
    if evidence.grep(r"nvidia\.com/(gpu|mig)\S*\W+[1-9]") or evidence.grep(
        r"^\"?[1-9]", source=r"nvidia\.com/(gpu|mig)"
    ):
        return True
    return False if evidence.grep("", source=r"^pod\b") else None


def _allocated(evidence: Evidence) -> bool:
    """Whether the device plugin put a device into NVIDIA_VISIBLE_DEVICES."""
    return bool(re.search(r"(GPU|MIG)-|^\d+(,\d+)*$|/var/run/nvidia", evidence.set_env("NVIDIA_VISIBLE_DEVICES")))


def _nothing_reached(evidence: Evidence) -> bool:
    return not facts.driver_works(evidence) and not facts.gpu_nodes(evidence) and (
        evidence.libcuda.found is False or facts.no_nodes(evidence)
    )


@rule(
    "runtimeclass-missing",
    KUBERNETES,
    cause="The pod was given a GPU by the device plugin but ran under plain runc: the nvidia runtime is "
    "neither the node's default nor chosen by the pod.",
    shows="NVIDIA_VISIBLE_DEVICES holds a UUID or the pod has an nvidia.com/gpu limit, no nodes or libraries; "
    "runtimeClassName is unset and the default runtime is runc.",
    fix=(
        "in the pod spec (pod level): runtimeClassName: nvidia    # kubectl get runtimeclass",
        "or on the node make nvidia the default runtime: sudo nvidia-ctk runtime configure "
        "--runtime=containerd --set-as-default && sudo systemctl restart containerd    # k3s: k3s.service",
    ),
    apart=(
        "no-gpu-in-pod: the pod does not ask for a GPU, NVIDIA_VISIBLE_DEVICES holds no device",
        "device-plugin-missing: the pod is not scheduled at all",
    ),
)
def runtime_class(evidence: Evidence) -> Match | None:
    """An allocated GPU under runc."""
    if not _pod(evidence) or not _nothing_reached(evidence):
        return None
    if not (_allocated(evidence) or _requests_gpu(evidence)):
        return None
    chosen = evidence.grep(r"nvidia", source="runtimeClass")
    if chosen:
        return None
    lines = evidence.grep(r"\S", source="NVIDIA_VISIBLE_DEVICES|nvidia.com/gpu|runtime")
    return Match(lines, CERTAIN if evidence.grep("runc", source="runtime") or _allocated(evidence) else LIKELY)


@rule(
    "node-runtime-broken",
    KUBERNETES,
    cause="The pod chose the nvidia runtime, and the node's toolkit injected nothing or is not installed.",
    shows="runtimeClassName: nvidia, a GPU allocated, and no nodes or libraries; or `no runtime for "
    '"nvidia" is configured`.',
    fix=(
        "kubectl -n gpu-operator get pods    # toolkit and driver pods must be Running",
        "on the node: sudo nvidia-ctk runtime configure --runtime=containerd && sudo systemctl restart containerd",
        "then: kubectl delete pod <pod>",
    ),
    apart=("runtimeclass-missing: the pod does not choose the runtime",),
)
def node_runtime(evidence: Evidence) -> Match | None:
    """The nvidia runtime class without effect."""
    unknown = evidence.grep(r"no runtime for \"?nvidia\"? is configured|RuntimeClass.*nvidia.*not found|runtime \"nvidia\" not found|RuntimeHandler \"nvidia\" not supported")
    if unknown:
        return Match(unknown)
    chosen = evidence.grep(r"nvidia", source="runtimeClass")
    if _pod(evidence) and chosen and _nothing_reached(evidence) and (_allocated(evidence) or _requests_gpu(evidence)):
        return Match(chosen + evidence.grep("", source="NVIDIA_VISIBLE_DEVICES"), LIKELY)
    return None


@rule(
    "no-gpu-in-pod",
    KUBERNETES,
    cause="The pod does not ask for a GPU (no nvidia.com/gpu limit), so the device plugin gave it none.",
    shows="In a pod without nodes or libraries: no nvidia.com/gpu in resources.limits; "
    "NVIDIA_VISIBLE_DEVICES unset, `void`, `none` or only the image's `all`.",
    fix=(
        "in the container's spec: resources: {limits: {nvidia.com/gpu: 1}}",
        "kubectl describe node <node> | grep nvidia.com/gpu    # the node must offer some",
    ),
    apart=("runtimeclass-missing: a GPU was allocated and not injected",),
)
def no_request(evidence: Evidence) -> Match | None:
    """A pod without a GPU limit."""
    if not _pod(evidence) or not _nothing_reached(evidence) or _allocated(evidence):
        return None
    asks = _requests_gpu(evidence)
    if asks:
        return None
    lines = evidence.grep("", source=r"^pod|NVIDIA_VISIBLE_DEVICES") + evidence.grep("Found no NVIDIA|libcuda")
    return Match(lines, CERTAIN if asks is False else LIKELY)


@rule(
    "device-plugin-missing",
    KUBERNETES,
    cause="No node offers nvidia.com/gpu to the scheduler (device plugin absent, unhealthy or all GPUs taken).",
    shows="`Insufficient nvidia.com/gpu`, node capacity without nvidia.com/gpu, device plugin pods failing.",
    fix=(
        "kubectl describe nodes | grep -A8 Allocatable | grep nvidia    # 0 or missing: the plugin",
        "kubectl get pods -A | grep -E 'device-plugin|gpu-operator'; kubectl logs <plugin pod>",
        "install the NVIDIA device plugin or GPU operator; on k3s/microk8s give the plugin "
        "runtimeClassName: nvidia; capacity present: wait for, or free, a GPU",
    ),
    apart=("untolerated-taint: the nodes have GPUs and a taint keeps the pod off",),
)
def no_plugin(evidence: Evidence) -> Match | None:
    """Nothing to schedule on."""
    lines = evidence.grep(
        r"Insufficient nvidia\.com/|nvidia\.com/gpu:?\s+0\b|device plugin.*(not|fail|error|crash|unhealthy)|"
        r"UnexpectedAdmissionError|No devices found\. Waiting indefinitely|Incompatible (platform|strategy) detected|"
        r"could not load NVML library|Allocate failed due to"
    )
    return Match(lines) if lines else None


untolerated = message_rule(
    "untolerated-taint",
    KUBERNETES,
    r"(untolerated|didn't tolerate|had) taint \{?(?P<taint>nvidia[^}\s:,]*)",
    cause="The GPU nodes carry the taint <taint>, which the pod does not tolerate.",
    fix=(
        "in the pod spec: tolerations: [{key: nvidia.com/gpu, operator: Exists, effect: NoSchedule}]",
    ),
    apart=("device-plugin-missing: no node offers GPUs",),
)

operator_wait = message_rule(
    "gpu-operator-not-ready",
    KUBERNETES,
    r"toolkit-validation|driver-validation|waiting for (nvidia )?(container stack|driver|toolkit) to be (setup|ready)|nvidia-driver-daemonset.*(CrashLoop|Error|0/1)",
    cause="The GPU operator has not finished: its driver or toolkit pod is not ready on the node.",
    fix=(
        "kubectl -n gpu-operator get pods -o wide; kubectl -n gpu-operator logs <nvidia-driver-daemonset pod>",
        "a driver already on the node: helm upgrade ... --set driver.enabled=false",
        "nouveau loaded on the node: blacklist it and reboot",
    ),
    certainty=LIKELY,
    follows=("host-kernel-module",),
)


def _slurm(evidence: Evidence) -> bool:
    return any(name.startswith("SLURM_") for name in evidence.env) or bool(evidence.grep(r"\b(srun|sbatch|scontrol|salloc)\b"))


def _allocated_by_slurm(evidence: Evidence) -> bool | None:
    """Whether the job has GPUs in its resources; None where that is not known."""
    if any(evidence.set_env(name) for name in ("SLURM_JOB_GPUS", "SLURM_STEP_GPUS", "SLURM_GPUS", "SLURM_GPUS_ON_NODE", "SLURM_GPUS_PER_NODE", "SLURM_GPUS_PER_TASK")):
        return True
    if evidence.grep(r"gres/gpu\S*[:=]|--(gres=gpu|gpus)|TresPerNode=\S*gpu|gpu:\S*\d"):
        return True
    tres = evidence.grep(r"TRES=|TresPer|AllocTRES|ReqTRES|#SBATCH|Gres=\(null\)")
    return False if tres else None


@rule(
    "slurm-no-gpu-requested",
    SLURM,
    cause="The Slurm job was not given a GPU, so Slurm hides them (CUDA_VISIBLE_DEVICES=<value>, or the job's "
    "device cgroup).",
    shows="In a job: CUDA_VISIBLE_DEVICES is NoDevFiles or empty, or open() of the nodes = EPERM / `No devices found`; "
    "TRES without gres/gpu, no SLURM_JOB_GPUS.",
    fix=(
        "resubmit with a GPU: sbatch --gres=gpu:1 ...    # or --gpus=1; --constraint and --partition do not give one",
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
    if not _slurm(evidence) or facts.driver_works(evidence) and evidence.libcuda.init == 0:
        return None
    if evidence.torch.available is True or not evidence.set_env("SLURM_JOB_ID") and not evidence.grep("NoDevFiles"):
        return None
    value = evidence.env.get("CUDA_VISIBLE_DEVICES")
    hidden = value in ("NoDevFiles", "")
    refused = facts.opened_with(evidence, "EPERM") + evidence.grep(r"No devices (were )?found")
    has = _allocated_by_slurm(evidence)
    if has and value != "NoDevFiles" or not (hidden or refused or has is False and facts.cuda_is_off(evidence) and facts.says_no_gpu(evidence)):
        return None
    lines = evidence.grep("", source="CUDA_VISIBLE_DEVICES$|^env: SLURM_JOB") + evidence.grep("TRES|Gres=|#SBATCH") + refused
    return Match(lines, CERTAIN if value == "NoDevFiles" or has is False else LIKELY, {"value": value if value is not None else "unset"})


@rule(
    "slurm-step-without-gpu",
    SLURM,
    cause="The Slurm job has GPUs, but this step (srun) was not given them.",
    shows="gres/gpu in the job's TRES or SLURM_JOB_GPUS set, and in the step CUDA_VISIBLE_DEVICES is NoDevFiles, empty "
    "or the nodes are refused.",
    fix=(
        "srun --gres=gpu:<n> ...    # or --gpus-per-task=1; a step inside an interactive job: add --overlap",
        "scontrol show step $SLURM_JOB_ID.$SLURM_STEP_ID | grep -i tres",
    ),
    apart=("slurm-no-gpu-requested: the job itself has none",),
)
def step_without(evidence: Evidence) -> Match | None:
    """GPUs in the job, none in the step."""
    if not _slurm(evidence) or not _allocated_by_slurm(evidence) or evidence.torch.available is True:
        return None
    value = evidence.env.get("CUDA_VISIBLE_DEVICES")
    refused = facts.opened_with(evidence, "EPERM") + evidence.grep(r"No devices (were )?found")
    if value in ("NoDevFiles", "") or refused and evidence.set_env("SLURM_JOB_ID"):
        lines = evidence.grep("", source="CUDA_VISIBLE_DEVICES$|^env: SLURM_") + evidence.grep("gres/gpu") + refused
        return Match(lines, LIKELY)
    return None


@rule(
    "slurm-task-sees-one-gpu",
    SLURM,
    cause="Each Slurm task sees only its own GPU (as index 0), and the program picks the device by its local rank.",
    shows="`invalid device ordinal` with --gpus-per-task or --gpu-bind: one device per task, SLURM_LOCALID above 0.",
    fix=(
        "use device 0 in every task (torch.cuda.set_device(0)), or let each task see all of the node's: "
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
        or bool(evidence.grep(r"gpus-per-task|gpu-bind|ntasks-per-gpu", source="") or evidence.set_env("SLURM_GPUS_PER_TASK"))
    )
    if not one:
        return None
    return Match(lines + evidence.grep("", source="CUDA_VISIBLE_DEVICES$|SLURM_(LOCALID|GPUS|NTASKS|GPU_BIND)"))


@rule(
    "slurm-login-node",
    SLURM,
    cause="This is a cluster's login node, which has no GPU; the program was not submitted as a job.",
    shows="Slurm's commands are here, no SLURM_JOB_ID, no NVIDIA device.",
    fix=("srun --gres=gpu:1 --pty bash    # or sbatch with --gres=gpu:1",),
    apart=("slurm-no-gpu-requested: inside a job",),
)
def login_node(evidence: Evidence) -> Match | None:
    """Slurm without a job."""
    here = re.search(r"login|head ?node|front-?end", evidence.system.os, re.I) or evidence.grep(r"login", source="hostname|context")
    tools = here or evidence.grep(r"/\S*(sinfo|sbatch|srun)\b", source="which|command -v|slurm")
    if not tools or evidence.set_env("SLURM_JOB_ID") or facts.driver_works(evidence) or facts.gpu_nodes(evidence):
        return None
    if not facts.no_nodes(evidence) and not facts.no_driver_reached(evidence):
        return None
    lines = evidence.grep(r"login|sinfo|sbatch") + evidence.grep("not found|cannot open", source="smi|dlopen")
    return Match(lines, CERTAIN if here else LIKELY)


RULES: tuple[Rule, ...] = (
    runtime_class,
    node_runtime,
    no_request,
    untolerated,
    no_plugin,
    operator_wait,
    step_without,
    not_requested,
    one_each,
    login_node,
)
