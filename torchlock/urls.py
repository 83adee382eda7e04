"""URLs without what is secret in them: fit to be shown, and fit for a lock."""

from __future__ import annotations

import re

_CREDENTIALS = re.compile(r"//[^/\s]*@")
_TOKEN = re.compile(r"/t/[^/\s\"'<>:;,)]+")
_QUERY = re.compile(r"\?[^\s\"']+")


def public(text: str) -> str:
    """Return a text with every URL in it cleared of user, password, channel token and query.

    A token (`/t/TOKEN/`, as anaconda.org and its like have it) becomes `<TOKEN>`, as in conda.
    """
    return _QUERY.sub("", _TOKEN.sub("/t/<TOKEN>", _CREDENTIALS.sub("//", text)))


def is_public(url: str) -> bool:
    """Say whether a URL has neither user nor password nor channel token in it."""
    return not (_CREDENTIALS.search(url) or _TOKEN.search(url))
