"""The driver's version against its own libraries, torch's CUDA, an image, and PTX."""

from __future__ import annotations

import re

from torchlock.doctor import fixes, parse, tables
from torchlock.doctor.evidence import Evidence
from torchlock.doctor.findings import CERTAIN, LIKELY, Match, Rule, rule
from torchlock.doctor.rules import facts

KIND = "driver-version"


@rule(
    "driver-library-mismatch",
    KIND,
    cause="The loaded kernel module (<module>) and the driver's libraries (<library>) are of "
    "different versions: the driver was upgraded while the old module stayed loaded.",
    shows="`Driver/library version mismatch`, `API mismatch` in the kernel log, cuInit 803 with "
    "libcuda from the system's own directory.",
    fix=lambda evidence: (
        "ldconfig -p | grep libcuda; echo $LD_LIBRARY_PATH    # no compat directory there? then:",
        "sudo reboot",
        "or without a reboot, with every GPU process ended: sudo rmmod nvidia_uvm nvidia_drm "
        "nvidia_modeset nvidia && sudo modprobe nvidia",
        "to prevent it: "
        + fixes.hold(evidence, "'nvidia-*'", "'libnvidia-*'")
        + ", and upgrade with a reboot",
    ),
    apart=(
        "compat-shadows-driver: cuInit 803 with libcuda from a cuda-compat directory",
        "driver-too-old: the parts agree and are too old for the wheel",
    ),
    follows=("compat-libs", "driver-in-image", "wsl2"),
)
def mismatch(evidence: Evidence) -> Match | None:
    """Kernel module and libraries disagree."""
    lines = evidence.grep(
        r"Driver/library version mismatch|API mismatch|version mismatch.*kernel module|Error 803\b"
        r"|NVML library version|CUDA_ERROR_SYSTEM_DRIVER_MISMATCH|system has "
        r"unsupported display driver / cuda driver"
    )
    module, library = facts.driver_version(evidence), facts.library_version(evidence)
    differ = bool(module and library and evidence.driver.module and module != library)
    if (
        not lines
        and evidence.libcuda.init != 803
        and not (differ and evidence.libcuda.init not in (None, 0))
    ):
        return None
    if re.search("compat", evidence.libcuda.path):
        return None
    lines += facts.driver_lines(evidence) + evidence.grep(
        r"libcuda\.so\.\d{3}|\d{3}\.\d+", source="dlopen|dpkg|apt|rpm|sys/module"
    )
    fix: tuple[str, ...] = ()
    if evidence.container.inside:
        fix = (
            "compare, in the container and on the host: nvidia-smi; cat "
            "/proc/driver/nvidia/version",
            "host also fails: sudo reboot there",
            "only the container fails: remove driver libraries from the image, or regenerate a "
            "stale CDI specification (sudo nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml)",
            fixes.recreate(evidence),
        )
    told = evidence.grep(r"library version mismatch|API mismatch|NVML library version")
    values = {"module": module or "version unknown", "library": library or "version unknown"}
    return Match(lines, CERTAIN if told or differ else LIKELY, values, fix)


@rule(
    "driver-too-old",
    KIND,
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
    follows=("gpu-never-gets-this-cuda",),
)
def too_old(evidence: Evidence) -> Match | None:
    """A driver below the floor of torch's CUDA major."""
    if evidence.torch.available is True or evidence.torch.cuda == "":
        return None
    wheel = facts.wheel_cuda(evidence) or _ours(evidence)
    said = evidence.first(r"driver on your system is too old \(found version (\d{4,5})\)")
    lines = evidence.grep(
        r"driver on your system is too old|CUDA driver version is insufficient"
        r"|Error 3[56]\b|CallRequiresNewerDriver|CUDA_ERROR_INSUFFICIENT_DRIVER"
    )
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
    return Match(
        lines + facts.driver_lines(evidence), CERTAIN if lines or major_low else LIKELY, values
    )


def _ours(evidence: Evidence) -> tuple[int, ...]:
    """The CUDA of the locked torch, where nothing is known of the torch in use."""
    unknown = not facts.torch_release(evidence) and evidence.torch.cuda is None
    return (12, 6) if unknown and not evidence.error else ()


def _tag_for(number: int, driver: str) -> str:
    cuda = (
        (number // 1000,)
        if number
        else tables.BRANCH_CUDA.get((parse.version(driver) or (0,))[0], (0,))
    )
    return {11: "cu118", 12: "cu126"}.get(cuda[0], "cu118")


@rule(
    "ptx-newer-than-driver",
    KIND,
    cause="PTX made by a newer CUDA compiler than the driver's JIT understands: the driver "
    "(<driver>, CUDA <cuda>) runs this CUDA major, but minor-version compatibility "
    "does not cover PTX.",
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
        r"PTX was compiled with an unsupported toolchain|UNSUPPORTED_PTX_VERSION"
        r"|UnsupportedPtxVersion|Error 222\b|Unsupported \.version \d"
        r"|a PTX JIT compilation failed|CUDA_ERROR_INVALID_PTX"
    )
    if not lines or evidence.grep(r"ptxas\b.*(fatal|error|Unsupported)"):
        return None
    cuda = tables.BRANCH_CUDA.get(facts.branch(evidence), ())
    values = {
        "driver": facts.driver_version(evidence) or "see nvidia-smi",
        "cuda": ".".join(map(str, cuda)) or "of the driver",
    }
    return Match(lines + facts.driver_lines(evidence), CERTAIN, values)


@rule(
    "driver-refused-by-image",
    KIND,
    cause="The container toolkit refuses to start the image: the host's driver does not "
    "satisfy the "
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


RULES: tuple[Rule, ...] = (mismatch, too_old, refused, ptx)
