"""Runs a nix over a private store; nothing of the machine's own Nix, if any, is touched."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from torchlock.repository import this_repository

HERE = Path(__file__).parent
REPOSITORY = this_repository().root
STUB = HERE / "not-nixpkgs"

# Into the sandbox go the host's programs, which the stub is made of links to, and nothing else.
# Relaxed: what has a fixed hash is fetched from tests' own files, outside of it.
CONFIGURATION = """\
experimental-features = nix-command flakes
sandbox = relaxed
sandbox-fallback = false
sandbox-paths = /bin /lib /lib64 /usr /etc/alternatives? /etc/python3.11?
build-users-group =
substituters =
flake-registry =
max-jobs = 2
"""


@dataclass(frozen=True)
class Nix:
    """A nix: the directory of its programs, and the environment that makes its store private."""

    programs: Path
    environment: Mapping[str, str]

    def run(
        self, *arguments: str | Path, program: str = "nix", **more: str
    ) -> subprocess.CompletedProcess[str]:
        """Run a command to its end, whatever its exit code; `more` are variables."""
        return subprocess.run(
            [self.programs / program, *arguments],
            env={**self.environment, **more},
            cwd=REPOSITORY,
            capture_output=True,
            text=True,
            check=False,
        )

    def out(self, *arguments: str | Path, program: str = "nix", **more: str) -> str:
        """Run a command that must succeed and return what it printed, stripped."""
        done = self.run(*arguments, program=program, **more)
        assert done.returncode == 0, f"{arguments}\n{done.stdout}\n{done.stderr}"
        return done.stdout.strip()

    def flake(
        self, verb: str, attribute: str = "", *arguments: str | Path
    ) -> subprocess.CompletedProcess[str]:
        """Run a verb on this repository's flake over the stub."""
        reference = f"{REPOSITORY}#{attribute}" if attribute else str(REPOSITORY)
        stub = ["--override-input", "nixpkgs", f"path:{STUB}", "--no-write-lock-file"]
        return self.run(*verb.split(), *stub, reference, *arguments)

    def build(self, expression: str, link: Path) -> subprocess.CompletedProcess[str]:
        """Build an expression that may use `pkgs` (the stub) and `small` (nix/default.nix)."""
        prelude = (
            f'let pkgs = (builtins.getFlake "path:{STUB}").legacyPackages.x86_64-linux; '
            f"small = arguments: import {REPOSITORY}/nix ({{ inherit pkgs; }} // arguments); in "
        )
        return self.run("build", "--impure", "--out-link", link, "--expr", prelude + expression)


def private_environment(root: Path) -> dict[str, str]:
    """Return the variables for a store, state and home of its own below `root`."""
    places = {
        "NIX_STORE_DIR": "store",
        "NIX_STATE_DIR": "state",
        "NIX_LOCALSTATE_DIR": "state",
        "NIX_LOG_DIR": "log",
        "NIX_CONF_DIR": "configuration",
        "HOME": "home",
        "XDG_CACHE_HOME": "cache",
    }
    for place in places.values():
        (root / place).mkdir(exist_ok=True)
    (root / "configuration" / "nix.conf").write_text(CONFIGURATION)
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("NIX_", "PYTHON", "XDG_"))}
    return {**kept, **{name: str(root / place) for name, place in places.items()}}
