"""Genuine small wheels, so that tests use real installers on real files."""

from __future__ import annotations

import base64
import hashlib
import zipfile
from collections.abc import Mapping
from pathlib import Path

_EPOCH = (1980, 1, 1, 0, 0, 0)


def build_wheel(
    directory: Path,
    name: str,
    version: str = "1.0",
    files: Mapping[str, bytes] | None = None,
    *,
    executable: frozenset[str] = frozenset(),
    requires: tuple[str, ...] = (),
    entry_points: str = "",
    tag: str = "py3-none-any",
    record: Mapping[str, str] | None = None,
) -> Path:
    """Write a wheel and return its path; `record` overrides hashes in RECORD."""
    module = name.replace("-", "_")
    dist_info = f"{module}-{version}.dist-info"
    contents: dict[str, bytes] = dict(files or {f"{module}/__init__.py": b"VALUE = 1\n"})
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    metadata += "".join(f"Requires-Dist: {r}\n" for r in requires)
    contents[f"{dist_info}/METADATA"] = metadata.encode()
    contents[f"{dist_info}/WHEEL"] = (
        f"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: {tag}\n".encode()
    )
    if entry_points:
        contents[f"{dist_info}/entry_points.txt"] = entry_points.encode()
    rows = [
        f"{path},{(record or {}).get(path, _record_hash(data))},{len(data)}"
        for path, data in contents.items()
    ]
    contents[f"{dist_info}/RECORD"] = "\n".join([*rows, f"{dist_info}/RECORD,,", ""]).encode()
    path = directory / f"{module}-{version}-{tag}.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for member, data in contents.items():
            info = zipfile.ZipInfo(member, _EPOCH)
            info.compress_type = zipfile.ZIP_DEFLATED
            info.external_attr = (0o100755 if member in executable else 0o100644) << 16
            archive.writestr(info, data)
    return path


def _record_hash(data: bytes) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=")
    return "sha256=" + digest.decode()
