"""Debian control data: paragraphs of `Field: value` (deb-control(5))."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

Paragraph = Mapping[str, str]


def paragraphs(text: str) -> Iterator[dict[str, str]]:
    """Yield the paragraphs of a control file; continuation lines keep their leading space."""
    fields: dict[str, str] = {}
    last = ""
    for line in text.splitlines():
        if not line.strip():
            if fields:
                yield fields
            fields, last = {}, ""
        elif line[0] in " \t":
            if last:
                fields[last] += "\n" + line
        elif not line.startswith("#"):
            last, _, value = line.partition(":")
            fields[last] = value.strip()
    if fields:
        yield fields


@dataclass(frozen=True)
class Relation:
    """One alternative of a dependency: a name, and a version bound or two empty strings."""

    name: str
    operator: str = ""
    version: str = ""


_RELATION = re.compile(
    r"(?P<name>[a-z0-9][a-z0-9+.-]+)(:\w+)?"
    r"(\s*\(\s*(?P<operator><<|<=|=|>=|>>)\s*(?P<version>[^)\s]+)\s*\))?"
)


def relations(value: str) -> list[list[Relation]]:
    """Parse a dependency field: all of the outer list, one of each inner list."""
    return [
        [
            Relation(m["name"], m["operator"] or "", m["version"] or "")
            for alternative in group.split("|")
            if (m := _RELATION.match(alternative.strip()))
        ]
        for group in value.split(",")
        if group.strip()
    ]
