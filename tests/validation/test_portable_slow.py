"""The portable lane gives the same bits on this CPU and on emulated Intel and AMD ones."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from validation import lane

from .conftest import REPOSITORY

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]

PROBE = Path(__file__).with_name("portable_probe.py")
MODELS = ("Haswell", "EPYC")


def _start(python, *, prefix=(), variables=lane.PORTABLE):
    environment = {**lane.environment(os.environ, variables), "PYTHONPATH": str(REPOSITORY)}
    return subprocess.Popen(
        [*prefix, python, str(PROBE)],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _result(process):
    try:
        output, errors = process.communicate(timeout=1400)
    finally:
        process.kill()
    assert process.returncode == 0, errors[-3000:]
    return json.loads(output)


@pytest.fixture(scope="module")
def native(stack_python):
    return _result(_start(stack_python))


@pytest.fixture(scope="module")
def emulated(stack_python, native):
    if shutil.which("qemu-x86_64") is None:
        reason = "qemu-x86_64 is not installed (Debian: qemu-user)"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    # One process for each model, both at once: importing torch takes minutes there.
    processes = {
        model: _start(stack_python, prefix=["qemu-x86_64", "-cpu", model]) for model in MODELS
    }
    return {model: _result(process) for model, process in processes.items()}


@pytest.mark.parametrize("model", MODELS)
def test_the_portable_lane_gives_one_digest_on_every_cpu(native, emulated, model):
    for part in ("cpu", "transformer", "neighbours"):
        assert emulated[model][part] == native[part]


@pytest.mark.parametrize("part", ["unfused", "square roots"])
def test_the_proof_can_fail_an_unfused_optimizer_takes_roots_that_differ(native, emulated, part):
    """The emulator's approximate reciprocal root is not this CPU's, as no two makers' are."""
    assert len({native[part], *(result[part] for result in emulated.values())}) > 1


def test_the_proof_can_fail_without_the_lane_the_bits_differ(stack_python, native):
    without = _result(_start(stack_python, variables={}))
    assert without["transformer"] != native["transformer"]
