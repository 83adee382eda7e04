"""Order of Debian versions (deb-version(7))."""

from __future__ import annotations

import re
from functools import cmp_to_key


def compare(left: str, right: str) -> int:
    """Return a negative number, 0 or a positive number as `left` is older, equal or newer."""
    left_epoch, left_upstream, left_revision = _split(left)
    right_epoch, right_upstream, right_revision = _split(right)
    return (
        left_epoch - right_epoch
        or _compare_part(left_upstream, right_upstream)
        or _compare_part(left_revision, right_revision)
    )


key = cmp_to_key(compare)
"""A sort key for versions."""


def satisfies(version: str, relation: str, bound: str) -> bool:
    """Say whether `version` stands in a dependency's relation (`<<`, `<=`, `=`, ...) to `bound`."""
    order = compare(version, bound)
    return {
        "<<": order < 0,
        "<=": order <= 0,
        "=": order == 0,
        ">=": order >= 0,
        ">>": order > 0,
    }[relation]


def _split(version: str) -> tuple[int, str, str]:
    epoch, colon, rest = version.partition(":")
    if not colon:
        epoch, rest = "0", version
    upstream, _, revision = rest.rpartition("-")
    return int(epoch), upstream or revision, revision if upstream else ""


def _compare_part(left: str, right: str) -> int:
    """Compare text and numbers in turn; `~` sorts before the end, letters before the rest."""
    left_parts, right_parts = (re.findall(r"(\D*)(\d*)", part) for part in (left, right))
    for i in range(max(len(left_parts), len(right_parts))):
        left_text, left_number = left_parts[i] if i < len(left_parts) else ("", "")
        right_text, right_number = right_parts[i] if i < len(right_parts) else ("", "")
        if left_text != right_text:
            left_order, right_order = (
                [_weight(c) for c in text] + [0] for text in (left_text, right_text)
            )
            if left_order != right_order:
                return -1 if left_order < right_order else 1
        difference = int(left_number or 0) - int(right_number or 0)
        if difference:
            return difference
    return 0


def _weight(character: str) -> int:
    if character == "~":
        return -1
    return ord(character) if character.isalpha() else ord(character) + 256
