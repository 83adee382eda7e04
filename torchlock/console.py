"""Console scripts: what installers generate from a wheel's entry points.

Several installers write them (uv, pip, conda, rattler), each in its own words. A script is
accepted when each of its lines is one that they write for the entry point.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

_FIXED = re.compile(
    r"""
      \s*
    | \#\ -\*-\ coding:\ utf-8\ -\*-
    | import\ (re|sys)
    | if\ __name__\ ==\ (['"])__main__\2:
    | \s+(el)?if\ sys\.argv\[0\]\.endswith\((['"])(-script\.pyw|\.exe)\4\):
    | \s+sys\.argv\[0\]\ =\ sys\.argv\[0\]\[:-(11|4)\]
    | \s+sys\.argv\[0\]\ =\ sys\.argv\[0\]\.removesuffix\((['"])\.exe\7\)
    | \s+sys\.argv\[0\]\ =\ re\.sub\(r?(['"])\(-script\\\.pyw\??\|\\\.exe\)\?\$\8,
      \ (['"])\9,\ sys\.argv\[0\]\)
    """,
    re.VERBOSE,
)
_SHELL = re.compile(r"""'''exec' (['"]?)(?P<program>.+?)\1 "\$0" "\$@" *""")


def script_fault(text: str, targets: Iterable[str]) -> str:
    """Say why `text` is not the script of any of `targets` (`module:attribute`); "" if it is."""
    _, body = _split(text)
    if any(_runs(body, target) for target in targets):
        return ""
    return f"it is not the script that runs {' or '.join(sorted(targets))}"


def interpreter(text: str) -> str:
    """Return the program that a script's first lines start, or the empty string."""
    return _split(text)[0]


def _split(text: str) -> tuple[str, Sequence[str]]:
    lines = text.splitlines()
    if not lines or not lines[0].startswith("#!"):
        return "", lines
    # Where a path is too long or has spaces, installers go through the shell.
    shell = _SHELL.fullmatch(lines[1]) if lines[0] == "#!/bin/sh" and len(lines) > 2 else None
    if shell and lines[2] == "' '''":
        return shell["program"], lines[3:]
    return lines[0].removeprefix("#!").strip(), lines[1:]


def _runs(body: Sequence[str], target: str) -> bool:
    module, _, attribute = target.partition(":")
    wanted = [f"from {module} import {attribute.split('.')[0]}", f"sys.exit({attribute}())"]
    rest = [line.strip() for line in body if not _FIXED.fullmatch(line)]
    return rest == wanted
