"""The conda half: a solve with rattler's solver over the channels' index."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import rattler
from conda_lock.interfaces.vendored_conda import MatchSpec
from rattler.exceptions import (
    FetchRepoDataError,
    GatewayError,
    InvalidMatchSpecError,
    SolverError,
)

from torchlock.lock import Package
from torchlock.solve.request import RequestError, VirtualPackage
from torchlock.urls import public


@dataclass(frozen=True)
class ChannelLocation:
    """A channel's canonical base URL, and where an index of it is read from (a mirror, or itself).

    A channel that stands for several, as `custom_multichannels` of conda has it, has several.
    """

    canonical: str
    location: str


def solve_conda(
    specs: Sequence[str],
    *,
    platform: str,
    channels: Sequence[ChannelLocation],
    virtual_packages: Iterable[VirtualPackage],
    locked: Iterable[Package],
) -> list[Package]:
    """Solve `specs` and return one package per name, with canonical URLs, sorted by name.

    `locked` packages are kept wherever the request still allows them. Raises `RequestError`
    with the solver's explanation when there is no solution or a channel cannot be read.
    """
    try:
        records = asyncio.run(
            _solve(specs, platform, channels, list(virtual_packages), list(locked))
        )
    except SolverError as error:
        raise RequestError(
            f"the conda half for {platform} has no solution: {error}",
            hint="relax the specs in environment.yml",
        ) from None
    except InvalidMatchSpecError as error:
        raise RequestError(f"environment.yml: {error}") from None
    except (GatewayError, FetchRepoDataError, OSError) as error:
        places = ", ".join(public(channel.location) for channel in channels)
        raise RequestError(
            f"the channel index cannot be read from {places}: "
            f"{public(' '.join(str(error).split()))}",
            hint="check the network, or point custom_channels or channel_alias in .condarc "
            "at a mirror",
        ) from None
    found = [_package(record, platform, channels) for record in records]
    return sorted(found, key=lambda package: package.name)


async def _solve(
    specs: Sequence[str],
    platform: str,
    channels: Sequence[ChannelLocation],
    virtual_packages: list[VirtualPackage],
    locked: list[Package],
) -> list[rattler.RepoDataRecord]:
    gateway = rattler.Gateway()
    sources = [rattler.Channel(channel.location) for channel in channels]
    subdirs = [rattler.Subdir(platform), rattler.Subdir("noarch")]
    return await rattler.solve(
        sources,
        list(specs),
        gateway=gateway,
        platforms=subdirs,
        locked_packages=await _records(gateway, sources, subdirs, locked, channels),
        virtual_packages=[
            rattler.GenericVirtualPackage(
                rattler.PackageName(v.name),
                rattler.Version(v.version),
                rattler.BuildString(v.build or "0"),  # conda's own default
            )
            for v in virtual_packages
        ],
    )


async def _records(
    gateway: rattler.Gateway,
    sources: list[rattler.Channel],
    subdirs: list[rattler.Subdir],
    locked: list[Package],
    channels: Sequence[ChannelLocation],
) -> list[rattler.RepoDataRecord]:
    """Find the index records of locked packages; what the index no longer has is left out."""
    if not locked:
        return []
    wanted = {package.sha256 for package in locked}
    found = await gateway.query(
        sources, subdirs, [f"{package.name} =={package.version}" for package in locked], False
    )
    return [r for records in found for r in records if r.sha256 and r.sha256.hex() in wanted]


def _package(
    record: rattler.RepoDataRecord, platform: str, channels: Sequence[ChannelLocation]
) -> Package:
    url = record.url
    # A channel may lie below another: the longest location is the package's own.
    own = [channel for channel in channels if url.startswith(channel.location)]
    if own:
        channel = max(own, key=lambda channel: len(channel.location))
        url = channel.canonical + url.removeprefix(channel.location)
    if record.sha256 is None or record.md5 is None:
        raise RequestError(
            f"the channel index gives no {'md5' if record.sha256 else 'sha256'} for "
            f"{record.name.normalized} {record.version}, so it cannot be locked"
        )
    return Package(
        name=record.name.normalized,
        version=str(record.version),
        manager="conda",
        platform=platform,
        url=url,
        sha256=record.sha256.hex(),
        md5=record.md5.hex(),
        dependencies=_dependencies(record.depends),
    )


def _dependencies(depends: Iterable[str]) -> dict[str, str]:
    """Map names to version constraints as conda-lock notes them: merged, without builds."""
    specs: dict[str, list[MatchSpec]] = {}
    for text in depends:
        spec = MatchSpec(text)
        specs.setdefault(spec.name, []).append(spec)
    merged = {name: MatchSpec.merge(found)[0] for name, found in specs.items()}
    return {name: s.version.spec_str if s.version else "" for name, s in merged.items()}
