"""The nixpkgs that carries the stack under Nix: the revision `flake.nix` asks for, and its hash.

`flake.nix` names the revision in the address of its input; `flake.lock` (format: the Nix manual,
"nix flake", lock files) holds the hash of what lies there.
"""

from __future__ import annotations

import json
import re
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from torchlock.errors import DoesNotHold, TorchlockError
from torchlock.files import write_atomically
from torchlock.repository import Repository

_ADDRESS = re.compile(r'(inputs\.nixpkgs\.url = "github:NixOS/nixpkgs/)([^"]*)(")')
_REVISION = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True)
class Pin:
    """A revision of nixpkgs (hex) and the NAR sha256 of its tree (`sha256-<base64>`)."""

    revision: str
    nar_hash: str


def read_pin(repository: Repository) -> Pin:
    """Return the pin on which `flake.nix` and `flake.lock` agree; needs neither Nix nor network.

    Raises `DoesNotHold` when they disagree and `TorchlockError` when one cannot be read.
    """
    flake, lock = repository.root / "flake.nix", repository.root / "flake.lock"
    asked = _asked(_text(flake), flake)
    try:
        node = json.loads(_text(lock))["nodes"]["nixpkgs"]
        locked, original = node["locked"], node["original"]
        pin = Pin(str(locked["rev"]), str(locked["narHash"]))
        revisions = {asked, pin.revision, str(original.get("rev"))}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise TorchlockError(
            f"{lock} is damaged ({type(error).__name__}: {error})",
            hint="restore it with: git checkout flake.lock",
        ) from None
    if revisions != {asked}:
        raise DoesNotHold(
            f"flake.nix asks for nixpkgs {asked}, flake.lock holds {pin.revision}",
            hint=f"invoke lock --nixpkgs {asked}",
        )
    return pin


def move_pin(repository: Repository, revision: str) -> Pin:
    """Pin another revision of nixpkgs; `nix` fetches it and says its hash.

    `flake.nix` and `flake.lock` change only once that has succeeded. Raises `TorchlockError`
    when `revision` is none, or with Nix's own words when Nix fails.
    """
    if not _REVISION.fullmatch(revision):
        raise TorchlockError(
            f"{revision!r} is no revision of nixpkgs",
            hint="give the 40 hex digits of a commit of its release branch, such as nixos-25.11",
        )
    flake, lock = repository.root / "flake.nix", repository.root / "flake.lock"
    _asked(_text(flake), flake)
    with tempfile.TemporaryDirectory() as scratch:
        moved = Repository(Path(scratch))
        (moved.root / flake.name).write_text(_ADDRESS.sub(rf"\g<1>{revision}\g<3>", _text(flake)))
        _nix_flake_lock(moved.root)
        pin = read_pin(moved)
        for path in (lock, flake):
            write_atomically(path, (moved.root / path.name).read_bytes())
    return pin


def _nix_flake_lock(directory: Path) -> None:
    command = [
        "nix", "--extra-experimental-features", "nix-command flakes",
        "flake", "lock", f"path:{directory}",
    ]  # fmt: skip
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise TorchlockError(
            f"nix cannot be started: {error.strerror}",
            hint="run it where Nix is installed",
        ) from None
    if done.returncode:
        raise TorchlockError(
            f"nix could not lock that revision:\n{done.stderr.strip()}",
            hint="check the revision and the network, then run the same command again",
        )


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise TorchlockError(
            f"{path} cannot be read: {error}", hint=f"restore it with: git checkout {path.name}"
        ) from None


def _asked(text: str, path: Path) -> str:
    found = _ADDRESS.search(text)
    if not found or not _REVISION.fullmatch(found[2]):
        raise TorchlockError(
            f"{path} names no revision of nixpkgs",
            hint="restore it with: git checkout flake.nix",
        )
    return found[2]
