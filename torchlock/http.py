"""HTTP the way the user's machine is set up: proxies, .netrc, certificates."""

from __future__ import annotations

import re
import ssl
from typing import Any

import requests
import truststore
from requests.adapters import HTTPAdapter
from requests_file import FileAdapter

from torchlock import userconfig

PASSING_STATUS = frozenset({408, 425, 429, 500, 502, 503, 504})
"""Answers of a server that may be another one soon: requests are sent again after these."""


class _SystemTrust(HTTPAdapter):
    """Trust what the operating system trusts, corporate certificates included."""

    def init_poolmanager(self, *args: Any, **kwargs: Any) -> None:
        kwargs["ssl_context"] = truststore.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        super().init_poolmanager(*args, **kwargs)


def new_session() -> requests.Session:
    """Return a session that honours proxy variables, `.netrc` and the user's certificates.

    A CA bundle named by the user's environment or pip configuration is used as it is; without
    one the system's trust store decides. `file:` URLs are served from disk.
    """
    session = requests.Session()
    session.headers["User-Agent"] = "torchlock"
    bundle = userconfig.certificate_bundle()
    if bundle:
        session.verify = bundle
    else:
        session.mount("https://", _SystemTrust())
    session.mount("file://", FileAdapter())
    return session


def retry_after(answer: requests.Response) -> float:
    """Return the `Retry-After` of an answer in seconds, at most 60; 0 where there is none."""
    return min(whole_number(answer.headers.get("Retry-After", "")) or 0, 60)


def whole_number(value: str) -> int | None:
    """Return a header's value as a number of seconds or bytes, or None where it is none."""
    return int(value) if re.fullmatch(r"[0-9]{1,18}", value) else None
