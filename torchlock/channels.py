"""Where locked conda packages are really read from: the user's aliases and mirrors."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any
from urllib.parse import urlsplit

import rattler

from torchlock import userconfig
from torchlock.lock import Lock, Package


def channel_of(package: Package) -> str:
    """Return the base URL of the channel a package's URL lies in, without a closing slash."""
    return package.url.rsplit("/", 2)[0]


def package_mirrors(lock: Lock, packages: Iterable[Package]) -> dict[str, list[str]]:
    """Return sha256 -> URLs to try before the lock's own, from `.condarc`.

    `mirrored_channels` (mamba's), `custom_channels` and `channel_alias` apply to channels the
    lock names by name; a channel given as a URL is meant literally.
    """
    bases = {}
    for channel in lock.channels:
        if not urlsplit(channel).scheme:
            canonical = rattler.Channel(channel).base_url
            bases[canonical.rstrip("/")] = _locations(channel, canonical)
    found = {}
    for package in packages:
        channel = channel_of(package)
        rest = package.url.removeprefix(channel)
        urls = [f"{base}{rest}" for base in bases.get(channel, []) if base != channel]
        if urls:
            found[package.sha256] = urls
    return found


def _locations(name: str, canonical: str) -> list[str]:
    mirrored: Any = userconfig.condarc().get("mirrored_channels")
    mirrors: Sequence[Any] = mirrored.get(name) or () if isinstance(mirrored, dict) else ()
    locations = [*map(str, mirrors), userconfig.channel_location(name, canonical)]
    return list(dict.fromkeys(location.rstrip("/") for location in locations))
