"""Recorded layers: what a layer with given inputs comes out as.

`torchlock/records/image-<platform>.json` holds the layers of the locks in the repository, so
that the image's digest can be told without rendering it, and a render need not compute what
is known. Layers of other locks are remembered beside the artifact store, and with them what
spares the next render the work: blobs of layers that were packed, frames of those spliced.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from torchlock.errors import TorchlockError
from torchlock.files import is_ours_alone, write_atomically
from torchlock.oci.frame import Frame, decoded
from torchlock.oci.layer import Blob

FORMAT = 1
"""The renderer's stated format version. It stands for every rule that decides a layer's bytes
(tar headers, splicing, the encoder, the layer plan, what installers write): when one of them
changes, so does this number, and with it every key."""


@dataclass(frozen=True)
class LayerRecords:
    """Known layers by key; see `image_plan.Planned` for what a key is made of."""

    layers: Mapping[str, Blob]


def records_path(directory: Path, platform: str) -> Path:
    """Return where the layers of a platform are recorded."""
    return directory / f"image-{platform}.json"


def read_layer_records(path: Path) -> LayerRecords:
    """Read recorded layers, none where the file is absent or of another format.

    Raises `TorchlockError` when the file is damaged.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if content["format"] != FORMAT:
            return LayerRecords({})
        return LayerRecords({key: _blob(row) for key, row in content["layers"].items()})
    except FileNotFoundError:
        return LayerRecords({})
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise TorchlockError(
            f"{path} is damaged ({type(error).__name__}: {error})",
            hint="restore it with git, or make it again with: invoke image --record",
        ) from None


def _blob(row: Mapping[str, Any]) -> Blob:
    return Blob(str(row["digest"]), int(row["size"]), str(row["diff_id"]))


def write_layer_records(path: Path, layers: Mapping[str, tuple[str, Blob]]) -> None:
    """Record layers, given as key -> (title, blob)."""
    rows = {key: {"title": title, **asdict(blob)} for key, (title, blob) in layers.items()}
    text = json.dumps({"format": FORMAT, "layers": rows}, indent=1) + "\n"
    write_atomically(path, text.encode())


@dataclass(frozen=True)
class LayerCache:
    """What this machine has made before, below the artifact store: records, blobs and frames.

    Records and frames are the user's own word for what nothing recomputes: those that another
    user could have written are not believed.
    """

    root: Path

    def known(self, key: str) -> Blob | None:
        """Return the layer that was once written under `key`, if any."""
        try:
            with (self.root / f"{key}.json").open("rb") as stream:
                if not is_ours_alone(os.fstat(stream.fileno())):
                    return None
                return _blob(json.load(stream))
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def remember(self, key: str, blob: Blob) -> None:
        """Note what `key` came out as. Raises `OSError`."""
        self.root.mkdir(parents=True, exist_ok=True)
        write_atomically(self.root / f"{key}.json", json.dumps(asdict(blob)).encode())

    def frame(self, digest: str) -> Frame | None:
        """Return the frame of the layer with this digest, if it was kept."""
        try:
            with self._frame(digest).open("rb") as stream:
                return decoded(stream.read()) if is_ours_alone(os.fstat(stream.fileno())) else None
        except (OSError, ValueError):
            return None

    def keep_frame(self, digest: str, frame: Frame) -> None:
        """Keep the frame of the layer that came out with this digest. Raises `OSError`."""
        self.root.mkdir(parents=True, exist_ok=True)
        write_atomically(self._frame(digest), frame.encoded())

    def _frame(self, digest: str) -> Path:
        return self.root / f"{digest.removeprefix('sha256:')}.frame"

    def blob(self, digest: str) -> Path:
        """Return where a blob is kept, whether or not it is there."""
        return self.root / digest.removeprefix("sha256:")

    def keep(self, digest: str, path: Path) -> None:
        """Keep a copy of the blob at `path`, whole or not at all. Raises `OSError`."""
        kept = self.blob(digest)
        if kept.exists():
            return
        self.root.mkdir(parents=True, exist_ok=True)
        handle, scratch = tempfile.mkstemp(dir=self.root, prefix=".partial-")
        try:
            with os.fdopen(handle, "wb") as out, path.open("rb") as source:
                shutil.copyfileobj(source, out, 1 << 20)
            Path(scratch).chmod(0o644)
            Path(scratch).replace(kept)
        finally:
            Path(scratch).unlink(missing_ok=True)
