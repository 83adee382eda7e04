"""The venv realization: the stack on the host's own CPython 3.11."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from shlex import quote

from torchlock.artifacts import Artifact, Mirrors, Store, fetch
from torchlock.collector import collector_paused
from torchlock.errors import TorchlockError
from torchlock.files import absolute
from torchlock.findings import SITE, Finding, Site, find_site
from torchlock.lock import PYTHON_VERSION, Lock, Package
from torchlock.progress import Progress, silent
from torchlock.realize.interpreter import Interpreter, find_interpreter, host_platform
from torchlock.realize.marker import Marker, read_marker, write_marker
from torchlock.realize.obstacles import (
    below_site,
    blocked,
    gone,
    installed_paths,
    overwritten,
    refuse,
)
from torchlock.realize.place import (
    alone,
    check_prefix_name,
    check_space,
    check_writable,
    read_stamps,
    wheel_cache,
)
from torchlock.realize.repair import damaged_packages, does_not_hold
from torchlock.realize.stack import (
    install_stack,
    introduce,
    remove_from_stack,
    remove_leftovers,
    unfinished,
)
from torchlock.records import Records
from torchlock.report import describe
from torchlock.stamps import Reading, Stamps
from torchlock.tree import walk
from torchlock.verify import Verdict, differing_files, verify
from torchlock.verify_conda import stack_paths


@dataclass(frozen=True)
class Made:
    """What `make_venv` did: `installed` is False when nothing had to change."""

    prefix: Path
    installed: bool
    verdict: Verdict


@collector_paused()
def make_venv(
    lock: Lock,
    records: Records,
    prefix: Path,
    store: Store,
    *,
    mirrors: Callable[[Sequence[Artifact]], Mirrors] = lambda _: {},
    progress: Progress = silent,
    say: Callable[[str], None] = lambda _: None,
) -> Made:
    """Make, complete, repair or update the venv at `prefix`; return the verified result.

    Raises `TorchlockError` when the host cannot carry the stack, the prefix holds something
    else, or an artifact cannot be had; `DoesNotHold` when files remain that are not the lock's.
    An interrupted call is completed by the next.
    """
    prefix = absolute(prefix)
    check_prefix_name(prefix, "venv")
    wheels = lock.wheels(host_platform())
    with alone(prefix, store):
        stamps = read_stamps(store)
        marker = read_marker(prefix)
        goal = Marker(
            lock.digest, "venv",
            tuple(f"{w.name}=={w.version}" for w in wheels), complete=True,
        )  # fmt: skip
        if marker and marker.foundation != "venv":
            raise TorchlockError(
                f"{prefix} is a {marker.foundation} prefix, not a venv",
                hint=f"invoke env --foundation {marker.foundation} --prefix {quote(str(prefix))}; "
                "or choose another place",
            )
        damaged: list[str] = []
        if marker == goal and _works(prefix):
            say(f"checking {prefix}")
            verdict = _judge(prefix, records, stamps, say)
            if verdict.holds:
                stamps.write()
                return Made(prefix, installed=False, verdict=verdict)
            damaged = sorted(damaged_packages(verdict.findings))
            if not damaged:  # nothing that installing could put right
                raise does_not_hold(prefix, verdict.findings)
            say(f"{prefix} is not what the lock says:\n{describe(verdict.findings)}")
        if marker:
            _survey(prefix, marker, goal, records, stamps)
        _build(
            goal=goal,
            marker=marker,
            prefix=prefix,
            wheels=wheels,
            records=records,
            store=store,
            stamps=stamps,
            mirrors=mirrors,
            progress=progress,
            say=say,
        )
        if marker and not marker.complete:
            remove_leftovers(find_site(prefix).site_packages)
        if not damaged:
            damaged = unfinished(find_site(prefix).site_packages, wheels)
        verdict = _install_until_it_holds(prefix, wheels, records, store, stamps, damaged, say)
        write_marker(prefix, goal)
        stamps.write()
        return Made(prefix, installed=True, verdict=verdict)


def _judge(prefix: Path, records: Records, stamps: Stamps, say: Callable[[str], None]) -> Verdict:
    reading = Reading(stamps)
    verdict = verify(find_site(prefix), records, python=prefix / "bin" / "python", reading=reading)
    say(f"installed files: {reading.told}")
    return verdict


def _build(
    *,
    goal: Marker,
    marker: Marker | None,
    prefix: Path,
    wheels: Sequence[Package],
    records: Records,
    store: Store,
    stamps: Stamps,
    mirrors: Callable[[Sequence[Artifact]], Mirrors],
    progress: Progress,
    say: Callable[[str], None],
) -> None:
    """Bring the wheels into the store and a working interpreter into the prefix."""
    interpreter = None if marker and _works(prefix) else find_interpreter()
    check_writable(prefix)
    if marker is None:
        check_space(prefix, store, wheels, records)
    hashing = Reading(stamps)
    fetch(wheels, store, mirrors=mirrors, progress=progress, reading=hashing)
    say(f"artifacts: {hashing.told}")
    before = marker.wheels if marker else ()
    wheels_begun = tuple(sorted({*goal.wheels, *before}))
    write_marker(prefix, replace(goal, wheels=wheels_begun, complete=False))
    with ThreadPoolExecutor(1) as beside:
        following = beside.submit(stamps.before_linking, wheel_cache(store))
        if interpreter:
            say(f"making {prefix} on {interpreter.program} ({interpreter.source})")
            _make_interpreter(prefix, interpreter)
            introduce(prefix / "bin" / "python", store)
        site_packages = find_site(prefix).site_packages
        old = gone(before, goal.wheels)
        remove_from_stack(prefix / "bin" / "python", site_packages, old, store)
        following.result()


def _install_until_it_holds(
    prefix: Path,
    wheels: Sequence[Package],
    records: Records,
    store: Store,
    stamps: Stamps,
    damaged: Sequence[str],
    say: Callable[[str], None],
) -> Verdict:
    """Install what is missing and, afresh, what is `damaged`; repair what still differs.

    Two repairs: the first may take away a file that the replaced wheel shared with another.
    """
    for _ in range(3):
        if damaged:
            stamps.after_linking()  # uv forgets these: what it links now is another file
            say(f"repairing {', '.join(damaged)}")
        else:
            say(f"installing {len(wheels)} wheels")
        install_stack(prefix / "bin" / "python", wheels, store, again=damaged)
        with stamps.settling():
            _ = records.counted  # takes a moment the first time
        verdict = _judge(prefix, records, stamps, say)
        damaged = sorted(damaged_packages(verdict.findings))
        if damaged:
            say(f"not what the lock says:\n{describe(verdict.findings)}")
        if not remove_bytecode(prefix, verdict.findings) and not damaged:
            break
    if not verdict.holds:
        raise does_not_hold(prefix, verdict.findings)
    return verdict


def _survey(prefix: Path, marker: Marker, goal: Marker, records: Records, stamps: Stamps) -> None:
    """Raise `DoesNotHold` when going on would replace or remove what torchlock did not make."""
    reading = Reading(stamps)
    present = dict(walk(prefix))
    locked = stack_paths(prefix, records)
    going = installed_paths(prefix, (), gone(marker.wheels, goal.wheels))
    refuse(prefix, blocked(prefix, chain(locked, going), present, {}))
    if marker.lock != goal.lock:
        found = differing_files(
            Site(prefix, prefix / SITE), records, reading=reading, present=below_site(present)
        )
        refuse(prefix, overwritten(found, present, installed_paths(prefix, (), marker.wheels)))


def remove_bytecode(prefix: Path, findings: Sequence[Finding]) -> bool:
    """Remove the byte code of what has just been replaced or removed; Python makes it again."""
    stale = [
        prefix / f.path
        for f in findings
        if f.kind == "byte code" and Path(f.path).parent.name == "__pycache__"
    ]
    for path in stale:
        path.unlink(missing_ok=True)
    return bool(stale)


def _make_interpreter(prefix: Path, interpreter: Interpreter) -> None:
    for name in ("python", "python3", f"python{PYTHON_VERSION}"):
        # venv keeps what is there, wherever it leads.
        (prefix / "bin" / name).unlink(missing_ok=True)
    command = [str(interpreter.program), "-I", "-S", "-m", "venv", "--without-pip", str(prefix)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode or not _works(prefix):
        raise TorchlockError(
            f"{interpreter.program} could not make a venv: {(done.stderr or done.stdout).strip()}",
            hint="Debian and Ubuntu: apt-get install python3-venv",
        )


def _works(prefix: Path) -> bool:
    """Say whether the prefix has site-packages, and a python 3.11 that lives in the prefix.

    Without its pyvenv.cfg it would be the host's own, and uv would install there.
    """
    if not (prefix / SITE).is_dir():
        return False
    code = "import sys; print('%d.%d' % sys.version_info[:2], sys.prefix, sep='\\n')"
    try:
        done = subprocess.run(
            [prefix / "bin" / "python", "-I", "-c", code],
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        version, _, home = done.stdout.strip().partition("\n")
        return version == PYTHON_VERSION and Path(home).samefile(prefix)
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return False
