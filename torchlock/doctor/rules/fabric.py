"""NVSwitch fabric, IMEX and confidential computing."""

from __future__ import annotations

import re

from torchlock.doctor import fixes
from torchlock.doctor.evidence import Evidence
from torchlock.doctor.findings import CERTAIN, LIKELY, POSSIBLE, Match, Rule, rule
from torchlock.doctor.rules import facts

KIND = "fabric-and-cc"

_NOT_READY = r"Error 802\b|system not yet initialized|CUDA_ERROR_SYSTEM_NOT_READY"
_NVSWITCH_GPU = r"(SXM|HGX|DGX|H100 80GB HBM3|H200|B[123]00|A100-SXM)"


def _not_ready(evidence: Evidence) -> bool:
    return evidence.libcuda.init == 802 or bool(evidence.grep(_NOT_READY))


@rule(
    "confidential-compute-not-ready",
    KIND,
    cause="Confidential computing is on and the GPU's ready state is not set: it takes no work "
    "until it has been attested.",
    shows="cuInit 802; `nvidia-smi conf-compute -f`: CC status: ON; `-grs`: not ready.",
    fix=(
        "sudo nvidia-smi conf-compute -srs 1    # sets the ready state; attest the GPU first "
        "where your policy asks for it",
        "at boot: run nvidia-persistenced --uvm-persistence-mode, then the command above",
    ),
    apart=("fabricmanager-not-running: 802 on an NVSwitch machine with CC off",),
)
def confidential(evidence: Evidence) -> Match | None:
    """CC on, ready state off."""
    if evidence.torch.available is True:
        return None
    on = evidence.grep(
        r"(CC (status|mode|state|feature)|Confidential Compute (feature|mode|status"
        r"|state))\W*(is )?[: ]\s*(ON\b|enabled|devtools)"
    )
    unready = evidence.grep(
        r"not[- ]ready", source="conf-compute|grs|journal|dmesg|cc|nvidia-smi"
    ) + evidence.grep(r"Ready State\w*\W+not")
    if (on and (unready or _not_ready(evidence))) or (
        unready and evidence.grep("conf(idential)?[- ]comput")
    ):
        lines = on + unready + evidence.grep(_NOT_READY)
        return Match(lines, CERTAIN if unready else LIKELY)
    return None


def _fabric_lines(evidence: Evidence) -> tuple[str, ...]:
    return evidence.grep(r"fabric ?manager", source="") + evidence.grep(
        r"Active:|State\s*:|Status\s*:", source="fabric|-q"
    )


@rule(
    "fabricmanager-version-mismatch",
    KIND,
    cause="The fabric manager (<manager>) and the driver (<driver>) are of different versions; "
    "they must be the same to the last digit.",
    shows="`fabric manager NVIDIA GPU driver interface version ... don't match`, or "
    "differing package versions.",
    fix=lambda evidence: (
        fixes.on_host(evidence)
        + fixes.install(
            evidence,
            "nvidia-fabricmanager-<branch>=<driver>-1",
            "nvidia-fabric-manager-<driver>",
        ),
        fixes.hold(evidence, "'nvidia-fabric*'") + "    # upgrade it with the driver only",
        "sudo systemctl restart nvidia-fabricmanager && nvidia-smi -q -i 0 | grep -A2 Fabric",
    ),
    apart=(
        "fabricmanager-not-running: installed in the right version and stopped, or not installed",
    ),
)
def version(evidence: Evidence) -> Match | None:
    """Fabric manager and driver of different versions."""
    said = evidence.grep(
        r"fabric ?manager.*(interface )?version.*(do(n't| not) match|mismatch|differ|conflict)"
        r"|version mismatch.*fabric ?manager|driver interface version.*(match|differ)"
    )
    packaged = evidence.first(
        r"(?:fabric-?manager\S*|nv-fabricmanager|Fabric Manager version "
        r"is:?)\D{0,30}?\s*=?v?(\d{3}\.\d+\.\d+)"
    )
    driver = facts.driver_version(evidence)
    differ = bool(packaged and driver and packaged[1] != driver)
    if not said and not (
        differ and (_not_ready(evidence) or evidence.grep(r"failed|inactive|In Progress"))
    ):
        return None
    values = {
        "manager": packaged[1] if packaged else "see nv-fabricmanager --version",
        "driver": driver or "see nvidia-smi",
        "branch": (driver or "<branch>").partition(".")[0],
    }
    lines = said + evidence.grep(r"fabric") + facts.driver_lines(evidence)
    return Match(lines, CERTAIN, values)


@rule(
    "fabricmanager-not-running",
    KIND,
    cause="This machine joins its GPUs by NVSwitch, and the fabric manager that sets it "
    "up is not running.",
    shows="cuInit 802 / `system not yet initialized` on an HGX/DGX machine; "
    "nvidia-fabricmanager inactive, "
    "failed or not installed; fabric state not Completed.",
    fix=lambda evidence: (
        fixes.on_host(evidence) + "sudo systemctl enable --now nvidia-fabricmanager",
        "not installed: "
        + fixes.install(
            evidence,
            "nvidia-fabricmanager-<branch>=<driver>-1    # the driver's own version",
            "nvidia-fabric-manager-<driver>",
        ),
        "journalctl -u nvidia-fabricmanager -n 50; nvidia-smi -q -i 0 | grep -A2 Fabric",
    ),
    apart=(
        "fabricmanager-version-mismatch: it starts and refuses the driver's version",
        "confidential-compute-not-ready: 802 because CC is on and not ready",
    ),
    follows=(
        "fabricmanager-version-mismatch",
        "confidential-compute-not-ready",
        "fabric-managed-by-host",
    ),
)
def not_running(evidence: Evidence) -> Match | None:
    """802, or a fabric that is not set up."""
    if evidence.torch.available is True and not evidence.error:
        return None
    stopped = evidence.grep(
        r"Active: (inactive|failed)|could not be found|^\s*(inactive|failed"
        r"|unknown)\s*$|not-found|not installed|dead",
        source="fabric",
    ) + evidence.grep(
        r"fabric ?manager.*(not (running|found|installed|active)|inactive|failed"
        r"|could not be found|dead)"
    )
    state = evidence.grep(r"^\s*State\s*:\s*(In Progress|Not Started)", source="-q|fabric")
    switches = evidence.grep(r"NVSwitch|nvswitch") or any(
        re.search(_NVSWITCH_GPU, gpu.name) for gpu in evidence.gpus
    )
    # most machines have no NVSwitch and no fabric manager, and need none
    unset = state and evidence.libcuda.init not in (0, None)
    if not _not_ready(evidence) and not unset:
        return None
    values = {
        "driver": facts.driver_version(evidence) or "<driver>",
        "branch": str(facts.branch(evidence) or "<branch>"),
    }
    lines = stopped + state + evidence.grep(_NOT_READY)
    if stopped or state:
        return Match(lines, CERTAIN, values)
    return Match(lines, LIKELY if switches else POSSIBLE, values)


@rule(
    "fabric-managed-by-host",
    KIND,
    cause="This virtual machine has GPUs of an NVSwitch board and not the switches: the fabric "
    "manager of the host (or of its service virtual machine) must set them up.",
    shows="cuInit 802 in a guest, no NVSwitch on its PCI bus, and a fabric manager that finds "
    "nothing to do (NV_WARN_NOTHING_TO_DO).",
    fix=(
        "on the host or in the service virtual machine: fabric manager in shared NVSwitch mode "
        "(FABRIC_MODE=1 or 2), then activate the partition of these GPUs: fmpm -a <partition>",
        "in the guest: sudo systemctl disable --now nvidia-fabricmanager; nvidia-smi -q -i 0 | "
        "grep -A2 Fabric    # Completed, once the partition is active",
        "one GPU alone, without NVLink: options nvidia NVreg_NvLinkDisable=1 in the guest",
    ),
    apart=("fabricmanager-not-running: the machine has the switches itself",),
    follows=("confidential-compute-not-ready",),
)
def host_managed(evidence: Evidence) -> Match | None:
    """802 in a guest without switches."""
    nothing = evidence.grep(r"NV_WARN_NOTHING_TO_DO|NVSwitch.*(no|not) .*(found|detected)")
    none = evidence.grep(r"^\s*0\s*$", source="nvswitch")
    guest = evidence.grep(
        r"\b(guest|kvm|qemu|vmware|hypervisor)\b", source="context|virt|lscpu|dmi"
    )
    if not _not_ready(evidence) or not (nothing or (none and guest)):
        return None
    lines = nothing + none + evidence.grep(_NOT_READY)
    return Match(lines, CERTAIN if nothing and guest else LIKELY)


@rule(
    "imex-not-ready",
    KIND,
    cause="Multi-node NVLink (IMEX) is not set up, so memory cannot be shared across the "
    "nodes' GPUs.",
    shows="NCCL or CUDA errors on fabric handles (CUDA_ERROR_NOT_PERMITTED, "
    "`NVLS`/`MNNVL`), nvidia-imex inactive.",
    fix=(
        "sudo systemctl enable --now nvidia-imex    # the same nodes_config.cfg on every node",
        "nvidia-imex-ctl -N    # all nodes READY; "
        "/dev/nvidia-caps-imex-channels/channel0 in the container",
        "to do without: export NCCL_MNNVL_ENABLE=0 NCCL_CUMEM_ENABLE=0",
    ),
    apart=("fabricmanager-not-running: the links within one node",),
)
def imex(evidence: Evidence) -> Match | None:
    """IMEX needed and missing."""
    if not re.search(r"imex|mnnvl|fabric|NOT_PERMITTED", evidence.error, re.I):
        return None
    lines = evidence.grep(
        r"imex.*(inactive|failed|not (ready|running|found)|unavailable|mismatch)"
        r"|IMEX channel.*(missing|not)"
    )
    return Match(lines, LIKELY) if lines else None


@rule(
    "nvls-unavailable",
    KIND,
    cause="NCCL tries NVLink SHARP (NVLS) and the fabric refuses the multicast object.",
    shows="`Failed to bind NVLink SHARP (NVLS) Multicast memory`, transport/nvls.cc with "
    "CUDA error 401/801/999.",
    fix=(
        "export NCCL_NVLS_ENABLE=0    # at once",
        "sudo systemctl restart nvidia-fabricmanager; nvidia-smi -q -i 0 | grep "
        "-A2 Fabric    # to have it back",
    ),
    apart=("fabricmanager-not-running: CUDA itself fails (802)",),
    follows=("fabricmanager-not-running", "fabricmanager-version-mismatch", "imex-not-ready"),
)
def nvls(evidence: Evidence) -> Match | None:
    """NVLS multicast refused."""
    lines = evidence.grep(
        r"NVLink SHARP|nvls\.cc.*(error|fail|warn)|NVLS.*(fail|error)|cuMulticast\w+.*(fail|error)"
    )
    return Match(lines) if lines else None


RULES: tuple[Rule, ...] = (confidential, version, host_managed, not_running, imex, nvls)
