"""How long the doctor takes on a healthy machine: `python benchmarks/doctor.py [PYTHON]`.

Without a GPU, a stub libcuda cannot make torch healthy; what is timed then is the quick half that
a healthy machine runs (all probes of the first round and the rules), beside `import torch` itself.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from torchlock.doctor import loose
from torchlock.doctor.diagnosis import judge
from torchlock.doctor.probes import FIRST, run_all
from torchlock.doctor.probes.machine import Machine

LIMIT = 2.0
ROUNDS = 5


def seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def main() -> None:
    python = sys.argv[1] if len(sys.argv) > 1 else sys.executable
    machine = Machine(python=python)
    diagnosis = judge(loose.read(run_all(FIRST, machine, seconds=40)))
    ours = statistics.median(
        seconds(lambda: judge(loose.read(run_all(FIRST, machine, 40)))) for _ in range(ROUNDS)
    )
    theirs = statistics.median(
        seconds(
            lambda: subprocess.run([python, "-c", "import torch"], capture_output=True, check=False)
        )
        for _ in range(ROUNDS)
    )
    print(f"verdict here: {diagnosis.status}")
    print(f"doctor, first round: {ours:.2f} s (limit {LIMIT} s)")
    print(f"import torch alone:  {theirs:.2f} s")
    print(f"ratio: {ours / theirs:.2f}")


if __name__ == "__main__":
    main()
