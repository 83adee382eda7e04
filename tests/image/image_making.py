"""Small wheels, packages and locks to render from."""

from __future__ import annotations

import base64
import bz2
import gzip
import hashlib
import io
import json
import lzma
import tarfile
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import IO

from torchlock.oci.layer import Blob, file_item, write_layer
from torchlock.oci.layout import (
    MANIFEST,
    Document,
    Layout,
    document,
    image_config,
    image_manifest,
    referrer_manifest,
)
from torchlock.realize.image_documents import Image, image_digest
from torchlock.realize.image_plan import ImageSource, plan, recorded_layers
from torchlock.rootfs.lock import RootfsLock


def record_row(path: str, content: bytes) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).decode().rstrip("=")
    return f"{path},sha256={digest},{len(content)}\n"


def make_wheel(
    directory: Path,
    name: str = "demo",
    files: dict[str, bytes] | None = None,
    *,
    entry_points: str = "",
    compression: int = zipfile.ZIP_DEFLATED,
) -> Path:
    info = f"{name}-1.0.dist-info"
    members = dict(files if files is not None else {f"{name}/__init__.py": b"value = 1\n" * 50})
    members[f"{info}/METADATA"] = f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n".encode()
    members[f"{info}/WHEEL"] = b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    if entry_points:
        members[f"{info}/entry_points.txt"] = entry_points.encode()
    record = "".join(record_row(path, content) for path, content in members.items())
    members[f"{info}/RECORD"] = (record + f"{info}/RECORD,,\n").encode()
    path = directory / f"{name}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for member, content in members.items():
            row = zipfile.ZipInfo(member, (1980, 1, 1, 0, 0, 0))
            row.external_attr = 0o644 << 16
            row.compress_type = compression
            archive.writestr(row, content)
    return path


def _ar(members: dict[str, bytes]) -> bytes:
    out = b"!<arch>\n"
    for name, content in members.items():
        out += f"{name:<16}{0:<12}{0:<6}{0:<6}{'100644':<8}{len(content):<10}`\n".encode()
        out += content + b"\n" * (len(content) % 2)
    return out


def _tar(entries: list[tuple[tarfile.TarInfo, bytes]]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for info, content in entries:
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return out.getvalue()


def entry(name: str, kind: bytes = tarfile.REGTYPE, mode: int = 0o644, target: str = ""):
    info = tarfile.TarInfo(name)
    info.type, info.mode, info.linkname = kind, mode, target
    return info


COMPRESSED = {"": bytes, ".xz": lzma.compress, ".gz": gzip.compress, ".bz2": bz2.compress}


def make_deb(
    directory: Path,
    name: str,
    files: list[tuple[tarfile.TarInfo, bytes]],
    *,
    control: dict[str, bytes] | None = None,
    version: str = "1.0",
    fields: str = "",
    compression: str = "",
) -> Path:
    text = f"Package: {name}\nVersion: {version}\nArchitecture: amd64\n{fields}Description: x\n"
    members = {"control": text.encode(), **(control or {})}
    path = directory / f"{name}_{version}_amd64.deb"
    path.write_bytes(
        _ar(
            {
                "debian-binary": b"2.0\n",
                "control.tar": _tar([(entry(f"./{k}"), v) for k, v in members.items()]),
                f"data.tar{compression}": COMPRESSED[compression](_tar(files)),
            }
        )
    )
    return path


def write_json(path: Path, content: object) -> Path:
    path.write_text(json.dumps(content))
    return path


def small_layout(root: Path, tag: str) -> Layout:
    """A layout that holds an image of two layers under `tag`."""
    made = Layout(root)
    made.prepare()
    layers = []
    for name in ("one", "two"):
        blobs: list[Blob] = []
        content = b"".join(hashlib.sha256(f"{name}{i}".encode()).digest() for i in range(4000))

        def write(
            stream: IO[bytes], content: bytes = content, name: str = name, blobs: list[Blob] = blobs
        ) -> str:
            blobs.append(write_layer([file_item(name, content)], stream))
            return blobs[0].digest

        made.add(write)
        layers.append((name, blobs[0]))
    config = image_config(
        created="2026-01-01T00:00:00Z", architecture="amd64", run={}, layers=layers
    )
    manifest = image_manifest(config, layers, {})
    for content in (config, manifest):
        made.add_document(content)
    made.publish(tag, manifest)
    return made


def attach(layout: Layout, tag: str) -> Document:
    """Attach a bill of materials to the image named `tag`; return the manifest that does."""
    manifest = Document(MANIFEST, layout.read(layout.find(tag)))
    attached = document("application/vnd.cyclonedx+json", {"bomFormat": "CycloneDX"})
    referrer, empty = referrer_manifest(manifest, attached)
    for content in (attached, referrer, empty):
        layout.add_document(content)
    layout.publish(tag, manifest, [referrer])
    return referrer


def check_recorded(source: ImageSource, committed: RootfsLock, image: Image) -> str:
    """Compare a rendered image with the repository's records; say what could not be compared.

    With the committed rootfs lock that is nothing, and the digest is compared too. With another
    one, every layer that does not depend on a changed package is compared.
    """
    if source.rootfs == committed:
        assert image_digest(source) == image.digest
        return ""
    recorded, made = recorded_layers(source).layers, dict(image.layers)
    before = {p.key for p in plan(replace(source, rootfs=committed))}
    same = [p for p in plan(source) if p.key in before]
    wheels = [p for p in plan(source) if p.kind == "wheels"]
    assert wheels and all(p in same for p in wheels), "wheels' layers depend on no package"
    assert {p.title: made[p.title] for p in same} == {p.title: recorded[p.key] for p in same}
    changed = sorted({p.name for p in {*source.rootfs.packages} ^ {*committed.packages}})
    left = [p.title for p in plan(source) if p not in same]
    return (
        f"NOT COMPARED with the records: {', '.join(left)}, and the image's digest. The archives "
        f"lack packages of the rootfs lock, so newer ones were locked: {', '.join(changed)}. "
        "Lock and record again: invoke lock --rootfs, invoke image --record"
    )
