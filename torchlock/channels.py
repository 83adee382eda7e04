"""Where locked conda packages are really read from: the user's aliases and mirrors."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from urllib.parse import urlsplit

import rattler

from torchlock.condarc import Condarc, read_condarc
from torchlock.lock import Lock, Package


def channel_of(package: Package) -> str:
    """Return the base URL of the channel a package's URL lies in, without a closing slash."""
    return package.url.rsplit("/", 2)[0]


def package_mirrors(lock: Lock, packages: Iterable[Package]) -> dict[str, list[str]]:
    """Return sha256 -> URLs to try before the lock's own, from conda's settings.

    For a channel that the lock gives by name these are mamba's `mirrored_channels`, then where
    conda has it: `custom_multichannels`, `custom_channels`, `channel_alias`. A channel given as
    a URL is meant literally; it gets the credentials that the last two have for it.
    """
    settings = read_condarc()
    bases = {}
    for channel in lock.channels:
        canonical = rattler.Channel(channel).base_url.rstrip("/")
        if urlsplit(channel).scheme:
            bases[canonical] = [_with_credentials(canonical, settings)]
        else:
            mirrors = [url.rstrip("/") for url in settings.mirrored_channels.get(channel, ())]
            bases[canonical] = [*mirrors, *_by_name(channel, canonical, settings)]
    found = {}
    for package in packages:
        channel = channel_of(package)
        rest = package.url.removeprefix(channel)
        urls = [
            f"{base}{rest}" for base in dict.fromkeys(bases.get(channel, ())) if base != channel
        ]
        if urls:
            found[package.sha256] = urls
    return found


def channel_locations(name: str, canonical: str) -> list[str]:
    """Return the URLs a channel's index is read from: where conda has it, or its canonical one.

    `name` is what a request calls it, a name or a URL. A name may stand for several channels:
    their order is that of their priority.
    """
    settings = read_condarc()
    base = canonical.rstrip("/")
    if urlsplit(name).scheme:
        return [f"{_with_credentials(base, settings)}/"]
    return [f"{url}/" for url in dict.fromkeys(_by_name(name, base, settings))]


@dataclass(frozen=True)
class _Channel:
    """A channel as conda takes its URL apart (`models/channel.py`)."""

    scheme: str
    credentials: str
    location: str
    token: str
    name: str

    @property
    def url(self) -> str:
        """The URL with its credentials; the token stands before the name, wherever it was."""
        token = ["t", self.token] if self.token else []
        parts = (part.strip("/") for part in (self.location, *token, self.name))
        path = "/".join(part for part in parts if part)
        root = "/" if self.location.startswith("/") else ""
        at = f"{self.credentials}@" if self.credentials else ""
        return f"{self.scheme}://{at}{root}{path}"


def _parse(url: str, name: str = "") -> _Channel:
    """Take apart a URL above `name`; without a scheme it has nothing but a location."""
    token = re.search(r"/t/([a-zA-Z0-9-]*)", url)
    bare = (url.replace(token[0], "", 1) if token else url).rstrip("/")
    if "://" not in bare:
        return _Channel("", "", bare, "", name)
    parts = urlsplit(bare)
    credentials, _, host = parts.netloc.rpartition("@")
    location = f"{host.lower()}{parts.path}{f'?{parts.query}' if parts.query else ''}"
    return _Channel(parts.scheme, credentials, location, token[1] if token else "", name.strip("/"))


def _listed(url: str, alias: _Channel) -> _Channel:
    """Return a channel that is listed: below the alias, or with its whole path for a name."""
    channel = _parse(url)
    if not channel.scheme:
        return replace(alias, name=url.strip("/"))
    if alias.location and channel.location.startswith(alias.location):
        name = channel.location.replace(alias.location, "", 1)
        return replace(channel, location=alias.location, name=name.strip("/"))
    host, slash, path = channel.location.partition("/")
    return replace(channel, location=host or slash, name=path.strip("/"))


def _customs(
    settings: Condarc, alias: _Channel
) -> tuple[dict[str, list[_Channel]], list[_Channel]]:
    """Return the channels that names stand for, and all channels with settings of their own."""
    named = {
        name: [_listed(url, alias) for url in urls]
        for name, urls in settings.custom_multichannels.items()
        if name != "defaults"
    }
    if settings.default_channels:
        named["defaults"] = [_listed(url, alias) for url in settings.default_channels]
    single = []
    for name, above in settings.custom_channels.items():
        channel = _parse(above, name)
        single.append(channel if channel.scheme else replace(alias, name=name.strip("/")))
    return named, [*(channel for listed in named.values() for channel in listed), *single]


def _by_name(name: str, canonical: str, settings: Condarc) -> list[str]:
    """Return the URLs of the channels that a name stands for to conda, without closing slashes."""
    alias = _parse(settings.channel_alias or canonical.removesuffix(name))
    named, single = _customs(settings, alias)
    if name in named:
        return [channel.url for channel in named[name]]
    known = {channel.name: channel for channel in single}
    above = name
    while above not in known and "/" in above:  # a/b is below the custom channel a
        above = above.rpartition("/")[0]
    if above in known:
        return [replace(known[above], name=name).url]
    return [replace(alias, name=name).url] if settings.channel_alias else [canonical]


def _with_credentials(url: str, settings: Condarc) -> str:
    """Return a channel's URL with the credentials that settings have for what is at its place."""
    given = _parse(url)
    if given.credentials or given.token:
        return url
    alias = _parse(settings.channel_alias) if settings.channel_alias else None
    single = _customs(settings, alias or given)[1]
    for channel in sorted(single, key=lambda channel: -len(channel.name)):
        if _is_below(given.location, f"{channel.location}/{channel.name}"):
            name = given.location.removeprefix(f"{channel.location}/")
            return replace(channel, scheme=given.scheme, name=name).url
    if alias and _is_below(given.location, alias.location):
        name = given.location.removeprefix(alias.location)
        return replace(alias, scheme=given.scheme, name=name).url
    return url


def _is_below(location: str, above: str) -> bool:
    return f"{location}/".startswith(f"{above.rstrip('/')}/")
