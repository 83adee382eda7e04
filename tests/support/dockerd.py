"""A docker engine of a test's own, with a network of its own: nothing of the host is touched."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.children import wait_until

_PROGRAMS = ("dockerd", "docker", "containerd", "ctr", "iptables", "ip", "nsenter")


@dataclass(frozen=True)
class Docker:
    """A running engine; `docker` and `ctr` find it by the environment."""

    process: int

    def beside(self, *command: str) -> list[str]:
        """Return a command as a neighbour on the engine's host types it: in its network."""
        return ["nsenter", f"--net=/proc/{self.process}/ns/net", *command]


@contextmanager
def docker_engine(directory: Path) -> Iterator[Docker]:
    """Run dockerd, with its bridge and its iptables, in a network and mount namespace.

    It keeps everything below `directory`, and that is removed at the end.
    """
    for program in _PROGRAMS:
        if not shutil.which(program):
            pytest.skip(f"{program} is not installed")
    host = f"unix://{directory}/docker.sock"
    command = [
        "unshare", "--net", "--mount", "--propagation", "private",
        "sh", "-c", 'ip link set lo up && exec dockerd "$@"', "dockerd", f"--host={host}",
        f"--data-root={directory}/data", f"--exec-root={directory}/exec",
        f"--pidfile={directory}/docker.pid",
    ]  # fmt: skip
    with (
        pytest.MonkeyPatch.context() as environment,
        (directory / "dockerd.log").open("wb") as log,
        subprocess.Popen(command, stdout=log, stderr=log) as process,
    ):
        environment.setenv("DOCKER_HOST", host)
        environment.setenv("CONTAINERD_ADDRESS", f"{directory}/exec/containerd/containerd.sock")

        def up() -> bool:
            assert process.poll() is None, (directory / "dockerd.log").read_text()[-3000:]
            return not subprocess.run(
                ["docker", "info"], capture_output=True, check=False
            ).returncode

        try:
            wait_until(up, "dockerd")
            yield Docker(process.pid)
        finally:
            process.terminate()
    for name in ("data", "exec"):
        shutil.rmtree(directory / name, ignore_errors=True)
