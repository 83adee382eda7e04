"""A Debian archive's index, believed only where the archive's key vouches for it.

Format: the Debian repository format (InRelease, by-hash Packages indices). The signature is
checked by gpgv with the archive keys in `keys/`, which come from the debian-archive-keyring
package.
"""

from __future__ import annotations

import hashlib
import lzma
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime
from pathlib import Path

import requests

from torchlock.errors import TorchlockError
from torchlock.http import new_session
from torchlock.rootfs.control import paragraphs
from torchlock.urls import public

KEYS = Path(__file__).parent / "keys"


class ArchiveError(TorchlockError):
    """The archive cannot be reached, or what it serves is not vouched for."""


@dataclass(frozen=True)
class Release:
    """A verified InRelease: its date (UTC), its sha256, and path -> sha256 of its indices."""

    date: datetime
    sha256: str
    indices: dict[str, str]


def fetch_suite(
    urls: Sequence[str], suite: str, architecture: str, keys: Path = KEYS
) -> tuple[Release, list[dict[str, str]]]:
    """Return a suite's verified release and the paragraphs of its main Packages index.

    `urls` are tried in order. Raises `ArchiveError` when none answers, the signature is not
    the archive's, the release is out of date, or the index has another sha256.
    """
    faults = []
    for url in urls:
        base = f"{url.rstrip('/')}/dists/{suite}"
        shown = public(base)
        try:
            signed = _get(f"{base}/InRelease")
            release = check_release(signed, suite, keys)
            name = f"main/binary-{architecture}/Packages.xz"
            if name not in release.indices:
                raise ArchiveError(f"{shown}/InRelease lists no {name}")
            sha256 = release.indices[name]
            directory = name.rpartition("/")[0]
            index = _get(f"{base}/{directory}/by-hash/SHA256/{sha256}")
        except requests.RequestException as error:
            faults.append(f"{shown}: {type(error).__name__}")
            continue
        if hashlib.sha256(index).hexdigest() != sha256:
            raise ArchiveError(f"{shown}/{name} does not have the sha256 its InRelease says")
        return release, list(paragraphs(lzma.decompress(index).decode()))
    raise ArchiveError(
        f"the archive's suite {suite} cannot be fetched ({'; '.join(faults)})",
        hint="check the network and the URIs in your apt sources, then: invoke lock --rootfs",
    )


def _get(url: str) -> bytes:
    with new_session() as session:
        answer = session.get(url, timeout=(15, 120))
        answer.raise_for_status()
        return answer.content


def check_release(signed: bytes, suite: str, keys: Path = KEYS) -> Release:
    """Check the signature and the validity of an InRelease; return what it says.

    Raises `ArchiveError` unless at least one of the keys made a good signature and none made a
    bad one, or when the release is for another suite or past its Valid-Until.
    """
    text = _verified_text(signed, keys)
    fields = next(paragraphs(text), {})
    if suite not in (fields.get("Codename"), fields.get("Suite")):
        raise ArchiveError(f"the InRelease is for {fields.get('Codename')}, not for {suite}")
    until = fields.get("Valid-Until")
    if until and _time(until) < datetime.now(timezone.utc):
        raise ArchiveError(
            f"the InRelease of {suite} was valid until {until}; this copy is stale",
            hint="use a mirror that is up to date, or correct this machine's clock",
        )
    rows = (line.split() for line in fields.get("SHA256", "").splitlines())
    indices = {row[2]: row[0] for row in rows if len(row) == 3}
    return Release(_time(fields.get("Date", "")), hashlib.sha256(signed).hexdigest(), indices)


def _time(text: str) -> datetime:
    try:
        return parsedate_to_datetime(text.replace("UTC", "+0000")).astimezone(timezone.utc)
    except (TypeError, ValueError):
        raise ArchiveError(f"the InRelease has no readable date ({text!r})") from None


_BAD = re.compile(r"^\[GNUPG:\] (BADSIG|EXPSIG|EXPKEYSIG|REVKEYSIG)\b", re.MULTILINE)
_GOOD = re.compile(r"^\[GNUPG:\] VALIDSIG\b", re.MULTILINE)


def _verified_text(signed: bytes, keys: Path) -> str:
    gpgv = shutil.which("gpgv")
    if gpgv is None:
        raise ArchiveError(
            "gpgv, which checks the archive's signature, is not installed",
            hint="Debian and Ubuntu: apt-get install gpgv; macOS: brew install gnupg",
        )
    with tempfile.TemporaryDirectory() as directory:
        message, output = Path(directory, "InRelease"), Path(directory, "Release")
        message.write_bytes(signed)
        keyrings = [f"--keyring={path.resolve()}" for path in sorted(keys.glob("*.gpg"))]
        done = subprocess.run(
            [gpgv, "--status-fd=1", f"--homedir={directory}", *keyrings,
             f"--output={output}", str(message)],
            capture_output=True, text=True, errors="replace", check=False,
            env={**os.environ, "LC_ALL": "C"},
        )  # fmt: skip
        # Releases carry the signatures of several keys, some of releases to come: an unknown
        # key makes gpgv exit with 2, so its status lines decide.
        if _BAD.search(done.stdout) or not _GOOD.search(done.stdout) or not output.exists():
            raise ArchiveError(
                "the InRelease is not signed by the archive's key "
                f"({done.stderr.strip().splitlines()[-1:] or ['no signature']})",
                hint="do not use this mirror; it serves what the archive did not sign",
            )
        return output.read_text(encoding="utf-8")
