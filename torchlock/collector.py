"""Python's cycle collector, kept out of where many objects are made that form no cycles.

It sets out after every 700 new containers, and now and then walks through all there are. Among
the records of 30,000 files that takes as long as looking at the files. (Mercurial has the same,
`util.nogc`, for the same reason.)
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collector_paused() -> Iterator[None]:
    """Make no collection meanwhile; a context manager, and a decorator when called."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
