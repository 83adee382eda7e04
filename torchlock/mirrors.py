"""Where the user's index mirror serves the locked wheels.

uv answers: it is given the exact versions, no dependencies and the user's index settings, and
names the files. A file counts only under its locked sha256, so a mirror can never change what
is installed; what it lacks is fetched from the URL in the lock.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit, urlunsplit

from torchlock import userconfig
from torchlock.artifacts import Artifact, Mirrors
from torchlock.index import UnresolvedError, resolve
from torchlock.pylock import PLATFORM


def index_mirrors(missing: Sequence[Artifact]) -> Mirrors:
    """Map the sha256 of missing wheels to their URLs on the user's index mirror.

    Empty where no mirror is configured or it does not answer; those that it lacks are left out:
    for them the lock's own URLs are used.
    """
    index = userconfig.index_url() or ""
    wheels = [a for a in missing if a.filename.endswith(".whl")]
    if not wheels or not (index or userconfig.uv_has_an_index()):
        return {}
    found: dict[str, list[str]] = {}
    for url, sha256 in _ask(wheels):
        found.setdefault(sha256, []).append(_with_credentials(url, index))
    return found


def _ask(wheels: Sequence[Artifact]) -> list[tuple[str, str]]:
    """Return the (URL, sha256) of the files that the mirror has for the wheels' versions."""
    try:
        packages = resolve([_pin(w.filename) for w in wheels], PLATFORM, "--no-deps")
    except UnresolvedError as error:
        if not error.answered or len(wheels) == 1:
            return []
        with ThreadPoolExecutor(os.cpu_count()) as pool:  # one that is missing spoils the whole
            return [row for rows in pool.map(_ask, [[w] for w in wheels]) for row in rows]
    return [
        (wheel["url"], wheel["hashes"]["sha256"])
        for package in packages
        for wheel in package.get("wheels", ())
        if "url" in wheel and "sha256" in wheel["hashes"]  # not so where a mirror has md5 alone
    ]


def _pin(filename: str) -> str:
    name, version = filename.split("-")[:2]
    return f"{name}=={version.replace('_', '+', 1)}"


def _with_credentials(url: str, index: str) -> str:
    """Give a URL the user and password of the index, if it is on the same host."""
    parts, configured = urlsplit(url), urlsplit(index)
    user, at, _ = configured.netloc.rpartition("@")
    if at and parts.hostname == configured.hostname and "@" not in parts.netloc:
        return urlunsplit(parts._replace(netloc=f"{user}@{parts.netloc}"))
    return url
