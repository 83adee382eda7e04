"""Where nvidia-smi is missing, NVML itself is asked, in a child process."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from torchlock.doctor import loose
from torchlock.doctor.diagnosis import judge
from torchlock.doctor.probes import children, merge, programs
from torchlock.doctor.probes.machine import Machine

pytestmark = pytest.mark.slow  # needs a C compiler


@pytest.fixture(scope="module")
def stub(tmp_path_factory):
    directory = tmp_path_factory.mktemp("nvml")
    library = directory / "libnvidia-ml.so.1"
    source = Path(__file__).parent / "libnvml_stub.c"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source], check=True)
    return directory


def looked(stub, tmp_path, **variables):
    machine = Machine(tmp_path, {"PATH": "", "LD_LIBRARY_PATH": str(stub), **variables})
    found = merge(programs.smi(machine), children.nvml(machine))
    return loose.read({"context": {"os": "Ubuntu 22.04"}, **found})


def test_it_says_what_nvidia_smi_would(stub, tmp_path):
    run = looked(stub, tmp_path).smi["here"]
    assert run.works
    assert (run.driver, run.cuda) == ("570.86.15", "12.8")
    assert [(gpu.index, gpu.name, gpu.uuid[:5]) for gpu in run.gpus] == [
        (0, "NVIDIA L40S", "GPU-1"),
        (1, "NVIDIA L40S", "GPU-2"),
    ]


def test_its_refusal_is_judged_as_that_of_nvidia_smi(stub, tmp_path):
    evidence = looked(stub, tmp_path, STUB_NVML="18")
    assert (
        evidence.smi["here"].failure == "Failed to initialize NVML: Driver/library version mismatch"
    )
    assert judge(evidence).findings[0].code == "driver-library-mismatch"


def test_no_gpu_is_not_a_working_driver(stub, tmp_path):
    assert not looked(stub, tmp_path, STUB_DEVICES="0").smi["here"].works


def test_one_that_hangs_is_killed_and_named(stub, tmp_path, monkeypatch):
    run = Machine.run
    monkeypatch.setattr(
        Machine, "run", lambda self, argv, seconds=10, **more: run(self, argv, seconds=1, **more)
    )
    diagnosis = judge(looked(stub, tmp_path, STUB_HANG="1"))
    assert any(line.startswith("NVML: no answer") for line in diagnosis.not_judged)


def test_it_is_not_asked_where_nvidia_smi_is(stub, tmp_path):
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    assert children.nvml(Machine(tmp_path, {"PATH": str(tmp_path)})) == {}


def test_without_the_library_nothing_is_said(tmp_path):
    found = children.nvml(Machine(tmp_path, {"PATH": "", "LD_LIBRARY_PATH": ""}))
    assert list(found["cmd"]) == ["child: NVML"]
