"""Packages' link scripts: which are run, and what they leave behind, as the marker notes it.

A link script is a program of a package that runs as the user. Each is run once, when asked for.
No lock says what it leaves, so that is worked out: all that nothing accounts for afterwards and
that was not there before.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from pathlib import Path

from torchlock.realize.foundation import LockedConda
from torchlock.realize.linking import Linked
from torchlock.realize.marker import Marker, write_marker
from torchlock.verify_conda import altered_since, contents_of

RUN_BY_RATTLER = "-post-link.sh"
"""The end of the names of the link scripts that rattler can run; it runs no pre-link ones."""


def unrun(foundation: Sequence[LockedConda], marker: Marker) -> tuple[str, ...]:
    """Return the scripts that packages have and that were not run, as `PACKAGE: SCRIPT`."""
    return tuple(
        f"{p.content.name}: {script}"
        for p in foundation
        for script in p.content.link_scripts
        if p.content.record_name not in marker.scripts or not script.endswith(RUN_BY_RATTLER)
    )


def pending(foundation: Sequence[LockedConda], marker: Marker) -> list[str]:
    """Return the packages, as in `conda-meta`, with a script that could be run and was not."""
    return [
        p.content.record_name
        for p in foundation
        if p.content.record_name not in marker.scripts
        and any(script.endswith(RUN_BY_RATTLER) for script in p.content.link_scripts)
    ]


def still_run(
    foundation: Sequence[LockedConda], scripts: Sequence[str], linked_again: Collection[str]
) -> tuple[str, ...]:
    """Return those of `scripts` that count as run when packages have been linked again.

    That takes back what a package's link script made of its files.
    """
    lost = {p.content.record_name for p in foundation if p.content.name in linked_again}
    return tuple(script for script in scripts if script not in lost)


def carry_over(old: Marker | None, new: Marker) -> Marker:
    """Return the marker of the prefix to be made, with what is noted of scripts so far.

    What the script of a package left that is locked no more is nobody's: then nothing is.
    """
    if old is None or not set(old.scripts) <= set(new.packages):
        return new
    return replace(new, scripts=old.scripts, written=old.written)


def run_scripts(
    prefix: Path,
    foundation: Sequence[LockedConda],
    marker: Marker,
    *,
    unaccounted: Callable[[], Collection[str]],
    link: Callable[[], Linked],
) -> Marker:
    """Run the scripts that are pending; return the marker with what they left.

    `unaccounted` tells the paths of the prefix that nothing accounts for, and `link` links what
    has no record and runs its scripts. The marker is written before and, whatever happens, after,
    so that the next run knows what one that was killed in a script had found. Raises
    `TorchlockError` when linking or a script fails.
    """
    names = pending(foundation, marker)
    before = tuple(path for path in unaccounted() if path not in marker.written)
    # What is altered keeps its note, by which it is found; the rest is noted anew afterwards.
    marker = replace(marker, written=altered_since(prefix, marker.written), before=before)
    write_marker(prefix, marker)
    for name in names:
        # To rattler it is then not installed: it links it, and runs its scripts.
        (prefix / "conda-meta" / f"{name}.json").unlink(missing_ok=True)
    linked = Linked()
    try:
        linked = link()
    finally:
        ran = (name for name in names if name.rsplit("-", 2)[0] in linked.ran)
        marker = replace(marker, scripts=(*marker.scripts, *ran))
        marker = note_what_scripts_left(prefix, marker, unaccounted())
        write_marker(prefix, marker)
    linked.check()
    return marker


def note_what_scripts_left(prefix: Path, marker: Marker, unaccounted: Collection[str]) -> Marker:
    """Return the marker with what is unaccounted for and was not `before` scripts ran."""
    left = contents_of(prefix, set(unaccounted) - set(marker.before or ()))
    return replace(marker, written={**left, **marker.written}, before=None)
