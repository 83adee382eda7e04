"""Render the OCI image from what Nix has fetched: `python image.py SETTINGS OUT`.

SETTINGS is a JSON file with `source` (the repository) and `artifacts` (`filename`, `sha256` and
`path` of every locked wheel and Debian package). OUT gets the layout. Runs in a Nix build,
without a network: an artifact that Nix did not fetch is named.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

from torchlock.artifacts import Store
from torchlock.errors import TorchlockError
from torchlock.realize.image import render
from torchlock.realize.image_plan import ImageSource, image_source
from torchlock.repository import Repository


def image(settings: Mapping[str, Any], out: Path) -> None:
    """Write the layout. Raises `TorchlockError` as `render` does."""
    source = image_source(Repository(Path(settings["source"])), "debian")
    with TemporaryDirectory() as scratch:
        store = Store(Path(scratch))
        for row in settings["artifacts"]:
            link = store.path(SimpleNamespace(label=row["filename"], url="", **row))
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(row["path"])
        check_all_there(source, store)
        render(source, out, store, say=lambda line: print(line, flush=True))  # noqa: T201
    (out / "blobs" / ".lock").unlink(missing_ok=True)


def check_all_there(source: ImageSource, store: Store) -> None:
    """Raise `TorchlockError` when Nix was given another lock than the image is made from."""
    wanted = (*source.wheels, *source.rootfs.packages)
    missing = [artifact.filename for artifact in wanted if not store.path(artifact).exists()]
    if missing:
        raise TorchlockError(
            f"conda-lock.yml names {', '.join(missing)}, which pylock.toml does not",
            hint="make its view again with: invoke lock",
        )


if __name__ == "__main__":
    try:
        image(json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2]))
    except TorchlockError as error:
        sys.exit(f"torchlock: {error}")
