"""When CUDA is expected, and what the doctor says where it is absent."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from torchlock.expected_gpu import cuda_is_expected, why_absent


def test_a_machine_without_a_gpu_expects_none_unless_asked(tmp_path):
    assert not cuda_is_expected("auto", tmp_path)
    assert cuda_is_expected("cuda", tmp_path)


@pytest.mark.parametrize("sign", ["proc/driver/nvidia", "dev/nvidia0", "dev/nvidiactl", "dev/dxg"])
def test_what_a_driver_leaves_is_a_sign(tmp_path, sign):
    (tmp_path / sign).mkdir(parents=True)
    assert cuda_is_expected("auto", tmp_path)


@pytest.mark.parametrize(("vendor", "expected"), [("0x10de", True), ("0x1234", False)])
def test_a_card_on_the_bus_is_a_sign(tmp_path, vendor, expected):
    device = tmp_path / "sys/bus/pci/devices/0000:01:00.0"
    device.mkdir(parents=True)
    (device / "vendor").write_text(vendor + "\n")
    assert cuda_is_expected("auto", tmp_path) is expected


def test_the_doctors_first_finding_is_returned():
    answer = why_absent(Path(sys.executable))  # this python has no torch
    assert answer is not None
    assert answer["status"] == "findings"
    assert set(answer["finding"]) == {"code", "cause", "certainty", "fix"}


def test_cuda_that_works_needs_no_doctor(tmp_path):
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nexit 0\n")
    python.chmod(0o755)
    assert why_absent(python) is None
