"""Small locks over small wheels."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

import yaml

from torchlock.lock import Lock, Package, parse_lock
from torchlock.records import Records, record


def locked_wheel(path: Path, base_url: str) -> Package:
    """Lock a wheel file as served below `base_url`."""
    name, version = path.name.split("-")[:2]
    return Package(
        name=name.replace("_", "-"),
        version=version,
        manager="pip",
        platform="linux-64",
        url=f"{base_url}/{path.name}",
        sha256=hashlib.sha256(path.read_bytes()).hexdigest(),
        md5=None,
        dependencies={},
    )


def lock_text(packages: Iterable[Package]) -> str:
    """Render packages as a conda-lock v1 file."""
    return yaml.safe_dump(
        {
            "version": 1,
            "metadata": {
                "content_hash": {"linux-64": "0" * 64},
                "channels": [{"url": "conda-forge", "used_env_vars": []}],
                "platforms": ["linux-64"],
                "sources": ["environment.yml"],
            },
            "package": [
                {
                    "name": p.name,
                    "version": p.version,
                    "manager": p.manager,
                    "platform": p.platform,
                    "dependencies": dict(p.dependencies),
                    "url": p.url,
                    "hash": {"sha256": p.sha256, **({"md5": p.md5} if p.md5 else {})},
                    "category": "main",
                    "optional": False,
                }
                for p in packages
            ],
        },
        sort_keys=False,
    )


def lock_of(packages: Iterable[Package]) -> Lock:
    """Parse a lock of packages the way a file is read."""
    return parse_lock(lock_text(packages))


def records_of(wheels: Iterable[Path]) -> Records:
    """Record wheels on disk."""
    return record([(locked_wheel(path, "http://localhost"), path) for path in wheels], "linux-64")
