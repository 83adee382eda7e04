"""Neighbours of the cases: same symptom and another cause, or the same cause told otherwise.

Each entry: (kind, what it shows, loose evidence, code of the right first finding or None).
"""

# ruff: noqa: E501 - messages stand as they are pasted
# fmt: off
from __future__ import annotations

NO_GPUS = "RuntimeError: No CUDA GPUs are available"
NO_DRIVER = "CUDA initialization: Found no NVIDIA driver on your system. Please check that you have an NVIDIA GPU"
NO_COMM = {"rc": 9, "out": "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that the latest NVIDIA driver is installed and running."}
NO_SMI = {"rc": 127, "out": "bash: nvidia-smi: command not found"}
FOUND = {"libcuda.so.1": {"ok": True, "path": "/usr/lib64/libcuda.so.1"}}
MISSING = {"libcuda.so.1": {"ok": False, "error": "libcuda.so.1: cannot open shared object file: No such file or directory"}}
NODES = {
    "/dev/nvidia0": "crw-rw-rw- root root 195,0",
    "/dev/nvidiactl": "crw-rw-rw- root root 195,255",
    "/dev/nvidia-uvm": "crw-rw-rw- root root 508,0",
}
TORCH = {"version": "2.7.1+cu126", "cuda": "12.6"}
OFF = {**TORCH, "is_available": False, "error": NO_GPUS}
NO_LIB = {**TORCH, "is_available": False, "warning": NO_DRIVER}
ON = {**TORCH, "is_available": True, "device_count": 1}
PROC = "/proc/driver/nvidia/version"


def smi(driver: str = "570.124.06", cuda: str = "12.8", *names: str, ecc: str = "0") -> dict[str, object]:
    rows = [
        f"|   {i}  {name:<28}  On  |   00000000:{i + 1:02X}:00.0 Off |  {ecc:>18} |\n| N/A   30C    P0   50W / 300W |       1MiB /  40960MiB |      0%      Default |"
        for i, name in enumerate(names or ("NVIDIA L40S",))
    ]
    head = f"| NVIDIA-SMI {driver}   Driver Version: {driver}   CUDA Version: {cuda}     |"
    return {"rc": 0, "out": "\n".join([head, *rows])}


def kernel(version: str, flavour: str = "x86_64 Kernel Module") -> dict[str, str]:
    return {PROC: f"NVRM version: NVIDIA UNIX {flavour}  {version}  Mon Jan 1 00:00:00 UTC 2025"}


def inside(engine: str, os: str = "Debian 12") -> dict[str, object]:
    return {"container": engine, "os": os}


def error_999() -> str:
    return "RuntimeError: CUDA unknown error - this may be due to an incorrectly set up environment, e.g. changing env variable CUDA_VISIBLE_DEVICES after program start. Setting the available devices to be zero."


def init_error(code: int, text: str) -> dict[str, object]:
    return {**TORCH, "is_available": False, "warning": f"CUDA initialization: Unexpected error from cudaGetDeviceCount(). Error {code}: {text}"}


NEIGHBOURS: tuple[tuple[str, str, dict[str, object], str | None], ...] = (
    # --- host-kernel-module
    ("host-kernel-module", "vfio holds the GPU, not nouveau", {
        "context": {"os": "Proxmox VE 8 (Debian 12)"}, "cmd": {"nvidia-smi": NO_COMM, "lspci -nnk -d 10de:": "65:00.0 3D controller [0302]: NVIDIA Corporation GA100 [10de:20b5]\n\tKernel driver in use: vfio-pci\n\tKernel modules: nvidiafb, nouveau, nvidia", "journalctl -k": "NVRM: The NVIDIA probe routine was not called for 1 device(s).\nNVRM: This can occur when a driver such as: nouveau, rivafb, nvidiafb or rivatv was loaded"},
        "files": {PROC: None}, "dev": {}, "cuInit": 100, "torch": OFF}, "vfio-owns-gpu"),
    ("host-kernel-module", "nouveau on Fedora, by lsmod only", {
        "context": {"os": "Fedora Linux 41"}, "cmd": {"nvidia-smi": NO_COMM, "lsmod": "Module                  Size  Used by\nnouveau              3837952  12\ndrm_ttm_helper         16384  1 nouveau"},
        "files": {PROC: None}, "dev": {}, "dlopen": FOUND, "cuInit": 100, "torch": OFF}, "nouveau-owns-gpu"),
    ("host-kernel-module", "Secure Boot on, but no module for this kernel", {
        "context": {"os": "Ubuntu 24.04"}, "cmd": {"nvidia-smi": NO_COMM, "uname -r": "6.11.0-21-generic", "dkms status": "nvidia/570.133.07, 6.8.0-55-generic, x86_64: installed", "mokutil --sb-state": "SecureBoot enabled", "modinfo nvidia": "modinfo: ERROR: Module nvidia not found."},
        "files": {PROC: None}, "dev": {}, "dlopen": FOUND, "cuInit": 100, "torch": OFF}, "dkms-not-built-for-kernel"),
    ("host-kernel-module", "Secure Boot on Fedora with akmods, told by the kernel log", {
        "context": {"os": "Fedora Linux 42"}, "cmd": {"nvidia-smi": NO_COMM, "mokutil --sb-state": "SecureBoot enabled", "sudo modprobe nvidia": "modprobe: ERROR: could not insert 'nvidia': Key was rejected by service"},
        "files": {PROC: None}, "dev": {}, "dlopen": FOUND, "cuInit": 100, "torch": OFF}, "secure-boot-unsigned"),
    ("host-kernel-module", "module built, Secure Boot off, simply not loaded", {
        "context": {"os": "Debian 12"}, "cmd": {"nvidia-smi": NO_COMM, "uname -r": "6.1.0-31-amd64", "dkms status": "nvidia-current/535.216.01, 6.1.0-31-amd64, x86_64: installed", "mokutil --sb-state": "SecureBoot disabled", "lsmod | grep nvidia": ""},
        "files": {PROC: None}, "dev": {}, "dlopen": FOUND, "cuInit": 100, "torch": OFF}, "module-not-loaded"),
    ("host-kernel-module", "module blacklisted by prime-select", {
        "context": {"os": "Ubuntu 22.04"}, "cmd": {"nvidia-smi": NO_COMM, "uname -r": "6.8.0-52-generic", "modinfo nvidia": "filename:       /lib/modules/6.8.0-52-generic/updates/dkms/nvidia.ko", "prime-select query": "intel", "grep -r nvidia /lib/modprobe.d": "blacklist nvidia\nblacklist nvidia-drm"},
        "files": {PROC: None}, "dev": {}, "dlopen": FOUND, "cuInit": 100, "torch": OFF}, "module-blacklisted"),
    ("host-kernel-module", "dkms build fails on a new kernel", {
        "context": {"os": "openSUSE Leap 15.6"}, "cmd": {"nvidia-smi": NO_COMM, "uname -r": "6.14.0-37-default", "dkms status": "nvidia/550.54.14: added", "dkms install": "Error! Bad return status for module build on kernel: 6.14.0-37-default (x86_64)\nConsult /var/lib/dkms/nvidia/550.54.14/build/make.log"},
        "files": {PROC: None}, "dev": {}, "dlopen": FOUND, "cuInit": 100, "torch": OFF}, "dkms-build-failed"),
    ("host-kernel-module", "no driver at all on a host with a GPU", {
        "context": {"os": "Rocky Linux 9"}, "cmd": {"nvidia-smi": NO_SMI, "lspci | grep -i nvidia": "17:00.0 3D controller: NVIDIA Corporation AD102GL [L40S] (rev a1)"},
        "files": {PROC: None}, "dev": {}, "dlopen": MISSING, "torch": NO_LIB}, "driver-not-installed"),
    ("host-kernel-module", "no GPU in the machine at all", {
        "context": {"os": "Ubuntu 24.04"}, "cmd": {"nvidia-smi": NO_SMI, "lspci | grep -i nvidia": "", "lsmod | grep nvidia": ""},
        "files": {PROC: None}, "dev": {}, "dlopen": MISSING, "torch": NO_LIB}, "no-nvidia-gpu"),
    ("host-kernel-module", "nvidia_uvm not loaded on a host", {
        "context": {"os": "Arch Linux"}, "cmd": {"nvidia-smi": smi(), "lsmod": "Module Size Used by\nnvidia 100 1\nnvidia_modeset 10 1"},
        "files": kernel("570.124.06"), "dev": {k: v for k, v in NODES.items() if "uvm" not in k}, "dlopen": FOUND, "cuInit": 999, "torch": {**TORCH, "is_available": False, "warning": error_999()}}, "uvm-module-not-loaded"),
    # --- driver-version
    ("driver-version", "CUDA 13 wheel on a 570 driver", {
        "context": {"os": "Rocky Linux 9"}, "cmd": {"nvidia-smi": smi("570.86.15", "12.8", "NVIDIA H100 PCIe")}, "files": kernel("570.86.15"), "dev": NODES, "dlopen": FOUND, "cuInit": 0, "cuDriverGetVersion": 12080,
        "torch": {"version": "2.9.0+cu130", "cuda": "13.0", "is_available": False, "warning": "The NVIDIA driver on your system is too old (found version 12080)."}}, "driver-too-old"),
    ("driver-version", "the same from the versions alone", {
        "context": {"os": "CentOS 7"}, "cmd": {"nvidia-smi": smi("460.32.03", "11.2", "Tesla V100-PCIE-16GB")}, "files": kernel("460.32.03"), "dev": NODES, "dlopen": FOUND, "torch": {**TORCH, "is_available": False}}, "driver-too-old"),
    ("driver-version", "driver upgraded without a reboot", {
        "context": {"os": "Ubuntu 22.04"}, "cmd": {"nvidia-smi": {"rc": 18, "out": "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 550.144"}, "grep nvidia /var/log/apt/history.log": "Upgrade: nvidia-driver-550:amd64 (550.120, 550.144.03)"},
        "files": kernel("550.120"), "dev": NODES, "dlopen": {"libcuda.so.1": {"ok": True, "path": "/usr/lib/x86_64-linux-gnu/libcuda.so.550.144.03"}}, "cuInit": 803, "torch": init_error(803, "system has unsupported display driver / cuda driver combination")}, "driver-library-mismatch"),
    ("driver-version", "image refused by NVIDIA_REQUIRE_CUDA", {
        "context": {"container": "docker host side", "os": "Ubuntu 20.04"}, "cmd": {"docker run --gpus all nvidia/cuda:12.6.3-base-ubuntu22.04 nvidia-smi": "nvidia-container-cli: requirement error: unsatisfied condition: cuda>=12.6, please update your driver to a newer version, or use an earlier cuda container: unknown.", "host nvidia-smi": smi("535.183.01", "12.2")}}, "driver-refused-by-image"),
    ("driver-version", "PTX newer than the driver, by its error name", {
        "context": {"os": "Debian 12"}, "cmd": {"nvidia-smi": smi("550.54.15", "12.4", "NVIDIA A100-PCIE-40GB")}, "cuInit": 0, "torch": ON, "error": "cuModuleLoadData failed: CUDA_ERROR_UNSUPPORTED_PTX_VERSION"}, "ptx-newer-than-driver"),
    # --- compat-libs
    ("compat-libs", "804 on a data-centre GPU: the pair is not covered", {
        "context": inside("docker"), "cmd": {"nvidia-smi": smi("515.43.04", "12.6", "NVIDIA A100-SXM4-40GB")}, "files": kernel("515.43.04"), "dev": NODES, "dlopen": {"libcuda.so.1": {"ok": True, "path": "/usr/local/cuda-12.6/compat/libcuda.so.560.35.05"}}, "cuInit": 804, "torch": init_error(804, "forward compatibility was attempted on non supported HW")}, "compat-driver-combination"),
    ("compat-libs", "an old compat shadows a newer driver", {
        "context": inside("podman", "Fedora 40"), "env": {"LD_LIBRARY_PATH": "/usr/local/cuda/compat"}, "cmd": {"nvidia-smi": smi("570.86.15", "12.8", "NVIDIA RTX A6000")}, "files": kernel("570.86.15"), "dev": NODES, "dlopen": {"libcuda.so.1": {"ok": True, "path": "/usr/local/cuda/compat/libcuda.so.535.104.05"}}, "cuInit": 803, "torch": init_error(803, "system has unsupported display driver / cuda driver combination")}, "compat-shadows-driver"),
    ("compat-libs", "804 on a laptop GPU outside a container", {
        "context": {"os": "Pop!_OS 22.04"}, "env": {"LD_LIBRARY_PATH": "/usr/local/cuda-12.8/compat"}, "cmd": {"nvidia-smi": smi("560.35.03", "12.6", "NVIDIA GeForce RTX 4070 Laptop GPU")}, "files": kernel("560.35.03"), "dev": NODES, "dlopen": {"libcuda.so.1": {"ok": True, "path": "/usr/local/cuda-12.8/compat/libcuda.so.570.86.10"}}, "cuInit": 804, "torch": init_error(804, "forward compatibility was attempted on non supported HW")}, "compat-on-unsupported-gpu"),
    # --- gpu-driver-support
    ("gpu-driver-support", "Kepler with driver 535", {
        "context": {"os": "Ubuntu 22.04"}, "cmd": {"nvidia-smi": {"rc": 6, "out": "No devices were found"}, "lspci -nnk": "03:00.0 3D controller [0302]: NVIDIA Corporation GK210GL [Tesla K80] [10de:102d]\n\tKernel modules: nvidiafb, nouveau, nvidia", "dmesg": "NVRM: The NVIDIA Tesla K80 GPU installed in this system is\nNVRM:  supported through the NVIDIA 470.xx Legacy drivers. Please\nNVRM:  visit http://www.nvidia.com/object/unix.html for more"},
        "files": kernel("535.183.01"), "dev": {"/dev/nvidiactl": "crw-rw-rw- root root 195,255"}, "dlopen": FOUND, "cuInit": 100, "torch": OFF}, "gpu-dropped-by-driver"),
    ("gpu-driver-support", "Blackwell with the closed modules", {
        "context": {"os": "Ubuntu 24.04"}, "cmd": {"nvidia-smi": {"rc": 6, "out": "No devices were found"}, "dmesg": "NVRM: installed in this system requires use of the NVIDIA open kernel modules.\nNVRM: GPU 0000:01:00.0: RmInitAdapter failed! (0x22:0x56:884)", "lspci -nnk": "01:00.0 VGA compatible controller [0300]: NVIDIA Corporation GB202 [GeForce RTX 5090] [10de:2b85]\n\tKernel driver in use: nvidia"},
        "files": kernel("570.86.16"), "dev": NODES, "dlopen": FOUND, "cuInit": 100, "torch": OFF}, "closed-modules-on-blackwell"),
    ("gpu-driver-support", "Blackwell with a driver older than it", {
        "context": {"os": "Debian 12"}, "cmd": {"nvidia-smi": {"rc": 6, "out": "No devices were found"}, "dmesg": "NVRM: The NVIDIA GPU 0000:01:00.0 (PCI ID: 10de:2c02)\nNVRM: installed in this system is not supported by the\nNVRM: NVIDIA 550.163.01 driver release.", "lspci -nnk": "01:00.0 VGA compatible controller [0300]: NVIDIA Corporation GB203 [GeForce RTX 5080] [10de:2c02]\n\tKernel modules: nouveau, nvidia"},
        "files": kernel("550.163.01"), "dev": NODES, "dlopen": FOUND, "cuInit": 100, "torch": OFF}, "gpu-newer-than-driver"),
    ("gpu-driver-support", "BAR without address space in a VM", {
        "context": {"os": "Ubuntu 22.04"}, "cmd": {"nvidia-smi": {"rc": 6, "out": "No devices were found"}, "dmesg": "NVRM: This PCI I/O region assigned to your NVIDIA device is invalid:\nNVRM: BAR1 is 0M @ 0x0 (PCI:0000:00:05.0)\nNVRM: The system BIOS may have misconfigured your GPU."},
        "files": kernel("535.183.01"), "dev": NODES, "dlopen": FOUND, "cuInit": 100, "torch": OFF}, "bios-bar-too-small"),
    # --- gpu-state
    ("gpu-state", "GSP timeout", {
        "context": {"os": "Rocky Linux 8"}, "cmd": {"nvidia-smi": {"rc": 0, "out": "|   0  NVIDIA A100-SXM4-40GB          On  | 00000000:07:00.0 Off |               ERR! |"}, "dmesg": "NVRM: Xid (PCI:0000:07:00): 119, pid=4242, name=python, Timeout after 6s of waiting for RPC response from GPU0 GSP! Expected function 76"}, "torch": {**TORCH, "is_available": False}}, "gsp-timeout"),
    ("gpu-state", "exclusive-process mode", {
        "context": {"os": "CentOS 7"}, "cmd": {"nvidia-smi --query-gpu=index,compute_mode --format=csv,noheader": "0, Exclusive_Process"}, "dev": NODES, "dlopen": FOUND, "torch": ON, "error": "RuntimeError: CUDA error: all CUDA-capable devices are busy or unavailable"}, "compute-mode-exclusive"),
    ("gpu-state", "MPS daemon gone", {
        "context": {"os": "Rocky Linux 9"}, "env": {"CUDA_MPS_PIPE_DIRECTORY": "/tmp/mps"}, "cmd": {"nvidia-smi": smi()}, "dev": NODES, "dlopen": FOUND, "cuInit": 805, "torch": init_error(805, "MPS client failed to connect to the MPS control daemon or the MPS server")}, "mps-unreachable"),
    ("gpu-state", "memory held by others", {
        "error": "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 23.69 GiB of which 1.02 GiB is free. Process 31337 has 20.00 GiB memory in use. Including non-PyTorch memory, this process has 2.5 GiB memory in use."}, "gpu-memory-held"),
    ("gpu-state", "the program itself needs too much", {
        "error": "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total capacity of 23.69 GiB of which 12.1 GiB is free. Including non-PyTorch memory, this process has 11.5 GiB memory in use."}, "gpu-out-of-memory"),
    ("gpu-state", "suspend told by the user, on Debian", {
        "context": {"os": "Debian 12"}, "cmd": {"nvidia-smi": smi()}, "dev": NODES, "dlopen": FOUND, "cuInit": 999, "observed": "after resuming from suspend torch stopped working, worked in the morning", "torch": {**TORCH, "is_available": False, "warning": error_999()}}, "uvm-broken-after-suspend"),
    ("gpu-state", "Xid 94 contained ECC error", {
        "cmd": {"journalctl -k": "NVRM: Xid (PCI:0000:3b:00): 94, pid=1234, name=python, Contained: SM (0x1). RST: No, D-RST: No"}, "torch": ON, "error": "RuntimeError: CUDA error: uncorrectable ECC error encountered"}, "uncorrectable-ecc"),
    # --- fabric-and-cc
    ("fabric-and-cc", "fabric manager stopped", {
        "context": {"os": "Ubuntu 22.04"}, "cmd": {"nvidia-smi": smi("550.90.07", "12.4", *["NVIDIA H100 80GB HBM3"] * 8), "systemctl status nvidia-fabricmanager": "Active: inactive (dead)", "nvidia-smi -q -i 0 | grep -A2 Fabric": "    Fabric\n        State                             : In Progress"}, "dev": NODES, "dlopen": FOUND, "cuInit": 802, "torch": init_error(802, "system not yet initialized")}, "fabricmanager-not-running"),
    ("fabric-and-cc", "fabric manager not installed on RHEL", {
        "context": {"os": "Red Hat Enterprise Linux 9.4"}, "cmd": {"nvidia-smi": smi("570.86.15", "12.8", *["NVIDIA H200"] * 8), "systemctl status nvidia-fabricmanager": "Unit nvidia-fabricmanager.service could not be found."}, "dlopen": FOUND, "cuInit": 802, "torch": init_error(802, "system not yet initialized")}, "fabricmanager-not-running"),
    ("fabric-and-cc", "versions differ by packages", {
        "context": {"os": "Ubuntu 22.04"}, "cmd": {"nvidia-smi": smi("550.90.12", "12.4", *["NVIDIA A100-SXM4-80GB"] * 8), "dpkg -l | grep fabric": "ii  nvidia-fabricmanager-550  550.54.15-1", "systemctl is-active nvidia-fabricmanager": "failed"}, "files": kernel("550.90.12"), "dlopen": FOUND, "cuInit": 802, "torch": init_error(802, "system not yet initialized")}, "fabricmanager-version-mismatch"),
    ("fabric-and-cc", "confidential computing on a single H100", {
        "context": {"os": "Ubuntu 24.04"}, "cmd": {"nvidia-smi": smi("550.90.07", "12.4", "NVIDIA H100 PCIe"), "nvidia-smi conf-compute -f": "CC status: ON", "nvidia-smi conf-compute -grs": "Confidential Compute GPUs Ready state: not-ready"}, "dlopen": FOUND, "cuInit": 802, "torch": init_error(802, "system not yet initialized")}, "confidential-compute-not-ready"),
    # --- wsl2
    ("wsl2", "WSL 2 without /dev/dxg", {
        "context": {"os": "Ubuntu 24.04", "uname": "5.10.16.3-microsoft-standard-WSL2"}, "cmd": {"nvidia-smi": {"rc": 255, "out": "Failed to initialize NVML: GPU access blocked by the operating system"}}, "dev": {}, "dlopen": {"libcuda.so.1": {"ok": True, "path": "/usr/lib/wsl/lib/libcuda.so.1"}}, "cuInit": 100, "torch": OFF}, "wsl-no-gpu-device"),
    ("wsl2", "library path not set up", {
        "context": {"os": "Debian 12 on WSL2", "uname": "5.15.167.4-microsoft-standard-WSL2"}, "cmd": {"ls /usr/lib/wsl/lib": "libcuda.so libcuda.so.1 libcuda.so.1.1 nvidia-smi"}, "dev": {"/dev/dxg": "crw-rw-rw- root root 10,125"}, "dlopen": MISSING, "torch": NO_LIB}, "wsl-library-path"),
    ("wsl2", "WSL 1", {
        "context": {"os": "Ubuntu 20.04", "uname": "4.4.0-19041-Microsoft"}, "dev": {}, "dlopen": MISSING, "torch": NO_LIB}, "wsl-version-1"),
    # --- container-access
    ("container-access", "podman without --device", {
        "context": inside("podman", "Fedora 41"), "cmd": {"nvidia-smi": NO_SMI}, "dev": {}, "files": kernel("565.57.01"), "dlopen": MISSING, "torch": NO_LIB}, "no-gpus-flag"),
    ("container-access", "NVIDIA_VISIBLE_DEVICES=void", {
        "context": inside("docker"), "env": {"NVIDIA_VISIBLE_DEVICES": "void"}, "cmd": {"nvidia-smi": NO_SMI}, "dev": {}, "files": kernel("550.90.07"), "dlopen": MISSING, "torch": NO_LIB}, "nvidia-visible-devices-none"),
    ("container-access", "the host has no driver loaded", {
        "context": inside("docker"), "cmd": {"nvidia-smi": NO_SMI}, "dev": {}, "files": {PROC: None}, "dlopen": MISSING, "torch": NO_LIB}, "host-without-driver"),
    ("container-access", "driver packages installed in the container, no nodes", {
        "context": inside("docker", "Ubuntu 22.04"), "cmd": {"nvidia-smi": NO_COMM, "dpkg -l | grep nvidia": "ii  nvidia-utils-535  535.183.01\nii  libnvidia-compute-535  535.183.01", "modprobe nvidia": "modprobe: FATAL: Module nvidia not found in directory /lib/modules/6.8.0-45-generic"}, "dev": {}, "files": {PROC: None}, "dlopen": FOUND, "cuInit": 100, "torch": OFF}, "driver-installed-in-container"),
    ("container-access", "capabilities set to graphics only", {
        "context": inside("docker"), "env": {"NVIDIA_VISIBLE_DEVICES": "all", "NVIDIA_DRIVER_CAPABILITIES": "graphics,utility"}, "cmd": {"nvidia-smi": smi("560.35.03", "N/A")}, "dev": NODES, "dlopen": MISSING, "torch": NO_LIB}, "compute-capability-not-requested"),
    ("container-access", "devices passed by hand", {
        "context": inside("docker"), "cmd": {"nvidia-smi": NO_SMI, "docker run args": "--device /dev/nvidia0 --device /dev/nvidiactl --device /dev/nvidia-uvm"}, "dev": NODES, "files": kernel("550.90.07"), "dlopen": MISSING, "torch": NO_LIB}, "devices-without-libraries"),
    ("container-access", "lost after a daemon-reload", {
        "context": inside("docker", "Ubuntu 22.04"), "cmd": {"nvidia-smi": {"rc": 255, "out": "Failed to initialize NVML: Unknown Error"}, "host: journalctl -u init.scope": "systemd[1]: Reloading.", "container uptime": "3 days"}, "dev": NODES, "open_rw": {"/dev/nvidiactl": "EPERM Operation not permitted", "/dev/nvidia0": "EPERM Operation not permitted"}, "dlopen": FOUND, "torch": {**TORCH, "is_available": False}}, "cgroup-lost"),
    ("container-access", "SELinux on Fedora with podman", {
        "context": inside("podman", "Fedora 40"), "cmd": {"nvidia-smi": {"rc": 4, "out": "Failed to initialize NVML: Insufficient Permissions"}, "host: ausearch -m avc": "type=AVC msg=audit(1): avc:  denied  { read write } for pid=1 comm=\"nvidia-smi\" name=\"nvidiactl\" scontext=system_u:system_r:container_t:s0 tcontext=system_u:object_r:xserver_misc_device_t:s0 tclass=chr_file"}, "dev": NODES, "open_rw": {"/dev/nvidiactl": "EACCES Permission denied"}, "dlopen": FOUND, "torch": {**TORCH, "is_available": False}}, "selinux-denied"),
    ("container-access", "the toolkit is not installed", {
        "context": {"container": "docker host side", "os": "Debian 12"}, "cmd": {"docker run --rm --gpus all ubuntu nvidia-smi": "docker: Error response from daemon: could not select device driver \"\" with capabilities: [[gpu]].", "host nvidia-smi": smi()}}, "toolkit-not-configured"),
    ("container-access", "snap docker cannot see the host's libraries", {
        "context": {"container": "docker host side", "os": "Ubuntu 22.04"}, "cmd": {"docker run --gpus all x": "could not select device driver \"\" with capabilities: [[gpu]]", "which docker": "/snap/bin/docker", "snap list docker": "docker  24.0.5  2915  latest/stable  canonical", "docker info": "Docker Root Dir: /var/snap/docker/common/var-lib-docker", "host nvidia-smi": smi()}}, "container-desktop-vm"),
    ("container-access", "CDI not generated", {
        "context": {"container": "podman host side", "os": "Fedora 41"}, "cmd": {"podman run --device nvidia.com/gpu=all ubuntu nvidia-smi": "Error: setting up CDI devices: unresolvable CDI devices nvidia.com/gpu=all"}}, "cdi-unresolved"),
    ("container-access", "CDI specification of a former driver", {
        "context": {"container": "podman host side", "os": "RHEL 9"}, "cmd": {"podman run --device nvidia.com/gpu=all ubuntu nvidia-smi": "Error: crun: cannot stat `/usr/lib64/libEGL_nvidia.so.550.54.14`: No such file or directory: OCI runtime attempted to invoke a command that was not found", "grep libcuda /etc/cdi/nvidia.yaml": "- hostPath: /usr/lib64/libcuda.so.550.54.14"}, "files": kernel("570.86.15")}, "cdi-stale"),
    ("container-access", "LXC without device rules", {
        "context": inside("lxc", "Debian 12"), "cmd": {"nvidia-smi": {"rc": 255, "out": "Failed to initialize NVML: Unknown Error"}}, "dev": NODES, "open_rw": {"/dev/nvidiactl": "EPERM Operation not permitted"}, "dlopen": FOUND, "torch": {**TORCH, "is_available": False}}, "lxc-device-rules"),
    ("container-access", "singularity --nv on a node without a driver", {
        "context": {"container": "singularity", "os": "Rocky 8"}, "env": {"SINGULARITY_CONTAINER": "/x.sif"}, "cmd": {"singularity exec --nv x.sif nvidia-smi": "INFO:    Could not find any nv files on this host!", "nvidia-smi": NO_SMI}, "dev": {}, "dlopen": MISSING, "torch": NO_LIB}, "apptainer-nv-incomplete"),
    ("container-access", "uvm node missing in LXC told by strace", {
        "context": inside("docker"), "cmd": {"nvidia-smi": smi(), "strace": 'openat(AT_FDCWD, "/dev/nvidia-uvm", O_RDWR) = -1 ENOENT (No such file or directory)'}, "dev": {k: v for k, v in NODES.items() if "uvm" not in k}, "dlopen": FOUND, "cuInit": 999, "torch": {**TORCH, "is_available": False, "warning": error_999()}}, "uvm-node-missing"),
    ("container-access", "empty libcuda committed into the image", {
        "context": inside("docker"), "cmd": {"nvidia-smi": NO_SMI}, "dev": {}, "dlopen": {"libcuda.so.1": {"ok": False, "error": "/usr/lib/x86_64-linux-gnu/libcuda.so.1: file too short"}}, "error": "OSError: /usr/lib/x86_64-linux-gnu/libcuda.so.1: file too short", "torch": TORCH}, "libcuda-empty-file"),
    ("container-access", "driver libraries in the image clash", {
        "context": {"container": "docker host side"}, "cmd": {"docker run --gpus all img": "nvidia-container-cli: mount error: file creation failed: /var/lib/docker/overlay2/x/merged/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1: file exists: unknown", "host nvidia-smi": smi()}}, "driver-in-image"),
    # --- kubernetes
    ("kubernetes", "no GPU limit in the pod", {
        "context": inside("kubernetes"), "env": {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "NVIDIA_VISIBLE_DEVICES": "all"}, "pod": {"resources.limits": {"cpu": "4"}, "runtimeClassName": "nvidia"}, "cmd": {"nvidia-smi": NO_SMI}, "dev": {}, "dlopen": MISSING, "torch": NO_LIB}, "no-gpu-in-pod"),
    ("kubernetes", "device plugin absent", {
        "context": {"container": "kubernetes", "os": "k3s"}, "cmd": {"kubectl describe pod x": "Warning  FailedScheduling  default-scheduler  0/3 nodes are available: 3 Insufficient nvidia.com/gpu."}}, "device-plugin-missing"),
    ("kubernetes", "taint not tolerated", {
        "context": {"container": "kubernetes"}, "cmd": {"kubectl describe pod x": "0/5 nodes are available: 2 node(s) had untolerated taint {nvidia.com/gpu: present}, 3 Preemption is not helpful for scheduling."}}, "untolerated-taint"),
    ("kubernetes", "runtime class chosen and unknown to the node", {
        "context": {"container": "kubernetes"}, "cmd": {"kubectl describe pod x": "Failed to create pod sandbox: rpc error: code = Unknown desc = failed to get sandbox runtime: no runtime for \"nvidia\" is configured"}}, "node-runtime-broken"),
    ("kubernetes", "shared memory in a pod", {
        "context": inside("kubernetes"), "env": {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, "cmd": {"df -h /dev/shm": "shm              64M   64M     0 100% /dev/shm"}, "torch": ON, "error": "RuntimeError: DataLoader worker (pid 77) is killed by signal: Bus error. It is possible that dataloader's workers are out of shared memory. Please try to raise your shared memory limit."}, "dataloader-shm-too-small"),
    # --- slurm
    ("slurm", "device cgroup, no variable", {
        "context": {"os": "Rocky 9 compute node"}, "env": {"SLURM_JOB_ID": "7"}, "cmd": {"nvidia-smi": {"rc": 6, "out": "No devices were found"}, "scontrol show job 7": "ReqTRES=cpu=8,mem=64G,node=1,billing=8"}, "dev": NODES, "open_rw": {"/dev/nvidia0": "EPERM Operation not permitted", "/dev/nvidiactl": "ok"}, "dlopen": FOUND, "cuInit": 100, "torch": OFF}, "slurm-no-gpu-requested"),
    ("slurm", "the step was not given the job's GPUs", {
        "context": {"os": "Slurm compute node"}, "env": {"SLURM_JOB_ID": "8", "SLURM_STEP_ID": "0", "CUDA_VISIBLE_DEVICES": "NoDevFiles"}, "cmd": {"scontrol show job 8": "AllocTRES=cpu=8,mem=64G,node=1,gres/gpu=4"}, "dev": NODES, "dlopen": FOUND, "cuInit": 100, "torch": OFF}, "slurm-step-without-gpu"),
    ("slurm", "one GPU per task, local rank as index", {
        "context": {"os": "Slurm compute node"}, "env": {"SLURM_JOB_ID": "9", "SLURM_LOCALID": "2", "SLURM_GPUS_PER_TASK": "1", "CUDA_VISIBLE_DEVICES": "0"}, "torch": ON, "error": "RuntimeError: CUDA error: invalid device ordinal"}, "slurm-task-sees-one-gpu"),
    ("slurm", "login node", {
        "context": {"os": "Rocky 8 login node"}, "cmd": {"nvidia-smi": NO_SMI, "which sbatch": "/usr/bin/sbatch", "lspci | grep -i nvidia": ""}, "files": {PROC: None}, "dev": {}, "dlopen": MISSING, "torch": NO_LIB}, "slurm-login-node"),
    # --- permissions
    ("permissions", "group render on Arch, by mode and groups", {
        "context": {"os": "Arch Linux", "uid": 1001, "groups": ["users", "wheel"]}, "cmd": {"nvidia-smi": {"rc": 4, "out": "Failed to initialize NVML: Insufficient Permissions"}}, "dev": {"/dev/nvidia0": "crw-rw---- root render 195,0", "/dev/nvidiactl": "crw-rw---- root render 195,255"}, "dlopen": FOUND, "torch": {**TORCH, "is_available": False}}, "device-node-permissions"),
    ("permissions", "systemd service with PrivateDevices", {
        "context": {"os": "Ubuntu 22.04"}, "cmd": {"systemctl cat ml.service": "[Service]\nPrivateDevices=yes\nExecStart=/opt/ml/serve", "nvidia-smi": NO_COMM}, "files": kernel("550.90.07"), "dev": {}, "dlopen": FOUND, "cuInit": 100, "torch": OFF}, "service-sandbox"),
    ("permissions", "module loaded, nodes never created", {
        "context": {"os": "Debian 12", "uid": 1000}, "cmd": {"nvidia-smi": NO_COMM, "lsmod | grep nvidia": "nvidia 56000000 0"}, "files": kernel("535.216.01"), "dev": {}, "dlopen": FOUND, "cuInit": 100, "torch": OFF}, "device-nodes-not-created"),
    # --- mig
    ("mig", "enabled without instances", {
        "context": {"os": "Ubuntu 22.04"}, "cmd": {"nvidia-smi": smi("550.90.07", "12.4", "NVIDIA A100-SXM4-40GB"), "nvidia-smi --query-gpu=mig.mode.current --format=csv,noheader": "Enabled", "nvidia-smi mig -lgi": "No GPU instances found: Not Found"}, "dev": NODES, "dlopen": FOUND, "cuInit": 100, "torch": OFF}, "mig-enabled-without-instances"),
    ("mig", "stale MIG UUID", {
        "env": {"CUDA_VISIBLE_DEVICES": "MIG-11111111-1111-1111-1111-111111111111"}, "cmd": {"nvidia-smi -L": "GPU 0: NVIDIA H100 PCIe (UUID: GPU-aaaaaaaa-0000-0000-0000-000000000000)\n  MIG 1g.10gb     Device  0: (UUID: MIG-22222222-2222-2222-2222-222222222222)"}, "dlopen": FOUND, "cuInit": 100, "torch": OFF}, "cvd-unknown-uuid"),
    ("mig", "NCCL over slices", {
        "env": {"CUDA_VISIBLE_DEVICES": "MIG-aaaaaaaa-1,MIG-bbbbbbbb-2"}, "cmd": {"nvidia-smi -L": "GPU 0: NVIDIA A30 (UUID: GPU-1)\n  MIG 2g.12gb Device 0: (UUID: MIG-aaaaaaaa-1)\n  MIG 2g.12gb Device 1: (UUID: MIG-bbbbbbbb-2)"}, "torch": ON, "error": "torch.distributed.DistBackendError: NCCL error: Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 1000"}, "mig-one-instance-per-process"),
    # --- visibility-env
    ("visibility-env", "empty", {
        "env": {"CUDA_VISIBLE_DEVICES": ""}, "cmd": {"nvidia-smi": smi()}, "dev": NODES, "dlopen": FOUND, "cuInit": 100, "torch": OFF}, "cvd-hides-all"),
    ("visibility-env", "-1 from a shell profile", {
        "env": {"CUDA_VISIBLE_DEVICES": "-1"}, "cmd": {"nvidia-smi": smi()}, "dlopen": FOUND, "cuInit": 100, "torch": OFF}, "cvd-hides-all"),
    ("visibility-env", "out of range on a workstation", {
        "env": {"CUDA_VISIBLE_DEVICES": "1"}, "cmd": {"nvidia-smi": smi()}, "dlopen": FOUND, "cuInit": 100, "torch": OFF}, "cvd-out-of-range"),
    ("visibility-env", "brackets from a YAML list", {
        "env": {"CUDA_VISIBLE_DEVICES": "[0,1]"}, "cmd": {"nvidia-smi": smi("570.124.06", "12.8", "NVIDIA L4", "NVIDIA L4")}, "dlopen": FOUND, "cuInit": 100, "torch": OFF}, "cvd-invalid"),
    ("visibility-env", "ordinal beyond the visible device", {
        "env": {"CUDA_VISIBLE_DEVICES": "2"}, "cmd": {"nvidia-smi": smi("570.124.06", "12.8", *["NVIDIA L4"] * 4)}, "dlopen": FOUND, "cuInit": 0, "torch": ON, "error": "RuntimeError: CUDA error: invalid device ordinal"}, "invalid-device-ordinal"),
    # --- library-shadowing
    ("library-shadowing", "cuDNN from LD_LIBRARY_PATH", {
        "env": {"LD_LIBRARY_PATH": "/opt/cudnn-8.9/lib:/usr/local/cuda/lib64"}, "pip": {"torch": "2.7.1", "nvidia-cudnn-cu12": "9.5.1.17"}, "torch": ON, "error": "RuntimeError: cuDNN error: CUDNN_STATUS_SUBLIBRARY_VERSION_MISMATCH"}, "cuda-library-shadowed"),
    ("library-shadowing", "cuDNN wheel changed by TensorFlow", {
        "pip": {"torch": "2.7.1", "nvidia-cudnn-cu12": "9.3.0.75", "tensorflow": "2.19.0"}, "torch": ON, "error": "RuntimeError: cuDNN version incompatibility: PyTorch was compiled  against (9, 5, 1) but found runtime version (9, 3, 0)."}, "nvidia-wheel-version"),
    ("library-shadowing", "NCCL preloaded", {
        "env": {"LD_PRELOAD": "/opt/nccl/lib/libnccl.so.2.18.3"}, "pip": {"torch": "2.7.1", "nvidia-nccl-cu12": "2.26.2"}, "error": "ImportError: /venv/lib/python3.11/site-packages/torch/lib/libtorch_cuda.so: undefined symbol: ncclCommWindowRegister"}, "cuda-library-shadowed"),
    ("library-shadowing", "wheel never installed", {
        "pip": {"torch": "2.7.1", "nvidia-cublas-cu12": "12.6.4.1", "nvidia-cudnn-cu12": "9.5.1.17"}, "error": "ImportError: libcusparseLt.so.0: cannot open shared object file: No such file or directory"}, "nvidia-wheel-not-installed"),
    ("library-shadowing", "onnxruntime wants CUDA 11", {
        "pip": {"torch": "2.7.1", "onnxruntime-gpu": "1.16.3"}, "torch": ON, "error": "[E:onnxruntime:Default, provider_bridge_ort.cc:1480] Failed to load library libonnxruntime_providers_cuda.so with error: libcublasLt.so.11: cannot open shared object file: No such file or directory"}, "other-library-needs-other-cuda"),
    ("library-shadowing", "a file named torch.py", {
        "error": "AttributeError: partially initialized module 'torch' has no attribute 'cuda' (most likely due to a circular import)"}, "local-module-shadows-torch"),
    ("library-shadowing", "stub by the linker's cache", {
        "cmd": {"nvidia-smi": smi()}, "dlopen": {"libcuda.so.1": {"ok": True, "path": "/usr/local/cuda-12.6/targets/x86_64-linux/lib/stubs/libcuda.so"}}, "cuInit": 34, "torch": {**TORCH, "is_available": False}}, "stub-libcuda"),
    # --- build-variant
    ("build-variant", "conda CPU build", {
        "env": {"CONDA_PREFIX": "/opt/conda/envs/x"}, "cmd": {"conda list torch": "pytorch                   2.7.1           cpu_mkl_py311_h6e9d4ce_100    conda-forge", "nvidia-smi": smi()}, "torch": {"version": "2.7.1", "cuda": None, "is_available": False}}, "cpu-build-conda"),
    ("build-variant", "ROCm build", {
        "cmd": {"nvidia-smi": smi()}, "torch": {"version": "2.7.1+rocm6.3", "cuda": None, "is_available": False}}, "rocm-build"),
    ("build-variant", "CPU wheel through uv", {
        "cmd": {"nvidia-smi": smi(), "uv pip list": "torch 2.7.1+cpu"}, "torch": {"version": "2.7.1+cpu", "cuda": None, "is_available": False}, "error": "AssertionError: Torch not compiled with CUDA enabled"}, "cpu-wheel"),
    ("build-variant", "torch missing", {"error": "ModuleNotFoundError: No module named 'torch'"}, "torch-not-installed"),
    ("build-variant", "no wheel for this Python", {"error": "ERROR: No matching distribution found for torch==2.7.1"}, "no-wheel-for-this-python"),
    # --- wheel-arch
    ("wheel-arch", "Blackwell with cu126, told by the warning", {
        "error": "UserWarning: NVIDIA GeForce RTX 5090 with CUDA capability sm_120 is not compatible with the current PyTorch installation. The current PyTorch install supports CUDA capabilities sm_50 sm_60 sm_70 sm_75 sm_80 sm_86 sm_90."}, "gpu-newer-than-wheel"),
    ("wheel-arch", "Blackwell by the table", {
        "cmd": {"nvidia-smi": smi("570.124.06", "12.8", "NVIDIA B200")}, "cuInit": 0, "torch": ON, "error": "RuntimeError: CUDA error: no kernel image is available for execution on the device"}, "gpu-newer-than-wheel"),
    ("wheel-arch", "Pascal with a cu128 build", {
        "cmd": {"nvidia-smi": smi("570.124.06", "12.8", "NVIDIA GeForce GTX 1080 Ti")}, "cuInit": 0, "torch": {"version": "2.7.1+cu128", "cuda": "12.8", "is_available": True}, "error": "RuntimeError: CUDA error: no kernel image is available for execution on the device"}, "gpu-older-than-wheel"),
    ("wheel-arch", "the extension lacks the GPU's code", {
        "cmd": {"nvidia-smi": smi("550.90.07", "12.4", "NVIDIA H100 PCIe")}, "cuInit": 0, "torch": {**ON, "arch_list": "sm_50 sm_60 sm_70 sm_75 sm_80 sm_86 sm_90"}, "error": "File \"/x/site-packages/flash_attn/flash_attn_interface.py\", line 51\nRuntimeError: CUDA error: no kernel image is available for execution on the device"}, "extension-without-gpu-code"),
    ("wheel-arch", "Triton on a P100", {
        "torch": ON, "error": "RuntimeError: Found Tesla P100-PCIE-16GB which is too old to be supported by the triton GPU compiler, which is used as the backend. Triton only supports devices of CUDA Capability >= 7.0"}, "gpu-too-old-for-triton"),
    # --- abi
    ("abi", "NumPy 2 with another old extension", {
        "pip": {"torch": "2.7.1", "numpy": "2.2.0"}, "torch": ON, "error": "A module that was compiled using NumPy 1.x cannot be run in NumPy 2.2.0 as it may crash.\n  File \"x.py\", line 1, in <module>\n    import pycocotools._mask"}, "numpy2-with-old-extension"),
    ("abi", "NumPy not installed", {
        "pip": {"torch": "2.7.1"}, "torch": ON, "error": "RuntimeError: Numpy is not available"}, "numpy-missing"),
    ("abi", "extension for another torch, same ABI", {
        "pip": {"torch": "2.7.1", "xformers": "0.0.28"}, "error": "ImportError: /v/lib/python3.11/site-packages/xformers/_C.so: undefined symbol: _ZN3c1021throwNullDataPtrErrorEv"}, "extension-built-for-other-torch"),
    ("abi", "glibc too old", {
        "context": {"os": "CentOS 7"}, "error": "ImportError: /lib64/libc.so.6: version `GLIBC_2.28' not found (required by /v/lib/python3.11/site-packages/torch/lib/libtorch_cpu.so)"}, "glibc-too-old"),
    ("abi", "torchaudio of another release", {
        "pip": {"torch": "2.7.1", "torchaudio": "2.8.0"}, "error": "OSError: /v/lib/python3.11/site-packages/torchaudio/lib/libtorchaudio.so: undefined symbol: _ZNK5torch8autograd4Node4nameEv"}, "torchvision-mismatch"),
    ("abi", "Alpine", {
        "context": {"os": "Alpine Linux 3.20", "container": "docker"}, "error": "Error loading shared library ld-linux-x86-64.so.2: No such file or directory (needed by /usr/lib/python3.11/site-packages/torch/lib/libtorch.so)"}, "musl"),
    ("abi", "libGL missing", {
        "context": {"os": "Debian 12", "container": "docker"}, "error": "ImportError: libGL.so.1: cannot open shared object file: No such file or directory"}, "system-library-missing"),
    # --- compile-stack
    ("compile-stack", "no compiler", {
        "torch": ON, "error": "torch._inductor.exc.InductorError: RuntimeError: Failed to find C compiler. Please specify via CC environment variable or set triton.knobs.build.impl."}, "no-c-compiler"),
    ("compile-stack", "no Python headers", {
        "context": {"os": "Fedora 41"}, "torch": ON, "error": "/tmp/tmpx/main.c:5:10: fatal error: Python.h: No such file or directory\nsubprocess.CalledProcessError: Command '['/usr/bin/gcc', ...]' returned non-zero exit status 1."}, "no-python-headers"),
    ("compile-stack", "no toolkit", {
        "torch": ON, "error": "OSError: CUDA_HOME environment variable is not set. Please set it to your CUDA install root."}, "nvcc-missing"),
    ("compile-stack", "gcc too new for nvcc", {
        "torch": ON, "error": "/usr/local/cuda/include/crt/host_config.h:143:2: error: #error -- unsupported GNU version! gcc versions later than 13 are not supported!"}, "compiler-too-new-for-nvcc"),
    ("compile-stack", "cache owned by another user", {
        "torch": ON, "error": "PermissionError: [Errno 13] Permission denied: '/home/other/.triton/cache'"}, "cache-not-writable"),
    ("compile-stack", "noexec /tmp", {
        "torch": ON, "cmd": {"findmnt /tmp": "tmpfs rw,nosuid,nodev,noexec"}, "error": "ImportError: /tmp/torchinductor_u/xx.so: failed to map segment from shared object"}, "noexec-mount"),
    # --- nccl-ddp
    ("nccl-ddp", "memlock for RDMA", {
        "cmd": {"ulimit -l": "64"}, "torch": ON, "error": "NCCL WARN Call to ibv_reg_mr_iova2 failed with error Cannot allocate memory\ntorch.distributed.DistBackendError: NCCL error: unhandled system error"}, "nccl-memlock-limit"),
    ("nccl-ddp", "nobody listens at the master", {
        "env": {"MASTER_ADDR": "10.1.2.3", "MASTER_PORT": "29500"}, "torch": ON, "error": "torch.distributed.DistNetworkError: The client socket has timed out after 600s while trying to connect to (10.1.2.3, 29500)."}, "rendezvous-unreachable"),
    ("nccl-ddp", "docker0 chosen", {
        "cmd": {"NCCL_DEBUG=INFO log": "node1:10:10 [0] NCCL INFO Bootstrap : Using docker0:172.17.0.1<0>"}, "torch": ON, "error": "NCCL WARN socketStartConnect: Connect to 172.17.0.1<43211> failed : Connection refused"}, "nccl-interface-wrong"),
    ("nccl-ddp", "host name on loopback", {
        "cmd": {"cat /etc/hosts": "127.0.0.1 localhost\n127.0.1.1 node7"}, "torch": ON, "error": "RuntimeError: Gloo connectFullMesh failed with [../third_party/gloo/gloo/transport/tcp/pair.cc:144] no error"}, "hostname-resolves-to-loopback"),
    ("nccl-ddp", "environment variables missing", {
        "error": "ValueError: Error initializing torch.distributed using env:// rendezvous: environment variable RANK expected, but not set"}, "rendezvous-variables-missing"),
    ("nccl-ddp", "a rank left", {
        "torch": ON, "error": "[Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=17, OpType=ALLREDUCE, Timeout(ms)=600000) ran for 600011 milliseconds before timing out."}, "collective-mismatch"),
    ("nccl-ddp", "no room for NCCL in a podman container", {
        "context": inside("podman"), "cmd": {"df -h /dev/shm": "shm  63M  63M 0 100% /dev/shm"}, "torch": ON, "error": "NCCL WARN Error while creating shared memory segment /dev/shm/nccl-aBcDeF (size 9637888), error: No space left on device (28)"}, "nccl-shm-too-small"),
    # --- host-limits
    ("host-limits", "pods killed for memory", {
        "context": inside("kubernetes"), "cmd": {"kubectl describe pod": "Last State: Terminated\nReason: OOMKilled\nExit Code: 137"}, "error": "RuntimeError: DataLoader worker (pid 12) is killed by signal: Killed."}, "memory-limit-killed"),
    ("host-limits", "thread limit", {
        "context": inside("docker"), "cmd": {"cat /sys/fs/cgroup/pids.max": "128"}, "torch": ON, "error": "OpenBLAS blas_thread_init: pthread_create failed for thread 31 of 64: Resource temporarily unavailable\nRuntimeError: can't start new thread"}, "process-limit"),
    ("host-limits", "open files by errno", {
        "cmd": {"ulimit -n": "1024"}, "torch": ON, "error": "OSError: [Errno 24] Too many open files: '/dev/shm/torch_123_456'"}, "open-files-limit"),
    ("host-limits", "disk full while installing", {
        "cmd": {"df -h": "/dev/sda1  20G  20G  0 100% /"}, "error": "ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device"}, "disk-full"),
    # --- process-model
    ("process-model", "spawn without the guard", {
        "torch": ON, "error": "RuntimeError: An attempt has been made to start a new process before the current process has finished its bootstrapping phase."}, "spawn-needs-main-guard"),
    ("process-model", "initialization error in a gunicorn worker", {
        "torch": ON, "cmd": {"ps": "gunicorn --preload app:app -w 4"}, "error": "RuntimeError: CUDA error: initialization error"}, "cuda-in-forked-process"),
    ("process-model", "pickling", {
        "torch": ON, "error": "AttributeError: Can't pickle local object 'main.<locals>.<lambda>'"}, "spawn-cannot-pickle"),
    # --- told otherwise, or with another cause
    ("library-shadowing", "cuDNN 8 pieces of two versions on an old torch", {
        "env": {"LD_LIBRARY_PATH": "/usr/local/cuda-11.8/lib64"}, "torch": {"version": "2.2.2+cu121", "cuda": "12.1", "is_available": True},
        "error": "Could not load library libcudnn_cnn_train.so.8. Error: /usr/local/cuda-11.8/lib64/libcudnn_cnn_train.so.8: undefined symbol: _ZTIN10cask_cudnn14BaseKernelInfoE, version libcudnn_cnn_infer.so.8"}, "cuda-library-shadowed"),
    ("library-shadowing", "cuBLAS of a toolkit through a module system", {
        "env": {"LD_LIBRARY_PATH": "/cm/shared/apps/cuda12.2/toolkit/12.2.2/lib64"}, "torch": ON, "error": "RuntimeError: CUDA error: CUBLAS_STATUS_INVALID_VALUE when calling `cublasGemmEx( handle, opa, opb, m, n, k)`"}, "cuda-library-shadowed"),
    ("library-shadowing", "ldd shows another nvjitlink", {
        "cmd": {"python -c 'import torch'": "Traceback (most recent call last):\nImportError: /v/lib/python3.11/site-packages/torch/lib/../../nvidia/cusparse/lib/libcusparse.so.12: undefined symbol: __nvJitLinkComplete_12_4, version libnvJitLink.so.12", "ldd libcusparse.so.12": "libnvJitLink.so.12 => /usr/lib/x86_64-linux-gnu/libnvJitLink.so.12 (0x00007f)"}}, "cuda-library-shadowed"),
    ("library-shadowing", "interrupted installation, no pip list", {
        "error": "ImportError: libcudnn.so.9: cannot open shared object file: No such file or directory"}, "nvidia-wheel-files-removed"),
    ("library-shadowing", "TensorFlow in the same environment wants libcudnn.so.8", {
        "pip": {"torch": "2.7.1", "tensorflow": "2.13.0", "nvidia-cudnn-cu12": "9.5.1.17"}, "torch": ON, "error": "W tensorflow/compiler/xla: Could not load dynamic library 'libcudnn.so.8'; dlerror: libcudnn.so.8: cannot open shared object file: No such file or directory"}, "other-library-needs-other-cuda"),
    ("library-shadowing", "source checkout as working directory", {
        "cmd": {"pwd": "/src/pytorch"}, "error": "ImportError: Failed to load PyTorch C extensions:\n    It appears that PyTorch has loaded the `torch/_C` folder\n    of the PyTorch repository rather than the C extensions"}, "local-module-shadows-torch"),
    ("container-access", "Docker in WSL started without --gpus", {
        "context": {"container": "docker", "os": "Debian 12", "uname": "5.15.153.1-microsoft-standard-WSL2"}, "cmd": {"nvidia-smi": NO_SMI}, "dev": {}, "dlopen": MISSING, "torch": NO_LIB}, "no-gpus-flag"),
    ("container-access", "Compose service without a reservation", {
        "context": {"container": "docker", "os": "Debian 12", "compose": {"services": {"app": {"image": "torch"}}}}, "cmd": {"ls /dev/nvidia*": "ls: cannot access '/dev/nvidia*': No such file or directory"}, "files": kernel("550.90.07"), "torch": NO_LIB}, "no-gpus-flag"),
    ("container-access", "unknown runtime nvidia", {
        "context": {"container": "docker host side", "os": "Ubuntu 24.04"}, "cmd": {"docker run --runtime=nvidia x": "docker: Error response from daemon: unknown or invalid runtime name: nvidia."}}, "toolkit-not-configured"),
    ("container-access", "host module not loaded, told by the toolkit", {
        "context": {"container": "docker host side", "os": "Debian 12"}, "cmd": {"docker run --gpus all x": "nvidia-container-cli: initialization error: nvml error: driver not loaded: unknown."}}, "host-driver-not-loaded"),
    ("container-access", "lost after hours, nerdctl", {
        "context": inside("containerd"), "cmd": {"nvidia-smi": {"rc": 255, "out": "Failed to initialize NVML: Unknown Error"}}, "observed": "worked for 5 hours, then stopped; new containers are fine", "dev": NODES, "dlopen": FOUND, "torch": {**TORCH, "is_available": False}}, "cgroup-lost"),
    ("container-access", "no-cgroups in rootful podman", {
        "context": inside("podman"), "cmd": {"nvidia-smi": {"rc": 255, "out": "Failed to initialize NVML: Unknown Error"}, "host: grep no-cgroups /etc/nvidia-container-runtime/config.toml": "no-cgroups = true"}, "dev": NODES, "open_rw": {"/dev/nvidia0": "Operation not permitted"}, "dlopen": FOUND}, "no-cgroups-on-rootful"),
    ("container-access", "seccomp in Kubernetes", {
        "context": inside("kubernetes"), "cmd": {"nvidia-smi": smi(), "grep Seccomp: /proc/self/status": "Seccomp:\t2"}, "dev": NODES, "dlopen": FOUND, "cuInit": 304, "torch": init_error(304, "OS call failed or operation not supported on this OS")}, "seccomp-blocks-driver"),
    ("container-access", "nvidia-uvm with last boot's number in LXC", {
        "context": inside("lxc", "Debian 12"), "cmd": {"nvidia-smi": smi("535.183.01", "12.2"), "grep nvidia /proc/devices": "195 nvidia-frontend\n511 nvidia-uvm"}, "files": {"/proc/devices": "195 nvidia\n511 nvidia-uvm"}, "dev": {**NODES, "/dev/nvidia-uvm": "crw-rw-rw- root root 508,0"}, "dlopen": FOUND, "cuInit": 999, "torch": {**TORCH, "is_available": False, "warning": error_999()}}, "device-node-stale"),
    ("container-access", "JIT compiler missing", {
        "context": inside("docker"), "torch": ON, "error": "RuntimeError: CUDA error: PTX JIT compiler library was not found"}, "jit-compiler-missing"),
    ("host-kernel-module", "driver of another kernel version", {
        "context": {"os": "Debian 12"}, "cmd": {"nvidia-smi": NO_COMM, "modprobe nvidia": "modprobe: ERROR: could not insert 'nvidia': Invalid module format", "dmesg": "nvidia: version magic '6.1.0-30-amd64 SMP' should be '6.1.0-31-amd64 SMP'"}, "files": {PROC: None}, "dev": {}, "dlopen": FOUND, "cuInit": 100, "torch": OFF}, "module-for-other-kernel"),
    ("host-kernel-module", "RHEL kernel update, kmod absent", {
        "context": {"os": "Red Hat Enterprise Linux 9.5"}, "cmd": {"nvidia-smi": NO_COMM, "uname -r": "5.14.0-503.el9.x86_64", "modinfo nvidia": "modinfo: ERROR: Module nvidia not found.", "rpm -qa | grep nvidia": "nvidia-driver-cuda-libs-570.86.15-1.el9.x86_64"}, "files": {PROC: None}, "dev": {}, "dlopen": FOUND, "cuInit": 100, "torch": OFF}, "dkms-not-built-for-kernel"),
    ("host-kernel-module", "nouveau named by the installer", {
        "context": {"os": "CentOS 7"}, "cmd": {"./NVIDIA-Linux-x86_64-535.run": "ERROR: The Nouveau kernel driver is currently in use by your system.", "nvidia-smi": NO_SMI, "lspci -k": "01:00.0 VGA compatible controller: NVIDIA Corporation GP102 [GeForce GTX 1080 Ti]\n\tKernel driver in use: nouveau"}, "dev": {}, "dlopen": MISSING, "torch": NO_LIB}, "nouveau-owns-gpu"),
    ("driver-version", "CUDA runtime error insufficient driver from code", {
        "cmd": {"nvidia-smi": smi("470.223.02", "11.4", "Tesla T4")}, "torch": TORCH, "error": "RuntimeError: CUDA driver version is insufficient for CUDA runtime version"}, "driver-too-old"),
    ("driver-version", "mismatch told by the kernel log", {
        "context": {"os": "Arch Linux"}, "cmd": {"nvidia-smi": {"rc": 18, "out": "Failed to initialize NVML: Driver/library version mismatch"}, "dmesg": "NVRM: API mismatch: the client has the version 570.124.04, but\nNVRM: this kernel module has the version 565.77."}, "files": kernel("565.77"), "dev": NODES, "dlopen": FOUND, "cuInit": 803, "torch": init_error(803, "system has unsupported display driver / cuda driver combination")}, "driver-library-mismatch"),
    ("driver-version", "old driver in a container: the host's is meant", {
        "context": inside("docker"), "cmd": {"nvidia-smi": smi("470.256.02", "11.4", "Tesla V100-SXM2-16GB")}, "files": kernel("470.256.02"), "dev": NODES, "dlopen": FOUND, "cuInit": 0, "cuDriverGetVersion": 11040, "torch": {**TORCH, "is_available": False}}, "driver-too-old"),
    ("gpu-driver-support", "Maxwell with 595 without a log", {
        "context": {"os": "Arch Linux"}, "cmd": {"nvidia-smi": {"rc": 6, "out": "No devices were found"}, "lspci -nnk": "01:00.0 VGA compatible controller [0300]: NVIDIA Corporation GM204 [GeForce GTX 970] [10de:13c2]\n\tKernel modules: nouveau, nvidia", "pacman -Q": "nvidia-open-dkms 595.45.04-1"}, "files": kernel("595.45.04", "Open Kernel Module for x86_64"), "dev": {}, "dlopen": FOUND, "cuInit": 100, "torch": OFF}, "gpu-dropped-by-driver"),
    ("gpu-driver-support", "firmware missing", {
        "context": {"os": "Debian 12"}, "cmd": {"nvidia-smi": {"rc": 6, "out": "No devices were found"}, "dmesg": "nvidia 0000:01:00.0: Direct firmware load for nvidia/535.183.01/gsp_ga10x.bin failed with error -2\nNVRM: RmFetchGspRmImages: No firmware image found\nNVRM: GPU 0000:01:00.0: RmInitAdapter failed! (0x61:0x56:1697)"}, "files": kernel("535.183.01"), "dev": NODES, "dlopen": FOUND, "cuInit": 100, "torch": OFF}, "gsp-firmware-missing"),
    ("gpu-state", "display watchdog", {"torch": ON, "error": "RuntimeError: CUDA error: the launch timed out and was terminated"}, "kernel-time-limit"),
    ("gpu-state", "illegal access is the program's", {"torch": ON, "error": "RuntimeError: CUDA error: an illegal memory access was encountered"}, "gpu-program-fault"),
    ("gpu-state", "GPU requires reset", {"cmd": {"nvidia-smi": {"rc": 0, "out": "| 0  NVIDIA H100 PCIe  On | 00000000:3B:00.0 Off | GPU requires reset |"}}, "torch": {**TORCH, "is_available": False, "error": NO_GPUS}}, "gpu-needs-reset"),
    ("kubernetes", "GPU operator still starting", {"context": {"container": "kubernetes"}, "cmd": {"kubectl -n gpu-operator get pods": "nvidia-driver-daemonset-x  0/1  CrashLoopBackOff\nnvidia-operator-validator-y 0/1 Init:0/4", "kubectl logs": "waiting for driver to be ready"}}, "gpu-operator-not-ready"),
    ("kubernetes", "k3s pod with a UUID and no runtime class, env only", {"context": inside("kubernetes"), "env": {"KUBERNETES_SERVICE_HOST": "10.43.0.1", "NVIDIA_VISIBLE_DEVICES": "GPU-00000000-1111-2222-3333-444444444444"}, "dev": {}, "dlopen": MISSING, "torch": NO_LIB}, "runtimeclass-missing"),
    ("kubernetes", "no limit, void", {"context": inside("kubernetes"), "env": {"KUBERNETES_SERVICE_HOST": "10.43.0.1", "NVIDIA_VISIBLE_DEVICES": "void"}, "dev": {}, "dlopen": MISSING, "torch": NO_LIB}, "no-gpu-in-pod"),
    ("slurm", "request refused", {"cmd": {"sbatch job.sh": "sbatch: error: Batch job submission failed: Invalid generic resource (gres) specification"}}, "slurm-gres-refused"),
    ("slurm", "empty variable in a job without GPUs", {"env": {"SLURM_JOB_ID": "5", "CUDA_VISIBLE_DEVICES": ""}, "cmd": {"scontrol show job 5": "TRES=cpu=1,mem=4G,node=1,billing=1", "nvidia-smi": smi()}, "cuInit": 100, "torch": OFF}, "slurm-no-gpu-requested"),
    ("slurm", "killed for memory under Slurm", {"env": {"SLURM_JOB_ID": "5"}, "error": "slurmstepd: error: Detected 1 oom_kill event in StepId=5.0. Some of the step tasks have been OOM Killed."}, "memory-limit-killed"),
    ("permissions", "nodes 0600 root in a container as another user", {"context": {"container": "docker", "os": "Debian 12", "uid": 1000, "groups": ["app"]}, "cmd": {"nvidia-smi": {"rc": 4, "out": "Failed to initialize NVML: Insufficient Permissions"}}, "dev": {"/dev/nvidia0": "crw------- root root 195,0", "/dev/nvidiactl": "crw------- root root 195,255"}, "open_rw": {"/dev/nvidiactl": "Permission denied"}, "dlopen": FOUND}, "device-node-permissions"),
    ("permissions", "MIG capability node refused", {"dev": {**NODES, "/dev/nvidia-caps/nvidia-cap21": "cr-------- root root 237,21"}, "open_rw": {"/dev/nvidia0": "ok", "/dev/nvidiactl": "ok", "/dev/nvidia-caps/nvidia-cap21": "EACCES"}, "cuInit": 100, "dlopen": FOUND, "torch": OFF}, "mig-caps-permissions"),
    ("mig", "mode enabled, only the table shows it", {"cmd": {"nvidia-smi": "| NVIDIA-SMI 550.54.15  Driver Version: 550.54.15  CUDA Version: 12.4 |\n|   0  NVIDIA A100-SXM4-40GB          On  |   00000000:07:00.0 Off |                   On |\n| N/A   25C    P0   43W / 400W |   0MiB / 40960MiB |     N/A      Default |\n|                                         |                        |              Enabled |\n| MIG devices:\n|  No MIG devices found"}, "cuInit": 100, "dlopen": FOUND, "torch": OFF}, "mig-enabled-without-instances"),
    ("mig", "index 1 within MIG", {"env": {"CUDA_VISIBLE_DEVICES": "0:1"}, "cmd": {"nvidia-smi -L": "GPU 0: NVIDIA A100 (UUID: GPU-1a)\n  MIG 1g.5gb Device 0: (UUID: MIG-2b)\n  MIG 1g.5gb Device 1: (UUID: MIG-3c)"}, "cuInit": 100, "dlopen": FOUND, "torch": OFF}, "cvd-invalid"),
    ("visibility-env", "set after importing a module that asks CUDA", {"script": "import torch\nfrom mylib import model\nimport os\nos.environ[\"CUDA_VISIBLE_DEVICES\"] = \"3\"\nmodel.run()", "torch": {**TORCH, "is_available": True, "device_count": 8}, "observed": "everything runs on GPU 0"}, "cvd-set-too-late"),
    ("visibility-env", "two host indices in a container with two GPUs", {"context": inside("podman"), "env": {"CUDA_VISIBLE_DEVICES": "2,3"}, "cmd": {"nvidia-smi -L": "GPU 0: NVIDIA L4 (UUID: GPU-a)\nGPU 1: NVIDIA L4 (UUID: GPU-b)"}, "dlopen": FOUND, "cuInit": 100, "torch": OFF}, "cvd-renumbered-in-container"),
    ("wsl2", "Windows driver upgraded under a running WSL", {"context": {"os": "Ubuntu 22.04 on WSL2", "uname": "5.15.167.4-microsoft-standard-WSL2"}, "cmd": {"nvidia-smi": {"rc": 139, "out": "Segmentation fault"}}, "dev": {"/dev/dxg": "crw-rw-rw- root root 10,125"}, "dlopen": {"libcuda.so.1": {"ok": True, "path": "/usr/lib/wsl/lib/libcuda.so.1"}}, "cuInit": 100, "torch": OFF}, "wsl-driver-stale"),
    ("wsl2", "named symbol not found in Docker Desktop", {"context": {"container": "docker desktop", "os": "Ubuntu 22.04", "uname": "5.15.153.1-microsoft-standard-WSL2"}, "cmd": {"nvidia-smi": smi("560.94", "12.6", "NVIDIA GeForce RTX 4080")}, "dev": {"/dev/dxg": "crw-rw-rw- root root 10,125"}, "dlopen": FOUND, "cuInit": 500, "torch": init_error(500, "named symbol not found")}, "wsl-toolkit-too-old"),
    ("fabric-and-cc", "no evidence but 802 on an HGX machine", {"cmd": {"nvidia-smi": smi("535.183.01", "12.2", *["NVIDIA A100-SXM4-80GB"] * 8)}, "cuInit": 802, "torch": init_error(802, "system not yet initialized")}, "fabricmanager-not-running"),
    ("fabric-and-cc", "NVLS refused", {"torch": ON, "error": "transport/nvls.cc:244 NCCL WARN Cuda failure 1 'invalid argument'\nFailed to bind NVLink SHARP (NVLS) Multicast memory of size 2097152"}, "nvls-unavailable"),
    ("build-variant", "already satisfied by a CPU wheel", {"cmd": {"pip install torch": "Requirement already satisfied: torch in ./venv/lib/python3.11/site-packages (2.7.1+cpu)", "nvidia-smi": smi()}, "pip": {"torch": "2.7.1+cpu"}, "torch": {"version": "2.7.1+cpu", "is_available": False}}, "cpu-wheel"),
    ("build-variant", "Jupyter kernel of another environment", {"env": {"VIRTUAL_ENV": "/home/u/proj/.venv"}, "cmd": {"jupyter: torch.__file__": "/opt/conda/lib/python3.11/site-packages/torch/__init__.py"}, "torch": {"version": "2.7.1+cpu", "cuda": None, "is_available": False, "file": "/opt/conda/lib/python3.11/site-packages/torch/__init__.py"}}, "other-environment"),
    ("build-variant", "Jetson", {"context": {"os": "Ubuntu 22.04 aarch64", "uname": "5.15.148-tegra"}, "cmd": {"cat /etc/nv_tegra_release": "# R36 (release), REVISION: 4.0", "uname -m": "aarch64"}, "torch": {"version": "2.7.1", "cuda": None, "is_available": False}}, "jetson-generic-wheel"),
    ("build-variant", "conda without a driver", {"error": "LibMambaUnsatisfiableError: nothing provides __cuda needed by pytorch-2.7.1-cuda126_generic_py311_h_200"}, "conda-cannot-see-cuda"),
    ("wheel-arch", "GB10 runs with cu130 but Triton does not", {"torch": {"version": "2.9.1+cu130", "cuda": "13.0", "is_available": True}, "error": "ptxas fatal   : Value 'sm_121a' is not defined for option 'gpu-name'"}, "triton-too-old-for-gpu"),
    ("wheel-arch", "Maxwell with CUDA 13", {"cmd": {"nvidia-smi": smi("580.65.06", "13.0", "NVIDIA GeForce GTX 980 Ti")}, "cuInit": 0, "torch": {"version": "2.9.0+cu130", "cuda": "13.0", "is_available": True}, "error": "torch.AcceleratorError: CUDA error: no kernel image is available for execution on the device"}, "gpu-older-than-wheel"),
    ("abi", "flash-attn wheel with the other ABI in its name", {"pip": {"torch": "2.7.1", "flash-attn": "2.7.4"}, "cmd": {"pip log": "flash_attn-2.7.4+cu12torch2.7cxx11abiFALSE-cp311-cp311-linux_x86_64.whl"}, "error": "ImportError: /v/site-packages/flash_attn_2_cuda.cpython-311-x86_64-linux-gnu.so: undefined symbol: _ZN3c105ErrorC2ENS_14SourceLocationENSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE"}, "extension-cxx11-abi"),
    ("abi", "CXXABI in a system Python", {"context": {"os": "Rocky 8"}, "env": {}, "error": "ImportError: /usr/lib64/libstdc++.so.6: version `CXXABI_1.3.13' not found (required by /v/lib/python3.11/site-packages/scipy/x.so)"}, "libstdcxx-too-old"),
    ("abi", "MKL from conda", {"error": "ImportError: /opt/conda/lib/python3.10/site-packages/torch/lib/libtorch_cpu.so: undefined symbol: iJIT_NotifyEvent"}, "mkl-too-new"),
    ("abi", "extension wants a former libtorch", {"error": "OSError: libtorch_cuda_cpp.so: cannot open shared object file: No such file or directory"}, "extension-needs-other-torch-libraries"),
    ("abi", "no AVX in a VM", {"context": {"os": "Debian 12"}, "error": "Illegal instruction (core dumped)"}, "cpu-instruction-missing"),
    ("compile-stack", "compiler named by errno", {"context": inside("docker"), "torch": ON, "error": "FileNotFoundError: [Errno 2] No such file or directory: 'gcc'"}, "no-c-compiler"),
    ("compile-stack", "extension built in docker build", {"error": "No CUDA runtime is found, using CUDA_HOME='/usr/local/cuda'\n  File \"/v/torch/utils/cpp_extension.py\", line 1967, in _get_cuda_arch_flags\n    arch_list[-1] += '+PTX'\nIndexError: list index out of range"}, "build-without-gpu"),
    ("compile-stack", "compute_120 with nvcc 12.4", {"torch": ON, "error": "nvcc fatal   : Unsupported gpu architecture 'compute_120'"}, "toolkit-too-old-for-gpu"),
    ("compile-stack", "setuptools missing in Python 3.12", {"torch": ON, "error": "ModuleNotFoundError: No module named 'setuptools'"}, "setuptools-missing"),
    ("compile-stack", "libcuda.so missing, older Triton", {"context": {"os": "NixOS 24.11"}, "torch": ON, "error": "AssertionError: libcuda.so cannot found!\nPossible files are located at ['/run/opengl-driver/lib/libcuda.so.1']. Please create a symlink of libcuda.so to any of the files."}, "triton-no-libcuda-link"),
    ("nccl-ddp", "port taken on Slurm", {"env": {"SLURM_JOB_ID": "1", "MASTER_PORT": "12345"}, "torch": ON, "error": "RuntimeError: The server socket has failed to listen on any local network address. port: 12345, useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use"}, "master-port-in-use"),
    ("nccl-ddp", "hang with ACS, told by NCCL", {"torch": ON, "cmd": {"NCCL log": "NCCL WARN Missing \"iommu=pt\" from kernel command line which can lead to system instablity or hang!", "nvidia-smi topo -m": "GPU0 X SYS\nGPU1 SYS X"}, "observed": "all_reduce hangs, both GPUs at 100%"}, "nccl-peer-access-hang"),
    ("nccl-ddp", "interface name of another machine", {"env": {"NCCL_SOCKET_IFNAME": "ib0"}, "cmd": {"ip -br addr": "lo UNKNOWN 127.0.0.1/8\nens5 UP 10.0.0.4/24"}, "torch": ON, "error": "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp: ncclInternalError: Internal check failed.\nBootstrap : no socket interface found"}, "nccl-interface-wrong"),
    ("nccl-ddp", "two ranks on one GPU without set_device", {"torch": {**ON, "device_count": 8}, "cmd": {"script": "dist.init_process_group('nccl')"}, "error": "ncclInvalidUsage: This usually reflects invalid usage of NCCL library.\nLast error:\nDuplicate GPU detected : rank 3 and rank 0 both on CUDA device 7000"}, "duplicate-gpu"),
    ("host-limits", "shm in Docker Compose", {"context": inside("docker"), "cmd": {"df -h /dev/shm": "Filesystem Size Used Avail Use% Mounted on\nshm 64M 60M 4M 94% /dev/shm"}, "torch": ON, "error": "ERROR: Unexpected bus error encountered in worker. This might be caused by insufficient shared memory (shm)."}, "dataloader-shm-too-small"),
    ("host-limits", "exit code 137", {"context": inside("docker"), "cmd": {"docker inspect --format '{{.State.OOMKilled}}'": "true", "cat /sys/fs/cgroup/memory.events": "oom 1\noom_kill 1"}, "error": "container exited with code 137"}, "memory-limit-killed"),
    ("process-model", "daemonic", {"torch": ON, "error": "AssertionError: daemonic processes are not allowed to have children"}, "daemonic-process-has-children"),
    ("compat-libs", "conda's cuda-compat on a GeForce", {"env": {"CONDA_PREFIX": "/c/envs/x"}, "cmd": {"nvidia-smi": smi("550.120", "12.4", "NVIDIA GeForce RTX 3060"), "conda list cuda-compat": "cuda-compat 12.6.77 hbc370b7_0 nvidia"}, "files": kernel("550.120"), "dev": NODES, "dlopen": {"libcuda.so.1": {"ok": True, "path": "/c/envs/x/cuda-compat/libcuda.so.560.35.05"}}, "cuInit": 804, "torch": init_error(804, "forward compatibility was attempted on non supported HW")}, "compat-on-unsupported-gpu"),
    ("none", "cuInit 3 without anything else", {"cmd": {"nvidia-smi": smi()}, "dev": NODES, "dlopen": FOUND, "cuInit": 3, "torch": {**TORCH, "is_available": False, "warning": "CUDA initialization: CUDA driver initialization failed, you might not have a CUDA gpu."}}, None),
    ("none", "loss is NaN", {"torch": ON, "error": "RuntimeError: Function 'MulBackward0' returned nan values in its 0th output."}, None),
    ("mig", "LXD container, MIG on, no instance passed in", {"context": inside("lxc", "Ubuntu 22.04"), "cmd": {"nvidia-smi": "| NVIDIA-SMI 530.41.03  Driver Version: 530.41.03  CUDA Version: 12.1 |\n|   0  NVIDIA A100-SXM4-80GB           Off| 00000000:40:00.0 Off |                   On |\n| N/A   27C    P0               31W / 400W|      0MiB / 81920MiB |     N/A      Default |"}, "dev": NODES, "dlopen": FOUND, "torch": {**TORCH, "is_available": False, "warning": "CUDA initialization: CUDA driver initialization failed, you might not have a CUDA gpu."}}, "mig-enabled-without-instances"),
    ("host-kernel-module", "nvidia.ko of the former kernel only, by find", {"context": {"os": "Ubuntu 14.04"}, "cmd": {"nvidia-smi": NO_COMM, "uname -a": "Linux h 3.13.0-116-generic #163-Ubuntu SMP x86_64 GNU/Linux", "find /lib/modules -name 'nvidia.ko'": "/lib/modules/3.13.0-88-generic/kernel/drivers/video/nvidia.ko"}, "dev": {}, "dlopen": FOUND, "cuInit": 100, "torch": OFF}, "dkms-not-built-for-kernel"),
    ("host-kernel-module", "Fedora, module built and not loaded, by modinfo alone", {"context": {"os": "Fedora Linux 43"}, "cmd": {"nvidia-smi": NO_COMM, "modinfo -F version nvidia": "580.105.08", "lsmod | grep nvidia": ""}, "files": {PROC: None}, "dev": {}, "dlopen": FOUND, "cuInit": 100, "torch": OFF}, "module-not-loaded"),
    ("container-access", "libcuda.so.1 leads nowhere after a host upgrade", {"context": inside("docker"), "cmd": {"nvidia-smi": NO_SMI, "ls -l /usr/lib/x86_64-linux-gnu/libcuda*": "lrwxrwxrwx 1 root root 22 libcuda.so.1 -> libcuda.so.535.104.05"}, "dev": NODES, "dlopen": MISSING, "torch": NO_LIB}, "libcuda-dangling-link"),
    ("gpu-state", "a laptop's GPU does not wake", {"context": {"os": "Arch Linux"}, "cmd": {"nvidia-smi": {"rc": 6, "out": "No devices were found"}, "dmesg": "nvidia 0000:01:00.0: Unable to change power state from D3cold to D0, device inaccessible"}, "cuInit": 100, "torch": OFF}, "gpu-does-not-wake"),
    ("wheel-arch", "Hopper with an old CUDA 11.3 build: CUDA 12.6 is enough", {"cmd": {"nvidia-smi": smi("535.183.01", "12.2", "NVIDIA H100 PCIe")}, "torch": {"version": "1.12.1+cu113", "cuda": "11.3", "is_available": True, "arch_list": "sm_37 sm_50 sm_60 sm_70 sm_75 sm_80 sm_86"}, "error": "RuntimeError: CUDA error: no kernel image is available for execution on the device"}, "gpu-newer-than-wheel"),
    ("nccl-ddp", "GeForce cards without peer access", {"torch": ON, "error": "NotImplementedError: Using RTX 4000 series doesn't support faster communication broadband via P2P or IB."}, "peer-access-unsupported"),
    ("host-limits", "host memory, not GPU memory", {"torch": ON, "error": "RuntimeError: [enforce fail at alloc_cpu.cpp:117] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to allocate 68719476736 bytes. Error code 12 (Cannot allocate memory)"}, "host-memory-exhausted"),
    # --- in other shapes
    ("gpu-driver-support", "commands as a list, GPUs named, torch as a mapping of other names", {"cmd": [{"command": "nvidia-smi", "output": "No devices were found", "rc": 6}, {"cmd": "dmesg", "out": "NVRM: installed in this system is not supported by the\nNVRM: NVIDIA 535.183.01 driver release."}], "gpus": [{"name": "NVIDIA GeForce RTX 5090", "compute_cap": "12.0"}], "files": kernel("535.183.01"), "cuInit": {"code": 100}, "torch": {"__version__": "2.7.1+cu126", "cuda_version": "12.6", "cuda_available": False}}, "gpu-newer-than-driver"),
    ("permissions", "nodes as a pasted listing", {"cmd": {"nvidia-smi": {"rc": 4, "out": "Failed to initialize NVML: Insufficient Permissions"}}, "dev": "crw-rw---- 1 root video 195, 0 Jan 1 00:00 /dev/nvidia0\ncrw-rw---- 1 root video 195, 255 Jan 1 00:00 /dev/nvidiactl", "torch": "2.7.1+cu126"}, "device-node-permissions"),
    ("abi", "the traceback alone", {"traceback": "Traceback (most recent call last):\n  File \"x.py\", line 1, in <module>\nImportError: libGL.so.1: cannot open shared object file: No such file or directory"}, "system-library-missing"),
    # --- nothing fits
    ("none", "no GPU found, everything else looks right", {
        "context": {"os": "Ubuntu 24.04"}, "env": {"CUDA_VISIBLE_DEVICES": None}, "cmd": {"nvidia-smi": smi()}, "files": kernel("570.124.06"), "dev": NODES, "dlopen": FOUND, "torch": {**TORCH, "is_available": False}}, None),
    ("none", "an error that says nothing of the environment", {"error": "ValueError: too many values to unpack (expected 2)"}, None),
    ("none", "only: no CUDA GPUs", {"error": NO_GPUS}, None),
)
