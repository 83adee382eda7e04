"""Starts child processes and turns every way they can end into a sentence."""

from __future__ import annotations

import ctypes
import os
import re
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

POLL_SECONDS = 0.02
_GRACE_SECONDS = 5.0
_TAIL_BYTES = 20_000
_ROOM_BYTES = 64 << 10
_PR_SET_PDEATHSIG = 1  # <linux/prctl.h>


# What the C library, Python, torch and gloo say when the machine lacks room, memory, a port ...
_LACKS = re.compile(
    r"no space left on device|disk quota exceeded|read-only file system"
    r"|cannot allocate memory|can't allocate memory|not enough memory|MemoryError|bad_alloc"
    r"|PytorchStreamWriter failed|unexpected pos \d+ vs \d+"  # torch.save, whatever the reason
    r"|address already in use|EADDRINUSE|too many open files"
    r"|can't start new thread|resource temporarily unavailable"
    r"|Signal \d+ \((?:SIGKILL|SIGBUS|SIGXCPU|SIGXFSZ)\)",
    re.IGNORECASE,
)
_SIGNALS = {
    signal.SIGKILL: "memory (or it was killed by hand)",
    signal.SIGBUS: "room in a shared-memory file system",
    signal.SIGXCPU: "CPU time (a limit)",
    signal.SIGXFSZ: "file size (a limit)",
}


@dataclass(frozen=True)
class Ended:
    """How a child ended: `fault` is empty, or completes the sentence "the process ...".

    `lacking` is what the machine did not give it: time, memory, room, a port. A child that ended
    for that says nothing about the program. Empty otherwise.
    """

    fault: str
    output: str
    seconds: float
    timed_out: bool = False
    lacking: str = ""


class Child:
    """A child that is watched: `poll` says how it ended, `stop` ends it and its descendants.

    Its output goes to a file, not a pipe, so that a surviving grandchild cannot hold us up.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        seconds: float,
        environment: Mapping[str, str] | None = None,
        directory: Path | None = None,
    ) -> None:
        self._begun = time.monotonic()
        self._limit = seconds
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 - closed when the child has ended
        self._ended: Ended | None = None
        self._process: subprocess.Popen[bytes] | None = None
        try:
            self._process = subprocess.Popen(
                list(command),
                stdin=subprocess.DEVNULL,
                stdout=self._output,
                stderr=subprocess.STDOUT,
                env=None if environment is None else dict(environment),
                cwd=directory,
            )
        except OSError as error:
            fault = f"could not be started: {error.strerror}"
            self._ended = Ended(fault, "", 0.0, lacking=_lack(1, fault))

    def poll(self) -> Ended | None:
        """How the child ended, or None while it runs; past its time it is stopped."""
        if self._ended or self._process is None:
            return self._ended
        late = time.monotonic() - self._begun > self._limit
        if self._process.poll() is None and not late:
            return None
        self.stop()
        seconds = time.monotonic() - self._begun
        with self._output as output:
            output.seek(max(0, output.seek(0, os.SEEK_END) - _TAIL_BYTES))
            text = output.read().decode("utf-8", "replace")
        code = self._process.returncode
        fault = _reading(code, self._limit if late else None, text)
        self._ended = Ended(fault, text, seconds, late, "time" if late else _lack(code, text))
        return self._ended

    def stop(self) -> None:
        """Ends the child and its descendants if it still runs."""
        if self._process is not None and self._process.poll() is None:
            stop_tree(self._process.pid)
            self._process.wait()


def start_and_wait(
    command: Sequence[str],
    *,
    seconds: float,
    environment: Mapping[str, str] | None = None,
    directory: Path | None = None,
) -> Ended:
    """Runs `command` to its end, or stops it and all its descendants after `seconds`."""
    child = Child(command, seconds=seconds, environment=environment, directory=directory)
    try:
        while (ended := child.poll()) is None:
            time.sleep(POLL_SECONDS)
        return ended
    finally:
        child.stop()  # also on Ctrl-C: nothing of ours stays behind


def stop_tree(pid: int) -> None:
    """Ends process `pid` and its descendants: politely, then for good.

    Descendants are looked for all the time: one may be about to start another, and the children
    of one that has ended are no longer known as `pid`'s.
    """
    family = {pid, *descendants([pid])}
    _signal([pid], signal.SIGTERM)
    _wait_for(family)
    _signal(family, signal.SIGSTOP)
    family.update(descendants(family))
    _signal(family, signal.SIGKILL)
    _wait_for(family)


def _wait_for(family: set[int]) -> None:
    """Waits a while for all of `family` to end, adding those they start meanwhile."""
    until = time.monotonic() + _GRACE_SECONDS
    while time.monotonic() < until and any(_runs(member) for member in family):
        time.sleep(POLL_SECONDS)
        family.update(descendants(family))


def die_with_parent() -> None:
    """Has the kernel end this process when the one that started it ends, however that ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def descendants(pids: Iterable[int]) -> list[int]:
    """The children of `pids`, their children, and so on, read from /proc."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            stat = _stat(int(entry.name))
            if stat:
                children.setdefault(int(stat[1]), []).append(int(entry.name))
    found: list[int] = []
    waiting = list(pids)
    while waiting:
        below = children.get(waiting.pop(), [])
        found += below
        waiting += below
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


def _signal(pids: Iterable[int], number: signal.Signals) -> None:
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
        return f"was ended by {name}{_last_line(output)}"
    if code:
        return f"ended with exit status {code}{_last_line(output)}"
    return ""


def _lack(code: int, output: str) -> str:
    """What a child that ended with `code` lacked, or "" where nothing points to that."""
    if not code:
        return ""
    if -code in _SIGNALS:
        return _SIGNALS[signal.Signals(-code)]
    try:
        # What a full disk breaks seldom says so itself.
        with tempfile.TemporaryFile() as probe:
            probe.write(bytes(_ROOM_BYTES))
            probe.flush()
    except OSError as error:
        return f"room in {tempfile.gettempdir()}: {error.strerror}"
    found = _LACKS.search(output)
    return f'what it needs: "{found[0]}"' if found else ""


def _last_line(output: str) -> str:
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    return f"; its last words: {lines[-1][:200]}" if lines else ""
