"""Commands for the distribution and the container engine in the evidence."""

from __future__ import annotations

import re

from torchlock.doctor.evidence import Evidence

_FAMILIES = (
    ("debian", r"ubuntu|debian|mint|pop!?_?os|raspbian|truenas|proxmox|kali"),
    ("rhel", r"rhel|red ?hat|rocky|alma|centos|fedora|oracle linux|amazon linux|amzn|scientific"),
    ("suse", r"suse|sles"),
    ("arch", r"\barch\b|arch linux|manjaro|endeavour"),
    ("nixos", r"nixos"),
    ("alpine", r"alpine"),
)


def family(evidence: Evidence) -> str:
    """`debian`, `rhel`, `suse`, `arch`, `nixos`, `alpine`, or empty where it is not known."""
    for name, pattern in _FAMILIES:
        if re.search(pattern, evidence.system.os, re.I):
            return name
    if re.search(r"\.el\d+|\.fc\d+|\.amzn", evidence.system.kernel):
        return "rhel"
    return ""


_INSTALL = {
    "debian": "sudo apt-get install {}",
    "rhel": "sudo dnf install {}",
    "suse": "sudo zypper install {}",
    "arch": "sudo pacman -S {}",
    "alpine": "sudo apk add {}",
    "nixos": "nix-shell -p {}",
}


def install(evidence: Evidence, debian: str, rhel: str, suse: str = "", arch: str = "") -> str:
    """The command that installs a package; for an unknown distribution the two common ones."""
    names = {"debian": debian, "rhel": rhel, "suse": suse or rhel, "arch": arch or debian}
    names |= {"alpine": arch or debian, "nixos": arch or debian}
    here = family(evidence)
    if here:
        command = _INSTALL[here].format(names[here])
        return command.removeprefix("sudo ") if evidence.container.inside else command
    return f"sudo apt-get install {debian}    # Fedora/RHEL: sudo dnf install {rhel}"


_REMOVE = {
    "debian": "sudo apt-get purge {}",
    "rhel": "sudo dnf remove {}",
    "suse": "sudo zypper remove {}",
    "arch": "sudo pacman -R {}",
    "alpine": "sudo apk del {}",
}


def remove(evidence: Evidence, packages: str) -> str:
    """The command that removes packages, given as a quoted pattern."""
    command = _REMOVE.get(family(evidence), "sudo apt-get purge {}    # dnf, zypper: remove")
    filled = command.format(packages)
    return filled.removeprefix("sudo ") if evidence.container.inside else filled


_HOLD = {
    "debian": "sudo apt-mark hold {}",
    "rhel": "sudo dnf versionlock add {}",
    "suse": "sudo zypper addlock {}",
    "arch": "IgnorePkg = {} in /etc/pacman.conf",
}


def hold(evidence: Evidence, *packages: str) -> str:
    """The command that keeps packages, given as quoted patterns, from being upgraded alone."""
    return _HOLD.get(family(evidence), _HOLD["debian"]).format(" ".join(packages))


def on_host(evidence: Evidence) -> str:
    """`On the host: ` where the evidence is from inside a container."""
    if evidence.container.engine == "kubernetes":
        return "On the node: "
    return "On the host: " if evidence.container.inside else ""


def driver(evidence: Evidence, branch: str) -> str:
    """How to install or upgrade the NVIDIA driver to a branch (`570`)."""
    if evidence.system.wsl:
        return (
            f"On Windows: install the NVIDIA Windows driver {branch} or newer, then wsl --shutdown"
        )
    kind = "" if evidence.container.inside else family(evidence)
    if kind == "debian" and re.search("ubuntu|mint|pop", evidence.system.os, re.I):
        kind = "ubuntu"
    if kind == "rhel" and re.search("fedora", evidence.system.os, re.I):
        kind = "fedora"
    command = {
        "ubuntu": f"sudo apt-get install nvidia-driver-{branch}",
        "debian": f"sudo apt-get install nvidia-driver    # {branch} or newer: from backports or "
        "NVIDIA's repository",
        "rhel": f"sudo dnf module install nvidia-driver:{branch}-dkms",
        "fedora": "sudo dnf install akmod-nvidia xorg-x11-drv-nvidia-cuda",
        "suse": "sudo zypper install nvidia-open-driver-G06-signed-kmp-default",
        "arch": "sudo pacman -Syu nvidia-open",
        "nixos": "set hardware.nvidia.package to it; sudo nixos-rebuild switch",
    }.get(kind, "with the host's package manager")
    where = on_host(evidence)
    return f"{where}upgrade the driver to {branch} or newer and reboot: {command}"


def headers(evidence: Evidence) -> str:
    """The command that installs the headers of the running kernel."""
    release = "$(uname -r)"
    return install(
        evidence,
        f"linux-headers-{release}",
        f"kernel-devel-{release} kernel-headers-{release}",
        "kernel-default-devel",
        "linux-headers",
    )


def initramfs(evidence: Evidence) -> str:
    """The command that rebuilds the initramfs."""
    return {
        "debian": "sudo update-initramfs -u",
        "rhel": "sudo dracut --force",
        "suse": "sudo dracut --force",
        "arch": "sudo mkinitcpio -P",
        "nixos": "sudo nixos-rebuild boot",
    }.get(family(evidence), "sudo update-initramfs -u    # Fedora/RHEL/SUSE: sudo dracut --force")


def blacklist(evidence: Evidence, modules: tuple[str, ...]) -> tuple[str, ...]:
    """The steps that keep kernel modules from claiming the GPU."""
    if family(evidence) == "nixos":
        names = " ".join(f'"{name}"' for name in modules)
        return (f"boot.blacklistedKernelModules = [ {names} ];", initramfs(evidence), "sudo reboot")
    lines = "\\n".join(
        [f"blacklist {name}" for name in modules]
        + (["options nouveau modeset=0"] if "nouveau" in modules else [])
    )
    path = f"/etc/modprobe.d/blacklist-{modules[0].replace('_', '-')}.conf"
    return (
        f"printf '{lines}\\n' | sudo tee {path}    # blacklist",
        initramfs(evidence),
        "sudo reboot",
    )


def start_with_gpus(evidence: Evidence) -> tuple[str, ...]:
    """How to start the container so that it gets the GPUs."""
    engine = evidence.container.engine
    if engine == "podman":
        return (
            "podman run --device nvidia.com/gpu=all ...",
            "if the name is unresolvable, on the host: "
            "sudo nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml",
        )
    if engine == "apptainer":
        return ("apptainer exec --nv image.sif ...    # the option comes before the image",)
    if engine == "kubernetes":
        return (
            "in the pod spec: resources.limits: {nvidia.com/gpu: 1}",
            "and, unless nvidia is the default runtime: runtimeClassName: nvidia",
        )
    if engine == "lxc":
        return (
            "lxc config device add <container> gpu gpu; lxc config set <container> "
            "nvidia.runtime=true",
        )
    if engine == "enroot":
        return ("NVIDIA_VISIBLE_DEVICES=all enroot start ...    # hook 98-nvidia.sh enabled",)
    tool = "nerdctl" if engine == "containerd" else "docker"
    return (
        f"{tool} run --gpus all ...    # or --runtime=nvidia -e NVIDIA_VISIBLE_DEVICES=all; "
        "compose: deploy.resources.reservations.devices, "
        "capabilities: [gpu, compute, utility]",
        "if the flag is refused: install nvidia-container-toolkit on the host",
    )


def recreate(evidence: Evidence) -> str:
    """How to make a container anew."""
    return {
        "kubernetes": "kubectl delete pod <pod>    # its controller makes it anew",
        "podman": "podman rm -f <container>, then podman run ... again",
        "apptainer": "start the apptainer command again",
        "containerd": "nerdctl rm -f <container>, then nerdctl run ... again",
    }.get(
        evidence.container.engine,
        "docker rm -f <container>, then docker run ... again (docker restart is not enough)",
    )


def restart_engine(evidence: Evidence) -> str:
    """The command that restarts the container engine's daemon."""
    engine = evidence.container.engine
    if engine == "podman":
        return "podman has no daemon to restart: run the container again"
    if engine in ("kubernetes", "containerd"):
        return "sudo systemctl restart containerd    # k3s: sudo systemctl restart k3s"
    if evidence.container.rootless:
        return "systemctl --user restart docker"
    return "sudo systemctl restart docker"


def torch_wheel(tag: str) -> str:
    """The command that puts a build of torch in place of another."""
    return (
        "pip install --force-reinstall torch torchvision torchaudio "
        f"--index-url <PyTorch wheel index>/{tag}"
    )
