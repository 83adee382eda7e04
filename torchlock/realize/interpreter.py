"""Which CPython 3.11 carries the stack on this host."""

from __future__ import annotations

import json
import platform
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from torchlock.errors import TorchlockError
from torchlock.lock import PYTHON_VERSION
from torchlock.uv import uv_command, uv_environment

GLIBC_FLOOR = (2, 28)
"""The oldest glibc the stack's wheels run on (manylinux_2_28)."""

_ASK = """
import json, platform, sys
print(json.dumps([platform.python_implementation(), "%d.%d" % sys.version_info[:2],
                  getattr(sys, "_base_executable", sys.executable)]))
"""


@dataclass(frozen=True)
class Interpreter:
    """A CPython 3.11: its program and where it was found, in words."""

    program: Path
    source: str


def host_platform() -> str:
    """Return the lock's name for this host.

    Raises `TorchlockError` when the stack cannot run here, saying why.
    """
    machine = {"amd64": "x86_64", "arm64": "aarch64"}.get(
        platform.machine().lower(), platform.machine().lower()
    )
    if sys.platform != "linux" or machine != "x86_64":
        raise TorchlockError(
            f"the stack's wheels are for Linux on x86-64; this is {sys.platform} on {machine}",
            hint="run it on such a machine, or look at a lock from here with: invoke lock --check",
        )
    library, version = platform.libc_ver()
    if library == "glibc" and _numbers(version) < GLIBC_FLOOR:
        raise TorchlockError(
            f"glibc {version} is older than 2.28, the oldest that the stack's wheels run on",
            hint="use a newer distribution (Debian 10, Ubuntu 20.04, RHEL 8 or newer), "
            "or the image: invoke image",
        )
    if library != "glibc":
        raise TorchlockError(
            "this host's C library is not glibc, which the stack's wheels need",
            hint="use a distribution with glibc 2.28 or newer, or the image: invoke image",
        )
    return "linux-64"


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part.isdigit())


def find_interpreter() -> Interpreter:
    """Return a CPython 3.11: the running one, one on PATH, one that uv manages or can fetch.

    Raises `TorchlockError` when there is none and none can be fetched.
    """
    running = _running()
    if running:
        return Interpreter(running, "the running one")
    found = _uv_python("find", PYTHON_VERSION, "--no-python-downloads")
    program = _asked(Path(found)) if found else None
    if program:
        return Interpreter(program, "found by uv")
    _uv_python("install", PYTHON_VERSION)
    found = _uv_python("find", PYTHON_VERSION, "--managed-python", "--no-python-downloads")
    program = _asked(Path(found)) if found else None
    if program:
        return Interpreter(program, "fetched by uv")
    raise TorchlockError(
        f"there is no CPython {PYTHON_VERSION} here (running: {platform.python_version()}), "
        "and uv could not fetch one",
        hint="install it with the system's packages (Debian 12: apt-get install python3.11; "
        "Ubuntu: add the deadsnakes archive; Fedora: dnf install python3.11), "
        f"or where the network allows: uv python install {PYTHON_VERSION}",
    )


def _running() -> Path | None:
    """Return the base interpreter behind the running one if that is a CPython 3.11."""
    version = ".".join(map(str, sys.version_info[:2]))
    if (platform.python_implementation(), version) != ("CPython", PYTHON_VERSION):
        return None
    return Path(getattr(sys, "_base_executable", sys.executable))


def _asked(program: Path) -> Path | None:
    """Return the base interpreter behind `program` if it is a working CPython 3.11."""
    try:
        done = subprocess.run(
            [program, "-I", "-c", _ASK], capture_output=True, text=True, timeout=60, check=True
        )
        implementation, version, base = json.loads(done.stdout)
    except (OSError, ValueError, subprocess.SubprocessError):
        return None
    fits = (implementation, version) == ("CPython", PYTHON_VERSION)
    return Path(base) if fits else None


def _uv_python(*arguments: str) -> str:
    """Return what `uv python` answers, or the empty string when it finds nothing."""
    command = [*uv_command(), "python", *arguments, "--no-config"]
    done = subprocess.run(
        command, env=uv_environment(), capture_output=True, text=True, check=False
    )
    return done.stdout.strip() if done.returncode == 0 else ""
