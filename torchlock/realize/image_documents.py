"""What an image says of itself: configuration, manifest, labels, bill of materials, digest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from io import BytesIO

from torchlock.errors import TorchlockError
from torchlock.oci.layer import Blob, write_layer
from torchlock.oci.layout import Document, image_config, image_manifest, referrer_manifest
from torchlock.realize.image_contents import (
    TOOLS,
    conda_environment,
    contents_items,
    debian_environment,
)
from torchlock.realize.image_plan import ImageSource, plan, recorded_layers
from torchlock.realize.image_records import FORMAT
from torchlock.realize.image_sbom import sbom
from torchlock.realize.image_wheels import PREFIX

DRIVER_FLOOR = "525.60.13"
"""The oldest NVIDIA driver for CUDA 12, by minor-version compatibility."""


@dataclass(frozen=True)
class Image:
    """A planned image whose layers are known: its documents."""

    manifest: Document
    config: Document
    layers: tuple[tuple[str, Blob], ...]
    documents: tuple[Document, ...]
    referrer: Document

    @property
    def digest(self) -> str:
        """The manifest's digest."""
        return self.manifest.digest


def image_digest(source: ImageSource) -> str:
    """Return the manifest digest that the locks must give, from recorded layers alone.

    Raises `TorchlockError` when a layer is not recorded.
    """
    known = recorded_layers(source).layers
    layers = []
    for planned in plan(source):
        if planned.key not in known:
            raise TorchlockError(
                f"the layer {planned.title!r} is not recorded for these locks, so the digest of "
                f"the image on {source.foundation} cannot be told",
                hint="render the image once and record its layers: invoke image "
                f"--foundation {source.foundation} --record",
            )
        layers.append((planned.title, known[planned.key]))
    return documents_of(source, layers, contents_layer(source)[1]).digest


def contents_layer(source: ImageSource) -> tuple[bytes, Blob]:
    """Return the last layer, which holds the image's own files: its bytes and digests."""
    out = BytesIO()
    on_conda = source.foundation == "conda"
    environment = conda_environment() if on_conda else debian_environment(source.rootfs)
    blob = write_layer(contents_items(source.repository.root, environment), out)
    return out.getvalue(), blob


def documents_of(source: ImageSource, layers: Sequence[tuple[str, Blob]], contents: Blob) -> Image:
    """Return the image of these layers, given as (title, layer), and of the last one."""
    everything = (*layers, ("torchlock: entry point, notebook, checks", contents))
    annotations = _annotations(source)
    config = image_config(
        created=source.rootfs.date,
        architecture="amd64",
        run={**_run(), "Labels": {**annotations, **_labels(source)}},
        layers=everything,
    )
    manifest = image_manifest(config, everything, annotations)
    materials = sbom("torchlock", source.wheels, source.conda, source.rootfs)
    referrer, empty = referrer_manifest(manifest, materials)
    return Image(
        manifest, config, everything, (config, materials, empty, manifest, referrer), referrer
    )


def _version(source: ImageSource, name: str) -> str:
    return next((w.version for w in source.wheels if w.name == name), "")


def _annotations(source: ImageSource) -> dict[str, str]:
    torch = _version(source, "torch")
    return {
        "org.opencontainers.image.title": "torchlock",
        "org.opencontainers.image.description": f"PyTorch {torch} with CUDA, locked",
        "org.opencontainers.image.version": torch,
        "org.opencontainers.image.created": source.rootfs.date,
        # The lock is what this image is a revision of; a commit would change with every comment.
        "org.opencontainers.image.revision": source.lock.digest,
        "org.opencontainers.image.licenses": "Apache-2.0 AND BSD-3-Clause AND LicenseRef-NVIDIA",
        "org.opencontainers.image.base.name": f"debian:{source.rootfs.codename}",
    }


def _labels(source: ImageSource) -> dict[str, str]:
    return {
        "torchlock.lock": source.lock.digest,
        "torchlock.rootfs": source.rootfs.digest,
        "torchlock.format": str(FORMAT),
        "torchlock.foundation": source.foundation,
        "torchlock.cuda": _version(source, "nvidia-cuda-runtime-cu12"),
        "torchlock.driver.minimum": DRIVER_FLOOR,
    }


def _run() -> dict[str, object]:
    system = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    return {
        "Env": [
            f"PATH=/{PREFIX}/bin:{system}",
            "LANG=C.UTF-8",
            "SHELL=/bin/bash",
            f"TORCHLOCK_TOOLS=/{TOOLS}",
            "NVIDIA_VISIBLE_DEVICES=all",
            "NVIDIA_DRIVER_CAPABILITIES=compute,utility",
            # CUDA 12.0 came with driver branch 525, the floor of every CUDA 12 runtime.
            "NVIDIA_REQUIRE_CUDA=cuda>=12.0",
        ],
        # -s: it reaps also where it is not PID 1 (docker run --init, a shared PID namespace).
        "Entrypoint": ["/usr/bin/tini", "-s", "-g", "--", f"/{PREFIX}/libexec/entrypoint"],
        "Cmd": ["serve"],
        "WorkingDir": "/workspace",
        "ExposedPorts": {"22/tcp": {}, "8888/tcp": {}},
        "StopSignal": "SIGTERM",
        "Healthcheck": {
            "Test": ["CMD", f"/{PREFIX}/libexec/health"],
            "Interval": 30_000_000_000,
            "Timeout": 10_000_000_000,
            "StartPeriod": 60_000_000_000,
            "Retries": 3,
        },
    }
