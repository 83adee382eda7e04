"""A root of its own for the image's scripts: this machine's programs, everything else made up.

Of the image there are its scripts, its users and its empty directories; `jupyter` and `sshd` are
stubs that note how they were started and then wait.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.support.children import wait_until
from torchlock.realize.image_contents import FILES

ENTRYPOINT = "/opt/torchlock/libexec/entrypoint"
HEALTH = "/opt/torchlock/libexec/health"

_MOUNTS = r"""
set -eu
root="$1" shm="$2"; shift 2
for directory in /usr/bin /usr/lib /usr/lib32 /usr/lib64 /usr/libexec "$PYTHON_PREFIX"; do
    [ -d "$directory" ] && mkdir -p "$root$directory" || continue
    [ "$directory" = /usr ] || mount --bind "$directory" "$root$directory"
done
mkdir -p "$root/host/sbin"
mount --bind /usr/sbin "$root/host/sbin"
mount --rbind /proc "$root/proc"
mount --rbind /dev "$root/dev"
mount -t tmpfs -o "mode=1777,size=$shm" tmpfs "$root/dev/shm"
for directory in $VOLUMES; do mount --bind "$root$directory" "$root$directory"; done
for directory in $READ_ONLY; do
    mount --bind "$root$directory" "$root$directory"
    mount -o remount,bind,ro "$root$directory"
done
exec chroot "$root" "$@"
"""

_JUPYTER = """#!/bin/sh
id -u >/out/jupyter.uid; id -G >/out/jupyter.groups; env -0 >/out/jupyter.env
echo "$@" >/out/jupyter.arguments
touch /out/jupyter
exec sleep 1000
"""

_SSHD = """#!/bin/sh
case "$1" in
    -t) if [ -e /out/sshd.refuses ]; then echo "Bad configuration option"; exit 255; fi ;;
    *) cp "$4" /out/sshd_config; touch /out/sshd; exec sleep 1000 ;;
esac
"""

_PASSWD = """root:x:0:0:root:/root:/bin/bash
sshd:x:101:65534::/run/sshd:/usr/sbin/nologin
user:x:1000:1000:user:/home/user:/bin/bash
other:x:12345:0::/:/bin/sh
"""


@dataclass
class ScratchRoot:
    """A directory to change the root to; `start` mounts what it needs, for that process alone."""

    path: Path
    volumes: list[str] = field(default_factory=list)
    read_only: list[str] = field(default_factory=list)
    shm: str = "2g"

    def __truediv__(self, name: str) -> Path:
        return self.path / name

    def directory(self, name: str, mode: int = 0o755, owner: tuple[int, int] = (0, 0)) -> Path:
        path = self / name
        path.mkdir(parents=True, exist_ok=True)
        path.chmod(mode)
        os.chown(path, *owner)
        return path

    def start(
        self,
        *command: str,
        before: Sequence[str] = (),
        user: str = "0:0",
        groups: str = "",
        network: bool = False,
        **environment: str,
    ) -> subprocess.Popen[str]:
        """Start a command as `user` (UID:GID), with this machine's network or one of its own.

        Standard output and error are piped together. `before` is what makes the command's process
        yet another.
        """
        uid, gid = user.split(":")
        become = ["setpriv", f"--reuid={uid}", f"--regid={gid}"]
        become += [f"--groups={groups}"] if groups else ["--clear-groups"]
        return subprocess.Popen(
            [
                "unshare", "--mount", *([] if network else ["--net"]), "--propagation", "private",
                "sh", "-c", _MOUNTS, "sh", str(self.path), self.shm,
                "env", "-u", "PYTHON_PREFIX", "-u", "VOLUMES", "-u", "READ_ONLY",
                *become, *before, *command,
            ],
            env={
                "PATH": "/opt/torchlock/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8",
                "HOME": "/root" if uid == "0" else "/", "PYTHON_PREFIX": sys.base_prefix,
                "VOLUMES": " ".join(self.volumes), "READ_ONLY": " ".join(self.read_only),
                **environment,
            },
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip

    def run(self, *command: str, **more) -> tuple[int, str]:
        """Run a command to its end; return its exit code and what it says."""
        process = self.start(*command, **more)
        said, _ = process.communicate(timeout=60)
        return process.returncode, said

    @contextmanager
    def serving(self, *, ssh: bool, **more) -> Iterator[Serving]:
        """Run `serve` until JupyterLab's stub is up, and sshd's where `ssh`; then end it."""
        for left in (self / "out").iterdir():
            left.unlink()
        process = self.start(ENTRYPOINT, "serve", **more)
        serving = Serving(self, process)
        try:
            wait_until(
                lambda: (
                    process.poll() is not None
                    or (
                        (self / "out/jupyter").exists()
                        and (not ssh or (self / "out/sshd").exists())
                    )
                ),
                "the servers",
            )
            assert process.poll() is None, process.communicate()[0]
            yield serving
        finally:
            serving.stop()


@dataclass
class Serving:
    """A running entry point; `log` is complete once it was stopped."""

    root: ScratchRoot
    process: subprocess.Popen[str]
    log: str = ""

    def stop(self) -> int:
        """End it as an engine does, by SIGTERM; return its exit code."""
        if self.process.poll() is None:
            self.process.terminate()
        said, _ = self.process.communicate(timeout=60)
        self.log += said or ""
        return self.process.returncode

    def environment(self) -> Mapping[str, str]:
        """Return JupyterLab's environment."""
        entries = (self.root / "out/jupyter.env").read_text().split("\0")
        return dict(entry.split("=", 1) for entry in entries if entry)


def scratch_root(path: Path) -> ScratchRoot:
    """Make a root below `path`, which must not exist; skip where one cannot be mounted."""
    if os.geteuid() != 0:
        pytest.skip("only root may change the root")
    path.mkdir()
    path.chmod(0o755)
    root = ScratchRoot(path)
    for name in ("bin", "sbin", "lib", "lib32", "lib64"):
        root.directory(f"usr/{name}")
        (root / name).symlink_to(f"usr/{name}")
    for name in ("proc", "dev", "run/sshd", "root", "opt/torchlock/bin", "etc/ssh", "host"):
        root.directory(name)
    root.directory("tmp", 0o1777)
    root.directory("out", 0o777)
    root.directory("home/user", 0o755, (1000, 1000))
    for name in ("workspace", "workspace/notebooks"):
        root.directory(name, 0o775, (1000, 0))
    root.directory("etc/ssh/host_keys", 0o770, (1000, 0))
    (root / "etc/passwd").write_text(_PASSWD)
    (root / "etc/group").write_text("root:x:0:\nvideo:x:44:\nuser:x:1000:\n")
    (root / "etc/shadow").write_text("user:*:1:0:99999:7:::\n")
    (root / "etc/gshadow").write_text("root:*::\nvideo:*::\nuser:*::\n")
    shutil.copy(FILES / "sshd_config", root / "etc/ssh/sshd_config")
    for name in ("entrypoint", "health"):
        _program(root / f"opt/torchlock/libexec/{name}", (FILES / name).read_text())
    _program(root / "opt/torchlock/bin/jupyter", _JUPYTER)
    _program(root / "usr/sbin/sshd", _SSHD)
    for name in ("groupadd", "usermod"):
        (root / f"usr/sbin/{name}").symlink_to(f"/host/sbin/{name}")
    (root / "opt/torchlock/bin/python").symlink_to(Path(sys.executable).resolve())
    root.directory("opt/torchlock/share/torchlock")
    notebook = root.directory("opt/torchlock/share/notebooks") / "first.ipynb"
    shutil.copy(FILES / "notebooks" / "first.ipynb", notebook)
    code, said = root.run("true")
    if code:
        pytest.skip(f"no root of one's own can be mounted here: {said}")
    return root


def _program(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
