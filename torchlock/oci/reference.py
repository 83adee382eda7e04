"""Names of images: what registries and engines take, and nothing put right in silence.

Grammar: `<name>` and `<reference>` of the OCI distribution specification 1.1 ("Pulling
manifests"); a host (with port) before the name, as docker's reference grammar has it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from torchlock.errors import TorchlockError

HUB = "docker.io"

DEFAULT_TAG = "pytorch_cuda_v2.7:latest"
"""What images are named unless another name is given."""

_PART = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_LABEL = r"[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?"
_HOST = re.compile(rf"(?:{_LABEL}(?:\.{_LABEL})*|\[[0-9a-fA-F:]+\])(?::[0-9]+)?")
_REPOSITORY = re.compile(rf"{_PART}(?:/{_PART})*")
_TAG = re.compile(r"[a-zA-Z0-9_][a-zA-Z0-9._-]{0,127}")

_LONGEST = 255
"""Characters of host and name together; what clients accept by that specification."""


class ImageNameError(TorchlockError):
    """The text names no image, or none that registries and engines would take."""


@dataclass(frozen=True)
class Reference:
    """An image's name: registry host (with port; empty for none), repository and tag."""

    registry: str
    repository: str
    tag: str

    @property
    def host(self) -> str:
        """The host (with port) that serves the registry; docker's own has another name for it."""
        return f"registry-1.{HUB}" if self.registry in (HUB, f"index.{HUB}") else self.registry

    @property
    def base(self) -> str:
        """The registry's URL; plain HTTP for this machine itself, as docker does."""
        host = self.registry.rpartition(":")[0] or self.registry
        local = host in ("localhost", "127.0.0.1", "[::1]")
        return f"{'http' if local else 'https'}://{self.host}"

    @property
    def full(self) -> str:
        """The name with a host, docker's own where there is none, as containerd keeps images."""
        if self.registry:
            return f"{self.registry}/{self.repository}:{self.tag}"
        official = "" if "/" in self.repository else "library/"
        return f"{HUB}/{official}{self.repository}:{self.tag}"


def parse_name(text: str) -> Reference:
    """Parse `[HOST[:PORT]/]NAME:TAG`, what an image is called here. Raises `ImageNameError`."""
    found = _parsed(text)
    if not found.tag:
        raise ImageNameError(f"{text!r} has no tag", hint=f"give it one: {text}:latest")
    return found


def parse_reference(text: str) -> Reference:
    """Parse `HOST[:PORT]/NAME[:TAG]`, where an image goes; the tag is `latest` by default.

    Raises `ImageNameError`, also when it names no registry.
    """
    found = _parsed(text)
    if not found.registry:
        raise ImageNameError(
            f"{text!r} does not say which registry", hint="invoke push HOST/NAME:TAG"
        )
    return Reference(found.registry, found.repository, found.tag or "latest")


def _parsed(text: str) -> Reference:
    if "@" in text:
        raise ImageNameError(
            f"{text!r} names an image by its digest, which is not chosen but follows from what "
            "is in the image",
            hint="write a tag in its place: NAME:TAG",
        )
    first, slash, rest = text.partition("/")
    # As clients decide it: a first part with a dot, a port or this name is a host.
    registry = first if slash and (re.search(r"[.:]", first) or first == "localhost") else ""
    if registry and not _HOST.fullmatch(registry):
        raise ImageNameError(f"{text!r}: {registry!r} is no host", hint="HOST[:PORT]/NAME:TAG")
    repository, colon, tag = (rest if registry else text).partition(":")
    if colon and not _TAG.fullmatch(tag):
        raise ImageNameError(
            f"{text!r}: {tag!r} is no tag",
            hint="a tag is up to 128 letters, digits, '_', '.' and '-', and does not begin with "
            "the last two",
        )
    if not _REPOSITORY.fullmatch(repository):
        lower = _REPOSITORY.fullmatch(repository.lower())
        raise ImageNameError(
            f"{text!r}: {repository!r} is no name that registries take",
            hint=f"names are lower case: {lower[0]}"
            if lower
            else "a name is lower-case letters and digits, with '.', '_', '__' or '-' between "
            "them and '/' between its parts",
        )
    if len(registry) + len(slash if registry else "") + len(repository) > _LONGEST:
        raise ImageNameError(f"the name is longer than {_LONGEST} characters: {text!r}")
    return Reference(registry, repository, tag)
