"""How long the doctor takes on a healthy machine: `python benchmarks/doctor.py [PYTHON]`.

PYTHON has torch 2.7.1; it needs `cc`. The healthy machine is a tree with a driver, its nodes and an
nvidia-smi, and the stub libcuda of the tests. With the stub, torch's own CUDA runtime loads, starts
and asks cuInit and the driver's version, and then gives up (cudaGetDeviceCount returns 1): its next
questions are undocumented. So the answer of that one call is replaced by what a GPU would give, and
what a real driver takes to start (cuInit, some 0.1 to 0.5 s with persistence mode) is not in the
figures. CPU seconds are printed beside, because a loaded machine stretches the others.
"""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]
sys.path.insert(0, str(REPOSITORY))

from torchlock.doctor.diagnosis import judge
from torchlock.doctor.evidence import Evidence
from torchlock.doctor.probes import FIRST, gather
from torchlock.doctor.probes.machine import Machine

LIMIT = 2.0
ROUNDS = 5
SMI = """#!/bin/sh
[ $# = 0 ] || exit 1
echo "| NVIDIA-SMI 560.35.03   Driver Version: 560.35.03   CUDA Version: 12.6 |"
echo "|   0  NVIDIA L4    Off | 00000000:01:00.0 Off |   0 |"
"""
# The interpreter, and in place of the stub's answer to cudaGetDeviceCount that of a GPU.
PYTHON = """#!/bin/sh
"{python}" "$@" | sed 's/"is_available": false, "device_count": 0/"is_available": true, \
"device_count": 1/'
"""


def healthy(root: Path, python: str) -> Machine:
    """A machine with a driver, one GPU's nodes and a libcuda that starts."""
    for name, text in {
        "proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX x86_64 Kernel Module  560.35.03",
        "proc/modules": "nvidia_uvm 1 0 - Live 0x0\nnvidia 2 1 - Live 0x0\n",
        "proc/sys/kernel/osrelease": "6.8.0-45-generic\n",
        "etc/os-release": 'PRETTY_NAME="Ubuntu 22.04.5 LTS"\n',
        "dev/nvidia0": "",
        "dev/nvidiactl": "",
        "dev/nvidia-uvm": "",
        "bin/nvidia-smi": SMI,
        "bin/python": PYTHON.format(python=python),
    }.items():
        target = root / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
        target.chmod(0o755 if name.startswith("bin/") else 0o666)
    source = REPOSITORY / "tests/doctor/libcuda_stub.c"
    options = ["-shared", "-fPIC", "-Wl,-soname,libcuda.so.1"]
    subprocess.run(["cc", *options, "-o", root / "libcuda.so.1", source], check=True)
    environ = {
        "PATH": f"{root / 'bin'}:{os.environ['PATH']}",
        "LD_LIBRARY_PATH": str(root),
        "STUB_DEVICES": "1",
    }
    return Machine(root, environ, str(root / "bin/python"))


def took(work: Callable[[], object]) -> tuple[float, float]:
    """Median wall and CPU seconds (of children too)."""
    walls, cpus = [], []
    for _ in range(ROUNDS):
        cpu, began = _cpu(), time.perf_counter()
        work()
        walls.append(time.perf_counter() - began)
        cpus.append(_cpu() - cpu)
    return statistics.median(walls), statistics.median(cpus)


def _cpu() -> float:
    uses = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(use.ru_utime + use.ru_stime for use in uses)


def main() -> None:
    python = sys.argv[1] if len(sys.argv) > 1 else sys.executable
    with tempfile.TemporaryDirectory(prefix="doctor-") as directory:
        machine = healthy(Path(directory), python)
        seen: list[Evidence] = []
        start = took(
            lambda: subprocess.run(
                [sys.executable, "-c", "import torchlock.doctor.__main__"],
                cwd=REPOSITORY,
                check=True,
            )
        )
        look = took(lambda: seen.append(gather(machine)))
        rules = took(lambda: judge(seen[-1]))
        each = {probe.__name__: took(lambda p=probe: p(machine)) for probe in FIRST}
        theirs = took(
            lambda: subprocess.run(
                [python, "-c", "import torch; torch.cuda.is_available()"],
                capture_output=True,
                check=False,
            )
        )
        print(f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
        print(f"verdict: {judge(seen[-1]).status}")
    print(f"{'':34} {'wall s':>7} {'CPU s':>7}")
    whole = (start[0] + look[0] + rules[0], start[1] + look[1] + rules[1])
    for name, (wall, cpu) in (
        ("start of the program", start),
        ("probes, side by side, and rules", look),
        ("rules again", rules),
        (f"doctor in all (limit {LIMIT:g} s)", whole),
        ("import torch; is_available()", theirs),
    ):
        print(f"{name:34} {wall:7.2f} {cpu:7.2f}")
    print(
        f"ratio, doctor to torch: {whole[0] / theirs[0]:.2f} wall, {whole[1] / theirs[1]:.2f} CPU"
    )
    slowest = sorted(each.items(), key=lambda item: -item[1][1])[:4]
    print("probes alone, by CPU: " + ", ".join(f"{n} {w:.2f}/{c:.2f}" for n, (w, c) in slowest))


if __name__ == "__main__":
    main()
