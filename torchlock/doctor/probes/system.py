"""Files of the kernel and the system: /proc, /sys, /dev, /etc. None of these starts a program."""

from __future__ import annotations

import errno
import grp
import os
import pwd
import re
import resource
import stat
from typing import Any

from torchlock.doctor.probes.machine import Machine

_FILES = (
    "/proc/driver/nvidia/version",
    "/proc/modules",
    "/proc/devices",
    "/proc/cmdline",
    "/proc/version",
    "/sys/module/nvidia/version",
    "/etc/os-release",
    "/etc/ld.so.preload",
    "/etc/nv_tegra_release",
    "/etc/nvidia-container-runtime/config.toml",
    "/etc/docker/daemon.json",
)
_PREFIXES = (
    "CUDA_", "NVIDIA_", "NCCL_", "GLOO_", "SLURM", "TORCH", "PYTORCH_", "TRITON_", "LD_", "PYTHON",
    "CONDA_PREFIX", "VIRTUAL_ENV", "APPTAINER_", "SINGULARITY_", "KUBERNETES_SERVICE_HOST",
    "MASTER_", "OMP_", "PIP_", "UV_", "GLIBC_",
)  # fmt: skip
_NAMES = (
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "CC",
    "CXX",
    "TMPDIR",
    "container",
    "CUDA_HOME",
    "HOSTNAME",
    "USER",
    "LOGNAME",
)
_NO_LIMIT = 2**62  # what version 1 says where no limit is set: the largest page-aligned number
_SECRET = re.compile(r"TOKEN|SECRET|PASSW|KEY|JWT|CREDENTIAL", re.I)
_LIBCUDA_PLACES = (
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib64",
    "/usr/lib/wsl/lib",
    "/run/opengl-driver/lib",
    "/usr/local/nvidia/lib64",
    "/usr/local/cuda/compat",
)
_BOOT_OPTION = re.compile(r"iommu|nouveau|nvidia|nova|vfio|blacklist|modeset|^pci|module", re.I)
_VENDORS = {"0x1002": "Advanced Micro Devices, Inc. [AMD/ATI]", "0x8086": "Intel Corporation"}
_DISPLAY_CLASSES = ("0x0300", "0x0302", "0x0380", "0x1200")


def files(machine: Machine) -> dict[str, Any]:
    """Small text files; the absence of the driver's version file is evidence too."""
    found = {path: text for path in _FILES if (text := machine.text(path)) is not None}
    if "/proc/driver/nvidia/version" not in found:
        found["/proc/driver/nvidia/version"] = None  # type: ignore[assignment]
    # only what concerns the GPU: the rest of the command line is nobody's business
    words = (found.get("/proc/cmdline") or "").split()
    found["/proc/cmdline"] = " ".join(word for word in words if _BOOT_OPTION.search(word))
    containerd = machine.text("/etc/containerd/config.toml") or ""
    lines = [x for x in containerd.splitlines() if re.search("nvidia|default_runtime|cdi", x)]
    if lines:
        found["/etc/containerd/config.toml"] = "\n".join(lines)
    for directory in ("/etc/modprobe.d", "/lib/modprobe.d", "/usr/lib/modprobe.d"):
        for name in machine.names(directory) or ():
            text = machine.text(f"{directory}/{name}") or ""
            if re.search("nvidia|nouveau|nova", text):
                found[f"{directory}/{name}"] = text
    status = machine.text("/proc/self/status") or ""
    seccomp = re.search(r"^Seccomp:.*$", status, re.M)
    if seccomp:
        found["/proc/self/status"] = seccomp[0]
    mounts = machine.text("/proc/self/mountinfo")
    if mounts is not None:
        lines = mounts.splitlines()
        found["mountinfo: nvidia"] = "\n".join(
            x for x in lines if re.search("nvidia|libcuda|/dev/shm|noexec.* /tmp", x)
        )
    for directory in _LIBCUDA_PLACES:
        copies = [name for name in machine.names(directory) or () if name.startswith("libcuda.so")]
        if copies:
            found[f"ls {directory}/libcuda.so*"] = "\n".join(copies)
    for directory in ("/etc/cdi", "/var/run/cdi"):
        names = machine.names(directory)
        if names is not None:
            found[f"ls {directory}"] = "\n".join(names)
    return {"files": found}


def cgroups(machine: Machine) -> dict[str, Any]:
    """The limits of this process's control groups and their parents, version 2 and 1.

    Source: Linux, Documentation/admin-guide/cgroup-v2.rst and cgroup-v1/memory.rst.
    """
    found: dict[str, str] = {}
    for line in (machine.text("/proc/self/cgroup") or "0::/").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        version_1 = {"memory", "pids"} & set(controllers.split(","))
        for name in version_1 or ({""} if not controllers else set()):
            steps = [step for step in path.split("/") if step not in ("", "..")]
            for depth in range(len(steps) + 1):
                directory = "/".join(["/sys/fs/cgroup", *filter(None, [name]), *steps[:depth]])
                found |= _limits_of(machine, directory)
    return {"files": found}


def _limits_of(machine: Machine, directory: str) -> dict[str, str]:
    """The limits set in one control group, and what they led to; none are left out."""
    found = {}
    for limit, events in (
        ("memory.max", "memory.events"),
        ("memory.limit_in_bytes", "memory.oom_control"),
        ("pids.max", ""),
    ):
        text = (machine.text(f"{directory}/{limit}") or "").strip()
        if text.isdecimal() and int(text[:20]) < _NO_LIMIT:
            found[f"{directory}/{limit}"] = text
            counted = machine.text(f"{directory}/{events}") if events else None
            if counted:
                found[f"{directory}/{events}"] = counted
    return found


def secure_boot(machine: Machine) -> dict[str, Any]:
    """Secure Boot, from its EFI variable (4 bytes of attributes, then 0 or 1)."""
    name = "/sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"
    try:
        value = machine.path(name).read_bytes()
    except OSError:
        return {}
    state = "enabled" if value[-1:] == b"\x01" else "disabled"
    return {"cmd": {"mokutil --sb-state (from efivars)": f"SecureBoot {state}"}}


def pci(machine: Machine) -> dict[str, Any]:
    """NVIDIA's display and compute devices, and other GPUs, from /sys/bus/pci in lspci's form."""
    base = "/sys/bus/pci/devices"
    slots = machine.names(base)
    if slots is None:
        return {}
    lines, others = [], []
    for slot in slots:
        vendor = (machine.text(f"{base}/{slot}/vendor") or "").strip()
        device = (machine.text(f"{base}/{slot}/device") or "").strip()
        kind = (machine.text(f"{base}/{slot}/class") or "").strip()
        if not kind.startswith(_DISPLAY_CLASSES):
            continue
        if vendor != "0x10de":
            others.append(
                f"{slot} Display controller [{kind[2:6]}]: {_VENDORS.get(vendor, 'other')} Device "
                f"[{vendor[2:]}:{device[2:]}]"
            )
            continue
        try:
            gone = machine.path(f"{base}/{slot}/config").read_bytes()[:4] == b"\xff\xff\xff\xff"
        except OSError:
            gone = False
        lines.append(
            f"{slot} Display controller [{kind[2:6]}]: NVIDIA Corporation Device "
            f"[10de:{device[2:]}]" + (" (rev ff)" if gone else "")
        )
        try:
            driver = machine.path(f"{base}/{slot}/driver").readlink().name
        except OSError:
            continue
        lines.append(f"\tKernel driver in use: {driver}")
    found = {"lspci -nnk -d 10de: (from /sys/bus/pci)": "\n".join(lines)}
    if others:
        found["lspci -nn | grep Display (other GPUs, from /sys/bus/pci)"] = "\n".join(others)
    return {"cmd": found}


def nodes(machine: Machine) -> dict[str, Any]:
    """The NVIDIA device nodes, and what a real open() for reading and writing says."""
    names = machine.names("/dev")
    if names is None:
        return {}
    paths = [
        f"/dev/{name}"
        for name in names
        if re.fullmatch(r"nvidia(\d+|ctl|-uvm(-tools)?|-modeset)|dxg", name)
    ]
    paths += [f"/dev/nvidia-caps/{name}" for name in machine.names("/dev/nvidia-caps") or ()]
    listed, opened = {}, {}
    for path in paths:
        try:
            status = machine.path(path).stat()
        except OSError:
            continue
        listed[path] = (
            f"{stat.filemode(status.st_mode)} {_user(status.st_uid)} {_group(status.st_gid)} "
            f"{os.major(status.st_rdev)},{os.minor(status.st_rdev)}"
        )
        try:
            # capability nodes are read-only by design
            flags = os.O_RDONLY if "caps" in path else os.O_RDWR
            os.close(machine.opener(str(machine.path(path)), flags | os.O_NONBLOCK | os.O_CLOEXEC))
            opened[path] = "ok"
        except OSError as error:
            opened[path] = f"{errno.errorcode.get(error.errno or 0, '?')} {error.strerror}"
    return {"dev": listed, "open_rw": opened}


def _user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _group(gid: int) -> str:
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)


def context(machine: Machine) -> dict[str, Any]:
    """The operating system, the user and the container."""
    release = machine.text("/etc/os-release") or ""
    pretty = re.search(r'^PRETTY_NAME="?([^"\n]*)', release, re.M)
    kernel = (machine.text("/proc/sys/kernel/osrelease") or "").strip() or os.uname().release
    found: dict[str, Any] = {
        "os": pretty[1] if pretty else _other_system(),
        "uname": kernel,
        "machine": os.uname().machine,
        "uid": os.geteuid(),
        "groups": sorted({_group(gid) for gid in os.getgroups()}),
        "container": _container(machine),
        "files_present": [
            p
            for p in ("/.dockerenv", "/run/.containerenv", "/.singularity.d")
            if machine.path(p).exists()
        ],
    }
    libs = machine.names("/.singularity.d/libs")
    extra = {"ls /.singularity.d/libs": "\n".join(libs)} if libs is not None else {}
    return {"context": found, "cmd": extra}


def _other_system() -> str:
    name = os.uname().sysname
    return "" if name == "Linux" else name


def _container(machine: Machine) -> str | None:
    environ = machine.environ
    cgroup = (machine.text("/proc/1/cgroup") or "") + (machine.text("/proc/self/cgroup") or "")
    marks = (
        ("apptainer", "APPTAINER_CONTAINER" in environ or "SINGULARITY_CONTAINER" in environ),
        ("kubernetes", "KUBERNETES_SERVICE_HOST" in environ or "kubepods" in cgroup),
        ("podman", environ.get("container") == "podman"),
        ("podman", machine.path("/run/.containerenv").exists()),
        ("lxc", environ.get("container") == "lxc" or "/lxc" in cgroup),
        ("docker", machine.path("/.dockerenv").exists() or "docker" in cgroup),
        ("containerd", "containerd" in cgroup),
    )
    return next((engine for engine, holds in marks if holds), None)


def environment(machine: Machine) -> dict[str, Any]:
    """The variables that matter to CUDA, torch, NCCL and the schedulers; never a secret."""
    return {
        "env": {
            name: value
            for name, value in machine.environ.items()
            if (name.startswith(_PREFIXES) or name in _NAMES) and not _SECRET.search(name)
        }
    }


def limits(machine: Machine) -> dict[str, Any]:
    """Resource limits, /dev/shm and the network interfaces."""
    names = (
        ("-n", resource.RLIMIT_NOFILE),
        ("-l", resource.RLIMIT_MEMLOCK),
        ("-u", resource.RLIMIT_NPROC),
        ("-v", resource.RLIMIT_AS),
    )
    found = {}
    for option, which in names:
        soft = resource.getrlimit(which)[0]
        found[f"ulimit {option}"] = "unlimited" if soft == resource.RLIM_INFINITY else str(soft)
    try:
        shm = os.statvfs(machine.path("/dev/shm"))  # noqa: S108 - only looked at
        size, free = shm.f_blocks * shm.f_frsize, shm.f_bavail * shm.f_frsize
        used = 100 - 100 * free // size if size else 0
        found["df -h /dev/shm"] = f"tmpfs {size // 2**20}M {used}% /dev/shm"
    except OSError:
        pass
    interfaces = machine.names("/sys/class/net")
    if interfaces is not None:
        found["ls /sys/class/net"] = "\n".join(interfaces)
    tools = ("cc", "c++", "gcc", "g++", "nvcc", "ninja", "ptxas")
    found["toolchain on PATH"] = ", ".join(
        f"{tool} {'yes' if machine.has(tool) else 'no'}" for tool in tools
    )
    return {"cmd": found}
