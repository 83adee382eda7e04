"""The conda realization: a full conda prefix from the lock, made without conda.

rattler links the conda half and uv installs the pip half, both from the artifact store, so a
full store needs no network. conda, mamba and micromamba recognise the prefix.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import chain
from pathlib import Path

from torchlock.artifacts import Artifact, Mirrors, Store, fetch
from torchlock.collector import collector_paused
from torchlock.errors import DoesNotHold, TorchlockError
from torchlock.files import absolute
from torchlock.findings import SITE, Finding, Site, find_site
from torchlock.lock import Lock, Package
from torchlock.progress import Progress, silent
from torchlock.realize.environments_txt import register_environment
from torchlock.realize.foundation import (
    LockedConda,
    check_prefix_length,
    expect_foundation,
    fetch_foundation,
)
from torchlock.realize.interpreter import host_platform
from torchlock.realize.link_scripts import (
    carry_over,
    note_what_scripts_left,
    pending,
    run_scripts,
    still_run,
    unrun,
)
from torchlock.realize.linking import Linked, link_packages
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
    alone,
    check_prefix_name,
    check_space,
    check_writable,
    conda_cache,
    read_stamps,
    wheel_cache,
)
from torchlock.realize.repair import damaged_packages, does_not_hold
from torchlock.realize.stack import install_stack, remove_from_stack, unfinished
from torchlock.realize.venv import remove_bytecode
from torchlock.records import Records
from torchlock.report import describe
from torchlock.stamps import Reading, Stamps
from torchlock.tree import walk
from torchlock.verify import Verdict, differing_files, verify
from torchlock.verify_conda import (
    CLIENT_FILES,
    CondaVerdict,
    Expectation,
    is_conda_prefix,
    stack_paths,
    unaccounted,
    verify_conda,
)


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
        whole = (prefix / SITE).is_dir() and (prefix / "conda-meta").is_dir()
        if marker == goal and whole and not (link_scripts and pending(foundation, goal)):
            say(f"checking {prefix}")
            conda, stack = work.judge(goal)
            if conda.holds and stack.holds:
                return work.done(goal, conda, stack, installed=False)
            found = [*conda.findings, *stack.findings]
            if not damaged_packages(found):  # nothing that installing could put right
                raise does_not_hold(prefix, found)
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
        ran = still_run(foundation, begun.scripts, linked_again)
        goal = replace(goal, scripts=ran, written=begun.written)
        write_marker(prefix, goal)
        return work.done(goal, conda, stack, installed=True)


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
        goal = Marker(
            self.lock,
            "conda",
            tuple(f"{w.name}=={w.version}" for w in self.wheels),
            complete=True,
            packages=tuple(p.content.record_name for p in self.foundation),
        )
        return carry_over(marker, goal)

    def begun(self, goal: Marker, marker: Marker | None, damaged: Collection[str]) -> Marker:
        """Return the marker of a prefix on its way to the goal: what either has is torchlock's."""
        before = marker or replace(goal, wheels=(), packages=())
        return replace(
            goal,
            wheels=tuple(sorted({*goal.wheels, *before.wheels})),
            packages=tuple(sorted({*goal.packages, *before.packages})),
            complete=False,
            scripts=still_run(self.foundation, goal.scripts, damaged),
        )

    def gone(self, marker: Marker) -> list[str]:
        """Return the wheels of the marker whose names are locked no more."""
        return gone(marker.wheels, (w.name for w in self.wheels))

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
        reading = Reading(self.stamps)
        present = dict(walk(self.prefix))
        self.clear(marker, present)
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
        damaged = damaged_packages(conda) & installed.keys()
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
        if self.link_scripts and pending(self.foundation, marker):
            marker = run_scripts(
                self.prefix,
                self.foundation,
                marker,
                unaccounted=self.unaccounted,
                link=partial(self.link, again=damaged, scripts=True),
            )
        else:
            self.link(again=damaged).check()
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

    def after_broken_off_scripts(self, marker: Marker) -> Marker:
        """Note what the scripts of a run left that was killed in them."""
        self.say("a run was broken off in its link scripts; what is new since is taken for theirs")
        self.clear(marker, dict(walk(self.prefix)))
        _sweep(self.prefix)
        return note_what_scripts_left(self.prefix, marker, self.unaccounted())

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
        damaged = damaged_packages(conda.findings) & {p.content.name for p in self.foundation}
        if damaged:
            self.stamps.after_linking()
            self.say(f"linking again {', '.join(sorted(damaged))}:\n{describe(conda.findings)}")
            self.link(again=damaged).check()
            conda, stack = self.judge_changed(marker)
        # Linking a conda package whose python part a wheel replaces brings that part back.
        back = damaged | {f.package for f in conda.findings}
        wheels = damaged_packages(stack.findings) | (set(conda.superseded) & back)
        for _ in range(2):  # the first may take away a file that two wheels share
            if not wheels:
                break
            self.stamps.after_linking()
            found = describe([*conda.findings, *stack.findings])
            self.say(f"repairing {', '.join(sorted(wheels))}:\n{found}")
            install_stack(self.python, self.wheels, self.store, again=sorted(wheels))
            conda, stack = self.judge_changed(marker)
            wheels = damaged_packages(stack.findings)
        findings = [*conda.findings, *stack.findings]
        if findings:
            raise does_not_hold(self.prefix, findings)
        return conda, stack, damaged

    def unaccounted(self) -> list[str]:
        """Return the paths that nothing accounts for, byte code aside."""
        return unaccounted(self.prefix, self.expecting.result(), self.records)

    def link(self, *, again: Collection[str] = (), scripts: bool = False) -> Linked:
        """Link the conda half; the packages of `again` afresh."""
        return link_packages(
            self.prefix, self.foundation, self.platform, self.store, again=again, scripts=scripts
        )

    def done(
        self, marker: Marker, conda: CondaVerdict, stack: Verdict, *, installed: bool
    ) -> MadePrefix:
        """Keep the stamps, list the complete prefix where conda lists its own; return it."""
        self.stamps.write()
        register_environment(self.prefix)
        not_run = unrun(self.foundation, marker)
        if installed and not_run:
            names = ", ".join(not_run)
            self.say(f"not run, as link scripts are only with --link-scripts: {names}")
        return MadePrefix(self.prefix, installed, stack, conda, not_run)

    def judge_changed(self, marker: Marker) -> tuple[CondaVerdict, Verdict]:
        """Verify both halves of a prefix that was changed, without byte code of what was there."""
        while True:
            conda, stack = self.judge(marker)
            if not remove_bytecode(self.prefix, [*conda.findings, *stack.findings]):
                return conda, stack


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
