"""The device nodes are there and this user or service may not open them."""

from __future__ import annotations

import re

from torchlock.doctor import fixes
from torchlock.doctor.evidence import Evidence
from torchlock.doctor.findings import CERTAIN, LIKELY, Match, Rule, rule
from torchlock.doctor.rules import facts

KIND = "permissions"


def _group(evidence: Evidence) -> str:
    return next(
        (
            n.group
            for n in (evidence.nodes or {}).values()
            if n.mode[4:6] == "rw" and n.group != "root"
        ),
        "",
    )


def _root_only(evidence: Evidence) -> list[str]:
    """The nodes that no group may open, where those are the ones refused."""
    nodes = evidence.nodes or {}
    refused = {p: n for p, n in nodes.items() if n.opened == "EACCES"} or nodes
    closed = [p for p, n in refused.items() if re.fullmatch(r"crw.-..-..", n.mode)]
    return sorted(closed) if len(closed) == len(refused) else []


def _membership_fix(evidence: Evidence) -> tuple[str, ...]:
    group = _group(evidence) or "video"
    mode = (
        "or for everyone: options nvidia NVreg_DeviceFileMode=0666 in /etc/modprobe.d, "
        "then reload the modules"
    )
    if closed := _root_only(evidence):
        return (
            f"{fixes.on_host(evidence)}sudo chmod 0666 {' '.join(closed)}    # until the next boot",
            "lasting: options nvidia NVreg_DeviceFileMode=0666 in /etc/modprobe.d, and no udev "
            "rule or umask that says otherwise: grep -rn nvidia /etc/udev/rules.d",
        )
    if evidence.container.engine == "podman":
        return (
            f"sudo usermod -aG {group} $USER, log in again, and podman run "
            f"--group-add keep-groups --device nvidia.com/gpu=all ...",
            mode,
        )
    if evidence.container.inside:
        return (
            f"docker run --group-add <gid of {group} on the host> --gpus all ...   "
            f" # getent group {group}",
            mode,
        )
    return (f"sudo usermod -aG {group} $USER    # then log in again (a new session)", mode)


@rule(
    "device-node-permissions",
    KIND,
    cause="The device nodes admit only <those>, and this user is not among them.",
    shows="open() of the nodes = EACCES; mode 0660 or 0600; `Insufficient Permissions`; "
    "it works with sudo.",
    fix=_membership_fix,
    apart=(
        "cgroup-lost, service-sandbox: EPERM, which no group membership cures",
        "device-node-refused-by-policy: EACCES although the mode admits everybody",
        "uvm-module-not-loaded: the node does not exist (ENOENT)",
        "mig-caps-permissions: only the MIG capability nodes are refused",
    ),
    follows=("selinux-denied",),
)
def refused_by_mode(evidence: Evidence) -> Match | None:
    """EACCES on the nodes."""
    group = _group(evidence) or "of the nodes"
    refused = facts.opened_with(evidence, "EACCES")
    nodes = evidence.nodes or {}
    caps_only = bool(refused) and all("nvidia-cap" in line for line in refused)
    closed = [
        p
        for p, n in nodes.items()
        if len(n.mode) == 10 and n.mode[7:9] != "rw" and "nvidia-cap" not in p
    ]
    told = evidence.grep(r"Insufficient Permissions|/dev/nvidia\S*.*Permission denied")
    if caps_only or evidence.torch.available is True or evidence.libcuda.init == 0:
        return None
    if _refused_against_mode(evidence):
        return None
    if (
        not refused
        and not told
        and not (
            closed
            and evidence.system.uid not in (0, None)
            and _group(evidence) not in (evidence.system.groups or ())
        )
    ):
        return None
    lines = (
        refused
        + told
        + evidence.grep(r"NVreg_DeviceFile(Mode|GID)|^c[rwx-]{9}.*nvidia")
        + tuple(f"{p}: {nodes[p].mode} {nodes[p].owner} {nodes[p].group}" for p in closed)
    )
    return Match(
        lines,
        CERTAIN if refused or (told and closed) else LIKELY,
        {"those": "root" if _root_only(evidence) else f"root and the group {group}"},
    )


@rule(
    "device-node-refused-by-policy",
    KIND,
    cause="A security policy (SELinux, AppArmor, or the rights of a directory above) refuses the "
    "device nodes, whose own mode admits everybody.",
    shows="open() of the nodes = EACCES with mode 0666.",
    fix=(
        "sudo ausearch -m avc -ts recent; sudo dmesg | grep -iE 'apparmor|avc'    # who refuses",
        "namei -l /dev/nvidiactl; cat /proc/self/attr/current",
        "container, to prove it: --security-opt label=disable --security-opt apparmor=unconfined",
    ),
    apart=(
        "selinux-denied, apparmor-denied: the log names the policy",
        "device-node-permissions: the mode itself",
    ),
    follows=("selinux-denied", "apparmor-denied", "seccomp-blocks-driver"),
)
def policy(evidence: Evidence) -> Match | None:
    """EACCES against the mode."""
    refused = _refused_against_mode(evidence)
    if not refused or evidence.torch.available is True or evidence.libcuda.init == 0:
        return None
    return Match(refused, LIKELY)


def _refused_against_mode(evidence: Evidence) -> tuple[str, ...]:
    lines = tuple(x for x in facts.opened_with(evidence, "EACCES") if "nvidia-cap" not in x)
    return lines if all("rw-rw-rw-" in line for line in lines) else ()


@rule(
    "service-sandbox",
    KIND,
    cause="The service manager's sandbox denies the device nodes (systemd DeviceAllow, "
    "DevicePolicy or PrivateDevices).",
    shows="On the host: open() = EPERM although the mode is 0666, in a service; or no "
    "nodes at all with PrivateDevices.",
    fix=(
        "systemctl show <unit> -p DevicePolicy -p DeviceAllow -p PrivateDevices",
        "sudo systemctl edit <unit>: [Service] PrivateDevices=no, DeviceAllow=char-nvidia rw, "
        "DeviceAllow=char-nvidia-uvm rw, DeviceAllow=/dev/nvidiactl rw",
        "sudo systemctl daemon-reload && sudo systemctl restart <unit>",
    ),
    apart=(
        "device-node-permissions: EACCES, the node's own mode",
        "slurm-no-gpu-requested: Slurm's device cgroup",
    ),
    follows=("slurm", "container-access"),
)
def sandbox(evidence: Evidence) -> Match | None:
    """EPERM outside a container, or a unit file that says so."""
    if facts.driver_works(evidence) and evidence.libcuda.init == 0:
        return None
    told = evidence.grep(
        r"^\W*(PrivateDevices\s*=\s*(yes|true|1)|DevicePolicy\s*=\s*(closed|strict)"
        r"|DeviceAllow\s*=)"
    )
    refused = facts.opened_with(evidence, "EPERM")
    if evidence.container.inside or not (told or refused):
        return None
    if any(name.startswith("SLURM_JOB") for name in evidence.env) and not told:
        return None
    if not refused and not facts.says_no_gpu(evidence) and not facts.no_driver_reached(evidence):
        return None
    return Match(
        told + refused, CERTAIN if told and (refused or facts.no_nodes(evidence)) else LIKELY
    )


@rule(
    "device-nodes-not-created",
    KIND,
    cause="The kernel module is loaded and nothing created its device nodes (no udev rule, and "
    "nvidia-modprobe is missing or not setuid).",
    shows="On the host: nvidia in lsmod or /proc/driver/nvidia/version, no /dev/nvidia0 "
    "or nvidiactl; as root it works once.",
    fix=(
        "sudo nvidia-modprobe -c=0 -u    # makes the nodes now",
        "sudo chmod u+s $(command -v nvidia-modprobe); sudo systemctl enable --now "
        "nvidia-persistenced",
    ),
    apart=(
        "module-not-loaded: there is no module either",
        "device-node-permissions: the nodes exist",
    ),
    follows=("gpu-driver-support", "host-kernel-module", "gpu-state", "slurm", "service-sandbox"),
)
def not_created(evidence: Evidence) -> Match | None:
    """A loaded module without nodes on a host."""
    if evidence.container.inside or evidence.system.wsl or not facts.no_nodes(evidence):
        return None
    if not (evidence.driver.module or facts.loaded(evidence, "nvidia")) or facts.driver_works(
        evidence
    ):
        return None
    return Match(
        facts.driver_lines(evidence)
        + evidence.grep(r"^nvidia\s", source="lsmod|modules")
        + ("/dev: no nvidia nodes",),
        LIKELY,
    )


@rule(
    "mig-caps-permissions",
    KIND,
    cause="The MIG instance's capability nodes (/dev/nvidia-caps/*) are not open to this "
    "user or container.",
    shows="EACCES, EPERM or ENOENT on /dev/nvidia-caps/nvidia-cap<n> while the GPU's own "
    "nodes open.",
    fix=(
        "ls -l /dev/nvidia-caps; cat /proc/driver/nvidia/capabilities/gpu0/mig/gi*/ci*/access",
        "sudo chmod 0666 /dev/nvidia-caps/*    # or options nvidia NVreg_DeviceFileMode=0666",
        "container: request the MIG device by its UUID, so that the toolkit adds its nodes",
    ),
    apart=("device-node-permissions: the GPU's own nodes are refused",),
)
def caps(evidence: Evidence) -> Match | None:
    """Refused MIG capability nodes."""
    nodes = evidence.nodes or {}
    bad = tuple(
        f"{path}: open() = {node.opened}"
        for path, node in nodes.items()
        if "nvidia-cap" in path and node.opened in ("EACCES", "EPERM", "ENOENT")
    )
    others = [n for p, n in nodes.items() if "nvidia-cap" not in p]
    if bad and all(n.opened in ("ok", "") for n in others):
        return Match(bad)
    return None


RULES: tuple[Rule, ...] = (sandbox, refused_by_mode, policy, caps, not_created)
