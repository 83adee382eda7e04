"""Handing a layout's image to the engine on this machine."""

from __future__ import annotations

import io
import json
import re
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import IO, Any, cast
from uuid import uuid4

from torchlock.errors import TorchlockError
from torchlock.oci.layout import INDEX, REF_NAME, Descriptor, Layout, document

ENGINES = ("podman", "docker", "ctr")
"""In the order in which they are looked for; `ctr` is containerd's own client."""


class LoadError(TorchlockError):
    """No engine is here, or the engine refuses the image."""


@dataclass(frozen=True)
class Loaded:
    """An image that an engine has: under which name, and whether by which digest.

    `digest_kept` is False where the route makes a manifest of its own.
    """

    engine: str
    name: str
    digest: str
    digest_kept: bool


def load(layout: Layout, tag: str, engine: str = "") -> Loaded:
    """Load the image named `tag` into an engine, the first one found unless one is named.

    Raises `LoadError` without an engine, for a layout that lacks a blob, or with the engine's
    words when it refuses.
    """
    chosen = engine or next((e for e in ENGINES if shutil.which(e)), "")
    if chosen not in ENGINES or not shutil.which(chosen):
        raise LoadError(
            f"{chosen or 'no container engine'} is not on PATH (podman, docker or ctr)",
            hint="install one; or push the image to a registry: invoke push HOST/NAME:TAG",
        )
    descriptor = layout.find(tag)
    for row in _closure(descriptor, layout.manifest(descriptor)):
        if not layout.has(row["digest"], int(row["size"])):
            raise LoadError(
                f"{layout.root} lacks the blob {row['digest']} of {tag}, or it is cut short",
                hint=f"invoke image --out {quote(str(layout.root))} --tag {quote(tag)}",
            )
    routes = {"podman": _podman, "docker": _docker, "ctr": _containerd}
    return routes[chosen](layout, tag, descriptor)


def _podman(layout: Layout, tag: str, descriptor: Descriptor) -> Loaded:
    link = _plain_name(layout.root)
    try:
        image = _run(["podman", "pull", "--quiet", f"oci:{link}:{tag}"]).strip().splitlines()[-1]
    finally:
        link.unlink()
    _run(["podman", "tag", image, tag])
    for name in json.loads(_run(["podman", "image", "inspect", "-f", "{{json .RepoTags}}", image])):
        if link.name in name:
            _run(["podman", "untag", image, name])
    digest = _run(["podman", "image", "inspect", "--format", "{{.Digest}}", tag]).strip()
    return Loaded("podman", f"localhost/{tag}", digest, digest == descriptor["digest"])


def _plain_name(path: Path) -> Path:
    """Return a link to `path` with a plain name of its own.

    Podman makes an image's name of a path, which may have letters that no name has, and keeps it.
    """
    directory = tempfile.gettempdir()
    if not re.fullmatch(r"[a-z0-9/._-]+", directory):
        directory = "/tmp"  # noqa: S108 - a link of a random name
    try:
        link = Path(directory) / f"torchlock{uuid4().hex}"
        link.symlink_to(path.resolve())
    except OSError as error:
        raise LoadError(
            "podman is given the layout under a plain name, and the temporary directory takes "
            f"none ({error.strerror})",
            hint="name one that can be written: TMPDIR=DIR invoke load",
        ) from None
    return link


def _docker(layout: Layout, tag: str, descriptor: Descriptor) -> Loaded:
    _run(["docker", "load"], lambda out: _archive(layout, tag, descriptor, out))
    image = _run(["docker", "image", "inspect", "--format", "{{.Id}}", tag]).strip()
    # Docker's own store names an image by its configuration; with containerd's store the name
    # is the manifest's digest.
    return Loaded("docker", tag, image, image == descriptor["digest"])


def _containerd(layout: Layout, tag: str, descriptor: Descriptor) -> Loaded:
    name = f"docker.io/library/{tag}"
    # The name comes from the archive's annotation: `--index-name` would name the index.
    _run(["ctr", "images", "import", "-"], lambda out: _archive(layout, name, descriptor, out))
    rows = _run(["ctr", "images", "list", f"name=={name}"])
    return Loaded("ctr", name, str(descriptor["digest"]), str(descriptor["digest"]) in rows)


def _run(command: list[str], feed: Callable[[IO[bytes]], None] | None = None) -> str:
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE if feed else subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    if feed and process.stdin:
        try:
            feed(process.stdin)
            process.stdin.close()
        except BrokenPipeError:  # the engine has given up; its own words follow
            pass
        except BaseException as fault:  # half an archive must not look like all of it
            process.kill()
            process.communicate()
            if isinstance(fault, OSError):
                raise LoadError(f"the layout cannot be read: {fault}") from None
            raise
        process.stdin = None
    out, err = process.communicate()
    if process.returncode:
        raise LoadError(f"{command[0]} could not load the image: {err.decode().strip()}")
    return out.decode()


def _archive(layout: Layout, tag: str, descriptor: Descriptor, out: IO[bytes]) -> None:
    """Write one image as a tar that is an OCI archive and a `docker save` archive in one."""
    manifest = layout.manifest(descriptor)
    named = {**descriptor, "annotations": {REF_NAME: tag, "io.containerd.image.name": tag}}
    index = document(INDEX, {"schemaVersion": 2, "mediaType": INDEX, "manifests": [named]})
    docker = [
        {
            "Config": _member(manifest["config"]),
            "RepoTags": [tag],
            "Layers": [_member(row) for row in manifest["layers"]],
        }
    ]
    with tarfile.open(fileobj=cast(Any, out), mode="w|", format=tarfile.PAX_FORMAT) as archive:
        for name, content in (
            ("oci-layout", b'{"imageLayoutVersion":"1.0.0"}'),
            ("index.json", index.content),
            ("manifest.json", json.dumps(docker).encode()),
        ):
            _add(archive, name, len(content), io.BytesIO(content))
        for row in _closure(descriptor, manifest):
            path = layout.blob(row["digest"])
            with path.open("rb") as stream:
                _add(archive, _member(row), path.stat().st_size, stream)


def _closure(descriptor: Descriptor, manifest: dict[str, Any]) -> Iterator[Descriptor]:
    rows = (descriptor, manifest["config"], *manifest["layers"])
    yield from {row["digest"]: row for row in rows}.values()


def _member(row: Descriptor) -> str:
    return f"blobs/sha256/{row['digest'].removeprefix('sha256:')}"


def _add(archive: tarfile.TarFile, name: str, size: int, stream: IO[bytes]) -> None:
    info = tarfile.TarInfo(name)
    info.size = size
    archive.addfile(info, stream)
