"""The command line: exit codes, files in and out, messages without tracebacks."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from torchlock.doctor.__main__ import main
from torchlock.doctor.docs import text as docs_text

ROOT = Path(__file__).parents[2]
CASES = json.loads((Path(__file__).parent / "cases.json").read_text())
NOUVEAU = next(case["evidence"] for case in CASES if case["code"] == "nouveau-owns-gpu")
OLD_DRIVER = "The NVIDIA driver on your system is too old (found version 11040)."


@pytest.fixture
def nouveau(tmp_path):
    path = tmp_path / "evidence.json"
    path.write_text(json.dumps(NOUVEAU))
    return str(path)


def test_findings_exit_1_and_name_cause_and_command(nouveau, capsys):
    assert main(["--evidence", nouveau]) == 1
    said = capsys.readouterr().out
    assert said.startswith("The nouveau driver holds the GPU")
    assert "update-initramfs" in said


def test_an_error_message_alone_is_enough(capsys):
    assert main(["--error", OLD_DRIVER]) == 1
    assert "too old" in capsys.readouterr().out


def test_an_unknown_error_exits_2_and_says_what_to_collect(capsys):
    assert main(["--error", "ValueError: not enough values to unpack"]) == 2
    said = capsys.readouterr().out
    assert "no cause is named" in said
    assert "collect next" in said


def test_json_on_standard_output_is_only_json(nouveau, capsys):
    assert main(["--evidence", nouveau, "--json", "-"]) == 1
    said = json.loads(capsys.readouterr().out)
    assert said["status"] == "findings"
    assert said["findings"][0]["code"] == "nouveau-owns-gpu"
    assert set(said["findings"][0]) >= {
        "cause",
        "evidence",
        "fix",
        "certainty",
        "apart",
        "consequences",
    }


def test_saved_evidence_is_judged_the_same(nouveau, tmp_path):
    saved, first, second = (str(tmp_path / name) for name in ("saved.json", "1.json", "2.json"))
    assert main(["--evidence", nouveau, "--save", saved, "--json", first]) == 1
    assert main(["--evidence", saved, "--json", second]) == 1
    assert Path(first).read_text() == Path(second).read_text()


def test_a_whole_case_of_the_collection_is_taken_too(tmp_path):
    path = tmp_path / "case.json"
    path.write_text(
        json.dumps(next(case for case in CASES if case["code"] == "stub-libcuda-on-path"))
    )
    assert main(["--evidence", str(path), "--json", str(tmp_path / "out.json")]) == 1
    assert json.loads((tmp_path / "out.json").read_text())["findings"][0]["code"] == "stub-libcuda"


@pytest.mark.parametrize("content", [b"", b"not json", b"[1, 2]", b"\xff\xfe", b'{"a":' * 100_000])
def test_unreadable_evidence_exits_2_without_a_traceback(content, tmp_path, capsys):
    path = tmp_path / "bad.json"
    path.write_bytes(content)
    assert main(["--evidence", str(path)]) == 2
    assert capsys.readouterr().err.startswith("doctor: ")


def test_missing_evidence_exits_2(tmp_path, capsys):
    assert main(["--evidence", str(tmp_path / "none.json")]) == 2
    assert "No such file" in capsys.readouterr().err


def test_an_unwritable_file_exits_2(nouveau, tmp_path, capsys):
    assert main(["--evidence", nouveau, "--json", str(tmp_path / "no" / "dir.json")]) == 2
    assert "cannot write" in capsys.readouterr().err


STRANGE = {"error": "caf\u00e9 \ud800 undecodable \udcff", "env": {"CUDA_HOME": "/opt/\udcff"}}


@pytest.mark.parametrize("encoding", ["utf-8", "ascii", "latin-1"])
@pytest.mark.parametrize("options", [[], ["--json", "-"], ["--save", "-"]])
def test_text_that_cannot_be_encoded_is_escaped(encoding, options, tmp_path):
    path = tmp_path / "evidence.json"
    path.write_text(json.dumps(STRANGE))
    run = subprocess.run(
        [sys.executable, "-m", "torchlock.doctor", "--evidence", path, *options],
        capture_output=True,
        check=False,
        cwd=ROOT,
        env={"PATH": os.environ["PATH"], "PYTHONIOENCODING": encoding},
    )
    assert (run.returncode, run.stderr) == (2, b"")
    assert b"\\ud800" in run.stdout


def test_undecodable_arguments_and_variables_are_escaped(tmp_path):
    run = subprocess.run(
        [sys.executable, "-m", "torchlock.doctor", "--evidence", b"/no/\xff"],
        capture_output=True,
        check=False,
        cwd=ROOT,
    )
    assert run.returncode == 2
    assert b"/no/\\udcff" in run.stderr
    saved = tmp_path / "saved.json"
    run = subprocess.run(
        [sys.executable, "-m", "torchlock.doctor", "--save", saved],
        capture_output=True,
        check=False,
        cwd=ROOT,
        env={"PATH": os.environ["PATH"], "LD_LIBRARY_PATH": b"/opt/\xff/lib"},
    )
    assert run.returncode in (1, 2)
    assert run.stderr == b""
    assert json.loads(saved.read_text())["env"]["LD_LIBRARY_PATH"] == "/opt/\udcff/lib"


def test_a_full_disk_leaves_no_file_behind(nouveau, tmp_path, capsys, monkeypatch):
    def full(self, target):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    output = tmp_path / "out"
    output.mkdir()
    monkeypatch.setattr(Path, "replace", full)
    assert main(["--evidence", nouveau, "--json", str(output / "x.json")]) == 2
    assert "No space left" in capsys.readouterr().err
    assert list(output.iterdir()) == []


def test_an_output_that_is_full_exits_2_without_a_traceback(nouveau):
    with Path("/dev/full").open("wb") as full:
        run = subprocess.run(
            [sys.executable, "-m", "torchlock.doctor", "--evidence", nouveau],
            stdout=full,
            stderr=subprocess.PIPE,
            check=False,
            cwd=ROOT,
        )
    assert run.returncode == 2
    assert run.stderr == b"doctor: cannot write standard output: No space left on device\n"


def test_a_pipe_is_written_to_and_not_replaced(nouveau, tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        assert main(["--evidence", nouveau, "--json", str(pipe)]) == 1
        assert pipe.is_fifo()
        assert os.read(reader, 10).startswith(b"{")
    finally:
        os.close(reader)


def test_it_needs_the_standard_library_only_and_does_not_import_torch():
    program = (
        "import sys, torchlock.doctor.__main__; "
        "print(sorted({m.partition('.')[0] for m in sys.modules}))"
    )
    run = subprocess.run(
        [sys.executable, "-S", "-c", program],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": str(ROOT), "PATH": os.environ["PATH"]},
    )
    loaded = set(eval(run.stdout))
    assert loaded - set(sys.stdlib_module_names) <= {"__main__", "torchlock", "__mp_main__"}


def test_docs_are_current():
    current = (ROOT / "docs" / "doctor.md").read_text()
    assert current == docs_text(), "run: python -m torchlock.doctor.docs > docs/doctor.md"
