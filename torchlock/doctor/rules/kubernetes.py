"""Kubernetes: whether the pod asked for a GPU, got one, and ran under the right runtime."""

from __future__ import annotations

import re

from torchlock.doctor.evidence import Evidence
from torchlock.doctor.findings import CERTAIN, LIKELY, Match, Rule, message_rule, rule
from torchlock.doctor.rules import facts

KIND = "kubernetes"


def _pod(evidence: Evidence) -> bool:
    return evidence.container.engine == "kubernetes" or bool(
        evidence.set_env("KUBERNETES_SERVICE_HOST")
    )


def _requests_gpu(evidence: Evidence) -> bool | None:
    """Whether the pod's spec asks for a GPU; None where the spec is not known."""
    if evidence.grep(r"nvidia\.com/(gpu|mig)\S*\W+[1-9]") or evidence.grep(
        r"^\"?[1-9]", source=r"nvidia\.com/(gpu|mig)"
    ):
        return True
    return False if evidence.grep("", source=r"^pod\b") else None


def _allocated(evidence: Evidence) -> bool:
    """Whether the device plugin put a device into NVIDIA_VISIBLE_DEVICES."""
    return bool(
        re.search(
            r"(GPU|MIG)-|^\d+(,\d+)*$|/var/run/nvidia", evidence.set_env("NVIDIA_VISIBLE_DEVICES")
        )
    )


def _nothing_reached(evidence: Evidence) -> bool:
    return (
        not facts.driver_works(evidence)
        and not facts.gpu_nodes(evidence)
        and (evidence.libcuda.found is False or facts.no_nodes(evidence))
    )


@rule(
    "runtimeclass-missing",
    KIND,
    cause="The pod was given a GPU by the device plugin but ran under plain runc: the "
    "nvidia runtime is "
    "neither the node's default nor chosen by the pod.",
    shows="NVIDIA_VISIBLE_DEVICES holds a UUID or the pod has an nvidia.com/gpu limit, "
    "no nodes or libraries; "
    "runtimeClassName is unset and the default runtime is runc.",
    fix=(
        "in the pod spec (pod level): runtimeClassName: nvidia    # kubectl get runtimeclass",
        "or on the node make nvidia the default runtime: sudo nvidia-ctk runtime configure "
        "--runtime=containerd --set-as-default && sudo systemctl restart "
        "containerd    # k3s: k3s.service",
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
    return Match(
        lines,
        CERTAIN if evidence.grep("runc", source="runtime") or _allocated(evidence) else LIKELY,
    )


@rule(
    "node-runtime-broken",
    KIND,
    cause="The pod chose the nvidia runtime, and the node's toolkit injected nothing or "
    "is not installed.",
    shows="runtimeClassName: nvidia, a GPU allocated, and no nodes or libraries; or `no "
    "runtime for "
    '"nvidia" is configured`.',
    fix=(
        "kubectl -n gpu-operator get pods    # toolkit and driver pods must be Running",
        "on the node: sudo nvidia-ctk runtime configure --runtime=containerd && "
        "sudo systemctl restart containerd",
        "then: kubectl delete pod <pod>",
    ),
    apart=("runtimeclass-missing: the pod does not choose the runtime",),
)
def node_runtime(evidence: Evidence) -> Match | None:
    """The nvidia runtime class without effect."""
    unknown = evidence.grep(
        r"no runtime for \"?nvidia\"? is configured|RuntimeClass.*nvidia.*not found"
        r"|runtime \"nvidia\" not found|RuntimeHandler \"nvidia\" not supported"
    )
    if unknown:
        return Match(unknown)
    chosen = evidence.grep(r"nvidia", source="runtimeClass")
    if (
        _pod(evidence)
        and chosen
        and _nothing_reached(evidence)
        and (_allocated(evidence) or _requests_gpu(evidence))
    ):
        return Match(chosen + evidence.grep("", source="NVIDIA_VISIBLE_DEVICES"), LIKELY)
    return None


@rule(
    "no-gpu-in-pod",
    KIND,
    cause="The pod does not ask for a GPU (no nvidia.com/gpu limit), so the device "
    "plugin gave it none.",
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
    lines = evidence.grep("", source=r"^pod|NVIDIA_VISIBLE_DEVICES") + evidence.grep(
        "Found no NVIDIA|libcuda"
    )
    return Match(lines, CERTAIN if asks is False else LIKELY)


@rule(
    "device-plugin-missing",
    KIND,
    cause="No node offers nvidia.com/gpu to the scheduler (device plugin absent, "
    "unhealthy or all GPUs taken).",
    shows="`Insufficient nvidia.com/gpu`, node capacity without nvidia.com/gpu, device "
    "plugin pods failing.",
    fix=(
        "kubectl describe nodes | grep -A8 Allocatable | grep nvidia    # 0 or missing: the plugin",
        "kubectl get pods -A | grep -E 'device-plugin|gpu-operator'; kubectl logs <plugin pod>",
        "install the NVIDIA device plugin or GPU operator; on k3s/microk8s give the plugin "
        "runtimeClassName: nvidia; capacity present: wait for, or free, a GPU",
    ),
    apart=(
        "untolerated-taint: the nodes have GPUs and a taint keeps the pod off",
        "mig-resource-name: the nodes offer MIG devices by another name",
    ),
    follows=("mig-resource-name", "gpu-share-too-large"),
)
def no_plugin(evidence: Evidence) -> Match | None:
    """Nothing to schedule on."""
    lines = evidence.grep(
        r"Insufficient nvidia\.com/|nvidia\.com/gpu:?\s+0\b|device plugin.*(not"
        r"|fail|error|crash|unhealthy)|"
        r"UnexpectedAdmissionError|No devices found\. Waiting indefinitely"
        r"|Incompatible (platform|strategy) detected|"
        r"could not load NVML library|Allocate failed due to"
    )
    return Match(lines) if lines else None


@rule(
    "mig-resource-name",
    KIND,
    cause="The nodes offer MIG devices by their profile (<offered>), and the pod asks for "
    "nvidia.com/gpu.",
    shows="`Insufficient nvidia.com/gpu` while a node's allocatable has nvidia.com/mig-<profile> "
    "(the device plugin's mixed strategy).",
    fix=(
        "in the container's spec: resources: {limits: {<offered>: 1}}",
        "or set migStrategy: single for nodes whose GPUs are all divided alike",
    ),
    apart=("device-plugin-missing: the nodes offer nothing at all",),
)
def mig_name(evidence: Evidence) -> Match | None:
    """A request for whole GPUs where there are only slices."""
    short = evidence.grep(r"Insufficient nvidia\.com/gpu")
    offered = evidence.first(r"(nvidia\.com/mig-\d+g\.\d+gb[\w.+-]*)\W+[1-9]\d*\b")
    if not short or not offered:
        return None
    return Match(short + evidence.grep(r"nvidia\.com/mig-"), values={"offered": offered[1]})


shared = message_rule(
    "gpu-share-too-large",
    KIND,
    r"maximum request size for shared resources is (?P<most>\d+)",
    cause="The node's GPUs are shared (time-slicing or MPS), where a pod may ask for <most> only; "
    "more would give it no more of the GPU.",
    fix=(
        "in the container's spec: resources: {limits: {nvidia.com/gpu: <most>}}",
        "for several whole GPUs choose nodes without sharing (nodeSelector), or "
        "failRequestsGreaterThanOne: false in the plugin's configuration",
    ),
    apart=("device-plugin-missing: no GPU to give",),
)

untolerated = message_rule(
    "untolerated-taint",
    KIND,
    r"(untolerated|didn't tolerate|had) taint \{?(?P<taint>nvidia[^}\s:,]*)",
    cause="The GPU nodes carry the taint <taint>, which the pod does not tolerate.",
    fix=(
        "in the pod spec: tolerations: "
        "[{key: nvidia.com/gpu, operator: Exists, effect: NoSchedule}]",
    ),
    apart=("device-plugin-missing: no node offers GPUs",),
)

operator_wait = message_rule(
    "gpu-operator-not-ready",
    KIND,
    r"toolkit-validation|driver-validation|waiting for (nvidia )?(container stack"
    r"|driver|toolkit) to be (setup|ready)|nvidia-driver-daemonset.*(CrashLoop"
    r"|Error|0/1)",
    cause="The GPU operator has not finished: its driver or toolkit pod is not ready on the node.",
    fix=(
        "kubectl -n gpu-operator get pods -o wide; kubectl -n gpu-operator logs "
        "<nvidia-driver-daemonset pod>",
        "a driver already on the node: helm upgrade ... --set driver.enabled=false",
        "nouveau loaded on the node: blacklist it and reboot",
    ),
    certainty=LIKELY,
    apart=("device-plugin-missing: there is no operator, or it is ready",),
    follows=("host-kernel-module",),
)


RULES: tuple[Rule, ...] = (
    runtime_class,
    node_runtime,
    no_request,
    untolerated,
    mig_name,
    shared,
    no_plugin,
    operator_wait,
)
