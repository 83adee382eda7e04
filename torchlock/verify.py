"""A realization's files against the lock: every file of every locked wheel, and nothing else.

Needs the recorded trees, not the wheels. One pass reads each installed file once; where every
path, execute bit and sha256 is the recorded one, the tree digest is the recorded one too.
Only where something differs are the digests computed from what is there.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from torchlock.bytecode import explain_bytecode
from torchlock.errors import TorchlockError
from torchlock.findings import Finding, Site
from torchlock.recompile import differing
from torchlock.records import Records
from torchlock.stamps import Reading
from torchlock.tree import entry_on_disk, tree_digest, walk
from torchlock.verify_files import check_files
from torchlock.verify_foreign import configuration, foreign_files, name_versions
from torchlock.verify_scripts import console_scripts


@dataclass(frozen=True)
class Verdict:
    """What verification found: empty `findings` means that the files are the locked ones.

    `tree` is the digest of all locked paths as installed and `trees` that of each wheel (`None`
    where the files cannot be read as such a tree); `bytecode` counts byte code files that
    belong to a locked source file and match it by time and size, or by hash.
    """

    findings: tuple[Finding, ...]
    tree: str | None
    trees: Mapping[str, str | None]
    files: int
    bytes: int
    bytecode: int

    @property
    def holds(self) -> bool:
        """Whether everything is what the lock says."""
        return not self.findings


def verify(
    site: Site,
    records: Records,
    *,
    explained: Callable[[str], bool] = lambda path: False,
    python: Path | None = None,
    reading: Reading | None = None,
    present: Mapping[str, os.stat_result] | None = None,
    workers: int | None = None,
) -> Verdict:
    """Compare what is installed at `site` with the recorded trees of the locked wheels.

    `explained` says of a path in site-packages whether something other than the stack (a conda
    package) accounts for it. With `python`, the environment's own, byte code is also compared
    with what its source compiles to; without it, it is judged by its header alone. Every file
    is read, unless a `reading` with stamps was begun. `present` is what `walk` finds in
    site-packages, where the caller has it. Raises `TorchlockError` only when the directory
    itself cannot be read or `python` does not run; everything else is a finding.
    """
    reading = reading or Reading()
    try:
        present = dict(walk(site.site_packages)) if present is None else present
    except OSError as error:
        raise TorchlockError(f"{error.filename} cannot be read: {error.strerror}") from None
    findings = check_files(site, records, present, reading, workers)
    findings += console_scripts(site, records)
    foreign = list(foreign_files(site, records.counted, present, explained))
    compiled = [f.path for f in foreign if f.kind == "byte code"]
    bytecode, stale = explain_bytecode(site.site_packages, present, compiled)
    if python:
        fresh = sorted(set(compiled) - {path for path, _ in stale})
        poisoned = differing(python, site.site_packages, fresh, workers)
        bytecode, stale = bytecode - len(poisoned), [*stale, *poisoned]
    findings += [
        Finding("byte code", "", site.shown(site.site_packages / path), why) for path, why in stale
    ]
    findings += [f for f in foreign if f.kind != "byte code"]
    findings += configuration(site)
    findings = name_versions(site, findings, records)
    trees, tree = _digests(site, records, findings, present)
    return Verdict(
        findings=tuple(findings),
        tree=tree,
        trees=trees,
        files=len(records.expected),
        bytes=sum(file.size for _, file in records.expected),
        bytecode=bytecode,
    )


def differing_files(
    site: Site,
    records: Records,
    *,
    reading: Reading,
    present: Mapping[str, os.stat_result],
) -> list[Finding]:
    """Return the locked wheels' files that are not as recorded, and nothing of what else is there.

    What `verify` begins with; `reading` and `present` as there.
    """
    found = check_files(site, records, present, reading, None)
    return [*found, *console_scripts(site, records)]


def _digests(
    site: Site,
    records: Records,
    findings: Sequence[Finding],
    present: Mapping[str, os.stat_result],
) -> tuple[dict[str, str | None], str | None]:
    trees: dict[str, str | None] = {w.name: w.tree for w in records.wheels.values()}
    tree: str | None = records.tree
    touched = {f.path for f in findings if f.kind not in ("foreign", "shadows", "byte code")}
    if not touched:
        return trees, tree
    below = site.shown(site.site_packages)
    differing = {}
    for wheel in records.wheels.values():
        paths = [f.path for f in wheel.files if f.counts]
        if touched & {f"{below}/{path}" for path in paths}:
            differing[wheel.name] = paths
    for name, paths in differing.items():
        trees[name] = _digest_on_disk(site.site_packages, present, paths)
    if differing:
        tree = _digest_on_disk(site.site_packages, present, records.counted)
    return trees, tree


def _digest_on_disk(
    root: Path, present: Mapping[str, os.stat_result], paths: Iterable[str]
) -> str | None:
    try:
        return tree_digest(entry_on_disk(root, path) for path in paths if path in present)
    except (OSError, TorchlockError):
        return None
