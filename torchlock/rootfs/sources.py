"""The user's own apt sources: where this machine gets Debian's packages from."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from torchlock.rootfs.control import paragraphs


def apt_uris(suite: str, root: Path = Path("/etc/apt")) -> list[str]:
    """Return the URIs of the apt sources that offer a suite's main component, in file order."""
    found = [uri for uri, suites in _entries(root) if suite in suites]
    return list(dict.fromkeys(uri.rstrip("/") for uri in found))


def _entries(root: Path) -> Iterator[tuple[str, list[str]]]:
    files = [root / "sources.list", *sorted((root / "sources.list.d").glob("*"))]
    for path in files:
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            continue
        if path.suffix == ".sources":
            yield from _deb822(text)
        elif path.suffix == ".list":
            yield from _one_line(text)


def _deb822(text: str) -> Iterator[tuple[str, list[str]]]:
    for fields in paragraphs(text):
        if fields.get("Enabled", "yes").lower() == "no" or "deb" not in fields.get("Types", ""):
            continue
        if "main" in fields.get("Components", "").split():
            for uri in fields.get("URIs", "").split():
                yield uri, fields.get("Suites", "").split()


def _one_line(text: str) -> Iterator[tuple[str, list[str]]]:
    for line in text.splitlines():
        words = line.split("#")[0].split()
        if words[:1] != ["deb"]:
            continue
        words = words[1:]
        if words and words[0].startswith("["):
            while words and not words[0].endswith("]"):
                words = words[1:]
            words = words[1:]
        if len(words) >= 3 and "main" in words[2:]:
            yield words[0], [words[1]]
