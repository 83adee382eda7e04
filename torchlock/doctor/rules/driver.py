"""The driver against the GPU (support) and against CUDA (version), and cuda-compat."""

from __future__ import annotations

import re

from torchlock.doctor import fixes, parse, tables
from torchlock.doctor.evidence import HOST, Evidence
from torchlock.doctor.findings import CERTAIN, LIKELY, POSSIBLE, Match, Rule, message_rule, rule
from torchlock.doctor.rules import facts

SUPPORT = "gpu-driver-support"
VERSION = "driver-version"
COMPAT = "compat-libs"


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
    SUPPORT,
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
        r"(?:nvidia(?:-driver|-dkms|-utils|-open)?[/ ,-]+|NVIDIA Corporation\S*\s|nvidia-driver\D{1,20}"
        r"|driver release |NVRM: loading NVIDIA UNIX \D{0,60})(\d{3})\.\d"
    )
    said = said or evidence.first(r"^(?:version:\s*)?(\d{3})\.\d", source="modinfo")
    return int(said[1]) if said else 0


@rule(
    "open-modules-on-old-gpu",
    SUPPORT,
    cause="The open kernel modules run only on Turing and newer (they need the GPU's GSP); "
    "this GPU is older and needs the proprietary flavour.",
    shows="`NVIDIA Open Kernel Module` or licence `Dual MIT/GPL` with a Maxwell, Pascal or Volta "
    "GPU; `not supported by open nvidia.ko` in the kernel log.",
    fix=lambda evidence: (
        "install the proprietary (closed) flavour of a branch that supports the card (580 or "
        "older), not the -open one: "
        + fixes.install(evidence, "nvidia-driver-580", "kmod-nvidia (proprietary)", "nvidia-driver-G06-kmp-default", "nvidia-580xx-dkms"),
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
    log = evidence.grep(r"not supported by open|does not include the required GPU|System Processor \(GSP\)")
    flavour = evidence.driver.open_flavour or bool(
        evidence.grep(r"Open Kernel Module|Dual MIT/GPL|^ii\s+nvidia-\S*-open")
    )
    old = any(capability < (7, 5) for _, capability in facts.capabilities(evidence))
    if log and (flavour or old or evidence.grep("open")) or flavour and old:
        lines = log + evidence.grep(r"Open Kernel Module|Dual MIT/GPL") + evidence.grep(
            "NVIDIA", source="lspci"
        )
        return Match(lines, CERTAIN if log else LIKELY)
    return None


@rule(
    "closed-modules-on-blackwell",
    SUPPORT,
    cause="Blackwell GPUs run only with the open kernel modules; the proprietary flavour is installed.",
    shows="`requires use of the NVIDIA open kernel modules` in the kernel log, or a Blackwell GPU "
    "with a proprietary module.",
    fix=lambda evidence: (
        fixes.install(evidence, "nvidia-driver-570-open", "kmod-nvidia-open", "nvidia-open-driver-G06-signed-kmp-default", "nvidia-open"),
        "runfile: add --kernel-module-type=open; NixOS: hardware.nvidia.open = true",
        "sudo reboot",
    ),
    apart=("gpu-newer-than-driver: the branch is older than the GPU in any flavour",),
)
def closed_on_new(evidence: Evidence) -> Match | None:
    """Proprietary modules with a GPU that needs the open ones."""
    if facts.driver_works(evidence):
        return None
    log = evidence.grep(r"requires? (the )?use of the NVIDIA open kernel modules|NVIDIA open kernel module.*required")
    new = any(capability >= (10, 0) for _, capability in facts.capabilities(evidence))
    if log or new and evidence.driver.open_flavour is False and facts.branch(evidence) >= 570:
        return Match(log + facts.driver_lines(evidence), CERTAIN if log else LIKELY)
    return None


@rule(
    "gpu-newer-than-driver",
    SUPPORT,
    cause="The driver (<driver>) is older than the GPU (<generation>), which needs branch <first> or newer.",
    shows="The kernel log says the GPU `is not supported by the NVIDIA <n> driver release`, or by the "
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
    SUPPORT,
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
        r"PCI I/O region assigned to your NVIDIA device is invalid|BAR\d is 0M|BAR \d+.*(no space|can't assign|failed to assign)"
        r"|system BIOS may have misconfigured|not enough (PCI )?MMIO|Memory at <(unassigned|ignored)>"
    )
    return Match(lines + evidence.grep("above 4g|resizable bar")) if lines else None


@rule(
    "gsp-firmware-missing",
    SUPPORT,
    cause="The GPU's GSP firmware file does not match the driver or is missing.",
    shows="`Direct firmware load for nvidia/.../gsp_*.bin failed`, `RmInitAdapter failed` with it.",
    fix=lambda evidence: (
        fixes.install(evidence, "nvidia-firmware-<branch> (or nvidia-kernel-support)", "nvidia-kmod-common", "kernel-firmware-nvidia-gspx-G06", "nvidia-utils"),
        "ls /lib/firmware/nvidia/<driver version>/    # gsp_tu10x.bin, gsp_ga10x.bin",
        fixes.initramfs(evidence) + "; sudo reboot",
    ),
)
def firmware(evidence: Evidence) -> Match | None:
    """No GSP firmware for this driver."""
    lines = evidence.grep(r"firmware load for nvidia/\S*gsp\S* failed|gsp_\w+\.bin.*(failed|missing|error|no such)|firmware.*gsp.*not found")
    return Match(lines) if lines and not facts.driver_works(evidence) else None


@rule(
    "vgpu-driver-mismatch",
    SUPPORT,
    cause="This virtual machine's NVIDIA vGPU needs the GRID guest driver of the host's vGPU release, "
    "and a licence.",
    shows="`vGPU` with a version mismatch, `Guest driver`, or an unlicensed vGPU.",
    fix=(
        "install the vGPU (GRID) guest driver that belongs to the hypervisor's vGPU manager release",
        "nvidia-smi -q | grep -i license; then set up /etc/nvidia/gridd.conf or the client token",
        "sudo systemctl restart nvidia-gridd",
    ),
)
def vgpu(evidence: Evidence) -> Match | None:
    """A vGPU with the wrong driver or no licence."""
    lines = evidence.grep(r"vgpu.*(mismatch|incompatible|unsupported|not support|guest driver)|License Status\s*:\s*Unlicensed|guest.*vgpu.*version|Unlicensed \(Unrestricted\)")
    return Match(lines, LIKELY) if lines and evidence.torch.available is not True else None


@rule(
    "gpu-init-failed",
    SUPPORT,
    cause="The driver is loaded and failed to initialise the GPU (RmInitAdapter).",
    shows="`RmInitAdapter failed!` in the kernel log and no other fault that explains it.",
    fix=(
        "sudo dmesg | grep -iE 'nvrm|xid'    # the lines before RmInitAdapter",
        "power-cycle; check power cables; try the other module flavour (open or proprietary) "
        "and a newer driver",
    ),
    follows=(SUPPORT, "gpu-state", "fabric-and-cc", VERSION),
)
def init_failed(evidence: Evidence) -> Match | None:
    """RmInitAdapter failed."""
    lines = evidence.grep(r"RmInitAdapter failed|rm_init_adapter failed|rm_init failed")
    return Match(lines, POSSIBLE) if lines and not facts.driver_works(evidence) else None


def _library_version(evidence: Evidence) -> str:
    """The version of the user-space driver library, from its file name or NVML's message."""
    said = re.search(r"libcuda\.so\.(\d{3}\.\d[\d.]*)", evidence.libcuda.path) or evidence.first(
        r"(?:NVML library version:|client has the version)\s*(\d{3}\.\d[\d.]*)"
    )
    return said[1] if said else ""


@rule(
    "driver-library-mismatch",
    VERSION,
    cause="The loaded kernel module (<module>) and the driver's libraries (<library>) are of "
    "different versions: the driver was upgraded while the old module stayed loaded.",
    shows="`Driver/library version mismatch`, `API mismatch` in the kernel log, cuInit 803 with "
    "libcuda from the system's own directory.",
    fix=(
        "sudo reboot",
        "or without a reboot, with every GPU process ended: sudo rmmod nvidia_uvm nvidia_drm "
        "nvidia_modeset nvidia && sudo modprobe nvidia",
        "to prevent it: hold the driver's packages (sudo apt-mark hold 'nvidia-*' 'libnvidia-*'), "
        "or restrict unattended upgrades",
    ),
    apart=(
        "compat-shadows-driver: cuInit 803 with libcuda from a cuda-compat directory",
        "driver-too-old: the parts agree and are too old for the wheel",
    ),
    follows=(COMPAT, "driver-in-image", "wsl2"),
)
def mismatch(evidence: Evidence) -> Match | None:
    """Kernel module and libraries disagree."""
    lines = evidence.grep(
        r"Driver/library version mismatch|API mismatch|version mismatch.*kernel module|Error 803\b"
        r"|NVML library version|CUDA_ERROR_SYSTEM_DRIVER_MISMATCH|system has unsupported display driver / cuda driver"
    )
    module, library = facts.driver_version(evidence), _library_version(evidence)
    differ = bool(module and library and evidence.driver.module and module != library)
    if not lines and evidence.libcuda.init != 803 and not (
        differ and evidence.libcuda.init not in (None, 0)
    ):
        return None
    if re.search("compat", evidence.libcuda.path):
        return None
    lines += facts.driver_lines(evidence) + evidence.grep(r"libcuda\.so\.\d{3}|\d{3}\.\d+", source="dlopen|dpkg|apt|rpm|sys/module")
    fix: tuple[str, ...] = ()
    if evidence.container.inside:
        fix = (
            "compare, in the container and on the host: nvidia-smi; cat /proc/driver/nvidia/version",
            "host also fails: sudo reboot there",
            "only the container fails: remove driver libraries from the image, or regenerate a "
            "stale CDI specification (sudo nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml)",
            fixes.recreate(evidence),
        )
    values = {"module": module or "see /proc/driver/nvidia/version", "library": library or "newer"}
    return Match(lines, CERTAIN, values, fix)


@rule(
    "driver-too-old",
    VERSION,
    cause="The driver (<driver>) is too old for this torch, which is built with CUDA <wheel> and "
    "needs driver <floor> or newer.",
    shows="`The NVIDIA driver on your system is too old (found version <n>)`, cuDriverGetVersion "
    "of a lower CUDA major, or a driver below the floor of the CUDA major.",
    fix=lambda evidence: (
        fixes.driver(evidence, "580" if facts.wheel_cuda(evidence) >= (13,) else "570"),
        "or install a torch build for the CUDA this driver has: " + fixes.torch_wheel("<tag>"),
        "a newer CUDA toolkit alone does not help",
    ),
    apart=(
        "ptx-newer-than-driver: the driver runs the wheel; only JIT-compiled PTX fails",
        "driver-library-mismatch: two versions of the driver are mixed",
    ),
)
def too_old(evidence: Evidence) -> Match | None:
    """A driver below the floor of torch's CUDA major."""
    if evidence.torch.available is True or evidence.torch.cuda == "":
        return None
    wheel = facts.wheel_cuda(evidence) or _ours(evidence)
    said = evidence.first(r"driver on your system is too old \(found version (\d{4,5})\)")
    lines = evidence.grep(r"driver on your system is too old|CUDA driver version is insufficient|Error 35\b|CUDA_ERROR_INSUFFICIENT_DRIVER")
    driver = facts.driver_version(evidence)
    number = int(said[1]) if said else evidence.libcuda.version or 0
    floor = tables.DRIVER_FLOOR.get(wheel[0], "") if wheel else ""
    below = bool(floor and driver and parse.version(driver) < parse.version(floor))
    below = below and not (evidence.system.wsl and not evidence.driver.module)
    major_low = bool(wheel and number and number // 1000 < wheel[0])
    if not (lines or below or major_low):
        return None
    if not lines and evidence.libcuda.init in (804, 803, 802, 100) and not major_low and not below:
        return None
    known = f"CUDA {number // 1000}.{number % 1000 // 10}" if number else "see nvidia-smi"
    values = {
        "driver": " for ".join(filter(None, (driver, known if number else ""))) or known,
        "wheel": ".".join(map(str, wheel)) or "a newer CUDA",
        "floor": floor or "525.60.13 (CUDA 12) or 580 (CUDA 13)",
        "tag": _tag_for(number, driver),
    }
    return Match(lines + facts.driver_lines(evidence), CERTAIN if lines or major_low else LIKELY, values)


def _ours(evidence: Evidence) -> tuple[int, ...]:
    """The CUDA of the locked torch, where nothing is known of the torch in use."""
    unknown = not facts.torch_release(evidence) and evidence.torch.cuda is None
    return (12, 6) if unknown and not evidence.error else ()


def _tag_for(number: int, driver: str) -> str:
    cuda = (number // 1000,) if number else tables.BRANCH_CUDA.get((parse.version(driver) or (0,))[0], (0,))
    return {11: "cu118", 12: "cu126"}.get(cuda[0], "cu118")


@rule(
    "ptx-newer-than-driver",
    VERSION,
    cause="PTX made by a newer CUDA compiler than the driver's JIT understands: the driver "
    "(<driver>, CUDA <cuda>) runs this CUDA major, but minor-version compatibility does not cover PTX.",
    shows="`the provided PTX was compiled with an unsupported toolchain` (222).",
    fix=lambda evidence: (
        fixes.driver(evidence, "570"),
        "or make binary code, not PTX: build with TORCH_CUDA_ARCH_LIST=<capability> (no +PTX), "
        "or use a wheel with code for this GPU",
        "or compile the PTX with a toolkit no newer than CUDA <cuda>",
    ),
    apart=(
        "driver-too-old: torch itself is refused",
        "extension-without-gpu-code: no PTX at all (no kernel image)",
    ),
    follows=("driver-too-old",),
)
def ptx(evidence: Evidence) -> Match | None:
    """JIT of PTX from a newer toolchain."""
    lines = evidence.grep(
        r"PTX was compiled with an unsupported toolchain|UNSUPPORTED_PTX_VERSION|UnsupportedPtxVersion|Error 222\b|Unsupported \.version \d"
    )
    if not lines:
        return None
    cuda = tables.BRANCH_CUDA.get(facts.branch(evidence), ())
    values = {
        "driver": facts.driver_version(evidence) or "see nvidia-smi",
        "cuda": ".".join(map(str, cuda)) or "of the driver",
    }
    return Match(lines + facts.driver_lines(evidence), CERTAIN, values)


@rule(
    "driver-refused-by-image",
    VERSION,
    cause="The container toolkit refuses to start the image: the host's driver does not satisfy the "
    "image's NVIDIA_REQUIRE_CUDA (<wants>).",
    shows="`nvidia-container-cli: requirement error: unsatisfied condition: cuda>=<n>`.",
    fix=lambda evidence: (
        fixes.driver(evidence, "570"),
        "a driver of 525.60.13 or newer runs CUDA 12 wheels all the same: "
        "docker run -e NVIDIA_DISABLE_REQUIRE=1 --gpus all ...",
        "or use an image made for an older CUDA",
    ),
    apart=("driver-too-old: the container starts and torch refuses the driver",),
)
def refused(evidence: Evidence) -> Match | None:
    """NVIDIA_REQUIRE_CUDA not met."""
    wants = evidence.first(r"unsatisfied condition:\s*([^,\s]+(?:,? ?[a-z]+[<>=]+[\w.]+)*)")
    if not wants:
        return None
    lines = evidence.grep("unsatisfied condition") + facts.driver_lines(evidence)
    return Match(lines, values={"wants": wants[1]})


_COMPAT_DIR = re.compile(r"/compat(\b|/|\.)|cuda-compat", re.I)


def _compat_lines(evidence: Evidence) -> tuple[str, ...]:
    return evidence.grep(r"/compat\b|cuda-compat", source="dlopen|env|ldconfig|LD_|dpkg|ls|maps|ldd|conf")


def _without_compat(evidence: Evidence) -> tuple[str, ...]:
    return (
        "take the cuda-compat directory out of LD_LIBRARY_PATH and /etc/ld.so.conf.d, then ldconfig",
        fixes.install(evidence, "cuda-compat-", "cuda-compat-").replace("install", "remove")
        + "    # remove the package cuda-compat-12-x from the image",
        fixes.driver(evidence, "570") + "    # then compat is not needed at all",
    )


@rule(
    "compat-on-unsupported-gpu",
    COMPAT,
    cause="A forward-compatibility libcuda (cuda-compat) is loaded, which runs only on data-centre "
    "GPUs; this GPU is <gpu>.",
    shows="cuInit 804 with libcuda.so.1 from a compat directory and a GeForce, TITAN or workstation GPU.",
    fix=_without_compat,
    apart=(
        "compat-driver-combination: 804 on a data-centre GPU: the driver branch is not covered",
        "compat-shadows-driver: 803, the compat library is older than the driver",
    ),
)
def compat_804(evidence: Evidence) -> Match | None:
    """804 on a GPU without forward compatibility."""
    lines = evidence.grep(r"Error 804\b|forward compatibility was attempted|COMPAT_NOT_SUPPORTED")
    if not lines and evidence.libcuda.init != 804 or _on_data_centre(evidence):
        return None
    name = next((gpu.name for gpu in evidence.gpus), "not one of them")
    lines += _compat_lines(evidence) + facts.gpu_lines(evidence)
    return Match(lines, values={"gpu": name})


def _on_data_centre(evidence: Evidence) -> bool:
    return bool(evidence.gpus) and all(tables.is_data_centre(gpu.name) for gpu in evidence.gpus)


@rule(
    "compat-driver-combination",
    COMPAT,
    cause="cuda-compat is loaded on a data-centre GPU, and this pair of driver branch (<driver>) and "
    "compat version is not supported.",
    shows="cuInit 804 on a data-centre GPU with libcuda.so.1 from a compat directory.",
    fix=lambda evidence: (
        fixes.driver(evidence, "570"),
        "or remove cuda-compat: a driver of 525.60.13 or newer runs CUDA 12 wheels without it",
        "or use the cuda-compat release that lists this branch in NVIDIA's compatibility table",
    ),
    apart=("compat-on-unsupported-gpu: the GPU itself is not covered",),
)
def compat_pair(evidence: Evidence) -> Match | None:
    """804 on a data-centre GPU."""
    lines = evidence.grep(r"Error 804\b|forward compatibility was attempted|COMPAT_NOT_SUPPORTED")
    if not lines and evidence.libcuda.init != 804 or not _on_data_centre(evidence):
        return None
    driver = facts.driver_version(evidence) or "see nvidia-smi"
    return Match(lines + _compat_lines(evidence) + facts.driver_lines(evidence), LIKELY, {"driver": driver})


@rule(
    "compat-shadows-driver",
    COMPAT,
    cause="A cuda-compat libcuda (<library>) is found before the driver's own and does not fit the "
    "kernel driver (<driver>).",
    shows="cuInit 803 (or another failure) with libcuda.so.1 resolved to a compat directory.",
    fix=_without_compat,
    apart=("driver-library-mismatch: the mismatched libcuda is the system's own",),
)
def compat_803(evidence: Evidence) -> Match | None:
    """A stray compat library."""
    if not _COMPAT_DIR.search(evidence.libcuda.path) or evidence.libcuda.init in (0, 804):
        return None
    if evidence.libcuda.init is None and not evidence.grep(r"Error 803|mismatch|unsupported display driver"):
        return None
    values = {
        "library": _library_version(evidence) or evidence.libcuda.path,
        "driver": facts.driver_version(evidence) or "see nvidia-smi",
    }
    certainty = CERTAIN if evidence.libcuda.init == 803 else LIKELY
    lines = evidence.grep(r"Error \d+:|mismatch") + _compat_lines(evidence)
    return Match(lines + facts.driver_lines(evidence), certainty, values)


compat_error_only = message_rule(
    "compat-suspected",
    COMPAT,
    r"Error 803\b",
    cause="libcuda.so.1 and the kernel driver do not fit each other: a stray cuda-compat on the "
    "library path, or a driver upgraded without a reboot.",
    fix=(
        "python3 -c \"import ctypes; ctypes.CDLL('libcuda.so.1'); "
        "print(*{l.split()[-1] for l in open('/proc/self/maps') if 'libcuda' in l})\"",
        "a path with compat: take it out of LD_LIBRARY_PATH; else: sudo reboot",
    ),
    certainty=POSSIBLE,
    follows=(COMPAT, "driver-library-mismatch"),
)

RULES: tuple[Rule, ...] = (
    dropped,
    open_on_old,
    closed_on_new,
    too_new,
    bar,
    firmware,
    vgpu,
    compat_803,
    compat_804,
    compat_pair,
    mismatch,
    too_old,
    refused,
    ptx,
    init_failed,
    compat_error_only,
)
