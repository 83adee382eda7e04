"""What the user's own clients are configured with: index, channels, certificates.

torchlock has no settings of its own for these. It reads pip's (environment, then `pip config`),
conda's `.condarc` and the usual certificate variables, so that a machine on which pip and conda
work behind a mirror needs nothing more.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

from torchlock.errors import TorchlockError


@lru_cache
def _pip_config() -> dict[str, str]:
    """Return pip's effective `global` and `install` settings; empty where pip is absent."""
    done = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1"},
    )
    settings = {}
    for line in done.stdout.splitlines() if done.returncode == 0 else ():
        key, separator, value = line.partition("=")
        section, _, name = key.rpartition(".")
        if separator and section in ("global", "install", ":env:"):
            settings[name] = value.strip().strip("'\"")
    return settings


def pip_index_url() -> str | None:
    """Return the index the user configured in place of pip's default, or None."""
    return os.environ.get("PIP_INDEX_URL") or _pip_config().get("index-url")


def index_url() -> str | None:
    """Return the index mirror the user configured for uv or pip, or None."""
    for variable in ("UV_DEFAULT_INDEX", "UV_INDEX_URL"):
        if os.environ.get(variable):
            return os.environ[variable]
    return pip_index_url()


def uv_has_an_index() -> bool:
    """Say whether uv's own settings name an index; uv, which is asked, reads them itself."""
    if os.environ.get("UV_INDEX"):
        return True
    config = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    for path in (config / "uv" / "uv.toml", Path("/etc/uv/uv.toml")):
        try:
            if "index" in path.read_text(encoding="utf-8", errors="replace"):
                return True
        except OSError:
            continue
    return False


def certificate_bundle() -> str | None:
    """Return the CA bundle the user named, or None for the system's own trust store.

    Raises `TorchlockError` when the file named does not exist.
    """
    for variable in ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "PIP_CERT"):
        path = os.environ.get(variable)
        if path:
            if not Path(path).is_file():
                raise TorchlockError(
                    f"{variable} names {path}, which is no file",
                    hint=f"correct it, or run: unset {variable}",
                )
            return path
    return _pip_config().get("cert")


def condarc() -> dict[str, Any]:
    """Return the merged settings of the `.condarc` files conda itself would read.

    Later files win over earlier ones, as in conda; lists and mappings are not merged further.
    Raises `TorchlockError` when a file is not YAML.
    """
    settings: dict[str, Any] = {}
    for path in _condarc_paths():
        try:
            content = yaml.safe_load(path.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError):
            continue
        except yaml.YAMLError as error:
            raise TorchlockError(f"{path} is not YAML: {' '.join(str(error).split())}") from None
        if isinstance(content, dict):
            settings.update(content)
    if os.environ.get("CONDA_CHANNEL_ALIAS"):
        settings["channel_alias"] = os.environ["CONDA_CHANNEL_ALIAS"]
    return settings


def _condarc_paths() -> Iterator[Path]:
    home = Path.home()
    candidates = [
        Path("/etc/conda/.condarc"),
        Path("/etc/conda/condarc"),
        *sorted(Path("/etc/conda/condarc.d").glob("*.y*ml")),
        Path(os.environ.get("XDG_CONFIG_HOME") or home / ".config") / "conda" / ".condarc",
        home / ".conda" / ".condarc",
        home / ".condarc",
    ]
    if os.environ.get("CONDA_PREFIX"):
        candidates.append(Path(os.environ["CONDA_PREFIX"]) / ".condarc")
    if os.environ.get("CONDARC"):
        candidates.append(Path(os.environ["CONDARC"]))
    return (path for path in candidates if path.is_file())


def channel_location(name: str, canonical: str) -> str:
    """Return the URL a channel is read from: the user's mirror of it, or its canonical one.

    `custom_channels` in `.condarc` maps a channel's name to the URL above it; `channel_alias`
    replaces the host of every channel given by name. Both end in the channel's name.
    """
    settings = condarc()
    custom = settings.get("custom_channels")
    base = custom.get(name) if isinstance(custom, dict) else None
    base = base or settings.get("channel_alias")
    return f"{str(base).rstrip('/')}/{name}/" if base else canonical


def named_prefix(name: str) -> Path:
    """Return where conda clients keep the environment `name`.

    As conda decides: `CONDA_ENVS_PATH` or `envs_dirs` of `.condarc`, else below the client's
    own root, else `~/.conda/envs`. Raises `TorchlockError` for what is no name.
    """
    if not name or name in (".", "..", "base") or any(c in name for c in "/ :#\\"):
        raise TorchlockError(
            f"{name!r} is no name of an environment", hint="invoke env --name pt27"
        )
    configured = os.environ.get("CONDA_ENVS_PATH") or os.environ.get("CONDA_ENVS_DIRS")
    listed = condarc().get("envs_dirs")
    if configured:
        return Path(configured.split(os.pathsep)[0]).expanduser() / name
    if isinstance(listed, list) and listed:
        return Path(str(listed[0])).expanduser() / name
    roots = [
        Path(os.environ["CONDA_EXE"]).parent.parent if os.environ.get("CONDA_EXE") else None,
        Path(os.environ["MAMBA_ROOT_PREFIX"]) if os.environ.get("MAMBA_ROOT_PREFIX") else None,
    ]
    for root in roots:
        if root and root.is_dir() and os.access(root, os.W_OK):
            return root / "envs" / name
    return Path.home() / ".conda" / "envs" / name
