"""Starts child processes and turns every way they can end into a sentence."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

_GRACE_SECONDS = 5.0
_TAIL_BYTES = 20_000


@dataclass(frozen=True)
class Ended:
    """How a child ended: `fault` is empty, or completes the sentence "the process ..."."""

    fault: str
    output: str
    seconds: float
    timed_out: bool = False


def start_and_wait(
    command: Sequence[str],
    *,
    seconds: float,
    environment: Mapping[str, str] | None = None,
    directory: Path | None = None,
) -> Ended:
    """Runs `command` to its end, or stops it and all its descendants after `seconds`.

    Its output goes to a file, not a pipe, so that a surviving grandchild cannot hold us up.
    """
    begun = time.monotonic()
    with tempfile.TemporaryFile() as output:
        try:
            child = subprocess.Popen(
                list(command),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=None if environment is None else dict(environment),
                cwd=directory,
            )
        except OSError as error:
            return Ended(f"could not be started: {error.strerror}", "", 0.0)
        timed_out = False
        try:
            child.wait(seconds)
        except subprocess.TimeoutExpired:
            timed_out = True
        finally:
            # Also on Ctrl-C: nothing of ours stays behind.
            if child.poll() is None:
                stop_tree(child.pid)
                child.wait()
        output.seek(max(0, output.seek(0, os.SEEK_END) - _TAIL_BYTES))
        text = output.read().decode("utf-8", "replace")
    fault = _reading(child.returncode, seconds if timed_out else None, text)
    return Ended(fault, text, time.monotonic() - begun, timed_out)


def stop_tree(pid: int) -> None:
    """Ends process `pid` and its descendants: politely, then for good."""
    family = [pid, *descendants(pid)]
    _signal([pid], signal.SIGTERM)
    until = time.monotonic() + _GRACE_SECONDS
    while time.monotonic() < until and any(_runs(member) for member in family):
        time.sleep(0.05)
    _signal(sorted({*family, *descendants(pid)}), signal.SIGKILL)


def descendants(pid: int) -> list[int]:
    """The children of `pid`, their children, and so on, read from /proc."""
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            stat = _stat(int(entry.name))
            if stat:
                parents.setdefault(int(stat[1]), []).append(int(entry.name))
    found: list[int] = []
    waiting = [pid]
    while waiting:
        children = parents.get(waiting.pop(), [])
        found += children
        waiting += children
    return found


def _stat(pid: int) -> list[str]:
    """State and parent of a process, or nothing once it is gone."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return []
    # The command's name, in parentheses, may hold spaces and parentheses of its own.
    return text[text.rfind(")") + 2 :].split()[:2]


def _runs(pid: int) -> bool:
    stat = _stat(pid)
    return bool(stat) and stat[0] != "Z"


def _signal(pids: Sequence[int], number: signal.Signals) -> None:
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            continue


def _reading(code: int, limit: float | None, output: str) -> str:
    if limit is not None:
        return f"gave no result within {limit:g} s and was stopped{_last_line(output)}"
    if code < 0:
        name = signal.Signals(-code).name if -code in list(signal.Signals) else str(-code)
        memory = " (out of memory, or killed by hand)" if -code == signal.SIGKILL else ""
        bus = " (a shared-memory file system that is full)" if -code == signal.SIGBUS else ""
        return f"was ended by {name}{memory}{bus}{_last_line(output)}"
    if code:
        return f"ended with exit status {code}{_last_line(output)}"
    return ""


def _last_line(output: str) -> str:
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    return f"; its last words: {lines[-1][:200]}" if lines else ""
