"""Windows Subsystem for Linux."""

from __future__ import annotations

import re

from torchlock.doctor.evidence import Evidence
from torchlock.doctor.findings import CERTAIN, LIKELY, Match, Rule, rule
from torchlock.doctor.rules import facts

KIND = "wsl2"
_WSL_LIB = "/usr/lib/wsl"


def _has_dxg(evidence: Evidence) -> bool | None:
    return None if evidence.nodes is None else "/dev/dxg" in evidence.nodes


@rule(
    "wsl-version-1",
    KIND,
    cause="This is WSL 1, which has no GPU access; only WSL 2 has.",
    shows="Kernel release 4.4.0-<build>-Microsoft, no /dev/dxg.",
    fix=(
        "in Windows PowerShell: wsl --set-version <distribution> 2; wsl --update; wsl --shutdown",
    ),
    apart=("wsl-no-gpu-device: WSL 2 without /dev/dxg",),
)
def one(evidence: Evidence) -> Match | None:
    """WSL 1's kernel release."""
    if re.search(r"4\.4\.0-\d+-microsoft", evidence.system.kernel, re.I) or evidence.grep(
        r"4\.4\.0-\d+-Microsoft|^\W*\*?\s*\S+\s+\w+\s+1\s*$", source="uname|context|wsl"
    ):
        return Match(evidence.grep(r"-Microsoft|\s1\s*$", source="uname|context|wsl|version"))
    return None


@rule(
    "wsl-linux-driver-shadows",
    KIND,
    cause="A Linux NVIDIA driver was installed inside WSL and its libcuda shadows the "
    "one Windows provides in /usr/lib/wsl/lib.",
    shows="/dev/dxg exists, libcuda.so.1 resolves outside /usr/lib/wsl/lib, "
    "libnvidia-compute or nvidia-driver packages are installed.",
    fix=(
        "sudo apt-get purge 'libnvidia-compute-*' 'nvidia-driver-*' "
        "'nvidia-utils-*' 'libcuda1' 'cuda-drivers*'",
        "sudo ldconfig; ldconfig -p | grep libcuda    # must be /usr/lib/wsl/lib",
        "for a toolkit install cuda-toolkit-12-6 only, never cuda or cuda-drivers",
    ),
    apart=(
        "wsl-no-gpu-device: /dev/dxg is missing",
        "wsl-library-path: no other libcuda, the directory is not searched",
    ),
)
def shadowed(evidence: Evidence) -> Match | None:
    """A Linux libcuda in front of Windows' own."""
    if not evidence.system.wsl or evidence.libcuda.init == 0:
        return None
    path = evidence.libcuda.path
    elsewhere = (
        bool(path)
        and not path.startswith((_WSL_LIB, "/usr/lib/wsl"))
        and evidence.container.inside is False
    )
    packaged = evidence.grep(
        r"^ii\s+(libnvidia-compute|nvidia-driver|libcuda1|cuda-drivers"
        r"|nvidia-utils)|libcuda\.so\.\d{3}",
        source="dpkg|apt|ls|dlopen",
    )
    if not elsewhere or re.search("compat|stubs", path):
        return None
    listed = evidence.grep("libcuda", source="ldconfig")
    return Match(
        packaged + listed + evidence.grep("", source="dlopen: libcuda.*path"),
        CERTAIN if packaged or listed else LIKELY,
    )


@rule(
    "wsl-no-gpu-device",
    KIND,
    cause="WSL 2 has no GPU device (/dev/dxg): the Windows side does not offer the GPU.",
    shows="A WSL 2 kernel without /dev/dxg; gpuSupport=false in .wslconfig; dxgkrnl errors.",
    fix=(
        "in Windows PowerShell: wsl --update; wsl --shutdown",
        "install the current NVIDIA driver on Windows (not in WSL); Windows 10 21H2 or 11",
        "check .wslconfig (no gpuSupport=false, kernel= an own kernel without "
        "dxgkrnl), and that Windows itself is not a VM without the GPU",
    ),
    apart=(
        "wsl-version-1: WSL 1",
        "wsl-linux-driver-shadows, wsl-gpu-blocked: /dev/dxg is there",
    ),
    follows=("wsl-version-1",),
)
def no_dxg(evidence: Evidence) -> Match | None:
    """No paravirtual GPU."""
    blocked = evidence.grep(r"gpuSupport\s*=\s*false|dxgk?.*(fail|error|not found)")
    absent = (
        _has_dxg(evidence) is False
        and evidence.libcuda.init != 0
        and not evidence.container.inside  # there it is the engine that gives the device
    )
    if evidence.system.wsl and (absent or blocked):
        return Match(
            blocked
            + evidence.grep(r"microsoft|wsl2", source="context|uname|version")
            + (("/dev/dxg: absent",) if _has_dxg(evidence) is False else ())
        )
    return None


@rule(
    "wsl-gpu-blocked",
    KIND,
    cause="Windows refuses WSL the GPU: its driver, WSL's kernel (<kernel>) or Windows itself is "
    "too old for GPU access, or the driver runs the card in TCC mode.",
    shows="`GPU access blocked by the operating system` with /dev/dxg present.",
    fix=(
        "in Windows PowerShell: wsl --update; wsl --shutdown    # kernel 5.10.43.3 or newer",
        "install the current NVIDIA driver on Windows (not in WSL); Windows 10 21H2, 11, or "
        "Server 2025",
        "nvidia-smi on Windows says TCC: nvidia-smi -i 0 -dm 0 as administrator (WDDM), then "
        "restart Windows",
        "in a container: upgrade nvidia-container-toolkit or Docker Desktop",
    ),
    apart=(
        "wsl-no-gpu-device: there is no /dev/dxg",
        "wsl-linux-driver-shadows: a Linux libcuda is loaded",
    ),
    follows=("wsl-version-1", "wsl-no-gpu-device", "wsl-linux-driver-shadows"),
)
def blocked(evidence: Evidence) -> Match | None:
    """NVML under WSL is refused by Windows."""
    lines = evidence.grep("GPU access blocked by the operating system")
    kernel = evidence.system.kernel or "see uname -r"
    return Match(lines, values={"kernel": kernel}) if lines else None


@rule(
    "wsl-library-path",
    KIND,
    cause="The loader does not find the libcuda that Windows provides in /usr/lib/wsl/lib.",
    shows="/dev/dxg exists, libcuda.so.1 is not found, or a container in WSL was started "
    "without its GPU.",
    fix=(
        "export LD_LIBRARY_PATH=/usr/lib/wsl/lib:$LD_LIBRARY_PATH    # to prove it",
        "echo /usr/lib/wsl/lib | sudo tee /etc/ld.so.conf.d/ld.wsl.conf && sudo "
        "ldconfig    # Windows: wsl --shutdown makes it anew",
        "in a container: docker run --gpus all ...",
        "nothing in /usr/lib/wsl/lib: install the NVIDIA driver on Windows, then wsl --shutdown",
    ),
    apart=("wsl-linux-driver-shadows: another libcuda is found",),
)
def not_found(evidence: Evidence) -> Match | None:
    """libcuda not found in WSL."""
    if evidence.container.inside and _has_dxg(evidence) is False:
        return None
    if evidence.system.wsl and evidence.libcuda.found is False and _has_dxg(evidence) is not False:
        return Match(
            evidence.grep("libcuda", source="dlopen|ls|ldconfig")
            + evidence.grep("dxg", source="dev|ls"),
            LIKELY if evidence.container.inside else CERTAIN,
        )
    return None


@rule(
    "wsl-driver-stale",
    KIND,
    cause="The Windows driver and WSL's view of it do not fit (Windows driver too old, "
    "or upgraded while WSL ran).",
    shows="In WSL with /usr/lib/wsl/lib's libcuda: cuInit fails, nvidia-smi crashes or "
    "says the driver is not found.",
    fix=(
        "in Windows PowerShell: wsl --shutdown; then start WSL again",
        "nvidia-smi on Windows; install the current NVIDIA driver there",
        "wsl --update",
    ),
    apart=("wsl-linux-driver-shadows: libcuda is not Windows' own",),
    follows=(KIND, "visibility-env", "driver-too-old"),
)
def stale(evidence: Evidence) -> Match | None:
    """Windows' libcuda fails."""
    failed = evidence.libcuda.init not in (None, 0) or "egmentation" in facts.smi(evidence).failure
    if evidence.system.wsl and failed and _has_dxg(evidence) is not False:
        return Match(
            evidence.grep("Segmentation|Error \\d+:|has failed")
            + evidence.grep("", source="cuInit|dlopen: libcuda.*path"),
            LIKELY,
        )
    return None


@rule(
    "wsl-toolkit-too-old",
    KIND,
    cause="The container engine's NVIDIA toolkit is older than the Windows driver and leaves out a "
    "library that it needs.",
    shows="Error 500 `named symbol not found` in a container under WSL 2 (or Docker Desktop).",
    fix=(
        "upgrade Docker Desktop, or in the distribution: sudo apt-get install --only-upgrade "
        "nvidia-container-toolkit && sudo systemctl restart docker",
        "then make the container anew",
    ),
    apart=("wsl-driver-stale: the same outside a container, with another code",),
)
def old_toolkit(evidence: Evidence) -> Match | None:
    """Error 500 in a container."""
    lines = evidence.grep(r"Error 500\b|named symbol not found|CUDA_ERROR_NOT_FOUND")
    if not lines and evidence.libcuda.init != 500:
        return None
    if evidence.system.wsl and not (evidence.container.inside or evidence.container.engine):
        return None
    here = evidence.system.wsl or evidence.container.desktop
    return Match(lines, CERTAIN if here and evidence.container.inside else LIKELY)


RULES: tuple[Rule, ...] = (one, no_dxg, shadowed, blocked, not_found, old_toolkit, stale)
