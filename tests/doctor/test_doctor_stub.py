"""A stub libcuda.so.1 drives the real torch through every cuInit code the doctor knows."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from torchlock.doctor.diagnosis import HEALTHY, judge
from torchlock.doctor.probes import gather
from torchlock.doctor.probes.children import torch_import
from torchlock.doctor.probes.machine import Machine

pytestmark = pytest.mark.slow
VERSION = (
    "NVRM version: NVIDIA UNIX x86_64 Kernel Module  560.35.03  Fri Aug 16 21:39:15 UTC 2024\n"
)


@pytest.fixture(scope="module")
def python():
    path = os.environ.get("TORCHLOCK_STACK_PYTHON")
    if not path:
        if os.environ.get("CI"):
            pytest.fail("TORCHLOCK_STACK_PYTHON must name a Python with torch 2.7.1")
        pytest.skip("TORCHLOCK_STACK_PYTHON names no Python with torch 2.7.1")
    return path


@pytest.fixture(scope="module")
def stub(tmp_path_factory):
    directory = tmp_path_factory.mktemp("stub")
    source = Path(__file__).parent / "libcuda_stub.c"
    library = directory / "libcuda.so.1"
    subprocess.run(
        ["cc", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-o", library, source], check=True
    )
    return library


def machine(python, root, library, **variables):
    """A host with a driver and nodes whose libcuda is the stub."""
    (root / "proc/driver/nvidia").mkdir(parents=True)
    (root / "proc/driver/nvidia/version").write_text(VERSION)
    (root / "etc").mkdir()
    (root / "etc/os-release").write_text('PRETTY_NAME="Ubuntu 22.04"\n')
    (root / "dev").mkdir()
    for name in ("nvidia0", "nvidiactl", "nvidia-uvm"):
        (root / "dev" / name).touch()
    environ = {"PATH": os.environ["PATH"], "LD_LIBRARY_PATH": str(library.parent), **variables}
    return Machine(root, environ, python)


SAID = {
    3: "CUDA driver initialization failed",
    999: "CUDA unknown error",
    100: "No CUDA GPUs are available",
}
RIGHT = {
    2: "gpu-memory-held",
    3: None,
    34: "stub-libcuda",
    46: "gpu-busy",
    100: None,
    101: "invalid-device-ordinal",
    304: "os-call-failed",
    801: None,
    802: "fabricmanager-not-running",
    803: "driver-library-mismatch",
    804: "compat-on-unsupported-gpu",
    805: "mps-unreachable",
    999: None,
}


@pytest.mark.parametrize("code", sorted(RIGHT))
def test_each_code_of_cuinit(python, stub, tmp_path, code):
    looked = machine(python, tmp_path, stub, STUB_CUINIT=str(code))
    evidence = gather(looked)
    assert evidence.libcuda.found
    assert evidence.libcuda.init == code
    assert Path(evidence.libcuda.path).resolve() == stub.resolve()
    assert evidence.torch.version == "2.7.1+cu126"
    assert evidence.torch.available is False
    assert SAID.get(code, f"Error {code}") in evidence.error
    findings = judge(evidence).findings
    assert (findings[0].code if findings else None) == RIGHT[code]


@pytest.mark.parametrize("version", [11040, 11080])
def test_a_driver_too_old(python, stub, tmp_path, version):
    looked = machine(python, tmp_path, stub, STUB_DRIVER=str(version))
    (tmp_path / "proc/driver/nvidia/version").write_text(VERSION.replace("560.35.03", "470.86"))
    evidence = gather(looked)
    assert evidence.libcuda.version == version
    assert judge(evidence).findings[0].code == "driver-too-old"


def test_no_libcuda_at_all(python, tmp_path):
    empty = tmp_path / "empty" / "libcuda.so.1"
    empty.parent.mkdir()
    (tmp_path / "root").mkdir()
    evidence = gather(machine(python, tmp_path / "root", empty))
    if evidence.libcuda.found:
        pytest.fail("this machine has a driver: the test needs one without")
    assert "Found no NVIDIA driver" in evidence.error


def test_the_compat_directory_is_seen_by_the_path_the_loader_picks(python, stub, tmp_path):
    compat = tmp_path / "cuda" / "compat" / "libcuda.so.1"
    compat.parent.mkdir(parents=True)
    shutil.copy(stub, compat)
    (tmp_path / "root").mkdir()
    evidence = gather(machine(python, tmp_path / "root", compat, STUB_CUINIT="803"))
    assert judge(evidence).findings[0].code == "compat-shadows-driver"


def test_an_import_of_torch_says_what_it_found(python, stub, tmp_path):
    said = torch_import(machine(python, tmp_path, stub, STUB_CUINIT="802"))
    assert said["torch"]["is_available"] is False
    assert "Error 802" in said["torch"]["warning"]


def test_a_shadowed_library_is_found_in_the_maps_of_the_child(python, stub, tmp_path):
    # libcupti is loaded through RUNPATH, which LD_LIBRARY_PATH beats
    site = Path(
        subprocess.run(
            [python, "-c", "import nvidia; print(list(nvidia.__path__)[0])"],
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
    )
    other = tmp_path / "opt" / "cuda" / "lib64"
    other.mkdir(parents=True)
    (tmp_path / "root").mkdir()
    shutil.copy(site / "nvjitlink" / "lib" / "libnvJitLink.so.12", other)
    looked = machine(python, tmp_path / "root", stub)
    looked.environ["LD_PRELOAD"] = str(other / "libnvJitLink.so.12")
    evidence = gather(looked)
    assert str(other / "libnvJitLink.so.12") in [library.path for library in evidence.libraries]
    assert judge(evidence).status != HEALTHY
