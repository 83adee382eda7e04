"""Questions that several rules ask of the evidence."""

from __future__ import annotations

import re

from torchlock.doctor import parse, tables
from torchlock.doctor.evidence import HERE, HOST, Evidence, Node, Smi

# Codes of cuInit that only a driver with a GPU behind it gives.
DRIVER_ANSWERED = (34, 46, 304, 801, 802, 803, 804, 805)
NO_GPU = (
    r"No CUDA GPUs are available|Found no NVIDIA driver|no CUDA-capable device is detected"
    r"|CUDA_ERROR_NO_DEVICE|cudaErrorNoDevice"
)


def smi(evidence: Evidence, place: str = HERE) -> Smi:
    """nvidia-smi as run in a place; an empty record where it was not."""
    return evidence.smi.get(place, Smi())


def driver_works(evidence: Evidence) -> bool:
    """True where nvidia-smi reached the driver here, or cuInit returned 0."""
    return smi(evidence).works or evidence.libcuda.init == 0


def no_driver_reached(evidence: Evidence) -> bool:
    """True where nothing here reached a kernel driver, and something was tried."""
    return (
        bool(smi(evidence).failure)
        or evidence.driver.absent
        or evidence.libcuda.init not in (None, 0)
        or evidence.libcuda.found is False
    ) and not driver_works(evidence)


def cuda_is_off(evidence: Evidence) -> bool:
    """True where torch or cuInit found no usable GPU, or torch was not asked."""
    return evidence.torch.available is not True and evidence.libcuda.init != 0


def says_no_gpu(evidence: Evidence) -> bool:
    """True where the error itself says that no GPU was found, or cuInit says 100."""
    return bool(re.search(NO_GPU, evidence.error)) or evidence.libcuda.init == 100


def gpu_nodes(evidence: Evidence) -> dict[str, Node]:
    """The nodes /dev/nvidia0, /dev/nvidia1 ..."""
    nodes = evidence.nodes or {}
    return {path: node for path, node in nodes.items() if re.fullmatch(r"/dev/nvidia\d+", path)}


def no_nodes(evidence: Evidence) -> bool:
    """True where /dev was read and holds neither GPU nodes nor nvidiactl."""
    return (
        evidence.nodes is not None
        and not gpu_nodes(evidence)
        and "/dev/nvidiactl" not in evidence.nodes
    )


def opened_with(evidence: Evidence, errno: str) -> tuple[str, ...]:
    """The nodes whose open() failed with an errno, as lines."""
    nodes = evidence.nodes or {}
    return tuple(
        f"{path}: {node.mode} {node.owner} {node.group} open() = {errno}"
        for path, node in sorted(nodes.items())
        if node.opened == errno
    )


def driver_version(evidence: Evidence) -> str:
    """The kernel driver's version: from /proc, else as nvidia-smi prints it."""
    if evidence.driver.module:
        return evidence.driver.module
    for place in (HERE, HOST, "root", "node", "container"):
        if smi(evidence, place).driver:
            return smi(evidence, place).driver
    collected = evidence.first(r"Nvidia driver version:\s*(\d[\d.]+)")
    return collected[1] if collected else ""


def branch(evidence: Evidence) -> int:
    """The driver branch (535), 0 where the driver is not known."""
    number = parse.version(driver_version(evidence))
    return number[0] if number else 0


def driver_lines(evidence: Evidence) -> tuple[str, ...]:
    """The lines that state the driver's version."""
    return evidence.grep(r"NVRM version|Driver Version:\s*\d|Nvidia driver version")


def library_version(evidence: Evidence) -> str:
    """The version of the user-space driver library, from its file name or NVML's message."""
    said = re.search(r"libcuda\.so\.(\d{3}\.\d[\d.]*)", evidence.libcuda.path) or evidence.first(
        r"(?:NVML library version:|client has the version)\s*(\d{3}\.\d[\d.]*)"
    )
    return said[1] if said else ""


def wheel_cuda(evidence: Evidence) -> tuple[int, ...]:
    """The CUDA version torch was built with, () for a CPU build or where it is not known."""
    if evidence.torch.cuda:
        return parse.version(evidence.torch.cuda)
    tag = re.search(r"\+cu(\d\d)(\d)", evidence.torch.version or evidence.packages.get("torch", ""))
    if tag:
        return (int(tag[1]), int(tag[2]))
    release = torch_release(evidence)
    if evidence.torch.cuda is None and release == "2.7.1" and evidence.packages:
        return (12, 6) if "nvidia-cublas-cu12" in evidence.packages else ()
    return ()


def torch_release(evidence: Evidence) -> str:
    """torch's release without the local tag (`2.7.1`)."""
    version = evidence.torch.version or evidence.packages.get("torch", "")
    return version.partition("+")[0]


def capabilities(evidence: Evidence) -> list[tuple[str, tuple[int, ...]]]:
    """(name, compute capability) of each GPU for which it is known, PCI devices if no other."""
    known = [(gpu.name, tables.capability(gpu)) for gpu in evidence.gpus]
    if not any(capability for _, capability in known):
        known += [(pci.text, tables.chip_capability(pci.text)) for pci in evidence.pci or ()]
    stated = [(name, capability) for name, capability in known if capability]
    said = evidence.first(
        r"(?:^(.*?)\s+with CUDA capability sm_(\d{1,2})(\d)|cuda capability (\d{1,2})\.(\d))"
    )
    if not stated and said:
        major, minor = (said[2], said[3]) if said[2] else (said[4], said[5])
        stated.append((said[1] or "the GPU", (int(major), int(minor))))
    return stated


def gpu_lines(evidence: Evidence) -> tuple[str, ...]:
    """The lines that name the GPUs and their compute capability."""
    rows = evidence.grep(r"^\|\s+\d+\s+\S.*\|\s*[0-9A-F]+:|^GPU \d+:", source="smi")
    return rows + evidence.grep(r"^\s*\d{1,2}\.\d\s*$|,\s*\d{1,2}\.\d\b", source="compute_cap")


def secure_boot(evidence: Evidence) -> bool | None:
    """Whether Secure Boot is on; None where it was not looked at."""
    state = evidence.first(r"SecureBoot (enabled|disabled)|Secure ?boot:?\s+(enabled|disabled)")
    return (state[1] or state[2]).lower() == "enabled" if state else None


def loaded(evidence: Evidence, module: str) -> bool | None:
    """Whether a kernel module is loaded; None where it was not looked at."""
    modules = evidence.driver.loaded
    if modules is None:
        return None
    return module in modules


def dkms(evidence: Evidence) -> list[tuple[str, str, str]]:
    """(driver version, kernel, status) of every nvidia line of `dkms status`."""
    found = []
    for line in evidence.lines:
        entry = re.match(
            r"\s*nvidia[\w-]*[/,]\s*([\d.]+)(?:,\s*([^,\s:]+))?(?:,[^:]*)?:\s*(.+)", line.text
        )
        if entry and "dkms" in line.source:
            found.append((entry[1], entry[2] or "", entry[3].strip()))
    return found


def built_for_running_kernel(evidence: Evidence) -> bool | None:
    """Whether an nvidia module file exists for the running kernel; None where not known."""
    entries, kernel = dkms(evidence), evidence.system.kernel
    if evidence.grep(r"Module nvidia not found", source="modinfo|modprobe"):
        return False
    if evidence.grep(
        r"^filename:\s*/|insmod /lib/modules/\S*nvidia|^(version:\s*)?\d{3}\.\d+",
        source="modinfo|modprobe",
    ):
        return True
    files = {
        found
        for line in evidence.lines
        for found in re.findall(r"/lib/modules/([^/\s]+)/\S*/nvidia\.ko", line.text)
    }
    if files and kernel:
        return kernel in files
    if entries and kernel:
        return any(of == kernel and status.startswith("installed") for _, of, status in entries)
    if any(status.startswith("installed") for *_, status in entries):
        return True
    return None


def torch_path_lines(evidence: Evidence) -> tuple[str, ...]:
    """The lines on LD_LIBRARY_PATH and LD_PRELOAD."""
    return evidence.grep(r"\S", source=r"^env: LD_(LIBRARY_PATH|PRELOAD)$|ld\.so\.preload")
