"""Containers: what the engine, the NVIDIA toolkit and the sandbox let in."""

from __future__ import annotations

import re

from torchlock.doctor import fixes
from torchlock.doctor.evidence import HOST, Evidence
from torchlock.doctor.findings import CERTAIN, LIKELY, POSSIBLE, Match, Rule, message_rule, rule
from torchlock.doctor.rules import facts

KIND = "container-access"

_NVML_UNKNOWN = r"Failed to initialize NVML: Unknown Error"
_NO_CGROUPS = r"^\s*(no-cgroups\s*=\s*true)"


def _inside(evidence: Evidence, *engines: str) -> bool:
    """Inside a container of one of the engines (of any but Kubernetes and Apptainer if none)."""
    engine = evidence.container.engine
    if not evidence.container.inside:
        return False
    return engine in engines if engines else engine not in ("kubernetes", "apptainer")


def _nothing_injected(evidence: Evidence) -> bool:
    """Neither device nodes nor libcuda reached the container."""
    return (
        facts.no_nodes(evidence)
        and evidence.libcuda.found is not True
        and not facts.smi(evidence).works
    )


@rule(
    "no-gpus-flag",
    KIND,
    cause="The container was started without asking for GPUs, so the toolkit injected nothing.",
    shows="Inside a container: no /dev/nvidia*, no libcuda.so.1, no nvidia mounts; the "
    "host's module "
    "is visible in /proc/driver/nvidia/version, or nothing is known of it.",
    fix=fixes.start_with_gpus,
    apart=(
        "nvidia-visible-devices-none: GPUs were asked for and NVIDIA_VISIBLE_DEVICES hides them",
        "compute-capability-not-requested: nodes are there, only libcuda is not",
        "host-without-driver: /proc/driver/nvidia/version is missing, the host has "
        "no driver loaded",
        "runtimeclass-missing, no-gpu-in-pod: the same in Kubernetes",
        "apptainer-without-nv: the same in Apptainer, where the nodes are always there",
    ),
    follows=(
        "nvidia-visible-devices-none",
        "driver-installed-in-container",
        "host-without-driver",
        "wsl2",
    ),
)
def no_gpus(evidence: Evidence) -> Match | None:
    """A container with nothing of NVIDIA's in it."""
    if not _inside(evidence) or not _nothing_injected(evidence):
        return None
    if evidence.system.wsl and "/dev/dxg" in (evidence.nodes or {}):
        return None
    lines = facts.driver_lines(evidence) + evidence.grep(r"not found|cannot open|Found no NVIDIA")
    lines += tuple(
        f"{x.source}: (empty)" for x in evidence.lines if "mount" in x.source and not x.text
    )
    return Match((*lines, "/dev: no nvidia nodes"), CERTAIN if evidence.driver.module else LIKELY)


@rule(
    "host-without-driver",
    KIND,
    cause="The host itself has no NVIDIA driver loaded: a container shares its kernel, and "
    "/proc/driver/nvidia/version is missing.",
    shows="Inside a container: /proc/driver/nvidia/version does not exist, no nodes, no libcuda.",
    fix=(
        "On the host: nvidia-smi    # must work first; run this doctor there",
        "On the host: install or load the NVIDIA driver, then nvidia-container-toolkit",
        "then start the container with its GPUs again",
    ),
    apart=("no-gpus-flag: the host's driver is loaded, only the container was not given it",),
    follows=("no-nvidia-gpu", "wsl2", "driver-installed-in-container", "container-desktop-vm"),
)
def no_host_driver(evidence: Evidence) -> Match | None:
    """No driver in the kernel the container shares."""
    if not evidence.container.inside or not evidence.driver.absent or evidence.system.wsl:
        return None
    if facts.driver_works(evidence) or facts.gpu_nodes(evidence) or facts.smi(evidence, HOST).works:
        return None
    if evidence.libcuda.init in facts.DRIVER_ANSWERED:
        return None
    if evidence.driver.loaded and "nvidia" in evidence.driver.loaded:
        return None
    return Match(evidence.grep("no such file", source="/proc/driver/nvidia"), LIKELY)


@rule(
    "nvidia-visible-devices-none",
    KIND,
    cause="NVIDIA_VISIBLE_DEVICES=<value> tells the container toolkit to inject no GPU.",
    shows="NVIDIA_VISIBLE_DEVICES is `none`, `void` or empty, and no nodes are in the container.",
    fix=lambda evidence: (
        "start with -e NVIDIA_VISIBLE_DEVICES=all (or indices, UUIDs)",
        *fixes.start_with_gpus(evidence),
    ),
    apart=("no-gpus-flag: the variable is unset or asks for GPUs",),
)
def visible_none(evidence: Evidence) -> Match | None:
    """The toolkit was told to inject nothing."""
    value = evidence.env.get("NVIDIA_VISIBLE_DEVICES")
    if value is None or value.strip().lower() not in ("none", "void", ""):
        return None
    if not _inside(evidence) or facts.gpu_nodes(evidence) or facts.driver_works(evidence):
        return None
    lines = evidence.grep("", source="^env: NVIDIA_VISIBLE_DEVICES$") + evidence.grep(
        "Found no NVIDIA"
    )
    return Match(lines, values={"value": value or "(empty)"})


@rule(
    "compute-capability-not-requested",
    KIND,
    cause="The container got the devices and the utility libraries but not libcuda: the driver "
    "capability `compute` was not requested.",
    shows="Nodes and nvidia-smi work, libcuda.so.1 is missing; "
    "NVIDIA_DRIVER_CAPABILITIES lacks compute, "
    "or the compose/device request lists `gpu` only.",
    fix=(
        "docker run --gpus all -e NVIDIA_DRIVER_CAPABILITIES=compute,utility ...    "
        "# or --gpus 'all,\"capabilities=compute,utility\"'",
        "compose: capabilities: [gpu, compute, utility]",
    ),
    apart=("no-gpus-flag: no nodes either", "devices-without-libraries: nvidia-smi is missing too"),
)
def no_compute(evidence: Evidence) -> Match | None:
    """The utility libraries without libcuda."""
    if not evidence.container.inside or evidence.libcuda.found is not False or evidence.system.wsl:
        return None
    asked = evidence.set_env("NVIDIA_DRIVER_CAPABILITIES")
    lacks = bool(asked) and not re.search(r"\b(compute|all)\b", asked)
    utility = facts.smi(evidence).works or bool(
        evidence.grep(r"libnvidia-ml\.so", source="ls|ldconfig|find|mount")
    )
    if evidence.container.engine == "apptainer" or not (lacks or utility):
        return None
    if evidence.nodes is not None and not facts.gpu_nodes(evidence) and not utility:
        return None
    lines = evidence.grep(r"\S", source="NVIDIA_DRIVER_CAPABILITIES|capabilit|compose")
    lines += evidence.grep(r"CUDA Version: N/A|libnvidia-ml|libcuda\.so")
    return Match(lines, CERTAIN if lacks or evidence.grep("CUDA Version: N/A") else LIKELY)


@rule(
    "devices-without-libraries",
    KIND,
    cause="The device nodes were passed into the container by hand; the driver's "
    "libraries were not.",
    shows="/dev/nvidia* exist in the container, libcuda.so.1 and nvidia-smi do not.",
    fix=fixes.start_with_gpus,
    apart=(
        "compute-capability-not-requested: nvidia-smi is there",
        "apptainer-without-nv: Apptainer shares /dev always",
    ),
    follows=("compute-capability-not-requested", "kubernetes"),
)
def bare_devices(evidence: Evidence) -> Match | None:
    """--device alone."""
    if (
        not _inside(evidence)
        or not facts.gpu_nodes(evidence)
        or evidence.libcuda.found is not False
    ):
        return None
    if facts.smi(evidence).works or evidence.system.wsl or _libcuda_on_disk(evidence):
        return None
    return Match(
        evidence.grep(r"/dev/nvidia|libcuda|not found", source="dlopen|smi|mount|args")
        + tuple(facts.gpu_nodes(evidence)),
        LIKELY,
    )


def _libcuda_on_disk(evidence: Evidence) -> tuple[str, ...]:
    """Listings that show a libcuda.so.1 outside the loader's cache."""
    return evidence.grep(r"libcuda\.so\.1", source=r"\b(ls|find|mount)\b")


@rule(
    "libcuda-outside-loader-path",
    KIND,
    cause="libcuda.so.1 is on the disk, in a directory the loader does not search.",
    shows="ls or find shows libcuda.so.1 while loading it fails with `cannot open shared "
    "object file`.",
    fix=(
        "sudo ldconfig    # in the container: run ldconfig as root, or rebuild its "
        "/etc/ld.so.cache",
        "or export LD_LIBRARY_PATH=<directory of libcuda.so.1>    # NixOS: /run/opengl-driver/lib; "
        "WSL2: /usr/lib/wsl/lib; GKE: /usr/local/nvidia/lib64",
    ),
    apart=("compute-capability-not-requested: there is no libcuda.so.1 anywhere",),
    follows=("wsl2", "apptainer-without-nv", "libcuda-dangling-link"),
)
def outside_path(evidence: Evidence) -> Match | None:
    """A libcuda the loader does not find."""
    if evidence.libcuda.found is not False or "too short" in evidence.libcuda.error:
        return None
    shown = tuple(
        x for x in _libcuda_on_disk(evidence) if not re.search(r"No such file|cannot access", x)
    )
    return Match(shown + evidence.grep("libcuda", source="dlopen"), LIKELY) if shown else None


@rule(
    "libcuda-dangling-link",
    KIND,
    cause="libcuda.so.1 is a link to <target>, which does not exist: the driver changed after the "
    "link was made (or mounted).",
    shows="`libcuda.so.1 -> libcuda.so.<version>` without that file; `broken symbolic link`.",
    fix=lambda evidence: (
        (fixes.recreate(evidence) + "    # the engine then mounts the present driver's files")
        if evidence.container.inside
        else "sudo ldconfig; reinstall the driver's libraries (libnvidia-compute-<branch>)",
        "ls -l /usr/lib/x86_64-linux-gnu/libcuda* /usr/lib64/libcuda*",
    ),
    apart=("libcuda-outside-loader-path: the file is there, in another directory",),
)
def dangling(evidence: Evidence) -> Match | None:
    """A libcuda.so.1 that leads nowhere."""
    if evidence.libcuda.found is not False:
        return None
    broken = evidence.grep(r"libcuda\.so\S*:? broken symbolic link")
    link = evidence.first(r"libcuda\.so\.1 -> (\S+)")
    target = link[1].rpartition("/")[2] if link else ""
    entries = [x.text for x in evidence.lines if target and target in x.text]
    if broken or (target and all("->" in text for text in entries)):
        lines = broken + evidence.grep(r"libcuda\.so\.1 ->")
        return Match(lines, CERTAIN if broken else LIKELY, {"target": target or "a missing file"})
    return None


empty_libcuda = message_rule(
    "libcuda-empty-file",
    KIND,
    r"lib(cuda|nvidia-ml)\.so\S*:? file too short",
    cause="The image contains an empty libcuda or libnvidia-ml, left behind when a GPU "
    "container was committed.",
    fix=(
        "find / -xdev -name 'lib*nvidia*' -size 0 -o -xdev -name 'libcuda*' -size 0    # list them",
        "remove them from the image (find ... -delete, ldconfig) or rebuild it from its Dockerfile",
    ),
    apart=("libcuda-outside-loader-path: the file is whole and not found",),
)


@rule(
    "driver-in-image",
    KIND,
    cause="The image contains NVIDIA driver libraries of its own, which clash with those "
    "of the host.",
    shows="`file creation failed ... libnvidia-ml.so.1: file exists`, or a "
    "driver/library mismatch only in the container.",
    fix=(
        "rebuild the image without them: apt-get purge 'libnvidia-*' "
        "'nvidia-driver-*' 'nvidia-utils-*'; "
        "rm -f /usr/lib/x86_64-linux-gnu/lib{cuda,nvidia-ml}.so*",
        "in a Dockerfile, install cuda-toolkit, never cuda or cuda-drivers",
    ),
    apart=("driver-library-mismatch: the host has the mismatch too",),
)
def in_image(evidence: Evidence) -> Match | None:
    """Driver libraries baked into an image."""
    lines = evidence.grep(r"(file creation failed|mount error).*lib(nvidia|cuda)\S*: file exists")
    if lines:
        return Match(lines)
    packaged = evidence.grep(r"^ii\s+lib(nvidia-compute|cuda1|nvidia-ml1)")
    bad = evidence.grep(r"Driver/library version mismatch|API mismatch|Error 803\b")
    if _inside(evidence) and bad and (packaged or facts.smi(evidence, HOST).works):
        return Match(bad + packaged, CERTAIN if packaged else LIKELY)
    return None


@rule(
    "toolkit-not-configured",
    KIND,
    cause="The container engine does not know the NVIDIA toolkit: it is not installed, "
    "or the daemon "
    "was not configured for it and restarted.",
    shows='`could not select device driver "" with capabilities: [[gpu]]`, `unknown or '
    "invalid runtime "
    "name: nvidia`, `nvidia-container-runtime: no such file`.",
    fix=lambda evidence: (
        fixes.install(evidence, "nvidia-container-toolkit", "nvidia-container-toolkit"),
        f"sudo nvidia-ctk runtime configure --runtime={evidence.container.engine or 'docker'}",
        fixes.restart_engine(evidence),
        "docker run --rm --gpus all ubuntu nvidia-smi",
    ),
    apart=(
        "no-gpus-flag: the container starts, without GPUs",
        "container-desktop-vm: the engine is not this host's",
    ),
    follows=("container-desktop-vm", "node-runtime-broken", "runtimeclass-missing"),
)
def no_toolkit(evidence: Evidence) -> Match | None:
    """An engine without the toolkit."""
    lines = evidence.grep(
        r"could not select device driver|unknown or invalid runtime name:? "
        r"?\"?nvidia|unknown runtime.*nvidia"
        r"|nvidia-container-(runtime|runtime-hook|cli|toolkit)\S*(:|\"|') (.*)?(no "
        r"such file|executable file not found|not found)"
        r"|no runtime for \"nvidia\" is configured|runtime \"nvidia\" not found"
    )
    # a toolkit that names a library it does not find is there itself
    lines = tuple(line for line in lines if "load library failed" not in line)
    return Match(lines) if lines and not evidence.grep("RunPodSandbox|kubelet") else None


@rule(
    "container-desktop-vm",
    KIND,
    cause="The engine runs where the host's NVIDIA driver does not exist (Docker Desktop's virtual "
    "machine, or a snap or flatpak sandbox).",
    shows="The GPU request fails while the host's nvidia-smi works; docker context is "
    "desktop-linux, "
    "`Operating System: Docker Desktop`, or docker is the snap.",
    fix=lambda evidence: (
        "docker context use default    # the native docker-ce engine; install it if there is none",
        "sudo snap remove docker    # if docker is the snap; or remove Docker Desktop",
        fixes.install(
            evidence, "docker-ce nvidia-container-toolkit", "docker-ce nvidia-container-toolkit"
        ),
        "sudo nvidia-ctk runtime configure --runtime=docker && sudo systemctl restart docker",
    ),
    apart=("toolkit-not-configured: a native engine that does not know the toolkit",),
)
def desktop(evidence: Evidence) -> Match | None:
    """An engine in a virtual machine or sandbox."""
    if not evidence.container.desktop or evidence.system.wsl:
        return None
    failed = evidence.grep(
        r"nvidia-container-cli|could not select device driver|load library failed|unresolvable CDI|"
        r"libnvidia-ml|Found no NVIDIA|couldn't find any"
    )
    if not failed:
        return None
    return Match(evidence.grep(r"desktop|/snap/(bin/)?docker|^docker\s+\d.*canonical") + failed)


@rule(
    "driver-libraries-not-on-host",
    KIND,
    cause="The toolkit cannot load the driver's libnvidia-ml.so.1 on the host: the "
    "driver is not installed "
    "there, or lies where the toolkit does not look.",
    shows="`load library failed: libnvidia-ml.so.1` from nvidia-container-cli with a "
    "native engine.",
    fix=(
        "On the host: nvidia-smi; ldconfig -p | grep nvidia-ml    # install the "
        "driver if both fail",
        "On the host: sudo ldconfig",
        "NixOS: hardware.nvidia-container-toolkit.enable = true; elsewhere set root/ldcache in "
        "/etc/nvidia-container-runtime/config.toml",
    ),
    apart=(
        "container-desktop-vm: the engine is not the host's",
        "host-driver-not-loaded: libraries load, the module is not there",
    ),
    follows=("container-desktop-vm", "wsl2"),
)
def no_host_libraries(evidence: Evidence) -> Match | None:
    """nvidia-container-cli without libnvidia-ml."""
    lines = evidence.grep(
        r"nvidia-container-cli.*load library failed|load library failed: "
        r"libnvidia-ml|ldcache error: open failed"
    )
    return Match(lines, LIKELY) if lines else None


@rule(
    "rootless-device-cgroup",
    KIND,
    cause="The toolkit tries to edit the device cgroup, which <who> may not do.",
    shows="`failed to add device rules ... bpf_prog_query(BPF_CGROUP_DEVICE) failed: operation not "
    "permitted` with a rootless or nested engine.",
    fix=lambda evidence: (
        "sudo nvidia-ctk config --set nvidia-container-cli.no-cgroups --in-place    "
        "# no-cgroups = true in /etc/nvidia-container-runtime/config.toml",
        fixes.restart_engine(evidence),
        "or use CDI, which needs no hook: nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml; "
        "docker run --device nvidia.com/gpu=all ...",
    ),
    apart=("no-cgroups-on-rootful: the same option where it must be off",),
)
def rootless(evidence: Evidence) -> Match | None:
    """Device rules refused to an unprivileged engine."""
    lines = evidence.grep(
        r"bpf_prog_query\(BPF_CGROUP_DEVICE\)|failed to add device rules|cgroup "
        r"subsystem devices not found|device cgroup.*(not permitted|denied)"
    )
    if not lines:
        return None
    who = (
        "a rootless engine"
        if evidence.container.rootless
        else "an engine without that privilege (rootless, nested or old)"
    )
    return Match(
        lines + evidence.grep(r"rootless|no-cgroups"),
        CERTAIN if evidence.container.rootless else LIKELY,
        {"who": who},
    )


def _not_permitted(evidence: Evidence) -> tuple[str, ...]:
    """Signs that nodes exist and may not be opened by anyone (EPERM), not merely by this user."""
    return facts.opened_with(evidence, "EPERM") + evidence.grep(_NVML_UNKNOWN)


@rule(
    "no-cgroups-on-rootful",
    KIND,
    cause="no-cgroups = true keeps the toolkit from allowing the GPU devices in the "
    "container's cgroup; "
    "it is for rootless engines only.",
    shows="Inside a container from its first second: NVML Unknown Error, open() = EPERM; "
    "`no-cgroups = true` in the toolkit's configuration of a rootful engine.",
    fix=lambda evidence: (
        "sudo nvidia-ctk config --set nvidia-container-cli.no-cgroups=false --in-place",
        fixes.restart_engine(evidence) + "; " + fixes.recreate(evidence),
        "or pass the nodes too: --device /dev/nvidia0 --device /dev/nvidiactl "
        "--device /dev/nvidia-uvm",
    ),
    apart=("cgroup-lost: it worked at first and stopped after hours or a daemon-reload",),
)
def no_cgroups(evidence: Evidence) -> Match | None:
    """no-cgroups where the engine is rootful."""
    option = evidence.grep(_NO_CGROUPS)
    if option and not evidence.container.rootless and _not_permitted(evidence):
        return Match(option + _not_permitted(evidence))
    return None


def _keep_devices(evidence: Evidence) -> tuple[str, ...]:
    """How to make the container anew, and keep its devices this time."""
    again = fixes.recreate(evidence) + "    # at once"
    if evidence.container.engine == "kubernetes":
        return (
            again,
            "to prevent it, on the node: the device plugin with deviceListStrategy cdi-cri (or "
            "PASS_DEVICE_SPECS=true), and a recent nvidia-container-toolkit",
        )
    if evidence.container.engine == "podman":
        return (again, "to prevent it: podman run --device nvidia.com/gpu=all ... (CDI, no hook)")
    return (
        again,
        "to prevent it, use CDI (toolkit >= 1.14): docker run --device nvidia.com/gpu=all ...; or "
        "name every node: --device /dev/nvidiactl --device /dev/nvidia-uvm --device /dev/nvidia0",
        'or {"exec-opts": ["native.cgroupdriver=cgroupfs"]} in /etc/docker/daemon.json',
        "on the host: sudo nvidia-ctk system create-dev-char-symlinks --create-all",
    )


@rule(
    "gvisor-without-nvproxy",
    KIND,
    cause="The container runs under gVisor (runsc), which passes the GPU on only with nvproxy and "
    "only for the drivers it knows.",
    shows="`Starting gVisor` in dmesg, or runsc as the runtime, where the nodes do not work.",
    fix=(
        "/etc/docker/daemon.json: runtimes.runsc.runtimeArgs: [--nvproxy=true], then "
        "sudo systemctl restart docker",
        "runsc nvproxy list-supported-drivers    # the host's driver must be among them",
        "or run the container without gVisor: --runtime=runc --gpus all",
    ),
    apart=("cgroup-lost: the host's own kernel refuses the devices",),
)
def gvisor(evidence: Evidence) -> Match | None:
    """A sandbox with a kernel of its own."""
    lines = evidence.grep(r"Starting gVisor|\brunsc\b")
    if not lines or facts.driver_works(evidence) or evidence.torch.available is True:
        return None
    return Match(lines, LIKELY)


@rule(
    "cgroup-lost",
    KIND,
    cause="The container lost its right to the GPU devices: systemd rewrote its device cgroup "
    "(systemctl daemon-reload, an upgrade, a container update).",
    shows="Inside a container that worked before: `Failed to initialize NVML: Unknown Error`, "
    "open() of the nodes = EPERM, host fine.",
    fix=_keep_devices,
    apart=(
        "no-cgroups-on-rootful: it never worked",
        "selinux-denied: the audit log has the denial",
        "device-node-permissions: EACCES, the mode or group of the node",
    ),
    follows=(
        "no-cgroups-on-rootful",
        "selinux-denied",
        "lxc-device-rules",
        "slurm",
        "gvisor-without-nvproxy",
    ),
)
def cgroup_lost(evidence: Evidence) -> Match | None:
    """EPERM on nodes that once worked."""
    refused = _not_permitted(evidence)
    if not evidence.container.inside and refused and evidence.system.os == "":
        # a message alone; it comes from containers nearly always
        return Match(refused, POSSIBLE) if not evidence.container.engine else None
    if not evidence.container.inside or not refused:
        return None
    before = evidence.grep(
        r"daemon-reload|worked (before|at first|for|until)|after (\d+|some|a few) "
        r"(hours?|days?)|Reloading\.|"
        r"unattended|was working|used to work|systemd\[1\]: Reload|up \d+ (hours"
        r"|days|weeks)|\d+ (hours|days)|then (stopped|fails)"
        r"|NVML: Unknown Error.*(later|hours)|docker update|libpam|apt upgrade"
    )
    return Match(refused + before, CERTAIN if before else LIKELY)


@rule(
    "selinux-denied",
    KIND,
    cause="SELinux forbids the container the GPU devices.",
    shows="`avc: denied` on nvidia devices (xserver_misc_device_t), or SELinux enforcing "
    "with a GPU "
    "container that gets permission errors.",
    fix=(
        "sudo setsebool -P container_use_devices on",
        "or podman/docker run --security-opt label=disable ...    # or "
        "label=type:nvidia_container_t",
    ),
    apart=(
        "cgroup-lost: the device cgroup refuses (EPERM), no avc line",
        "device-node-permissions: mode or group",
    ),
)
def selinux(evidence: Evidence) -> Match | None:
    """An AVC denial for the GPU's nodes."""
    if evidence.torch.available is True:
        return None
    avc = evidence.grep(r"avc:\s+denied.*(nvidia|xserver_misc_device|nvidiactl|dri)")
    enforcing = evidence.grep(r"^\s*Enforcing\s*$|SELinux status:\s*enabled|selinux.*enforcing")
    nodes = (line for line in facts.opened_with(evidence, "EACCES") if "nvidia-cap" not in line)
    refused = (*nodes, *evidence.grep("Insufficient Permissions"))
    by_mode = [n for n in (evidence.nodes or {}).values() if n.opened == "EACCES"] or list(
        facts.gpu_nodes(evidence).values()
    )
    wide = all("rw" in node.mode[7:10] for node in by_mode if len(node.mode) == 10)
    if avc and refused and wide:
        return Match(avc + refused + enforcing)
    if avc:  # a denial in the log that nothing here was seen to suffer from
        return Match(avc + enforcing, POSSIBLE)
    if enforcing and refused and wide and evidence.container.engine:
        return Match(enforcing + refused, LIKELY)
    return None


@rule(
    "lxc-device-rules",
    KIND,
    cause="The LXC container's device cgroup does not allow the NVIDIA nodes (or they "
    "are not mounted in).",
    shows="In LXC/Incus/Proxmox: open() of the nodes = EPERM or no nodes; "
    "cgroup2.devices.allow missing.",
    fix=(
        "in the container's configuration: lxc.cgroup2.devices.allow: c 195:* rwm "
        "and the same for the "
        "major numbers of nvidia-uvm and nvidia-caps (ls -l /dev/nvidia*)",
        "lxc.mount.entry: /dev/nvidia0 dev/nvidia0 none bind,optional,create=file    "
        "# also nvidiactl, nvidia-uvm, nvidia-uvm-tools",
        "Incus/LXD: lxc config device add <container> gpu gpu; nvidia.runtime=true",
        "the same driver version in the container, without its kernel module (--no-kernel-module)",
    ),
    apart=(
        "cgroup-lost: it worked before",
        "no-gpus-flag: another engine",
    ),
    follows=("driver-library-mismatch",),
)
def lxc(evidence: Evidence) -> Match | None:
    """LXC without device rules."""
    if evidence.container.engine != "lxc" or not evidence.container.inside:
        return None
    refused = _not_permitted(evidence)
    if refused or facts.no_nodes(evidence):
        return Match(
            refused + evidence.grep("cgroup2?.devices") or ("/dev: no nvidia nodes",),
            CERTAIN if refused else LIKELY,
        )
    return None


@rule(
    "seccomp-blocks-driver",
    KIND,
    cause="The container's seccomp profile blocks a system call that the driver needs.",
    shows="cuInit 304 (`OS call failed`) in a container with a seccomp filter, while "
    "nodes, libraries "
    "and nvidia-smi are fine and the host works.",
    fix=lambda evidence: (
        f"{evidence.container.engine or 'docker'} run --security-opt "
        f"seccomp=unconfined ...    # to prove it",
        "then upgrade the engine and libseccomp on the host, or widen the profile; "
        "Kubernetes: securityContext.seccompProfile",
    ),
    apart=(
        "cgroup-lost: nvidia-smi fails too and open() = EPERM",
        "os-call-failed: 304 without a seccomp filter",
    ),
)
def seccomp(evidence: Evidence) -> Match | None:
    """304 under a filter."""
    lines = evidence.grep(r"Error 304\b|OS call failed|CUDA_ERROR_OPERATING_SYSTEM")
    if not lines and evidence.libcuda.init != 304:
        return None
    filtered = evidence.grep(r"Seccomp:\s*2\b|seccomp") + evidence.grep(
        "default|runtimedefault", source="seccomp"
    )
    if facts.opened_with(evidence, "EPERM") or evidence.grep(r"Seccomp:\s*0\b"):
        return None
    if filtered and evidence.container.inside:
        return Match(lines + filtered)
    return Match(lines, POSSIBLE) if evidence.container.inside else None


@rule(
    "os-call-failed",
    KIND,
    cause="A system call that the driver makes is refused (cuInit 304): a missing or "
    "forbidden node, "
    "a sandbox (seccomp, AppArmor, systemd), or too little locked memory or address space.",
    shows="cuInit 304 without a seccomp filter in evidence.",
    fix=(
        "strace -f -e trace=openat,ioctl,mmap python3 -c 'import torch; torch.cuda.init()' 2>&1 | "
        "grep -E 'nvidia|EPERM|EACCES|ENOMEM' | tail",
        "sudo nvidia-modprobe -u -c=0; ulimit -v; grep Seccomp: /proc/self/status",
    ),
    apart=("seccomp-blocks-driver: in a container with a seccomp filter",),
    follows=(
        "seccomp-blocks-driver",
        "permissions",
        KIND,
        "slurm",
        "host-limits",
        "uvm-module-not-loaded",
    ),
)
def os_call(evidence: Evidence) -> Match | None:
    """304 without a known reason."""
    lines = evidence.grep(r"Error 304\b|OS call failed|CUDA_ERROR_OPERATING_SYSTEM")
    return Match(lines, POSSIBLE) if lines or evidence.libcuda.init == 304 else None


@rule(
    "uvm-node-missing",
    KIND,
    cause="The container has the GPU's nodes but not /dev/nvidia-uvm, without which CUDA "
    "cannot start.",
    shows="Inside a container: /dev/nvidia0 and nvidiactl exist, /dev/nvidia-uvm does "
    "not; nvidia-smi works, "
    "cuInit fails (999).",
    fix=lambda evidence: (
        "On the host: sudo nvidia-modprobe -u -c=0    # loads nvidia_uvm and makes "
        "/dev/nvidia-uvm; "
        "at boot: nvidia-persistenced",
        "then: " + fixes.recreate(evidence),
        "or name the node yourself: --device /dev/nvidia-uvm --device /dev/nvidia-uvm-tools; "
        "LXC: lxc.mount.entry for it",
    ),
    apart=(
        "uvm-module-not-loaded: the same on the host",
        "uvm-broken-after-suspend: the node is there",
    ),
    follows=("lxc-device-rules",),
)
def no_uvm(evidence: Evidence) -> Match | None:
    """No nvidia-uvm in a container with GPU nodes."""
    if not evidence.container.inside or not facts.gpu_nodes(evidence) or evidence.system.wsl:
        return None
    if "/dev/nvidia-uvm" in (evidence.nodes or {}) or (
        facts.driver_works(evidence) and evidence.libcuda.init == 0
    ):
        return None
    if evidence.libcuda.found is False or evidence.torch.available is True:
        return None
    if facts.opened_with(evidence, "EACCES") or facts.opened_with(evidence, "EPERM"):
        return None
    return Match(
        tuple(sorted(evidence.nodes or {}))
        + evidence.grep(r"uvm|999|unknown error")
        + ("/dev/nvidia-uvm: absent",)
    )


@rule(
    "device-node-stale",
    KIND,
    cause="The node <node> has another major number than the driver now has (the number of "
    "nvidia-uvm and nvidia-caps changes from boot to boot), so it leads nowhere.",
    shows="The node exists and open() = ENXIO or ENODEV, or its major number is not the one in "
    "/proc/devices; typical of LXC and of nodes made by hand.",
    fix=lambda evidence: (
        "grep nvidia /proc/devices; ls -l /dev/nvidia*    # compare the numbers",
        fixes.on_host(evidence) + "sudo rm <node> && sudo nvidia-modprobe -u -c=0",
        "in a container: let the toolkit or a bind mount bring the node, never mknod; LXC: correct "
        "the number in lxc.cgroup2.devices.allow",
    ),
    apart=(
        "uvm-node-missing: there is no node",
        "uvm-broken-after-suspend: the node is right, the module's state is not",
    ),
)
def stale_node(evidence: Evidence) -> Match | None:
    """A node with a former major number."""
    if facts.driver_works(evidence) and evidence.libcuda.init == 0:
        return None
    majors = {
        match[2]: int(match[1])
        for line in evidence.lines
        if "/proc/devices" in line.source
        and (match := re.match(r"\s*(\d{1,4})\s+(nvidia[\w-]*)$", line.text))
    }
    for path, node in sorted((evidence.nodes or {}).items()):
        known = majors.get(path.rpartition("/")[2].removesuffix("-tools"))
        differs = node.major is not None and known is not None and node.major != known
        if differs or (path.startswith("/dev/nvidia") and node.opened in ("ENXIO", "ENODEV")):
            lines = (f"{path}: {node.mode} major {node.major} open() {node.opened}".rstrip(),)
            shown = evidence.grep("nvidia", source="/proc/devices")
            return Match(lines + shown, CERTAIN if differs else LIKELY, {"node": path})
    return None


@rule(
    "apparmor-denied",
    KIND,
    cause="An AppArmor profile forbids the NVIDIA devices or libraries.",
    shows='`apparmor="DENIED"` with an NVIDIA name in the kernel log; open() = EACCES on a node '
    "whose mode admits everybody.",
    fix=(
        "docker run --security-opt apparmor=unconfined ...    # to prove it; LXC: "
        "lxc.apparmor.profile = unconfined",
        "then allow /dev/nvidia* rw and /proc/driver/nvidia/** r in the profile",
    ),
    apart=("selinux-denied: an avc line", "cgroup-lost: no line in the kernel log"),
)
def apparmor(evidence: Evidence) -> Match | None:
    """An AppArmor denial for the GPU's nodes."""
    lines = evidence.grep(r'apparmor="DENIED".*nvidia')
    if not lines or evidence.torch.available is True:
        return None
    refused = facts.opened_with(evidence, "EACCES")
    felt = bool(refused) and all("rw-rw-rw-" in line for line in refused)
    # else a denial in the log that nothing here was seen to suffer from
    return Match(lines + refused, CERTAIN if felt else POSSIBLE)


jit_missing = message_rule(
    "jit-compiler-missing",
    KIND,
    r"CUDA_ERROR_JIT_COMPILER_NOT_FOUND|PTX JIT compiler library was not found|Error 221\b"
    r"|libnvidia-ptxjitcompiler\S*: cannot open",
    cause="The driver's JIT compiler (libnvidia-ptxjitcompiler.so.1) is missing, so PTX cannot be "
    "compiled for this GPU.",
    fix=(
        "ldconfig -p | grep ptxjitcompiler    # the same version as libcuda",
        "container: request the compute capability (NVIDIA_DRIVER_CAPABILITIES=compute,utility)",
        "host: reinstall the driver's libraries (libnvidia-compute-<branch>)",
    ),
    apart=("ptx-newer-than-driver: the compiler is there and too old",),
)

wrong_class = message_rule(
    "libcuda-wrong-architecture",
    KIND,
    r"libcuda\.so\S*:? wrong ELF class|libcuda\S*: cannot open shared object file: Exec format",
    cause="The libcuda.so.1 found is built for another architecture (32-bit, or another machine).",
    fix=(
        "file -L <path of libcuda.so.1>; uname -m",
        "take its directory out of LD_LIBRARY_PATH; install the 64-bit driver libraries",
    ),
    apart=("installed-file-damaged, libcuda-empty-file: the right kind of file, cut short",),
)


@rule(
    "cdi-unresolved",
    KIND,
    cause="The CDI device name cannot be resolved: there is no CDI specification for the "
    "GPUs, or the engine "
    "does not read it.",
    shows="`unresolvable CDI devices nvidia.com/gpu=...`, `CDI device injection failed`.",
    fix=lambda evidence: (
        "sudo nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml && nvidia-ctk cdi list",
        *(
            (
                'docker: {"features": {"cdi": true}} in /etc/docker/daemon.json; '
                + fixes.restart_engine(evidence),
            )
            if evidence.container.engine != "podman"
            else ()
        ),
    ),
    apart=("cdi-stale: the name resolves to files of a former driver",),
)
def cdi(evidence: Evidence) -> Match | None:
    """No CDI specification."""
    lines = evidence.grep(
        r"unresolvable CDI device|CDI device injection failed|CDI devices? not found|unknown CDI"
    )
    stale = evidence.grep(r"no such file|failed to stat CDI")
    return Match(lines) if lines and not (stale and "unresolvable" not in "".join(lines)) else None


@rule(
    "cdi-stale",
    KIND,
    cause="The CDI specification names files of a former driver version; it was not "
    "regenerated after the upgrade.",
    shows="The container fails to start: a driver library or node of another version `no "
    "such file or directory`, "
    "with CDI or /etc/cdi in use.",
    fix=(
        "sudo nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml",
        "toolkit >= 1.18 does it by itself: sudo systemctl enable --now "
        "nvidia-cdi-refresh.path nvidia-cdi-refresh.service",
    ),
    apart=("cdi-unresolved: there is no specification at all",),
    follows=("cdi-unresolved",),
)
def cdi_stale(evidence: Evidence) -> Match | None:
    """A specification of a former driver."""
    lines = evidence.grep(
        r"failed to stat CDI host device|(mounting|statfs|lstat|stat"
        r"|bind).*lib\w*(cuda|nvidia)[^\s:]*\.so\.\d{3}\.\S*.*no such file"
        r"|/dev/nvidia\S+.*no such (file|device).*cdi|cdi.*(no such file|stale|out of date)"
    )
    return (
        Match(lines + evidence.grep(r"\d{3}\.\d+", source="cdi") + facts.driver_lines(evidence))
        if lines
        else None
    )


cgroup_mode = message_rule(
    "toolkit-mode-refuses-hook",
    KIND,
    r"invoking the NVIDIA Container Runtime Hook directly.*not supported",
    cause="`--gpus` calls the legacy hook, which the toolkit refuses in CDI mode.",
    fix=lambda evidence: (
        "docker run --device nvidia.com/gpu=all ...    # or --runtime=nvidia -e "
        "NVIDIA_VISIBLE_DEVICES=all",
        "or: sudo nvidia-ctk config --set nvidia-container-runtime.mode=auto --in-place; "
        + fixes.restart_engine(evidence),
    ),
    apart=("toolkit-not-configured: the engine does not know the toolkit",),
)

toolkit_rpc = message_rule(
    "toolkit-cannot-detect-driver",
    KIND,
    r"nvidia-container-cli: (detection error|initialization error: driver rpc error"
    r"|device error: unknown device id)[^\n]*",
    cause="The container toolkit could not read the driver or the requested device on the host.",
    fix=(
        "On the host: nvidia-smi -L; sudo nvidia-container-cli -k -d /dev/stderr info",
        "unknown device id: ask for an index or UUID that nvidia-smi -L lists",
        "after a driver upgrade: sudo reboot",
    ),
    certainty=LIKELY,
    apart=("driver-libraries-not-on-host: the driver is found, its libraries are not",),
    follows=("driver-version", "host-kernel-module"),
)


@rule(
    "apptainer-without-nv",
    KIND,
    cause="The Apptainer/Singularity container was started without --nv, so the driver's "
    "libraries were not bound in.",
    shows="In Apptainer: device nodes are there (/dev is shared), /.singularity.d/libs "
    "is empty, libcuda.so.1 missing.",
    fix=(
        "apptainer exec --nv image.sif <command>    # the option comes before the image; "
        "or export APPTAINER_NV=1",
        "do not install a driver in the image",
    ),
    apart=(
        "apptainer-nv-incomplete: --nv was given and the host's libraries were not found",
        "no-gpus-flag: other engines, where the nodes are missing too",
    ),
    follows=("slurm", "host-without-driver"),
)
def no_nv(evidence: Evidence) -> Match | None:
    """Apptainer without the driver's libraries."""
    if evidence.container.engine != "apptainer" or not evidence.container.inside:
        return None
    if evidence.libcuda.found is not False or facts.smi(evidence).works or _nv_given(evidence):
        return None
    lines = evidence.grep(r"APPTAINER|SINGULARITY|\.sif", source="env|cmd|context|exec")
    lines += evidence.grep("", source=r"\.singularity\.d/libs") + evidence.grep(
        "libcuda|not found", source="dlopen|smi"
    )
    return Match(lines, CERTAIN if facts.gpu_nodes(evidence) or evidence.nodes is None else LIKELY)


def _nv_given(evidence: Evidence) -> tuple[str, ...]:
    return evidence.grep(
        r"(apptainer|singularity)\s.*--nv\b|^1$|^true$",
        source="NV$|exec|run|script|args|cmd|cmdline",
    ) + evidence.grep(r"Could not find any nv files|nvliblist")


@rule(
    "apptainer-nv-incomplete",
    KIND,
    cause="Apptainer was started with --nv and found no NVIDIA libraries on the host to bind.",
    shows="`Could not find any nv files on this host`, or --nv given and "
    "/.singularity.d/libs empty.",
    fix=(
        "on the host (the compute node): nvidia-smi; ldconfig -p | grep libcuda; "
        "run the job on a node with GPUs",
        "ldconfig must be on root's path for apptainer; or use --nvccli",
    ),
    apart=("apptainer-without-nv: the option was not given",),
    follows=("slurm",),
)
def nv_incomplete(evidence: Evidence) -> Match | None:
    """--nv that bound nothing."""
    if evidence.container.engine != "apptainer" or facts.driver_works(evidence):
        return None
    given = _nv_given(evidence)
    if given and evidence.libcuda.found is not True:
        return Match(given + evidence.grep("libcuda", source="dlopen"), LIKELY)
    return None


RULES: tuple[Rule, ...] = (
    desktop,
    no_toolkit,
    cdi,
    cdi_stale,
    cgroup_mode,
    rootless,
    no_host_libraries,
    toolkit_rpc,
    in_image,
    empty_libcuda,
    visible_none,
    no_host_driver,
    no_gpus,
    no_compute,
    no_nv,
    nv_incomplete,
    dangling,
    bare_devices,
    outside_path,
    selinux,
    no_cgroups,
    lxc,
    gvisor,
    cgroup_lost,
    stale_node,
    no_uvm,
    apparmor,
    jit_missing,
    wrong_class,
    seccomp,
    os_call,
)
