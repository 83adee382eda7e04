"""What is asked for: `environment.yml`, read the way conda-lock reads it."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from packaging.requirements import InvalidRequirement, Requirement

from torchlock.errors import TorchlockError
from torchlock.lock import PLATFORMS
from torchlock.urls import is_public, public

# conda-lock takes half a second to import, and every verb gets here: it is imported when used.
# ruff: noqa: PLC0415
if TYPE_CHECKING:
    from conda_lock.models.channel import Channel
    from conda_lock.models.lock_spec import LockSpecification


class RequestError(TorchlockError):
    """`environment.yml` is damaged or asks for what cannot be locked."""


@dataclass(frozen=True)
class VirtualPackage:
    """A virtual package (`__glibc`, `__cuda`, ...) that the solve assumes to be present."""

    name: str
    version: str
    build: str


@dataclass(frozen=True)
class Request:
    """The request: conda specs per platform, pip requirements, and conda-lock's hash of both."""

    path: Path
    channels: tuple[Channel, ...]
    conda: Mapping[str, tuple[str, ...]]
    pip: tuple[Requirement, ...]
    content_hash: Mapping[str, str]
    virtual_packages: Mapping[str, tuple[VirtualPackage, ...]]

    @property
    def platforms(self) -> tuple[str, ...]:
        """The platforms asked for, in the file's order."""
        return tuple(self.conda)


def read_request(path: Path) -> Request:
    """Read `environment.yml`.

    Raises `RequestError` when it is absent, is not YAML, names an unknown platform, or has a
    pip requirement that is no index requirement (a URL or a path has no wheel to pin).
    """
    from conda_lock.content_hash import compute_content_hashes
    from conda_lock.virtual_package import default_virtual_package_repodata

    pip = tuple(_pip_requirements(_load(path), path.name))
    spec = _lock_spec(path)
    for platform in spec.platforms:
        if platform not in PLATFORMS:
            raise RequestError(
                f"{path.name}: unknown platform {platform!r}; known are {', '.join(PLATFORMS)}"
            )
    for channel in spec.channels:
        if not is_public(channel.url):
            raise RequestError(
                f"{path.name}: the channel {public(channel.url)} is given with credentials, which "
                "would be locked with it",
                hint="take them out there, and give them in .condarc: custom_channels, under the "
                "channel's name, with the URL above it",
            )
    repodata = default_virtual_package_repodata()
    with repodata:
        return Request(
            path=path,
            channels=tuple(spec.channels),
            conda={p: tuple(_match_specs(spec, p)) for p in spec.platforms},
            pip=pip,
            content_hash=compute_content_hashes(spec, repodata),
            virtual_packages={
                p: tuple(
                    VirtualPackage(v["name"], v["version"], v["build_string"])
                    for v in repodata.all_repodata[p]["packages"].values()
                )
                for p in spec.platforms
            },
        )


def _load(path: Path) -> dict[str, Any]:
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise RequestError(f"{path} does not exist") from None
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise RequestError(f"{path.name} cannot be read: {' '.join(str(error).split())}") from None
    if not isinstance(content, dict) or not isinstance(content.get("dependencies"), list):
        raise RequestError(f"{path.name} has no list `dependencies:`")
    return content


def _lock_spec(path: Path) -> LockSpecification:
    from conda_lock.src_parser import make_lock_spec

    # conda-lock wants its pip-to-conda name mapping, from the network by default. It matters
    # only for pip names used as conda names; every name here keeps its side, so none is needed.
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as mapping:
        mapping.write("{}\n")
        mapping.flush()
        try:
            return make_lock_spec(src_files=[path], mapping_url=Path(mapping.name).as_uri())
        except Exception as error:  # conda-lock raises bare exceptions for bad input
            raise RequestError(f"{path.name}: {' '.join(str(error).split())}") from None


def _match_specs(spec: LockSpecification, platform: str) -> list[str]:
    from conda_lock.models.lock_spec import VersionedDependency

    specs = []
    for dependency in spec.dependencies[platform]:
        if dependency.manager != "conda":
            continue
        if not isinstance(dependency, VersionedDependency):
            raise RequestError(f"{dependency.name}: only packages of a channel can be locked")
        channel = f"{dependency.conda_channel}::" if dependency.conda_channel else ""
        build = f" {dependency.build}" if dependency.build else ""
        specs.append(f"{channel}{dependency.name} {dependency.version or '*'}{build}".strip())
    return specs


def _pip_requirements(content: dict[str, Any], name: str) -> list[Requirement]:
    requirements = []
    for item in content["dependencies"]:
        for line in (item.get("pip") or []) if isinstance(item, dict) else []:
            try:
                requirement = Requirement(str(line))
            except InvalidRequirement as error:
                raise RequestError(
                    f"{name}: {line!r} is no requirement ({str(error).splitlines()[0]})"
                ) from None
            if requirement.url:
                raise RequestError(f"{name}: {line!r} names a URL; only index packages are locked")
            requirements.append(requirement)
    return requirements
