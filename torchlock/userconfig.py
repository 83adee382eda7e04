"""What the user's pip and uv are configured with: index and certificates.

torchlock has no settings of its own for these. It reads pip's (environment, then `pip config`)
and the usual certificate variables, so that a machine on which pip works behind a mirror needs
nothing more. conda's settings are `condarc.py`'s.
"""

from __future__ import annotations

import os
import subprocess
import sys
from functools import lru_cache
from pathlib import Path

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
