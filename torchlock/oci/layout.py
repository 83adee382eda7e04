"""OCI image layouts: blobs by digest, and an index that appears only when all is there.

Format: OCI image specification 1.1 (image layout, manifest, configuration, referrers).
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import IO, Any

from filelock import FileLock, Timeout

from torchlock.errors import TorchlockError
from torchlock.oci.layer import Blob

MANIFEST = "application/vnd.oci.image.manifest.v1+json"
INDEX = "application/vnd.oci.image.index.v1+json"
CONFIG = "application/vnd.oci.image.config.v1+json"
LAYER = "application/vnd.oci.image.layer.v1.tar+gzip"
EMPTY = "application/vnd.oci.empty.v1+json"

REF_NAME = "org.opencontainers.image.ref.name"
"""The annotation that names an image of an index."""


class LayoutError(TorchlockError):
    """The layout is not one, or cannot be written."""


Descriptor = Mapping[str, Any]


@dataclass(frozen=True)
class Document:
    """A JSON blob: its media type, its bytes and its digest."""

    media_type: str
    content: bytes

    @property
    def digest(self) -> str:
        """`sha256:` and hex."""
        return "sha256:" + hashlib.sha256(self.content).hexdigest()

    def descriptor(self, **more: Any) -> dict[str, Any]:
        """Return what an index or manifest says of it."""
        return {
            "mediaType": self.media_type,
            "digest": self.digest,
            "size": len(self.content),
            **more,
        }


def document(media_type: str, content: Mapping[str, Any]) -> Document:
    """Serialize a JSON document one way: sorted keys, no spaces, ASCII."""
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return Document(media_type, text.encode())


def image_config(
    *,
    created: str,
    architecture: str,
    run: Mapping[str, Any],
    layers: Sequence[tuple[str, Blob]],
) -> Document:
    """Return an image's configuration. `layers` are (title, blob), lowest first; `run` is the
    `config` object: Env, Entrypoint, Labels and so on."""
    return document(
        CONFIG,
        {
            "created": created,
            "architecture": architecture,
            "os": "linux",
            "config": run,
            "rootfs": {"type": "layers", "diff_ids": [blob.diff_id for _, blob in layers]},
            "history": [{"created": created, "created_by": title} for title, _ in layers],
        },
    )


def image_manifest(
    config: Document, layers: Sequence[tuple[str, Blob]], annotations: Mapping[str, str]
) -> Document:
    """Return an image's manifest; each layer carries its title as an annotation."""
    return document(
        MANIFEST,
        {
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": config.descriptor(),
            "layers": [
                {
                    "mediaType": LAYER,
                    "digest": blob.digest,
                    "size": blob.size,
                    "annotations": {"org.opencontainers.image.title": title},
                }
                for title, blob in layers
            ],
            "annotations": dict(annotations),
        },
    )


def referrer_manifest(subject: Document, artifact: Document) -> tuple[Document, Document]:
    """Return a manifest that attaches `artifact` to `subject`, and its empty configuration."""
    empty = Document(EMPTY, b"{}")
    manifest = document(
        MANIFEST,
        {
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "artifactType": artifact.media_type,
            "config": empty.descriptor(),
            "layers": [artifact.descriptor()],
            "subject": subject.descriptor(),
        },
    )
    return manifest, empty


@dataclass(frozen=True)
class Layout:
    """An image layout directory."""

    root: Path

    def blob(self, digest: str) -> Path:
        """Return where a blob is, whether or not it is there."""
        if not re.fullmatch(r"sha256:[0-9a-f]{64}", digest):
            raise LayoutError(f"{digest!r} is no sha256 digest")
        return self.root / "blobs" / "sha256" / digest.removeprefix("sha256:")

    def has(self, digest: str, size: int) -> bool:
        """Say whether a blob is there in its full size; blobs appear only when complete."""
        try:
            return self.blob(digest).stat().st_size == size
        except FileNotFoundError:
            return False

    def prepare(self) -> None:
        """Make the directories.

        Raises `LayoutError` when `root` holds something else, or cannot be written.
        """
        try:
            if self.root.exists() and any(self.root.iterdir()) and not self._is_ours():
                raise LayoutError(
                    f"{self.root} is not empty and holds no image layout",
                    hint="choose an empty or a new directory with --out",
                )
            (self.root / "blobs" / "sha256").mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise self._fault(error) from None

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Prepare the layout and keep other renders off it; remove what a killed one left.

        Raises `LayoutError` when another one is at work, or as `prepare` does.
        """
        self.prepare()
        lock = FileLock(self.root / "blobs" / ".lock")
        try:
            lock.acquire(timeout=0)
            # Only now: half-written blobs of a render that is at work are not left over.
            for left in (self.root / "blobs").glob(".partial-*"):
                left.unlink()
        except Timeout:
            raise LayoutError(
                f"another render is working on {self.root}",
                hint="wait for it, then run this again; or choose another --out",
            ) from None
        except OSError as error:
            lock.release()
            raise self._fault(error) from None
        try:
            yield
        finally:
            lock.release()

    def _is_ours(self) -> bool:
        return (self.root / "blobs").is_dir()

    def add(self, write: Callable[[IO[bytes]], str]) -> str:
        """Write a blob through `write`, which returns its digest; return that digest.

        The blob appears under its name only when complete. Raises `LayoutError` for a full
        disk or a directory that cannot be written.
        """
        scratch = ""
        try:
            handle, scratch = tempfile.mkstemp(dir=self.root / "blobs", prefix=".partial-")
            with os.fdopen(handle, "wb") as stream:
                digest = write(stream)
                stream.flush()
                os.fsync(stream.fileno())
            Path(scratch).chmod(0o644)
            Path(scratch).replace(self.blob(digest))
        except OSError as error:
            raise self._fault(error) from None
        finally:
            if scratch:
                Path(scratch).unlink(missing_ok=True)
        return digest

    def add_document(self, content: Document) -> None:
        """Write a JSON blob unless it is there."""
        if not self.has(content.digest, len(content.content)):

            def write(stream: IO[bytes]) -> str:
                stream.write(content.content)
                return content.digest

            self.add(write)

    def publish(self, tag: str, manifest: Document, referrers: Sequence[Document] = ()) -> None:
        """Name `manifest` by `tag` in the index, replacing what had the name before.

        What is attached to an image stays as long as the image has a name.
        `oci-layout` and `index.json` are written last: without them there is no layout.
        """
        named = manifest.descriptor(annotations={REF_NAME: tag})
        rows = self.index()
        others = [row for row in rows if _name(row) not in (None, tag)]
        attached = {
            r.digest: r.descriptor(artifactType=json.loads(r.content)["artifactType"])
            for r in referrers
        }
        images = {str(row["digest"]) for row in others}
        for row in rows:
            if _name(row) is None and self._is_attached(row, images):
                attached.setdefault(str(row["digest"]), dict(row))
        index = document(
            INDEX,
            {
                "schemaVersion": 2,
                "mediaType": INDEX,
                "manifests": [named, *others, *sorted(attached.values(), key=_digest)],
            },
        )
        self._write("oci-layout", b'{"imageLayoutVersion":"1.0.0"}')
        self._write("index.json", index.content)

    def _write(self, name: str, content: bytes) -> None:
        scratch = self.root / "blobs" / f".partial-{name}"
        try:
            scratch.write_bytes(content)
            scratch.replace(self.root / name)
        except OSError as error:
            scratch.unlink(missing_ok=True)
            raise self._fault(error) from None

    def index(self) -> list[Descriptor]:
        """Return the descriptors of the index, none where there is no index yet."""
        try:
            content = json.loads((self.root / "index.json").read_bytes())
            return [_row(row) for row in content["manifests"]]
        except FileNotFoundError:
            return []
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise LayoutError(
                f"{self.root}/index.json is damaged ({type(error).__name__}: {error})",
                hint=f"remove it and render again: invoke image --out {quote(str(self.root))}",
            ) from None

    def find(self, tag: str) -> Descriptor:
        """Return the descriptor of the image named `tag`. Raises `LayoutError` without one."""
        for row in self.index():
            if _name(row) == tag:
                return row
        raise LayoutError(
            f"{self.root} has no image {tag}",
            hint=f"invoke image --out {quote(str(self.root))} --tag {quote(tag)}",
        )

    def read(self, descriptor: Descriptor) -> bytes:
        """Return a small blob. Raises `LayoutError` when it is absent or has another digest."""
        try:
            content = self.blob(descriptor["digest"]).read_bytes()
        except OSError as error:
            raise LayoutError(f"{self.root}: {descriptor['digest']}: {error.strerror}") from None
        if "sha256:" + hashlib.sha256(content).hexdigest() != descriptor["digest"]:
            raise LayoutError(f"{self.root}: blob {descriptor['digest']} is damaged")
        return content

    def manifest(self, descriptor: Descriptor) -> dict[str, Any]:
        """Return an image's manifest. Raises `LayoutError` when it is none, or damaged."""
        content = json.loads(self.read(descriptor))
        try:
            for row in (content["config"], *content["layers"]):
                self.blob(row["digest"])
                int(row["size"])
        except (KeyError, TypeError, ValueError):
            raise LayoutError(
                f"{self.root}: {descriptor['digest']} is no image manifest",
                hint=f"invoke image --out {quote(str(self.root))}",
            ) from None
        return dict(content)

    def referrers(self, digest: str) -> list[Descriptor]:
        """Return the descriptors of manifests that are attached to `digest`."""
        return [row for row in self.index() if self._subject(row) == digest]

    def _is_attached(self, descriptor: Descriptor, digests: Container[str]) -> bool:
        """Say whether a manifest is there and attached to one of `digests`."""
        try:
            return self._subject(descriptor) in digests
        except LayoutError:  # publishing is what repairs a layout
            return False

    def _subject(self, descriptor: Descriptor) -> str:
        content = json.loads(self.read(descriptor))
        subject = content.get("subject") if isinstance(content, dict) else None
        return str(subject.get("digest")) if isinstance(subject, dict) else ""

    def _fault(self, error: OSError) -> LayoutError:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            free = shutil.disk_usage(self.root).free
            return LayoutError(
                f"no space left in {self.root} ({free / 1e9:.1f} GB free)",
                hint="free some space or choose another --out; "
                "layers that are complete are used again",
            )
        return LayoutError(f"{self.root} cannot be written: {error.strerror}")


def _row(row: Any) -> Descriptor:
    """Check what is used of an index's row. Raises `TypeError` or `KeyError`."""
    if not isinstance(row, dict) or not isinstance(row.get("annotations") or {}, dict):
        raise TypeError(f"{row!r} is no descriptor")
    if not all(isinstance(row[key], str) for key in ("digest", "mediaType")):
        raise TypeError(f"{row!r} is no descriptor")
    return row


def _name(row: Descriptor) -> str | None:
    return (row.get("annotations") or {}).get(REF_NAME)


def _digest(row: Descriptor) -> str:
    return str(row["digest"])
