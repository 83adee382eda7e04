"""The host's kernel has no working NVIDIA module, or something else holds the GPU."""

from __future__ import annotations

import re

from torchlock.doctor import fixes
from torchlock.doctor.evidence import Evidence
from torchlock.doctor.findings import (
    CERTAIN,
    LIKELY,
    POSSIBLE,
    Match,
    Rule,
    message_rule,
    rule,
    said,
)
from torchlock.doctor.rules import facts

KIND = "host-kernel-module"

_REJECTED = (
    r"key was rejected by service|unsigned module is rejected|required key not available"
    r"|lockdown:.*unsigned module|Loading of module with unavailable key is rejected"
)
_BUILD_FAILED = (
    r"Bad return status for module build|Error! (Build|Your kernel headers)|make.*Error \d"
    r"|failed to build.*nvidia|unable to build the NVIDIA kernel module"
    r"|implicit declaration of function|gcc: error|cc: error|conftest.*error"
)


def _held_by(evidence: Evidence, pattern: str) -> tuple[str, ...]:
    """Lines of PCI devices whose driver in use matches."""
    if any(re.search(pattern, device.driver, re.I) for device in evidence.pci or ()):
        return evidence.grep(rf"Kernel driver in use:\s*({pattern})")
    return ()


def _pci_driver_is(evidence: Evidence, pattern: str) -> bool:
    """False where lspci names another driver for every GPU."""
    drivers = [device.driver for device in evidence.pci or () if device.driver]
    return not drivers or any(re.search(pattern, driver, re.I) for driver in drivers)


def _blacklist_nouveau(evidence: Evidence) -> tuple[str, ...]:
    return fixes.blacklist(evidence, ("nouveau",))


def _blacklist_nova(evidence: Evidence) -> tuple[str, ...]:
    return fixes.blacklist(evidence, ("nova_core", "nova_drm", "nova", "nouveau"))


@rule(
    "nouveau-owns-gpu",
    KIND,
    cause="The nouveau driver holds the GPU, so the NVIDIA kernel module cannot bind to it.",
    shows="`lspci -nnk`: `Kernel driver in use: nouveau`; or lsmod has nouveau and no nvidia.",
    fix=_blacklist_nouveau,
    apart=(
        "nova-owns-gpu: another in-tree driver, which a nouveau blacklist does not stop",
        "dkms-not-built-for-kernel: no driver in use at all, the NVIDIA module does not exist",
    ),
)
def nouveau(evidence: Evidence) -> Match | None:
    """nouveau bound to an NVIDIA device, or loaded in nvidia's place."""
    if facts.smi(evidence).works:
        return None
    held = _held_by(evidence, r"nouveau\b")
    if held:
        return Match(held + evidence.grep(r"probe routine was not called|^nouveau\s"))
    loaded = facts.loaded(evidence, "nouveau") and not facts.loaded(evidence, "nvidia")
    attached = evidence.grep(
        r"nouveau [0-9a-f:.]+: (NVIDIA|vgaarb|fb0|DRM)|to unload it|Nouveau kernel "
        r"driver is currently in use"
    )
    if (loaded or attached) and _pci_driver_is(evidence, "nouveau"):
        return Match(evidence.grep(r"^nouveau\s") + attached, CERTAIN if attached else LIKELY)
    return None


@rule(
    "nova-owns-gpu",
    KIND,
    cause="The in-tree nova driver (nouveau's successor) holds the GPU; "
    "a blacklist of nouveau alone does not stop it.",
    shows="`Kernel driver in use: NovaCore`, or the kernel log says `already bound to NovaCore`.",
    fix=_blacklist_nova,
    apart=("nouveau-owns-gpu: lspci names nouveau as the driver in use",),
)
def nova(evidence: Evidence) -> Match | None:
    """nova_core bound to an NVIDIA device."""
    held = _held_by(evidence, r"nova\S*") + evidence.grep(r"already bound to Nova")
    if facts.smi(evidence).works:
        return None
    if held:
        return Match(held + evidence.grep(r"^nova_\w+\s"))
    if facts.loaded(evidence, "nova_core") and not facts.loaded(evidence, "nvidia"):
        return said(evidence, r"^nova_core\s", certainty=LIKELY)
    return None


@rule(
    "vfio-owns-gpu",
    KIND,
    cause="The GPU is bound to <driver>, which reserves it for a virtual machine.",
    shows="`Kernel driver in use: vfio-pci` (or pci-stub, xen-pciback).",
    fix=(
        "pass the GPU to the virtual machine and use it there, or give it back to the host:",
        "remove its ids from vfio-pci.ids= in /proc/cmdline and from /etc/modprobe.d, "
        "rebuild the initramfs, sudo reboot",
        "at once: echo <slot> | sudo tee /sys/bus/pci/drivers/vfio-pci/unbind; "
        "sudo modprobe nvidia; echo <slot> | sudo tee /sys/bus/pci/drivers/nvidia/bind",
    ),
    apart=("nouveau-owns-gpu: a display driver holds the GPU, not a passthrough stub",),
)
def vfio(evidence: Evidence) -> Match | None:
    """A passthrough stub bound to the GPU."""
    held = _held_by(evidence, r"vfio-pci|pci-stub|xen-pciback|vfio_pci")
    if not held or facts.smi(evidence).works:
        return None
    stub = next(d for d in evidence.pci or () if re.search("vfio|stub|xen", d.driver))
    return Match(held, values={"driver": stub.driver, "slot": stub.slot})


@rule(
    "driver-installed-in-container",
    KIND,
    cause="NVIDIA driver packages were installed inside the container, but a container uses the "
    "host's kernel, and no NVIDIA kernel module and no device node reaches it.",
    shows="Inside a container: nvidia packages or modprobe tried, no /dev/nvidia* nodes.",
    fix=lambda evidence: (
        "On the host: install the NVIDIA driver and check it there with nvidia-smi",
        "On the host: install nvidia-container-toolkit; sudo nvidia-ctk runtime configure; "
        + fixes.restart_engine(evidence),
        *fixes.start_with_gpus(evidence),
        "remove the driver packages from the image: apt-get purge 'nvidia-driver-*' "
        "'libnvidia-*' 'nvidia-dkms-*'",
    ),
    apart=(
        "no-gpus-flag: no driver package in the image, and the host's module is visible in /proc",
    ),
    follows=("no-gpus-flag",),
)
def driver_in_container(evidence: Evidence) -> Match | None:
    """A driver package in the image of a container without device nodes."""
    if (
        not evidence.container.inside
        or evidence.system.wsl
        or not facts.no_driver_reached(evidence)
    ):
        return None
    if facts.gpu_nodes(evidence) or (evidence.nodes is None and not evidence.driver.absent):
        return None
    tried = evidence.grep(
        r"^ii\s+(nvidia-(driver|dkms|kernel|utils|compute)|libnvidia-compute|libcuda1|cuda-drivers)"
        r"|modprobe: (FATAL|ERROR).*nvidia|apt(-get)? install.*(nvidia-(driver"
        r"|utils)|libnvidia|cuda-drivers)"
        r"|(nvidia-(driver|kernel-\w+|utils)-?\d*|libnvidia-compute-\d+|cuda-drivers)[:\s]"
        r"|NVIDIA-Linux-\S+\.run"
    )
    return Match(tried + evidence.grep(r"couldn't communicate|^no such file$")) if tried else None


@rule(
    "dkms-build-failed",
    KIND,
    cause="The NVIDIA module failed to build for the running kernel: this driver version does "
    "not support this kernel or compiler.",
    shows="dkms: `Bad return status for module build`, compiler errors in make.log.",
    fix=lambda evidence: (
        "cat /var/lib/dkms/nvidia/*/build/make.log    # the first error",
        fixes.driver(evidence, "580"),
        "or boot the previous kernel, for which the module is built",
    ),
    apart=("dkms-not-built-for-kernel: the build was never tried, the headers are missing",),
)
def build_failed(evidence: Evidence) -> Match | None:
    """A module build that ended in an error."""
    if facts.smi(evidence).works:
        return None
    lines = evidence.grep(
        _BUILD_FAILED, source=r"dkms|make|apt|dnf|dpkg|runfile|installer|journal|log"
    )
    return Match(lines) if lines and evidence.grep(r"nvidia", source="") else None


@rule(
    "dkms-not-built-for-kernel",
    KIND,
    cause="There is no NVIDIA module for the running kernel <kernel>: it was not built (or its "
    "package not installed) when the kernel was upgraded, usually for want of its headers.",
    shows="`dkms status` lists nvidia for other kernels only, or modinfo finds no module nvidia "
    "although the driver's libraries are installed.",
    fix=lambda evidence: (
        fixes.headers(evidence),
        "sudo dkms autoinstall    # akmods: sudo akmods --force; Ubuntu's prebuilt modules: "
        "linux-modules-nvidia-<branch>-$(uname -r)",
        "sudo modprobe nvidia && nvidia-smi",
        "or reboot into the previous kernel",
    ),
    apart=(
        "secure-boot-unsigned: the module exists for this kernel and is refused",
        "dkms-build-failed: the build was tried and ended in a compiler error",
    ),
    follows=("dkms-build-failed", "nouveau-owns-gpu", "nova-owns-gpu"),
)
def not_built(evidence: Evidence) -> Match | None:
    """No module file for the running kernel, though the driver is installed."""
    if evidence.container.inside or evidence.system.wsl or facts.smi(evidence).works:
        return None
    if facts.built_for_running_kernel(evidence) is not False:
        return None
    entries = facts.dkms(evidence)
    installed = (
        bool(entries)
        or evidence.libcuda.found
        or "couldn't communicate" in facts.smi(evidence).failure
    )
    if not installed:
        return None
    lines = evidence.grep(r"nvidia", source="dkms") + evidence.grep(
        r"not found", source="modinfo|modprobe"
    )
    lines += evidence.grep(r"\S", source=r"uname|headers")
    kernel = evidence.system.kernel or "(see uname -r)"
    return Match(lines, CERTAIN if entries else LIKELY, {"kernel": kernel})


@rule(
    "secure-boot-unsigned",
    KIND,
    cause="Secure Boot is on and the kernel refuses the NVIDIA module, "
    "whose signing key is not enrolled.",
    shows="`mokutil --sb-state`: enabled; the module is built and not loaded; "
    "`Key was rejected by service` or `unsigned module is rejected`.",
    fix=lambda evidence: (
        "sudo mokutil --import /var/lib/shim-signed/mok/MOK.der    "
        "# Fedora: /etc/pki/akmods/certs/public_key.der; dkms: /var/lib/dkms/mok.pub",
        "sudo reboot, and choose Enroll MOK in the blue MOK Manager screen",
        "then: sudo modprobe nvidia && nvidia-smi",
        "or use the distribution's signed modules, or disable Secure Boot in the firmware",
    ),
    apart=("dkms-not-built-for-kernel: no module for the running kernel, nothing to refuse",),
    follows=("dkms-not-built-for-kernel",),
)
def secure_boot(evidence: Evidence) -> Match | None:
    """A module that exists and is refused, or is merely not loaded under Secure Boot."""
    if facts.smi(evidence).works:
        return None
    state = evidence.grep(r"SecureBoot enabled")
    refused = evidence.grep(_REJECTED)
    if refused and facts.secure_boot(evidence) is not False:
        return Match(state + refused)
    built = facts.built_for_running_kernel(evidence)
    if not facts.secure_boot(evidence) or not _may_be_built(evidence):
        return None
    if facts.loaded(evidence, "nvidia") or not facts.no_driver_reached(evidence):
        return None
    unsigned = any("signer" in x.source and not x.text.strip() for x in evidence.lines)
    lines = state + evidence.grep(r"installed|insmod", source="dkms|modprobe")
    lines += evidence.grep("^$", source="signer")
    return Match(lines, CERTAIN if unsigned else LIKELY if built else POSSIBLE)


def _programs_only(evidence: Evidence) -> bool:
    """Whether the driver's programs are installed, and reach no module."""
    return "couldn't communicate" in facts.smi(evidence).failure


def _may_be_built(evidence: Evidence) -> bool:
    """Whether a module is known to be built, or nothing says that none is."""
    built = facts.built_for_running_kernel(evidence)
    return _programs_only(evidence) if built is None else built


@rule(
    "module-for-other-kernel",
    KIND,
    cause="The NVIDIA module on disk was built for another kernel or compiler, "
    "and the running kernel rejects its format.",
    shows="`version magic`, `disagrees about version of symbol`, `Invalid module format`, "
    "`Exec format error` from modprobe.",
    fix=lambda evidence: (
        fixes.headers(evidence),
        "sudo dkms remove nvidia/<version> --all; sudo dkms autoinstall --force    "
        "# or reinstall the driver package",
        "sudo modprobe nvidia",
    ),
    apart=("secure-boot-unsigned: the signature is refused, not the format",),
    follows=("driver-library-mismatch",),
)
def wrong_magic(evidence: Evidence) -> Match | None:
    """A module whose format the kernel rejects."""
    lines = evidence.grep(
        r"nvidia.*(version magic|disagrees about version of symbol|unknown symbol)"
        r"|could not insert '?nvidia.*(invalid module format|exec format|unknown symbol)"
    )
    return Match(lines) if lines and not facts.smi(evidence).works else None


@rule(
    "module-blacklisted",
    KIND,
    cause="The NVIDIA module is installed but told not to load (blacklist or prime-select).",
    shows="`blacklist nvidia` or `install nvidia /bin/false` in modprobe.d or on the kernel's "
    "command line; `prime-select query`: intel.",
    fix=lambda evidence: (
        "remove the line from its file, or: sudo prime-select nvidia",
        fixes.initramfs(evidence),
        "sudo modprobe nvidia    # or sudo reboot",
    ),
    apart=("nouveau-owns-gpu: another driver is bound; here nothing is",),
)
def blacklisted(evidence: Evidence) -> Match | None:
    """The module forbidden by configuration."""
    if not facts.no_driver_reached(evidence) or evidence.container.inside:
        return None
    lines = evidence.grep(
        r"^\s*blacklist nvidia(\s|$|[-_])|^\s*alias nvidia off|install nvidia "
        r"/(usr/)?bin/(true|false)"
        r"|(modprobe\.blacklist|module_blacklist)=\S*nvidia(,|\s|$)"
    ) + evidence.grep(r"^\s*(intel|on-demand off)\s*$", source="prime-select")
    return Match(lines) if lines else None


@rule(
    "module-not-loaded",
    KIND,
    cause="The NVIDIA driver is installed, and its kernel module is not loaded<built>.",
    shows="modinfo or dkms finds the module, or nvidia-smi is there and reaches none; lsmod does "
    "not list it, Secure Boot is off.",
    fix=(
        "sudo modprobe nvidia && nvidia-smi",
        "if it fails: sudo dmesg | grep -iE 'nvrm|nvidia' | tail    # says why",
        "to load it at boot: echo nvidia | sudo tee /etc/modules-load.d/nvidia.conf",
    ),
    apart=(
        "secure-boot-unsigned: the same with Secure Boot on",
        "module-blacklisted: a configuration file forbids it",
    ),
    follows=(
        "module-blacklisted",
        "secure-boot-unsigned",
        "nouveau-owns-gpu",
        "nova-owns-gpu",
        "vfio-owns-gpu",
        "module-for-other-kernel",
        "gpu-driver-support",
        "gpu-state",
        "driver-library-mismatch",
    ),
)
def not_loaded(evidence: Evidence) -> Match | None:
    """A module that exists, is not refused, and is not there."""
    if evidence.container.inside or evidence.system.wsl or facts.smi(evidence).works:
        return None
    built = facts.built_for_running_kernel(evidence)
    if facts.secure_boot(evidence) or not _may_be_built(evidence):
        return None
    if facts.loaded(evidence, "nvidia") is not False and not evidence.driver.absent:
        return None
    if not built and not evidence.pci:
        return None
    lines = evidence.grep(r"nvidia", source="dkms|modinfo|modprobe|lsmod|lspci")
    lines += evidence.grep(r"couldn't communicate|^no such file$")
    known = " although it is built for the running kernel" if built else ""
    return Match(lines, LIKELY if built else POSSIBLE, {"built": known})


@rule(
    "uvm-module-not-loaded",
    KIND,
    cause="The nvidia_uvm module or its node /dev/nvidia-uvm is missing, so NVML works and "
    "CUDA cannot start.",
    shows="On the host: /dev/nvidia0 and nvidiactl exist, /dev/nvidia-uvm does not; cuInit 999.",
    fix=("sudo nvidia-modprobe -u -c=0    # or: sudo modprobe nvidia_uvm", "nvidia-smi"),
    apart=(
        "uvm-node-missing: the same inside a container, where the host or the "
        "device list is at fault",
        "uvm-broken-after-suspend: the node is there",
    ),
    follows=("gpu-state",),
)
def uvm(evidence: Evidence) -> Match | None:
    """No nvidia-uvm on a host whose driver works."""
    if evidence.container.inside or evidence.system.wsl or evidence.nodes is None:
        return None
    if not facts.gpu_nodes(evidence) or "/dev/nvidia-uvm" in evidence.nodes:
        return None
    if evidence.libcuda.init == 0 or evidence.torch.available is True:
        return None
    if facts.opened_with(evidence, "EACCES") and not facts.smi(evidence).works:
        return None
    lines = evidence.grep(r"/dev/nvidia|crw", source="dev|^ls") + evidence.grep("999|unknown error")
    return Match(lines, CERTAIN if facts.loaded(evidence, "nvidia_uvm") is False else LIKELY)


@rule(
    "driver-not-installed",
    KIND,
    cause="An NVIDIA GPU is on the PCI bus and no NVIDIA driver is installed.",
    shows="lspci lists the GPU; no libcuda.so.1, no nvidia-smi, no module, no device nodes.",
    fix=lambda evidence: (fixes.driver(evidence, "570"), "nvidia-smi"),
    apart=(
        "dkms-not-built-for-kernel: the driver's libraries are there, only the module is not",
        "no-gpus-flag: inside a container, where the driver comes from the host",
    ),
    follows=("nouveau-owns-gpu", "nova-owns-gpu", "vfio-owns-gpu", "slurm", "wsl2"),
)
def not_installed(evidence: Evidence) -> Match | None:
    """A GPU without any part of a driver."""
    if evidence.container.inside or evidence.system.wsl or not evidence.pci:
        return None
    if evidence.libcuda.found is not False or facts.driver_version(evidence):
        return None
    if facts.built_for_running_kernel(evidence) or _programs_only(evidence):
        return None
    return Match(
        evidence.grep(r"nvidia", source="lspci")
        + evidence.grep(r"libcuda|not found", source="dlopen|smi")
    )


no_host_driver = message_rule(
    "host-driver-not-loaded",
    KIND,
    r"nvml error: driver not loaded|nvidia-container-cli: .*(driver not loaded|no NVIDIA driver)"
    r"|nvidia-container-cli: initialization error: nvml error: unknown",
    cause="The container toolkit found no loaded NVIDIA driver on the host.",
    fix=lambda evidence: (
        "On the host: nvidia-smi    # must work before any container can",
        "On the host: sudo modprobe nvidia; sudo dmesg | grep -i nvrm | tail",
        "then: " + fixes.recreate(evidence),
    ),
    apart=("toolkit-not-configured: the engine does not know the toolkit at all",),
    follows=(KIND,),
)


def _other_vendor(evidence: Evidence) -> str:
    """The vendor of a GPU that is there instead; processors' own graphics count for Intel."""
    display = r"(VGA|3D|Display)\b.*"
    if evidence.grep(display + r"(AMD/ATI|Advanced Micro|\[1002:)") or evidence.grep(
        "^/dev/kfd$|dev: /dev/kfd", source="dev"
    ):
        return "AMD"
    return "Intel" if evidence.grep(display + r"(Intel|\[8086:)") else ""


def _for_other_gpus(evidence: Evidence) -> tuple[str, ...]:
    tag = {"AMD": "rocm6.3", "Intel": "xpu"}.get(_other_vendor(evidence))
    if not tag:
        return ()
    return (f"{fixes.torch_wheel(tag)}    # for that GPU, where the vendor supports it",)


@rule(
    "no-nvidia-gpu",
    "no-gpu",
    cause="This machine has no NVIDIA GPU: the PCI bus lists none<other>, and there is no driver.",
    shows="No PCI device of vendor 10de, no /dev/nvidia*, no /proc/driver/nvidia/version.",
    fix=lambda evidence: (
        *_for_other_gpus(evidence),
        "use torch on the CPU here (device 'cpu'), or move to a machine with an NVIDIA GPU",
        "virtual machine or cloud: choose a GPU instance type, or pass the GPU through",
        "a card that is fitted and not listed: check seating, power and the slot in the firmware",
    ),
    apart=(
        "no-gpus-flag: the host has a GPU, which the container was not given",
        "driver-not-installed: the GPU is on the bus",
        "xid79-fell-off-bus: the GPU was there and left",
    ),
    follows=("gpu-state", "gpu-driver-support", "slurm", "kubernetes"),
)
def no_gpu(evidence: Evidence) -> Match | None:
    """A readable PCI bus without an NVIDIA device, and no trace of a driver."""
    if evidence.pci is None or evidence.pci or evidence.system.wsl:
        return None
    if facts.driver_version(evidence) or facts.gpu_nodes(evidence) or facts.driver_works(evidence):
        return None
    if evidence.container.inside and not evidence.driver.absent:
        return None
    if evidence.libcuda.init in facts.DRIVER_ANSWERED:
        return None
    lines = tuple(str(line) for line in evidence.lines if "lspci" in line.source)[:2]
    lines += evidence.grep("no such file", source="/proc/driver/nvidia")
    lines += evidence.grep("libcuda", source="dlopen")
    vendor = _other_vendor(evidence)
    other = f" (it lists a GPU of {vendor})" if vendor else ""
    # a libcuda that answers belongs to a driver that is, or was, somewhere
    certainty = LIKELY if evidence.libcuda.init is not None else CERTAIN
    return Match(lines, certainty, {"other": other})


RULES: tuple[Rule, ...] = (
    nouveau,
    nova,
    vfio,
    driver_in_container,
    build_failed,
    secure_boot,
    wrong_magic,
    not_built,
    blacklisted,
    not_loaded,
    uvm,
    no_host_driver,
    not_installed,
    no_gpu,
)
