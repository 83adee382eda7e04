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

TOKEN_USER = "<token>"  # noqa: S105 - a name, not a secret
"""The user name under which credential helpers give an identity token."""


@dataclass(frozen=True)
class Credentials:
    """A user name and a password, or an identity token as the password of `TOKEN_USER`."""

    user: str
    password: str


def credentials(registry: str, repository: str = "") -> Credentials | None:
    """Return what the user's docker or podman configuration has for a repository, if anything.

    Looked up in `DOCKER_CONFIG` or `~/.docker`, then in podman's `auth.json`: a helper for the
    registry, the inline entry (of the repository, of the namespaces that it lies in, the longest
    first, then of the registry; containers-auth.json(5)), the default credential store. Raises
    `TorchlockError` when a configuration cannot be read, or a helper that it names fails.
    """
    for path in _files():
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            continue
        except (OSError, ValueError) as error:
            raise TorchlockError(
                f"{path} cannot be read ({error})", hint=f"docker login {registry}"
            ) from None
        found = _from(_Configuration(path, content), registry, repository)
        if found:
            return found
    return None


def _files() -> list[Path]:
    docker = Path(os.environ.get("DOCKER_CONFIG") or Path.home() / ".docker")
    files = [docker / "config.json"]
    if os.environ.get("REGISTRY_AUTH_FILE"):
        files.append(Path(os.environ["REGISTRY_AUTH_FILE"]))
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    if runtime:
        files.append(Path(runtime) / "containers" / "auth.json")
    elif hasattr(os, "getuid"):
        files.append(Path("/run/containers") / str(os.getuid()) / "auth.json")
    settings = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return [*files, Path(settings) / "containers" / "auth.json"]


@dataclass(frozen=True)
class _Configuration:
    """A file of docker's form: `auths`, `credHelpers` and `credsStore`, each optional or null."""

    path: Path
    content: Any

    def table(self, name: str) -> dict[str, Any]:
        found = self.content.get(name) if isinstance(self.content, dict) else self.content
        if found is None:
            return {}
        if not isinstance(found, dict):
            raise TorchlockError(
                f"{self.path} is damaged: {name} is no table of registries",
                hint="put it right, or move it away and log in again with docker login",
            )
        return found

    @property
    def store(self) -> str:
        return str((self.content or {}).get("credsStore") or "")


def _servers(registry: str) -> list[str]:
    """Return the keys that may stand for a registry, the likeliest first.

    Docker's own registry is kept under the address of its former index, whichever of its names
    (`HOST`, `index.HOST`, `registry-1.HOST`) is pushed to.
    """
    domain = registry.removeprefix("registry-1.").removeprefix("index.")
    names = [registry, *(f"{scheme}://{registry}" for scheme in ("https", "http"))]
    names += [f"https://{registry}{path}" for path in ("/", "/v1/", "/v2/")]
    return [*names, f"https://index.{domain}/v1/"]


def _namespaces(registry: str, repository: str) -> list[str]:
    """Return the keys for a repository and what it lies in, the longest first."""
    parts = repository.split("/") if repository else []
    return [f"{registry}/{'/'.join(parts[:count])}" for count in range(len(parts), 0, -1)]


def _from(configuration: _Configuration, registry: str, repository: str) -> Credentials | None:
    helpers, auths = configuration.table("credHelpers"), configuration.table("auths")
    servers = _servers(registry)
    for name in servers:
        if helpers.get(name):
            return _ask(str(helpers[name]), name)
    listed = [name for name in servers if isinstance(auths.get(name), dict)]
    parts = [n for n in _namespaces(registry, repository) if isinstance(auths.get(n), dict)]
    for name in (*parts, *listed):
        entry = auths[name]
        if entry.get("identitytoken"):
            return Credentials(TOKEN_USER, str(entry["identitytoken"]))
        if entry.get("auth"):
            return _decode(str(entry["auth"]), registry)
    store = configuration.store
    if store:
        # A store's entries are listed, empty, in `auths`; without a list the likely ones are tried.
        for name in listed or (registry, servers[-1]):
            found = _ask(str(store), name)
            if found:
                return found
    return None


def _decode(value: str, registry: str) -> Credentials:
    try:
        user, _, password = base64.b64decode(value).decode().partition(":")
    except (binascii.Error, ValueError):
        raise TorchlockError(
            f"the docker configuration's entry for {registry} is damaged",
            hint=f"docker login {registry}",
        ) from None
    return Credentials(user, password)


def _ask(helper: str, server: str) -> Credentials | None:
    program = f"docker-credential-{helper}"
    try:
        done = subprocess.run(
            [program, "get"], input=server, capture_output=True, text=True, check=False
        )
    except (OSError, ValueError) as error:
        missing = isinstance(error, FileNotFoundError)
        raise TorchlockError(
            f"{program}, which the docker configuration names, "
            + ("is not installed" if missing else f"cannot be run ({error})"),
            hint=f"install it, or log in without it: docker login {server}",
        ) from None
    if done.returncode:
        if "not found" in done.stdout + done.stderr:
            return None
        raise TorchlockError(
            f"{program} failed: {(done.stderr or done.stdout).strip()}",
            hint=f"docker login {server}",
        )
    try:
        answer = json.loads(done.stdout)
        return Credentials(str(answer["Username"]), str(answer["Secret"]))
    except (ValueError, KeyError, TypeError):
        # What it printed may hold a secret, so it is not quoted.
        raise TorchlockError(
            f"{program} succeeded for {server} but printed no user name and secret",
            hint=f"echo {server} | {program} get",
        ) from None
