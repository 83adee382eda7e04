"""How uv is called: the pinned program, and only the settings that are meant to reach it."""

from __future__ import annotations

import os
from functools import lru_cache

from torchlock import userconfig
from torchlock.errors import TorchlockError

_KEPT = frozenset(
    {
        "UV_CACHE_DIR",
        "UV_DEFAULT_INDEX",
        "UV_EXTRA_INDEX_URL",
        "UV_INDEX",
        "UV_INDEX_URL",
        "UV_KEYRING_PROVIDER",
        "UV_HTTP_RETRIES",
        "UV_HTTP_TIMEOUT",
        "UV_NATIVE_TLS",
        "UV_NO_CACHE",
        "UV_SYSTEM_CERTS",
        "UV_INSECURE_HOST",
        "UV_OFFLINE",
        "UV_PYTHON_INSTALL_DIR",
        "UV_PYTHON_INSTALL_MIRROR",
        "UV_PYTHON_DOWNLOADS",
    }
)
"""uv settings of the user that say where things come from; the others could change results."""


@lru_cache
def uv_command() -> tuple[str, ...]:
    """Return the command line that starts the uv of the tool's own pinned requirements."""
    try:
        from uv import find_uv_bin  # noqa: PLC0415 - absent is an answer here
    except ImportError:
        raise TorchlockError(
            "uv is not installed beside torchlock",
            hint="python -m pip install --require-hashes -r requirements.txt",
        ) from None
    return (find_uv_bin(),)


def uv_environment(*, index: bool = False) -> dict[str, str]:
    """Return the environment for uv: the user's, less what could change what is installed.

    With `index`, pip's index setting is handed on where uv has none of its own. `VIRTUAL_ENV`,
    `CONDA_PREFIX` and PYTHON* never reach it: the target is always named on the command line.
    """
    kept = {
        key: value
        for key, value in os.environ.items()
        if (not key.startswith(("UV_", "PIP_", "PYTHON")) or key in _KEPT)
        and key not in ("VIRTUAL_ENV", "CONDA_PREFIX")
    }
    if index and not {"UV_DEFAULT_INDEX", "UV_INDEX_URL"} & kept.keys():
        mirror = userconfig.pip_index_url()
        if mirror:
            kept["UV_DEFAULT_INDEX"] = mirror
    certificates = userconfig.certificate_bundle()
    if certificates:
        kept["SSL_CERT_FILE"] = certificates
    return kept
