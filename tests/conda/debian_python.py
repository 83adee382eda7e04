"""Debian's CPython as upstream's would be: what Debian changed in it, taken back.

Debian's own packages go to `dist-packages`, and `pip` outside a venv to `/usr/local`. In a conda
prefix there is neither, so a Debian python packed as it stands would not find its site-packages.
"""

from __future__ import annotations

import re
import sysconfig

LINKS = {"dist-packages": "site-packages"}
"""Links in the library. `site`, which looks for the former, is frozen into the interpreter."""

LEFT_OUT = ("sitecustomize.py", "EXTERNALLY-MANAGED", "_distutils_system_mod.py")
"""Files of Debian's library that upstream has not."""

_SCHEME = rb"    '(?:deb_system|posix_local)': \{.*?\n        \},\n"
_IN_VENV = rb'if sys\.base_prefix != sys\.prefix or hasattr\(sys, "real_prefix"\):'
_TAKEN_BACK = {
    "sysconfig.py": ((_SCHEME, b"", 2), (_IN_VENV, b"if True:", 1)),
}
_OWN_PREFIX = re.compile(rb"/usr(?=/lib|/bin|/include|['\" ])")


def is_debians() -> bool:
    """Say whether the running CPython is Debian's or Ubuntu's."""
    return "posix_local" in sysconfig.get_scheme_names()


def taken_back(path: str, data: bytes, placeholder: bytes) -> bytes:
    """Return what a file of the library, at `path` in it, is without Debian's changes."""
    for pattern, replacement, times in _TAKEN_BACK.get(path, ()):
        data, count = re.subn(pattern, replacement, data, flags=re.DOTALL)
        assert count == times, f"Debian's {path} is not as it was known: {pattern!r}"
    if path.startswith("_sysconfigdata"):  # elsewhere /usr is not the interpreter's own prefix
        data = data.replace(b"/usr/lib/x86_64-linux-gnu", placeholder + b"/lib")
        data = _OWN_PREFIX.sub(placeholder, data)
    return data
