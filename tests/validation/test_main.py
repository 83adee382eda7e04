"""The command line, with the checks' children replaced by ready outcomes."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys

import pytest

from validation import machine
from validation.checks import CHECKS
from validation.outcome import DOES_NOT_HOLD, HOLDS, NOT_JUDGED, Outcome
from validation.running import Request, run_all

from .conftest import REPOSITORY
from .examples import A, B

main = importlib.import_module("validation.__main__")

STACK = Outcome("stack", HOLDS, "own", details={"versions": {"torch": "2.7.1"}})
TRAINED = Outcome("transformer", HOLDS, "learns", digests={"fp32": A})
RESUMED = Outcome("resume", HOLDS, "same", digests={"fp32": A})
NO_GPU = Outcome("gpu", NOT_JUDGED, "no device", needed=False)


@pytest.fixture
def validate(monkeypatch, tmp_path, capsys):
    def run(*arguments, outcomes=(STACK, TRAINED, RESUMED, NO_GPU)):
        monkeypatch.setattr(main, "run_all", lambda request, progress: list(outcomes))
        given = ["--references", str(tmp_path / "references"), *arguments]
        code = main.main(given)
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return run


def test_a_machine_without_a_gpu_holds_and_never_succeeds_for_cuda(validate):
    code, table, _ = validate()
    assert code == 0
    row = next(line for line in table.splitlines() if line.startswith("gpu "))
    assert row.split(maxsplit=1)[1].strip() == "not judged  no device"


def test_a_fault_exits_1_and_a_missing_judgement_2(validate):
    assert validate(outcomes=[STACK, Outcome("ddp", DOES_NOT_HOLD, "hangs")])[0] == 1
    assert validate(outcomes=[STACK, Outcome("ddp", NOT_JUDGED, "no time")])[0] == 2


def test_record_then_identical_then_differs(validate):
    assert validate("--record")[0] == 0
    code, table, _ = validate()
    assert (code, "identical to the reference" in table) == (0, True)
    changed = [
        STACK,
        Outcome("transformer", HOLDS, "", digests={"fp32": B}),
        Outcome("resume", HOLDS, "", digests={"fp32": B}),
    ]
    code, table, _ = validate(outcomes=changed)
    assert (code, "differs from the reference" in table) == (1, True)
    code, _, errors = validate("--record", outcomes=changed)
    assert code == 2
    assert A in errors
    assert B in errors
    assert validate("--record", "--replace", outcomes=changed)[0] == 0


def test_nothing_is_recorded_that_does_not_hold(validate, tmp_path):
    code, _, errors = validate("--record", outcomes=[STACK, Outcome("ddp", DOES_NOT_HOLD, "bad")])
    assert code == 2
    assert "nothing is recorded: ddp does not hold: bad" in errors
    assert not list(tmp_path.glob("references/*"))


def test_the_same_run_with_other_bits_in_another_process_does_not_hold(validate):
    again = Outcome("resume", HOLDS, "", digests={"fp32": B})
    code, table, _ = validate(outcomes=[STACK, TRAINED, again])
    assert code == 1
    assert "two processes made the same run and got different bits" in table


def test_the_certificate_goes_to_standard_output_alone(validate):
    code, output, errors = validate("--json", "-")
    certificate = json.loads(output)
    assert certificate["verdict"] == HOLDS
    assert [check["name"] for check in certificate["checks"]][:2] == ["lock", "files"]
    assert "transformer" in errors
    assert code == 0


def test_a_certificate_that_cannot_be_written_gives_a_sentence(validate, tmp_path):
    code, _, errors = validate("--json", str(tmp_path / "none" / "c.json"))
    assert code == 2
    assert "could not be written" in errors


def test_what_the_lane_overrides_is_said_and_certified(validate, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "16")
    _, output, errors = validate("--json", "-")
    assert "overridden for the checks: OMP_NUM_THREADS=16" in errors
    assert json.loads(output)["lane"]["overridden"]["OMP_NUM_THREADS"] == "16"


def test_files_that_are_not_as_locked_decide_the_verdict(validate, tmp_path):
    context = tmp_path / "context.json"
    context.write_text(json.dumps({"files": {"verdict": DOES_NOT_HOLD, "tree": "sha256-x"}}))
    assert validate("--context", str(context))[0] == 1


@pytest.mark.parametrize(
    "arguments",
    [
        ["--nnodes", "2"],
        ["--nnodes", "2", "--rdzv-endpoint", "host"],
        ["--nnodes", "2", "--node-rank", "2", "--rdzv-endpoint", "host:1"],
        ["--nnodes", "0"],
        ["--record", "--only", "ddp"],
        ["--context", "/nonexistent"],
    ],
)
def test_a_request_that_makes_no_sense_gives_a_sentence(validate, arguments):
    code, _, errors = validate(*arguments)
    assert code == 2
    assert errors
    assert "Traceback" not in errors


def test_ctrl_c_leaves_without_a_traceback(monkeypatch, capsys):
    def interrupted(request, progress):
        raise KeyboardInterrupt

    monkeypatch.setattr(main, "run_all", interrupted)
    assert main.main([]) == 130
    assert "nothing was judged" in capsys.readouterr().err


def test_a_cpu_without_avx2_is_not_judged_and_nothing_is_started(monkeypatch):
    facts = {"architecture": "x86_64", "cpu flags": ["avx"], "cores": 2}
    monkeypatch.setattr(machine, "facts", lambda: facts)
    started = []
    outcomes = run_all(Request(device="cpu"), started.append)
    assert started == []
    assert {o.verdict for o in outcomes} == {NOT_JUDGED}
    assert {o.evidence for o in outcomes if o.name != "gpu"} == {"this CPU has no AVX2 and no FMA"}
    assert [o.name for o in outcomes if o.needed] == [c.name for c in CHECKS if c.name != "gpu"]


@pytest.mark.parametrize("arguments", [["-m", "validation"], [str(REPOSITORY / "validation")]])
def test_where_there_is_no_torch_the_stack_does_not_hold(tmp_path, arguments):
    """With the tool's own python: started both ways, from a directory that is no help."""
    done = subprocess.run(
        [sys.executable, *arguments, "--only", "transformer", "--json", "-"],
        cwd=tmp_path,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    checks = {check["name"]: check for check in json.loads(done.stdout)["checks"]}
    assert "import torch fails" in checks["stack"]["evidence"]
    assert checks["transformer"]["verdict"] == NOT_JUDGED
    assert "Traceback" not in done.stderr


def test_bits_that_do_not_repeat_are_not_recorded(validate, tmp_path):
    other = Outcome("resume", HOLDS, "", digests={"fp32": B})
    code, _, said = validate("--record", outcomes=(STACK, TRAINED, other, NO_GPU))
    assert code == 2
    assert "nothing is recorded: repetition does not hold" in said
    assert not (tmp_path / "references").exists()
