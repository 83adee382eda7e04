"""Registry credentials the user already has: docker's configuration and its helpers."""

from __future__ import annotations

import base64
import binascii
import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torchlock.errors import TorchlockError


@dataclass(frozen=True)
class Credentials:
    """A user name and a password, or an identity token as the password of user `<token>`."""

    user: str
    password: str


def credentials(registry: str) -> Credentials | None:
    """Return what the user's docker or podman configuration has for a registry, if anything.

    Looked up in `DOCKER_CONFIG` or `~/.docker`, then in podman's `auth.json`: a helper for the
    registry, the inline entry, the default credential store. Raises `TorchlockError` when a
    helper that is configured fails.
    """
    for path in _files():
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            continue
        except (OSError, ValueError) as error:
            raise TorchlockError(f"{path} cannot be read ({error})") from None
        found = _from(content, registry)
        if found:
            return found
    return None


def _files() -> list[Path]:
    docker = Path(os.environ.get("DOCKER_CONFIG") or Path.home() / ".docker")
    files = [docker / "config.json"]
    if os.environ.get("REGISTRY_AUTH_FILE"):
        files.append(Path(os.environ["REGISTRY_AUTH_FILE"]))
    if os.environ.get("XDG_RUNTIME_DIR"):
        files.append(Path(os.environ["XDG_RUNTIME_DIR"]) / "containers" / "auth.json")
    return files


def _from(content: dict[str, Any], registry: str) -> Credentials | None:
    helper = content.get("credHelpers", {}).get(registry)
    if helper:
        return _ask(str(helper), registry)
    auths = content.get("auths", {})
    for name in (registry, f"https://{registry}", f"http://{registry}"):
        entry = auths.get(name)
        if entry and entry.get("auth"):
            return _decode(str(entry["auth"]), registry)
    store = content.get("credsStore")
    return _ask(str(store), registry) if store else None


def _decode(value: str, registry: str) -> Credentials:
    try:
        user, _, password = base64.b64decode(value).decode().partition(":")
    except (binascii.Error, UnicodeDecodeError):
        raise TorchlockError(
            f"the docker configuration's entry for {registry} is damaged",
            hint=f"docker login {registry}",
        ) from None
    return Credentials(user, password)


def _ask(helper: str, registry: str) -> Credentials | None:
    program = f"docker-credential-{helper}"
    try:
        done = subprocess.run(
            [program, "get"], input=registry, capture_output=True, text=True, check=False
        )
    except FileNotFoundError:
        raise TorchlockError(
            f"{program}, which the docker configuration names, is not installed"
        ) from None
    if done.returncode:
        if "not found" in done.stdout + done.stderr:
            return None
        raise TorchlockError(f"{program} failed: {(done.stderr or done.stdout).strip()}")
    answer = json.loads(done.stdout)
    return Credentials(str(answer["Username"]), str(answer["Secret"]))
