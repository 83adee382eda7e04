"""Recorded trees: what the locked wheels carry, so that a machine without them can check.

Per platform two files below `torchlock/records/`, both made from the sha256-verified wheels:

- `<platform>.json`: for each wheel its sha256, tree digest, counts and the sha256 of its
  listing, and the digest of the whole `site-packages`; small and reviewable.
- `<platform>.files`: the listings, a line per file. They count only because their sha256 is in
  the first file.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, cast

from torchlock.errors import DoesNotHold, TorchlockError
from torchlock.formats.wheel import Scheme, hashed_files, in_tree, read_wheel
from torchlock.lock import Package
from torchlock.tree import Entry, merge, tree_digest

FORMAT = 1


class RecordedFile(NamedTuple):  # a dataclass would take twice the time to read 30,000
    """One file of a wheel: its place, size in bytes, execute bit and sha256 (hex)."""

    scheme: Scheme
    path: str
    size: int
    executable: bool
    sha256: str

    @property
    def counts(self) -> bool:
        """Whether the file is part of the tree digest."""
        return self.scheme == "site" and in_tree(self.path)


@dataclass(frozen=True)
class RecordedWheel:
    """What one locked wheel carries. `wheel` is its sha256, `tree` its tree digest."""

    name: str
    version: str
    wheel: str
    wheel_size: int
    tree: str
    scripts: tuple[tuple[str, str], ...]
    files: tuple[RecordedFile, ...]

    @property
    def size(self) -> int:
        """Bytes installed."""
        return sum(file.size for file in self.files)

    @property
    def listing(self) -> str:
        """The listing of the files: one line each, sorted."""
        return "".join(
            f"{f.scheme}\t{'x' if f.executable else '-'}\t{f.size}\t{f.sha256}\t{f.path}\n"
            for f in sorted(self.files, key=_order)
        )


def _order(file: RecordedFile) -> tuple[str, str]:
    return file.scheme, file.path


@dataclass(frozen=True)
class Records:
    """The recorded trees of one platform; `tree` is the digest of all wheels together."""

    platform: str
    tree: str
    wheels: Mapping[str, RecordedWheel]

    @cached_property
    def expected(self) -> tuple[tuple[str, RecordedFile], ...]:
        """Each file that an installation must have as the wheel has it, with its wheel's name."""
        return tuple(
            (wheel.name, file)
            for wheel in self.wheels.values()
            for file in wheel.files
            if file.scheme != "site" or file.counts
        )

    @cached_property
    def counted(self) -> Mapping[str, tuple[str, RecordedFile]]:
        """Those of the expected files that count for the tree digest, by path."""
        # Several wheels may carry one path (nvidia/__init__.py).
        return {file.path: (name, file) for name, file in self.expected if file.scheme == "site"}


def tree_of(wheels: Iterable[RecordedWheel]) -> dict[str, list[Entry]]:
    """Return the entries that count for the tree digest, by wheel; they have no contents."""
    return {
        w.name: [Entry(f.path, f.size, f.executable, f.sha256) for f in w.files if f.counts]
        for w in wheels
    }


def record(
    wheels: Sequence[tuple[Package, Path]], platform: str, known: Records | None = None
) -> Records:
    """Compute the records of a platform from its verified wheels.

    What is `known` of a wheel with the same sha256 is kept. Raises `WheelError` for a wheel
    that contradicts itself and `TreeConflictError` for two that disagree about a path.
    """
    kept = {w.wheel: w for w in known.wheels.values()} if known else {}
    fresh = [(package, path) for package, path in wheels if package.sha256 not in kept]
    # The largest first, so that no core is left with torch at the end.
    fresh.sort(key=lambda item: -item[1].stat().st_size)
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        for recorded in pool.map(_record_wheel, fresh):
            kept[recorded.wheel] = recorded
    recorded_wheels = {package.name: kept[package.sha256] for package, _ in wheels}
    if known and recorded_wheels == dict(known.wheels):
        return known
    return Records(platform, _whole_tree(wheels, recorded_wheels), recorded_wheels)


def _record_wheel(item: tuple[Package, Path]) -> RecordedWheel:
    package, path = item
    with read_wheel(path) as wheel:
        files = hashed_files(wheel)
        return RecordedWheel(
            name=package.name,
            version=package.version,
            wheel=package.sha256,
            wheel_size=path.stat().st_size,
            tree=tree_digest(wheel.tree()),
            scripts=wheel.entry_points,
            files=tuple(
                sorted(
                    (
                        RecordedFile(
                            f.scheme,
                            f.entry.path,
                            f.entry.size,
                            f.entry.executable,
                            _known(f.entry),
                        )
                        for f in files
                    ),
                    key=_order,
                )
            ),
        )


def _known(entry: Entry) -> str:
    if entry.sha256 is None:
        raise TorchlockError(f"{entry.path} was not hashed")
    return entry.sha256


def _whole_tree(
    wheels: Sequence[tuple[Package, Path]], recorded: Mapping[str, RecordedWheel]
) -> str:
    agreed = merge(tree_of(recorded.values()))
    with ExitStack() as stack:
        contents = {
            entry.path: entry
            for _, path in wheels
            for entry in stack.enter_context(read_wheel(path)).tree()
        }
        return tree_digest(contents[entry.path] for entry in agreed)


def read_records(directory: Path, platform: str) -> Records:
    """Read the records of a platform.

    Raises `TorchlockError` when they are absent, damaged, or contradict each other.
    """
    summary_path, listing_path = _paths(directory, platform)
    try:
        summary = json.loads(summary_path.read_text(encoding="utf-8"))
        listings = _split(listing_path.read_bytes().decode())
        if summary["format"] != FORMAT:
            raise _damaged(summary_path, f"format {summary['format']} is not {FORMAT}")
        wheels = {
            name: _read_wheel(name, row, listings.get(name, ""), listing_path)
            for name, row in summary["wheels"].items()
        }
        return Records(platform, str(summary["tree"]), wheels)
    except FileNotFoundError as error:
        raise TorchlockError(
            f"there are no recorded trees for {platform}: {error.filename} does not exist",
            hint="make them with: invoke record",
        ) from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise _damaged(summary_path, f"{type(error).__name__}: {error}") from None


def _paths(directory: Path, platform: str) -> tuple[Path, Path]:
    return directory / f"{platform}.json", directory / f"{platform}.files"


def _damaged(path: Path, why: str) -> TorchlockError:
    return TorchlockError(
        f"the recorded trees in {path.parent} are damaged ({why})",
        hint="restore them with: git checkout torchlock/records; or make them: invoke record",
    )


def _read_wheel(name: str, row: dict[str, Any], listing: str, path: Path) -> RecordedWheel:
    if hashlib.sha256(listing.encode()).hexdigest() != row["listing"]:
        raise _damaged(path, f"the listing of {name} is not the recorded one")
    return RecordedWheel(
        name=name,
        version=row["version"],
        wheel=row["wheel"],
        wheel_size=row["wheel_size"],
        tree=row["tree"],
        scripts=tuple((script, target) for script, target in row["scripts"].items()),
        files=tuple(_read_file(line) for line in listing.split("\n") if line),
    )


def _read_file(line: str) -> RecordedFile:
    scheme, mode, size, sha256, path = line.split("\t", 4)
    return RecordedFile(cast(Scheme, scheme), path, int(size), mode == "x", sha256)


def _split(text: str) -> dict[str, str]:
    """Split the joined listings at their `@name` lines."""
    parts = (part.partition("\n") for part in f"\n{text}".removesuffix("\n").split("\n@")[1:])
    return {name: f"{lines}\n" if lines else "" for name, _, lines in parts}


def write_records(records: Records, directory: Path, write: Callable[[Path, bytes], None]) -> None:
    """Write both files of a platform through `write(path, contents)`."""
    summary_path, listing_path = _paths(directory, records.platform)
    wheels = sorted(records.wheels.values(), key=lambda w: w.name)
    summary = {
        "format": FORMAT,
        "tree": records.tree,
        "wheels": {
            w.name: {
                "version": w.version,
                "wheel": w.wheel,
                "wheel_size": w.wheel_size,
                "tree": w.tree,
                "files": len(w.files),
                "bytes": w.size,
                "scripts": dict(w.scripts),
                "listing": hashlib.sha256(w.listing.encode()).hexdigest(),
            }
            for w in wheels
        },
    }
    listings = "".join(f"@{w.name}\n{w.listing}" for w in wheels)
    directory.mkdir(parents=True, exist_ok=True)
    write(listing_path, listings.encode())
    write(summary_path, (json.dumps(summary, indent=1) + "\n").encode())


def check_records(records: Records, wheels: Iterable[Package]) -> None:
    """Raise `DoesNotHold` unless exactly the locked wheels are recorded."""
    locked = {w.name: w.sha256 for w in wheels}
    recorded = {w.name: w.wheel for w in records.wheels.values()}
    differing = sorted(
        name for name in locked.keys() | recorded.keys() if locked.get(name) != recorded.get(name)
    )
    if differing:
        raise DoesNotHold(
            f"the recorded trees are not those of the locked wheels: {', '.join(differing[:5])}"
            + (f" and {len(differing) - 5} more" if len(differing) > 5 else ""),
            hint="invoke record",
        )
