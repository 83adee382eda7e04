"""Hosts as a wrapper may meet them: with the NVIDIA driver here or there, or without one."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

PATH = "/usr/sbin:/usr/bin:/sbin:/bin"

DRIVER = """
#include <stdio.h>
int cuInit(unsigned flags) { return 0; }
"""


def make_driver(directory: Path) -> Path:
    """Put a stand-in for the driver among libraries that are not the driver's."""
    source = directory / "driver.c"
    source.write_text(DRIVER)
    library = directory / "libcuda.so.570.86"
    subprocess.run(
        ["cc", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", source, "-o", library], check=True
    )
    (directory / "libcuda.so.1").symlink_to(library.name)
    for name in ("libnvidia-ml.so.1", "libnvidia-nvvm.so.570.86", "libstdc++.so.6", "libz.so.1"):
        (directory / name).write_bytes(library.read_bytes())
    return directory


def run(*command: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)


def on_a_host_with(mounts: str, *command: str | Path, **variables: str):
    """Run a command in a mount namespace of its own, after `mounts`."""
    script = f'{mounts}\nexec "$@"'
    unshare = ["unshare", "--mount", *([] if os.geteuid() == 0 else ["--map-root-user"])]
    return run(*unshare, "bash", "-euc", script, "bash", *command, **variables)


def host_driver(driver: Path) -> str:
    """Mounts by which the host's loader knows `driver`."""
    configuration, cache = (f"{driver}.{suffix}" for suffix in ("conf", "cache"))
    return (
        f"echo {driver} > {configuration}; "
        f"/sbin/ldconfig -X -f {configuration} -C {cache}; "
        f"mount --bind {cache} /etc/ld.so.cache"
    )
