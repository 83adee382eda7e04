"""The driver against the GPU: generations, module flavours, firmware and address space."""

from __future__ import annotations

from torchlock.doctor import fixes, tables
from torchlock.doctor.evidence import Evidence
from torchlock.doctor.findings import CERTAIN, LIKELY, POSSIBLE, Match, Rule, message_rule, rule
from torchlock.doctor.rules import facts

KIND = "gpu-driver-support"


def _limits(evidence: Evidence) -> list[tuple[str, tuple[int, ...], int, int]]:
    """(name, capability, first branch, last branch) for each GPU; 0 where there is no limit."""
    found = []
    for name, capability in facts.capabilities(evidence):
        first = next((b for since, b in tables.FIRST_BRANCH if capability >= since), 0)
        last = next((b for upto, b in tables.LAST_BRANCH if capability <= upto), 0)
        found.append((name, capability, first, last))
    return found


def _legacy_fix(branch: str) -> tuple[str, ...]:
    return (
        f"install the legacy {branch} driver branch in place of the newer one "
        f"(Ubuntu: sudo apt-get install nvidia-driver-{branch}; Arch: nvidia-{branch}xx-dkms), "
        "and hold it there",
        "sudo reboot, then nvidia-smi",
    )


@rule(
    "gpu-dropped-by-driver",
    KIND,
    cause="This driver branch (<branch>) no longer supports the GPU (<generation>); "
    "the last that does is <last>.",
    shows="`is supported through the NVIDIA <n>.xx Legacy drivers` in the kernel log; or a "
    "Maxwell, Pascal or Volta GPU with driver 590 or newer, Kepler with 495 or newer.",
    fix=_legacy_fix("580"),
    apart=(
        "open-modules-on-old-gpu: the branch supports the GPU, the open flavour does not",
        "gpu-newer-than-driver: the GPU is newer than the branch",
    ),
)
def dropped(evidence: Evidence) -> Match | None:
    """A GPU older than the driver branch supports."""
    if facts.driver_works(evidence) and evidence.torch.available is not False:
        return None
    said = evidence.first(r"supported through the NVIDIA (\d{3})\.\w+ Legacy")
    log = evidence.grep(
        r"NVIDIA \d{3}\.\w+ Legacy|will ignore this GPU|legacy (driver|branch)|no longer support"
    )
    branch = facts.branch(evidence) or _packaged_branch(evidence)
    limits = _limits(evidence)
    old = next((each for each in limits if each[3] and branch > each[3]), None)
    if not said and (not old or facts.smi(evidence).works):
        return None
    last = said[1] if said else str(old[3] if old else 580)
    generation = tables.generation(old[1]) if old else "an older generation"
    lines = log + facts.driver_lines(evidence) + evidence.grep("NVIDIA", source="lspci")
    values = {"branch": str(branch or "installed"), "generation": generation, "last": last}
    return Match(lines, CERTAIN if said or log else LIKELY, values, _legacy_fix(last))


def _packaged_branch(evidence: Evidence) -> int:
    """The branch of the installed driver packages, where no driver is loaded to say it."""
    said = evidence.first(
        r"(?:nvidia(?:-driver|-dkms|-utils|-open)?[/ ,-]+|NVIDIA Corporation\S*\s"
        r"|nvidia-driver\D{1,20}"
        r"|driver release |NVRM: loading NVIDIA UNIX \D{0,60})(\d{3})\.\d"
    )
    said = said or evidence.first(r"^(?:version:\s*)?(\d{3})\.\d", source="modinfo")
    return int(said[1]) if said else 0


@rule(
    "open-modules-on-old-gpu",
    KIND,
    cause="The open kernel modules run only on Turing and newer (they need the GPU's GSP); "
    "this GPU is older and needs the proprietary flavour.",
    shows="`NVIDIA Open Kernel Module` or licence `Dual MIT/GPL` with a Maxwell, Pascal or Volta "
    "GPU; `not supported by open nvidia.ko` in the kernel log.",
    fix=lambda evidence: (
        "install the proprietary (closed) flavour of a branch that supports the card (580 or "
        "older), not the -open one: "
        + fixes.install(
            evidence,
            "nvidia-driver-580",
            "kmod-nvidia (proprietary)",
            "nvidia-driver-G06-kmp-default",
            "nvidia-580xx-dkms",
        ),
        "NixOS: hardware.nvidia.open = false",
        "sudo reboot",
    ),
    apart=("gpu-dropped-by-driver: the branch is too new in either flavour",),
    follows=("gpu-dropped-by-driver",),
)
def open_on_old(evidence: Evidence) -> Match | None:
    """Open modules with a GPU that has no GSP."""
    if facts.driver_works(evidence):
        return None
    log = evidence.grep(
        r"not supported by open|does not include the required GPU|System Processor \(GSP\)"
    )
    flavour = evidence.driver.open_flavour or bool(
        evidence.grep(r"Open Kernel Module|Dual MIT/GPL|^ii\s+nvidia-\S*-open")
    )
    old = any(capability < (7, 5) for _, capability in facts.capabilities(evidence))
    if (log and (flavour or old or evidence.grep("open"))) or (flavour and old):
        lines = (
            log
            + evidence.grep(r"Open Kernel Module|Dual MIT/GPL")
            + evidence.grep("NVIDIA", source="lspci")
        )
        return Match(lines, CERTAIN if log else LIKELY)
    return None


@rule(
    "closed-modules-on-blackwell",
    KIND,
    cause="Blackwell GPUs run only with the open kernel modules; the proprietary flavour "
    "is installed.",
    shows="`requires use of the NVIDIA open kernel modules` in the kernel log, or a Blackwell GPU "
    "with a proprietary module.",
    fix=lambda evidence: (
        fixes.install(
            evidence,
            "nvidia-driver-570-open",
            "kmod-nvidia-open",
            "nvidia-open-driver-G06-signed-kmp-default",
            "nvidia-open",
        ),
        "runfile: add --kernel-module-type=open; NixOS: hardware.nvidia.open = true",
        "sudo reboot",
    ),
    apart=("gpu-newer-than-driver: the branch is older than the GPU in any flavour",),
)
def closed_on_new(evidence: Evidence) -> Match | None:
    """Proprietary modules with a GPU that needs the open ones."""
    if facts.driver_works(evidence):
        return None
    log = evidence.grep(
        r"requires? (the )?use of the NVIDIA open kernel modules|NVIDIA open "
        r"kernel module.*required"
    )
    new = any(capability >= (10, 0) for _, capability in facts.capabilities(evidence))
    if log or (new and evidence.driver.open_flavour is False and facts.branch(evidence) >= 570):
        return Match(log + facts.driver_lines(evidence), CERTAIN if log else LIKELY)
    return None


@rule(
    "gpu-newer-than-driver",
    KIND,
    cause="The driver (<driver>) is older than the GPU (<generation>), which needs "
    "branch <first> or newer.",
    shows="The kernel log says the GPU `is not supported by the NVIDIA <n> driver "
    "release`, or by the "
    "table of first branches.",
    fix=lambda evidence: (fixes.driver(evidence, "570"),),
    apart=("gpu-dropped-by-driver: the GPU is older than the branch supports",),
)
def too_new(evidence: Evidence) -> Match | None:
    """A GPU younger than its driver."""
    if facts.driver_works(evidence):
        return None
    branch = facts.branch(evidence) or _packaged_branch(evidence)
    late = next((x for x in _limits(evidence) if x[2] and branch and branch < x[2]), None)
    if not late:
        return None
    log = evidence.grep(r"not supported by the NVIDIA|RmInitAdapter failed|No devices")
    lines = log + facts.driver_lines(evidence) + evidence.grep("NVIDIA", source="lspci")
    values = {
        "driver": facts.driver_version(evidence) or str(branch),
        "generation": tables.generation(late[1]),
        "first": str(late[2]),
    }
    return Match(lines, CERTAIN if log else LIKELY, values)


@rule(
    "bios-bar-too-small",
    KIND,
    cause="The firmware gave the GPU no address space for its memory (BAR), so the driver cannot "
    "start it.",
    shows="`This PCI I/O region assigned to your NVIDIA device is invalid`, `BAR1 is 0M @ 0x0`, "
    "`can't assign; no space`.",
    fix=(
        "in the firmware setup: enable Above 4G Decoding (64-bit BARs; and Resizable BAR), "
        "disable CSM; update the BIOS",
        "or boot with pci=realloc (add it to GRUB_CMDLINE_LINUX, sudo update-grub, sudo reboot)",
        "virtual machine: give it a 64-bit MMIO window (q35/OVMF: opt/ovmf/X-PciMmio64Mb)",
    ),
    apart=("xid79-fell-off-bus: the GPU had its BARs and was lost",),
    follows=("open-modules-on-old-gpu",),
)
def bar(evidence: Evidence) -> Match | None:
    """A GPU without address space."""
    if facts.driver_works(evidence) and not evidence.error:
        return None
    lines = evidence.grep(
        r"PCI I/O region assigned to your NVIDIA device is invalid|BAR\d is 0M|BAR "
        r"\d+.*(no space|can't assign|failed to assign)"
        r"|system BIOS may have misconfigured|not enough (PCI )?MMIO|Memory at "
        r"<(unassigned|ignored)>"
    )
    return Match(lines + evidence.grep("above 4g|resizable bar")) if lines else None


@rule(
    "gsp-firmware-missing",
    KIND,
    cause="The GPU's GSP firmware file does not match the driver or is missing.",
    shows="`Direct firmware load for nvidia/.../gsp_*.bin failed`, `RmInitAdapter failed` with it.",
    fix=lambda evidence: (
        fixes.install(
            evidence,
            "nvidia-firmware-<branch> (or nvidia-kernel-support)",
            "nvidia-kmod-common",
            "kernel-firmware-nvidia-gspx-G06",
            "nvidia-utils",
        ),
        "ls /lib/firmware/nvidia/<driver version>/    # gsp_tu10x.bin, gsp_ga10x.bin",
        fixes.initramfs(evidence) + "; sudo reboot",
    ),
    apart=("gsp-timeout: the firmware was loaded and stopped answering",),
)
def firmware(evidence: Evidence) -> Match | None:
    """No GSP firmware for this driver."""
    lines = evidence.grep(
        r"firmware load for nvidia/\S*gsp\S* failed|gsp_\w+\.bin.*(failed|missing"
        r"|error|no such)|firmware.*gsp.*not found"
    )
    return Match(lines) if lines and not facts.driver_works(evidence) else None


@rule(
    "gpu-never-gets-this-cuda",
    KIND,
    cause="The GPU (<generation>) is supported by drivers up to branch <last> only, which stop at "
    "CUDA <cuda>; this torch is built with CUDA <wheel>, and no driver runs both.",
    shows="A Kepler GPU (K80, K40, GTX 7xx) with a CUDA 12 build, a Maxwell, Pascal or Volta GPU "
    "with a CUDA major that its last driver branch does not have.",
    fix=(
        "use another GPU, or torch on the CPU",
        "Kepler 3.7 (K80), with an old release only: pip install torch==2.0.1 --index-url "
        "<PyTorch wheel index>/cu118    # its builds have sm_37",
    ),
    apart=("driver-too-old: a newer driver for the GPU exists",),
    follows=("gpu-dropped-by-driver",),
)
def never(evidence: Evidence) -> Match | None:
    """A GPU whose last driver is below the wheel's CUDA major."""
    wheel = facts.wheel_cuda(evidence)
    if not wheel or evidence.torch.available is True:
        return None
    known = _limits(evidence)
    lasts = [last for *_, last in known if last]
    if not known or len(lasts) < len(known):  # another GPU of the machine may run it
        return None
    cuda = tables.BRANCH_CUDA[max(lasts)]
    if cuda[0] >= wheel[0]:
        return None
    values = {
        "generation": tables.generation(known[0][1]),
        "last": str(max(lasts)),
        "cuda": ".".join(map(str, cuda)),
        "wheel": ".".join(map(str, wheel)),
    }
    lines = facts.gpu_lines(evidence) + evidence.grep("NVIDIA", source="lspci")
    return Match(lines + evidence.grep("driver on your system is too old"), values=values)


@rule(
    "vgpu-unlicensed",
    KIND,
    cause="This virtual machine's NVIDIA vGPU has no licence: after a while the driver restricts "
    "and then refuses CUDA.",
    shows="`License Status: Unlicensed`, or nvidia-gridd `Failed to acquire license`, where CUDA "
    "or a program fails.",
    fix=(
        "nvidia-smi -q | grep -i -A1 license; journalctl -u nvidia-gridd -n 50",
        "put the client token of the licence server in /etc/nvidia/ClientConfigToken/ (older "
        "servers: ServerAddress= in /etc/nvidia/gridd.conf), FeatureType=1 for vGPU",
        "sudo systemctl restart nvidia-gridd",
    ),
    apart=(
        "vgpu-driver-mismatch: guest and host driver do not belong together",
        "gpu-busy: a whole GPU, or a vGPU with its licence",
    ),
)
def unlicensed(evidence: Evidence) -> Match | None:
    """A vGPU without its licence."""
    if evidence.torch.available is True and not evidence.error:
        return None
    lines = evidence.grep(
        r"License Status\s*:\s*(Unlicensed|Expired)|gridd.*(fail|unable|no) .*licen[cs]e"
        r"|licen[cs]e.*(expired|not acquired)|Unlicensed \((Un)?restricted\)"
    )
    return Match(lines, LIKELY) if lines else None


@rule(
    "vgpu-driver-mismatch",
    KIND,
    cause="This virtual machine's NVIDIA vGPU needs the GRID guest driver of the host's "
    "vGPU release.",
    shows="`vGPU` with a version mismatch, or `Guest driver`.",
    fix=(
        "install the vGPU (GRID) guest driver that belongs to the hypervisor's "
        "vGPU manager release",
        "sudo reboot; then the licence: nvidia-smi -q | grep -i license",
    ),
    apart=("vgpu-unlicensed: the drivers fit, the licence is missing",),
)
def vgpu(evidence: Evidence) -> Match | None:
    """A vGPU with the wrong driver."""
    lines = evidence.grep(
        r"vgpu.*(mismatch|incompatible|unsupported|not support|guest driver)|guest.*vgpu.*version"
    )
    return Match(lines, LIKELY) if lines and evidence.torch.available is not True else None


iommu = message_rule(
    "iommu-fault",
    KIND,
    r"DMAR: .*fault|AMD-Vi: Event logged \[IO_PAGE_FAULT|IO_PAGE_FAULT",
    cause="The IOMMU blocks the GPU's memory accesses.",
    certainty=POSSIBLE,
    needs_fault=True,
    fix=(
        "boot with iommu=pt (add it to GRUB_CMDLINE_LINUX, sudo update-grub, sudo reboot)",
        "update the BIOS; or switch the IOMMU off in the firmware if nothing needs it",
    ),
    apart=("nccl-peer-access-hang: only traffic between GPUs is affected",),
)


@rule(
    "gpu-init-failed",
    KIND,
    cause="The driver is loaded and failed to initialise the GPU (RmInitAdapter).",
    shows="`RmInitAdapter failed!` in the kernel log and no other fault that explains it.",
    fix=(
        "sudo dmesg | grep -iE 'nvrm|xid'    # the lines before RmInitAdapter",
        "power-cycle; check power cables; try the other module flavour (open or proprietary) "
        "and a newer driver",
    ),
    apart=("bios-bar-too-small, gsp-firmware-missing, gpu-newer-than-driver: the log says why",),
    follows=(KIND, "gpu-state", "fabric-and-cc", "driver-version"),
)
def init_failed(evidence: Evidence) -> Match | None:
    """RmInitAdapter failed."""
    lines = evidence.grep(r"RmInitAdapter failed|rm_init_adapter failed|rm_init failed")
    return Match(lines, POSSIBLE) if lines and not facts.driver_works(evidence) else None


RULES: tuple[Rule, ...] = (
    dropped,
    open_on_old,
    closed_on_new,
    too_new,
    bar,
    firmware,
    never,
    vgpu,
    unlicensed,
    iommu,
    init_failed,
)
