"""What installing the stack takes away from the conda packages below it.

An installer that finds another version of a wheel's distribution in site-packages uninstalls it
first, whoever put it there. The conda package then goes on without its Python part.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable

from packaging.utils import canonicalize_name


def superseded(
    paths: Iterable[str], scripts: Iterable[str], wheels: Collection[str], site: str
) -> frozenset[str]:
    """Return which paths of one conda package go when the stack is installed.

    `paths` are all that it has and `scripts` those of its entry points, relative to the prefix;
    `site` is the prefix's site-packages, and `wheels` are canonical names.
    """
    inside = [path for path in paths if path.startswith(f"{site}/")]
    for path in inside:
        match = re.fullmatch(r"([^/]+?)-[^/-]+\.dist-info/METADATA", path[len(site) + 1 :])
        if match and canonicalize_name(match[1]) in wheels:
            return frozenset([*inside, *scripts])
    return frozenset()
