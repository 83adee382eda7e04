"""The conda realization: a full conda prefix from the lock, made without conda.

rattler links the conda half and uv installs the pip half, both from the artifact store, so a
full store needs no network. conda, mamba and micromamba recognise the prefix.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any

from torchlock.artifacts import Artifact, Mirrors, Store, fetch
from torchlock.channels import channel_of
from torchlock.collector import collector_paused
from torchlock.errors import DoesNotHold, TorchlockError
from torchlock.files import absolute, write_atomically
from torchlock.lock import Lock, Package
from torchlock.progress import Progress, silent
from torchlock.realize.foundation import (
    LockedConda,
    check_prefix_length,
    expect_foundation,
    fetch_foundation,
)
from torchlock.realize.interpreter import host_platform
from torchlock.realize.marker import NAME as MARKER
from torchlock.realize.marker import Marker, read_marker, write_marker
from torchlock.realize.obstacles import (
    below_site,
    blocked,
    gone,
    installed_paths,
    overwritten,
    refuse,
    strange_packages,
)
from torchlock.realize.place import (
    after_failure,
    alone,
    check_prefix_name,
    check_space,
    check_writable,
    conda_cache,
    read_stamps,
    wheel_cache,
)
from torchlock.realize.stack import install_stack, remove_from_stack, unfinished
from torchlock.realize.venv import REPAIRABLE, remove_bytecode
from torchlock.records import Records
from torchlock.report import describe
from torchlock.repository import this_repository
from torchlock.stamps import Reading, Stamps
from torchlock.tree import walk
from torchlock.verify import Finding, Site, Verdict, differing_files, find_site, verify
from torchlock.verify_conda import (
    CLIENT_FILES,
    SITE,
    CondaVerdict,
    Expectation,
    altered_since,
    contents_of,
    is_conda_prefix,
    stack_paths,
    unaccounted,
    verify_conda,
)

RUN_BY_RATTLER = "-post-link.sh"
"""The end of the names of the link scripts that rattler can run; it runs no pre-link ones."""


@dataclass(frozen=True)
class MadePrefix:
    """What `make_prefix` did: `installed` is False when nothing had to change.

    `conda` is the verdict on the conda half, `verdict` that on the stack; `scripts` names the
    link scripts that packages have and that have not been run.
    """

    prefix: Path
    installed: bool
    verdict: Verdict
    conda: CondaVerdict
    scripts: tuple[str, ...]


@collector_paused()
def make_prefix(
    lock: Lock,
    records: Records,
    prefix: Path,
    store: Store,
    *,
    mirrors: Callable[[Sequence[Artifact]], Mirrors] = lambda _: {},
    link_scripts: bool = False,
    progress: Progress = silent,
    say: Callable[[str], None] = lambda _: None,
) -> MadePrefix:
    """Make, complete, repair or update the conda prefix at `prefix`; return the verified result.

    `mirrors` are for the wheels; conda packages follow `.condarc`. Link scripts, which run a
    package's own code as the user, are run only when asked for, then once, and what they leave
    is reported. Raises `TorchlockError` when the prefix holds something else or is too long, an
    artifact cannot be had or is not the locked one, or a link script fails; `DoesNotHold` when
    files remain that are not the lock's.
    An interrupted call is completed by the next.
    """
    platform = host_platform()
    prefix = absolute(prefix)
    check_prefix_name(prefix, "conda")
    wheels = lock.wheels(platform)
    with alone(prefix, store), ThreadPoolExecutor(1) as beside:
        stamps = read_stamps(store)
        marker = read_marker(prefix)
        if marker and marker.foundation != "conda":
            raise TorchlockError(
                f"{prefix} is a {marker.foundation} prefix, not a conda one",
                hint="choose another place: invoke env --foundation conda --prefix DIR",
            )
        if not (marker and marker.complete):
            check_writable(prefix)
        hashing = Reading(stamps)
        foundation = fetch_foundation(lock, platform, store, progress=progress, reading=hashing)
        check_prefix_length(prefix, foundation)
        work = _Work(
            prefix, lock.digest, platform, foundation, wheels, records, store, stamps, say,
            link_scripts, beside,
        )  # fmt: skip
        if marker and marker.before is not None:
            marker = work.after_broken_off_scripts(marker)
        goal = work.goal(marker)
        unrun = work.unrun(goal)
        whole = (prefix / SITE).is_dir() and (prefix / "conda-meta").is_dir()
        if marker == goal and whole and not (link_scripts and work.pending(goal)):
            say(f"checking {prefix}")
            conda, stack = work.judge(goal)
            if conda.holds and stack.holds:
                stamps.write()
                return MadePrefix(prefix, False, stack, conda, unrun)
            found = [*conda.findings, *stack.findings]
            if not _damaged(found):  # nothing that installing could put right
                raise _does_not_hold(prefix, found)
            say(f"{prefix} is not what the lock says:\n{describe(found)}")
        damaged = work.survey(marker) if marker else set()
        if marker is None:
            size = sum(file.size for p in foundation for file in p.content.files)
            check_space(prefix, store, wheels, records, conda=size)
        fetch(wheels, store, mirrors=mirrors, progress=progress, reading=hashing)
        say(f"artifacts: {hashing.told}")
        begun = work.begun(goal, marker, damaged)
        write_marker(prefix, begun)
        _sweep(prefix)
        begun = work.link_all(begun, damaged)
        (prefix / SITE).mkdir(parents=True, exist_ok=True)  # packages that are linked stay so
        work.install(work.gone(begun))
        conda, stack, linked_again = work.repair(begun)
        ran = work.still_run(begun.scripts, linked_again)
        goal = replace(goal, scripts=ran, written=begun.written)
        write_marker(prefix, goal)
        stamps.write()
        unrun = work.unrun(goal)
        if unrun:
            say(f"not run, as link scripts are only with --link-scripts: {', '.join(unrun)}")
        return MadePrefix(prefix, True, stack, conda, unrun)


@dataclass(frozen=True)
class _Work:
    """What one run works with, and the steps it takes."""

    prefix: Path
    lock: str
    platform: str
    foundation: Sequence[LockedConda]
    wheels: Sequence[Package]
    records: Records
    store: Store
    stamps: Stamps
    say: Callable[[str], None]
    link_scripts: bool
    beside: ThreadPoolExecutor

    @cached_property
    def expecting(self) -> Future[Expectation]:
        """What the packages must have in the prefix; begun when it is first asked for."""
        return self.beside.submit(expect_foundation, self.prefix, self.foundation)

    @property
    def python(self) -> Path:
        return self.prefix / "bin" / "python"

    def goal(self, marker: Marker | None) -> Marker:
        """Return the marker of the finished prefix, given that of what is there."""
        packages = tuple(p.content.record_name for p in self.foundation)
        # What the script of a package left that is locked no more is nobody's.
        known = marker if marker and set(marker.scripts) <= set(packages) else None
        return Marker(
            self.lock,
            "conda",
            tuple(f"{w.name}=={w.version}" for w in self.wheels),
            complete=True,
            packages=packages,
            scripts=known.scripts if known else (),
            written=known.written if known else {},
        )

    def begun(self, goal: Marker, marker: Marker | None, damaged: Collection[str]) -> Marker:
        """Return the marker of a prefix on its way to the goal: what either has is torchlock's."""
        before = marker or replace(goal, wheels=(), packages=())
        return replace(
            goal,
            wheels=tuple(sorted({*goal.wheels, *before.wheels})),
            packages=tuple(sorted({*goal.packages, *before.packages})),
            complete=False,
            scripts=self.still_run(goal.scripts, damaged),
        )

    def unrun(self, marker: Marker) -> tuple[str, ...]:
        """Return the link scripts that packages have and that were not run, by the marker."""
        return tuple(
            f"{p.content.name}: {script}"
            for p in self.foundation
            for script in p.content.link_scripts
            if p.content.record_name not in marker.scripts or not script.endswith(RUN_BY_RATTLER)
        )

    def pending(self, marker: Marker) -> list[str]:
        """Return the packages, as in `conda-meta`, with a script that could be run and was not."""
        return [
            p.content.record_name
            for p in self.foundation
            if p.content.record_name not in marker.scripts
            and any(script.endswith(RUN_BY_RATTLER) for script in p.content.link_scripts)
        ]

    def gone(self, marker: Marker) -> list[str]:
        """Return the wheels of the marker whose names are locked no more."""
        return gone(marker.wheels, (w.name for w in self.wheels))

    def still_run(self, scripts: Sequence[str], linked_again: Collection[str]) -> tuple[str, ...]:
        """Return those of `scripts` that count as run when packages have been linked again.

        That takes back what a package's link script made of its files.
        """
        lost = {p.content.record_name for p in self.foundation if p.content.name in linked_again}
        return tuple(script for script in scripts if script not in lost)

    def clear(self, marker: Marker, present: Mapping[str, os.stat_result]) -> None:
        """Raise `DoesNotHold` when something is in the way, before anything is changed."""
        expectation = self.expecting.result()
        locked = [p.content.record_name for p in self.foundation]
        strange = strange_packages(self.prefix, locked, marker.packages)
        if strange:
            raise DoesNotHold(
                f"{self.prefix} has conda packages that torchlock did not install and the lock has "
                f"not: {', '.join(strange)}; nothing has been changed",
                hint="remove them with the client that installed them, or make another prefix: "
                "invoke env --foundation conda --prefix DIR",
            )
        paths = chain(
            expectation.files,
            expectation.set_aside,
            self.set_aside(marker),
            stack_paths(self.prefix, self.records),
            (f"conda-meta/{name}.json" for name in locked),
            installed_paths(self.prefix, set(marker.packages) - set(locked), self.gone(marker)),
        )
        links = {path: e.file.target for path, e in expectation.files.items() if e.file.target}
        refuse(self.prefix, blocked(self.prefix, paths, present, links))

    def survey(self, marker: Marker) -> set[str]:
        """Look at a prefix that is to be changed: return the conda packages to be linked again.

        Raises `DoesNotHold` when that would replace or remove what torchlock did not make.
        """
        present = dict(walk(self.prefix))
        self.clear(marker, present)
        reading = Reading(self.stamps)
        conda: Sequence[Finding] = ()
        if is_conda_prefix(self.prefix):
            conda = verify_conda(
                self.prefix,
                self.expecting.result(),
                self.records,
                reading=reading,
                present=present,
            ).findings
        if marker.lock != self.lock:
            site = Site(self.prefix, self.prefix / SITE)
            stack = differing_files(
                site, self.records, reading=reading, present=below_site(present)
            )
            ours = installed_paths(self.prefix, marker.packages, marker.wheels)
            ours.update(marker.written, CLIENT_FILES)
            ours.update(f"conda-meta/{p.content.record_name}.json" for p in self.foundation)
            refuse(self.prefix, overwritten([*conda, *stack], present, ours))
        installed = {
            p.content.name: record
            for p in self.foundation
            if (record := f"conda-meta/{p.content.record_name}.json") in present
        }
        damaged = _damaged(conda) & installed.keys()
        if damaged and marker != self.goal(marker):  # else it has been said
            why = [f for f in conda if f.package in damaged]
            self.say(f"{self.prefix} is not what the lock says:\n{describe(why)}")
        for finding in conda:
            if finding.kind == "changed" and finding.path == installed.get(finding.package):
                (self.prefix / finding.path).unlink()  # rattler stops at one that it cannot read
        return damaged

    def judge(self, marker: Marker) -> tuple[CondaVerdict, Verdict]:
        """Verify both halves."""
        expectation = self.expecting.result()
        reading = Reading(self.stamps)
        present = dict(walk(self.prefix))
        conda = verify_conda(
            self.prefix,
            expectation,
            self.records,
            written=marker.written,
            python=self.python,
            reading=reading,
            present=present,
        )
        stack = verify(
            find_site(self.prefix),
            self.records,
            explained=conda.explains,
            python=self.python if conda.sound else None,
            reading=reading,
            present=below_site(present),
        )
        self.say(f"installed files: {reading.told}")
        if conda.scripted:
            self.say(
                "written by link scripts, so no lock says what they must hold: "
                + ", ".join(conda.scripted)
            )
        return conda, stack

    def link_all(self, marker: Marker, damaged: Collection[str]) -> Marker:
        """Link the conda half, what is `damaged` afresh; return the marker as it then is.

        It says which link scripts were run and what they left.
        """
        self.say(f"linking {len(self.foundation)} conda packages into {self.prefix}")
        if damaged:  # rattler may unpack these again: what it links then is another file
            self.say(f"afresh: {', '.join(sorted(damaged))}")
        else:
            self.stamps.before_linking(conda_cache(self.store))
        following = self.beside.submit(self.stamps.before_linking, wheel_cache(self.store))
        _ = self.expecting  # after that, for uv waits for that alone
        aside = self.set_aside(marker)
        pending = self.pending(marker)
        if not self.link_scripts or not pending:
            self.link(again=damaged).check()
        else:
            marker = self.before_scripts(marker)
            write_marker(self.prefix, marker)
            for name in pending:
                # To rattler it is then not installed: it links it, and runs its scripts.
                (self.prefix / "conda-meta" / f"{name}.json").unlink(missing_ok=True)
            linked = _Linked()
            try:
                linked = self.link(again=damaged, scripts=True)
            finally:
                ran = (name for name in pending if name.rsplit("-", 2)[0] in linked.ran)
                marker = self.after_scripts(replace(marker, scripts=(*marker.scripts, *ran)))
                write_marker(self.prefix, marker)
            linked.check()
        for path in aside - self.expecting.result().set_aside.keys():
            _remove(self.prefix, path)  # rattler leaves some behind
        following.result()
        return marker

    def set_aside(self, marker: Marker) -> set[str]:
        """Return what rattler may have put below `__clobbers__` for packages of ours."""
        if not (self.prefix / "__clobbers__").is_dir():
            return set()
        return {
            # A record may name the path that the file would have if it were not set aside.
            path if path.startswith("__clobbers__/") else f"__clobbers__/{name}/{path}"
            for record in marker.packages
            for name in (record.rsplit("-", 2)[0],)
            for path in installed_paths(self.prefix, [record], ())
        }

    def before_scripts(self, marker: Marker) -> Marker:
        """Note whose the files are now: what scripts left and is altered is not theirs any more."""
        found = unaccounted(self.prefix, self.expecting.result(), self.records)
        before = tuple(path for path in found if path not in marker.written)
        return replace(marker, written=altered_since(self.prefix, marker.written), before=before)

    def after_broken_off_scripts(self, marker: Marker) -> Marker:
        """Note what the scripts of a run left that was killed in them."""
        self.say("a run was broken off in its link scripts; what is new since is taken for theirs")
        self.clear(marker, dict(walk(self.prefix)))
        _sweep(self.prefix)
        return self.after_scripts(marker)

    def after_scripts(self, marker: Marker) -> Marker:
        """Note what scripts left: all that is unaccounted for and was not `before`."""
        found = unaccounted(self.prefix, self.expecting.result(), self.records)
        left = contents_of(self.prefix, set(found) - set(marker.before or ()))
        return replace(marker, written={**left, **marker.written}, before=None)

    def install(self, gone: Sequence[str]) -> None:
        """Install the wheels; take away those that only an earlier lock had."""
        site_packages = find_site(self.prefix).site_packages
        remove_from_stack(self.python, site_packages, gone, self.store)
        self.say(f"installing {len(self.wheels)} wheels")
        broken_off = unfinished(site_packages, self.wheels)
        if broken_off:
            self.stamps.after_linking()
        install_stack(self.python, self.wheels, self.store, again=broken_off)
        with self.stamps.settling():
            _ = self.records.counted  # takes a moment the first time

    def repair(self, marker: Marker) -> tuple[CondaVerdict, Verdict, set[str]]:
        """Install again what is damaged; return verdicts that hold, or raise `DoesNotHold`.

        The conda packages that were linked again are the third result.
        """
        self.say(f"checking {self.prefix}")
        conda, stack = self.judge_changed(marker)
        damaged = _damaged(conda.findings) & {p.content.name for p in self.foundation}
        if damaged:
            self.stamps.after_linking()
            self.say(f"linking again {', '.join(sorted(damaged))}:\n{describe(conda.findings)}")
            self.link(again=damaged).check()
            conda, stack = self.judge_changed(marker)
        # Linking a conda package whose python part a wheel replaces brings that part back.
        back = damaged | {f.package for f in conda.findings}
        wheels = _damaged(stack.findings) | (set(conda.superseded) & back)
        for _ in range(2):  # the first may take away a file that two wheels share
            if not wheels:
                break
            self.stamps.after_linking()
            found = describe([*conda.findings, *stack.findings])
            self.say(f"repairing {', '.join(sorted(wheels))}:\n{found}")
            install_stack(self.python, self.wheels, self.store, again=sorted(wheels))
            conda, stack = self.judge_changed(marker)
            wheels = _damaged(stack.findings)
        findings = [*conda.findings, *stack.findings]
        if findings:
            raise _does_not_hold(self.prefix, findings)
        return conda, stack, damaged

    def judge_changed(self, marker: Marker) -> tuple[CondaVerdict, Verdict]:
        """Verify both halves of a prefix that was changed, without byte code of what was there."""
        while True:
            conda, stack = self.judge(marker)
            if not remove_bytecode(self.prefix, [*conda.findings, *stack.findings]):
                return conda, stack

    def link(self, *, again: Collection[str] = (), scripts: bool = False) -> _Linked:
        """Run `link_conda.py` over the packages; finish the records and return what it did."""
        with _cache(self.store) as cache:
            result = _run_link_conda(
                {
                    "prefix": str(self.prefix),
                    "cache": str(cache),
                    "platform": self.platform,
                    "link_scripts": scripts,
                    "again": sorted(again),
                    "packages": [_row(p) for p in self.foundation],
                }
            )
        failed = tuple(result.get("failed_scripts", ()))
        linked = _Linked(frozenset(result.get("ran", ())), failed, result.get("error", ""))
        records = {
            p.content.name: self.prefix / "conda-meta" / f"{p.content.record_name}.json"
            for p in self.foundation
        }
        if not linked.error:
            for p in self.foundation:
                _finish_record(records[p.content.name], p.package)
        for script in failed:  # its package is not installed, so that the next run tries again
            records[script.partition(":")[0]].unlink(missing_ok=True)
        return linked


@dataclass(frozen=True)
class _Linked:
    """What linking came to: packages whose link scripts did what they should, and what failed."""

    ran: frozenset[str] = frozenset()
    failed_scripts: tuple[str, ...] = ()
    error: str = ""

    def check(self) -> None:
        """Raise `TorchlockError` when something failed."""
        if self.error:
            raise TorchlockError(
                f"the conda packages could not be linked: {self.error}",
                hint=after_failure(self.error),
            )
        if self.failed_scripts:
            raise TorchlockError(
                f"link scripts failed: {', '.join(self.failed_scripts)}",
                hint="run them by hand to see why, or make the prefix without them "
                "(that is the default)",
            )


def _does_not_hold(prefix: Path, findings: Sequence[Finding]) -> DoesNotHold:
    return DoesNotHold(
        f"{prefix} is not what the lock says:\n{describe(findings)}",
        hint="torchlock removes nothing that it did not install; if these files are not "
        f"yours, remove them (the paths are below {prefix}) and run this again",
    )


def _sweep(prefix: Path) -> None:
    """Remove the unfinished files that a run killed in this prefix left behind."""
    records = prefix / "conda-meta"
    unfinished = [records.glob("prefix_record_*"), records.glob(".*.json.*")]
    for path in chain(*unfinished, prefix.glob(f".{MARKER}.*")):
        path.unlink()


def _remove(prefix: Path, path: str) -> None:
    """Remove a file and the directories that are empty then."""
    place = prefix / path
    place.unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        while (place := place.parent) != prefix:
            place.rmdir()


def _row(locked: LockedConda) -> dict[str, Any]:
    return {
        "index": locked.content.index,
        "archive": str(locked.archive.absolute()),
        "channel": channel_of(locked.package),
        "sha256": locked.package.sha256,
        "md5": locked.package.md5,
        "size": locked.archive.stat().st_size,
    }


def _damaged(findings: Sequence[Finding]) -> set[str]:
    return {f.package for f in findings if f.kind in REPAIRABLE and f.package}


def _run_link_conda(request: dict[str, Any]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as scratch:
        asked, answered = Path(scratch, "request.json"), Path(scratch, "result.json")
        asked.write_text(json.dumps(request), encoding="utf-8")
        done = subprocess.run(
            [sys.executable, "-m", "torchlock.realize.link_conda", asked, answered],
            cwd=this_repository().root,
            capture_output=True,
            text=True,
            check=False,
        )
        try:
            result: dict[str, Any] = json.loads(answered.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            said = done.stderr.strip().splitlines()
            result = {"error": said[-1] if said else f"rattler ended with {done.returncode}"}
    return result


@contextmanager
def _cache(store: Store) -> Iterator[Path]:
    """Give rattler a cache of unpacked packages; one of its own where the store is read-only."""
    cache = conda_cache(store)
    try:
        cache.mkdir(parents=True, exist_ok=True)
        (cache / ".writable").touch()
    except OSError:
        with tempfile.TemporaryDirectory(prefix="torchlock-") as scratch:
            yield Path(scratch)
    else:
        yield cache


def _finish_record(path: Path, package: Package) -> None:
    """Note in `conda-meta` where the lock says the package comes from, not the store."""
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        raise TorchlockError(
            f"rattler left no record of {package.label}: {path} cannot be read",
            hint="run the same command again; it goes on where this one stopped",
        ) from None
    if record.get("url") != package.url:
        record["url"], record["channel"] = package.url, channel_of(package)
        write_atomically(path, (json.dumps(record, indent=2) + "\n").encode())
