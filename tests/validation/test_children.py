from __future__ import annotations

import errno
import json
import os
import signal
import sys
import tempfile
import time
from pathlib import Path

import pytest

from validation import checks
from validation.children import Child, Ended, descendants, start_and_wait
from validation.outcome import DOES_NOT_HOLD, HOLDS, NOT_JUDGED, Outcome, overall
from validation.running import read_outcome

CHECK = checks.named("transformer")


def python(code, **options):
    return start_and_wait([sys.executable, "-c", code], **{"seconds": 30, **options})


def test_a_child_that_ends_well_has_no_fault():
    ended = python("print('hello')")
    assert (ended.fault, ended.output) == ("", "hello\n")


def test_a_child_that_is_killed_gives_a_sentence_that_names_the_signal():
    ended = python("import os; print('so far', flush=True); os.kill(os.getpid(), 9)")
    assert ended.fault == "was ended by SIGKILL; its last words: so far"
    assert ended.lacking == "memory (or it was killed by hand)"


def test_a_child_that_fails_gives_its_last_line():
    ended = python("raise ValueError('no such thing')")
    assert ended.fault == "ended with exit status 1; its last words: ValueError: no such thing"


def test_a_program_that_is_not_there_gives_a_sentence(tmp_path):
    ended = start_and_wait([str(tmp_path / "none")], seconds=5)
    assert ended.fault == "could not be started: No such file or directory"


def test_a_child_that_hangs_is_stopped_with_its_children_even_if_it_ignores_sigterm(tmp_path):
    code = (
        "import signal, subprocess, sys, time, pathlib\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "p = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'],"
        " start_new_session=True)\n"
        "pathlib.Path('pid').write_text(str(p.pid)); time.sleep(600)\n"
    )
    ended = python(code, seconds=2, directory=tmp_path)
    assert ended.timed_out
    assert ended.fault.startswith("gave no result within 2 s and was stopped")
    grandchild = int((tmp_path / "pid").read_text())
    until = time.monotonic() + 10
    while time.monotonic() < until and _alive(grandchild):
        time.sleep(0.05)
    assert not _alive(grandchild)


def _alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_grandchild_that_keeps_the_output_open_does_not_hold_us_up():
    code = (
        "import subprocess, sys\n"
        "p = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(20)'])\n"
        "print(p.pid)"
    )
    ended = python(code)
    os.kill(int(ended.output), signal.SIGKILL)
    assert ended.seconds < 15


def test_stopping_a_child_early_leaves_nothing_running():
    before = set(descendants([os.getpid()]))  # other tests' services may still be ending
    child = Child([sys.executable, "-c", "import time; time.sleep(600)"], seconds=600)
    assert child.poll() is None
    started = set(descendants([os.getpid()])) - before
    assert started
    child.stop()
    assert not [pid for pid in started if _alive(pid)]


def test_a_result_is_read_whole(tmp_path):
    path = tmp_path / "outcome.json"
    outcome = Outcome("transformer", HOLDS, "learns", digests={"fp32": "sha256:0"})
    path.write_text(json.dumps(outcome.to_json()))
    assert read_outcome(CHECK, path, Ended("", "", 1.0)) == outcome


@pytest.mark.parametrize(
    "garbage",
    [
        "",
        "{",
        "[]",
        "null",
        '{"name": "transformer"}',
        '{"name": "transformer", "verdict": "fine", "evidence": ""}',
        '{"name": "resume", "verdict": "holds", "evidence": ""}',
        '{"name": "transformer", "verdict": "holds", "evidence": 3}',
        '{"name": "transformer", "verdict": "holds", "evidence": "", "digests": []}',
        '{"name": "transformer", "verdict": "holds", "evidence": "", "digests": {"a": 1}}',
        '{"name": "transformer", "verdict": "holds", "evidence": "", "milliseconds": "1"}',
        '{"name": "transformer", "verdict": "holds", "evidence": "", "more": 1}',
        "\x00\xff",
    ],
)
def test_a_child_that_writes_garbage_is_not_judged(tmp_path, garbage):
    path = tmp_path / "outcome.json"
    path.write_text(garbage)
    outcome = read_outcome(CHECK, path, Ended("", "", 1.0))
    assert outcome.verdict == NOT_JUDGED
    assert outcome.needed


def test_a_child_that_crashes_counts_against_the_stack(tmp_path):
    ended = Ended("was ended by SIGSEGV", "", 1.0)
    outcome = read_outcome(CHECK, tmp_path / "outcome.json", ended)
    assert (outcome.verdict, outcome.evidence) == (
        DOES_NOT_HOLD,
        "the check's process was ended by SIGSEGV",
    )


def test_a_crash_after_the_result_still_counts(tmp_path):
    path = tmp_path / "outcome.json"
    path.write_text(json.dumps(Outcome("transformer", HOLDS, "learns").to_json()))
    outcome = read_outcome(CHECK, path, Ended("was ended by SIGABRT", "", 1.0))
    assert outcome.verdict == DOES_NOT_HOLD


@pytest.mark.parametrize(
    ("code", "lacking"),
    [
        ("import os; os.kill(os.getpid(), 9)", "memory"),
        ("import os; os.kill(os.getpid(), 7)", "room in a shared-memory file system"),
        ("raise OSError(28, 'No space left on device')", "No space left on device"),
        ("raise MemoryError", "MemoryError"),
        ("raise RuntimeError('DefaultCPUAllocator: can\\'t allocate memory: you tried')", "memory"),
        ("raise OSError(98, 'Address already in use')", "Address already in use"),
        ("raise RuntimeError('unexpected pos 11648 vs 11542')", "unexpected pos"),
        ("import time; time.sleep(60)", "time"),
    ],
)
def test_what_the_machine_did_not_give_is_no_fault_of_the_stack(tmp_path, code, lacking):
    ended = python(code, seconds=2 if "sleep" in code else 30)
    outcome = read_outcome(CHECK, tmp_path / "outcome.json", ended)
    assert outcome.verdict == NOT_JUDGED
    assert "the machine lacks" in outcome.evidence
    assert lacking in outcome.evidence


@pytest.mark.parametrize(
    "code", ["import os; os.kill(os.getpid(), 11)", "raise SystemExit(3)", "import no_such_module"]
)
def test_what_fails_by_itself_counts_against_the_stack(tmp_path, code):
    outcome = read_outcome(CHECK, tmp_path / "outcome.json", python(code))
    assert outcome.verdict == DOES_NOT_HOLD
    assert "lacks" not in outcome.evidence


def test_a_full_disk_is_found_though_nobody_says_so(tmp_path, monkeypatch):
    class Full:
        def __init__(self, *_, **__):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    child = Child([sys.executable, "-c", "raise SystemExit(1)"], seconds=30)
    monkeypatch.setattr(tempfile, "TemporaryFile", Full)
    while (ended := child.poll()) is None:
        time.sleep(0.01)
    outcome = read_outcome(CHECK, tmp_path / "outcome.json", ended)
    assert outcome.verdict == NOT_JUDGED
    assert "No space left on device" in outcome.evidence


def outcome_of(verdict, needed=True):
    return Outcome("x", verdict, "", needed=needed)


@pytest.mark.parametrize(
    ("outcomes", "expected"),
    [
        ([], NOT_JUDGED),
        ([outcome_of(HOLDS)], HOLDS),
        ([outcome_of(HOLDS), outcome_of(NOT_JUDGED, needed=False)], HOLDS),
        ([outcome_of(NOT_JUDGED, needed=False)], NOT_JUDGED),
        ([outcome_of(HOLDS), outcome_of(NOT_JUDGED)], NOT_JUDGED),
        ([outcome_of(NOT_JUDGED), outcome_of(DOES_NOT_HOLD)], DOES_NOT_HOLD),
    ],
)
def test_nothing_holds_that_was_not_judged(outcomes, expected):
    assert overall(outcomes) == expected
