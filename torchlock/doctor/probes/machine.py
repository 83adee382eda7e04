"""The machine that is looked at: its files and programs, under a root that tests can replace."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

_TEXT_LIMIT = 256 * 1024
NOT_FOUND = 127
TIMED_OUT = 124
_AFTER_KILL = 2  # seconds


@dataclass(frozen=True)
class Run:
    """How a program ended: its exit status and what it printed (both streams)."""

    rc: int
    out: str


def _rest(child: subprocess.Popen[bytes]) -> bytes:
    """What a killed program had printed; one that hangs in the kernel does not even die."""
    try:
        return child.communicate(timeout=_AFTER_KILL)[0]
    except subprocess.TimeoutExpired as error:
        return error.output or b""


@dataclass(frozen=True)
class Machine:
    """Where files, programs and variables are looked up.

    `root` stands in front of /proc, /sys, /dev and /etc; `environ` holds PATH, in which programs
    are searched; `python` is the interpreter whose torch is looked at; `opener` opens a node.
    """

    root: Path = Path("/")
    environ: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    python: str = sys.executable
    opener: Callable[[str, int], int] = os.open

    def path(self, path: str) -> Path:
        """An absolute path, under `root`."""
        return self.root / path.lstrip("/")

    def text(self, path: str) -> str | None:
        """The start of a text file; None where it does not exist or cannot be read."""
        try:
            with self.path(path).open("rb") as file:
                return file.read(_TEXT_LIMIT).decode(errors="replace")
        except OSError:
            return None

    def names(self, path: str) -> list[str] | None:
        """The sorted names in a directory; None where it cannot be read."""
        try:
            return sorted(os.listdir(self.path(path)))  # noqa: PTH208 - names, not paths
        except OSError:
            return None

    def has(self, program: str) -> bool:
        """Whether a program is on PATH."""
        return shutil.which(program, path=self.environ.get("PATH", "")) is not None

    def run(
        self,
        argv: Sequence[str],
        *,
        seconds: float = 10,
        stdin: str = "",
        extra: Mapping[str, str] | None = None,
    ) -> Run:
        """Runs a program; rc 127 where it is not on PATH, 124 where it had to be killed."""
        program = shutil.which(argv[0], path=self.environ.get("PATH", ""))
        if program is None:
            return Run(NOT_FOUND, f"{argv[0]}: command not found")
        try:
            child = subprocess.Popen(
                [program, *argv[1:]],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env={**self.environ, **(extra or {})},
                start_new_session=True,
            )
        except OSError as error:
            return Run(126, f"{argv[0]}: {error.strerror}")
        try:
            out, _ = child.communicate(stdin.encode(), timeout=seconds)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(OSError):
                os.killpg(child.pid, signal.SIGKILL)
            said = _rest(child)[:_TEXT_LIMIT].decode(errors="replace")
            if said and not said.endswith("\n"):
                said += "\n"
            return Run(TIMED_OUT, f"{said}{argv[0]}: no answer in {seconds:g} s")
        return Run(child.returncode, out[:_TEXT_LIMIT].decode(errors="replace"))
