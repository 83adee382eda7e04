"""A wheel's METADATA without the wheel: PEP 658 where the index serves it, else by ranges."""

from __future__ import annotations

import contextlib
import zipfile

import requests
from remotezip import RangeNotSupported, RemoteIOError, RemoteZip

from torchlock.artifacts import Store, fetch
from torchlock.errors import TorchlockError
from torchlock.files import write_atomically
from torchlock.formats.wheel import metadata_member
from torchlock.http import new_session
from torchlock.lock import Package


def read_metadata(package: Package, store: Store) -> str:
    """Return the METADATA text of a locked wheel; kept in the store for the next time.

    Tries the `.metadata` file beside the wheel (PEP 658), then the one member of the remote
    archive, then the whole wheel, which installing it needs anyway. Raises `TorchlockError`
    when none can be had.
    """
    kept = store.root / "metadata" / package.sha256
    if kept.is_file():
        return kept.read_text(encoding="utf-8")
    try:
        text = _ask(package, store)
    except (requests.RequestException, RemoteIOError, zipfile.BadZipFile) as error:
        raise TorchlockError(
            f"the metadata of {package.label} cannot be fetched: {error}",
            hint="check the network, proxy and index settings",
        ) from None
    with contextlib.suppress(OSError):  # a store that cannot be written only costs time
        kept.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(kept, text.encode())
    return text


def _ask(package: Package, store: Store) -> str:
    with new_session() as session:
        answer = session.get(package.url + ".metadata", timeout=30)
        if answer.ok:
            return answer.content.decode("utf-8", "replace")
        try:
            with RemoteZip(package.url, session=session, timeout=30) as archive:
                return _member(archive)
        except RangeNotSupported:
            (path,) = fetch([package], store)
            with zipfile.ZipFile(path) as archive:
                return _member(archive)


def _member(archive: zipfile.ZipFile) -> str:
    return archive.read(metadata_member(archive.namelist())).decode("utf-8", "replace")
