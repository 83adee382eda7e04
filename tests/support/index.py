"""A package index (PEP 503) and a conda channel out of local files."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

CHANNEL = Path(__file__).parent.parent / "data" / "conda-forge"
"""A slice of conda-forge's index: several versions of each package; no package files."""


def write_index(directory: Path) -> None:
    """Write `simple/` pages for the wheels that lie in `directory`."""
    pages: dict[str, list[str]] = {}
    for wheel in sorted(directory.glob("*.whl")):
        name = wheel.name.split("-")[0].replace("_", "-")
        digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
        link = f'<a href="/{wheel.name}#sha256={digest}">{wheel.name}</a><br>'
        pages.setdefault(name, []).append(link)
    shutil.rmtree(directory / "simple", ignore_errors=True)
    for name, links in pages.items():
        page = directory / "simple" / name
        page.mkdir(parents=True)
        (page / "index.html").write_text("<!DOCTYPE html><html><body>" + "\n".join(links))


def write_condarc(path: Path) -> None:
    """Write a .condarc that serves conda-forge from the slice."""
    path.write_text(f"custom_channels:\n  conda-forge: {CHANNEL.parent.as_uri()}\n")
