"""Wall and CPU time of each check, and how often the same digests come back under stress.

    PREFIX/bin/python benchmarks/validate.py [REPETITIONS]

Prints the CPU checks' times beside the bound of 90 s on two cores, then repeats the transformer
and neighbours checks under changing conditions and counts the different digests (1 is right).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
BOUND_SECONDS = 90
BUSY = "while True: pass"

CONDITIONS: list[tuple[str, dict[str, str], list[str]]] = [
    ("as it is", {}, []),
    ("nice 19", {}, ["nice", "-n", "19"]),
    ("locale tr_TR, TZ Kathmandu", {"LC_ALL": "tr_TR.UTF-8", "TZ": "Asia/Kathmandu"}, []),
    ("hash seed 4242", {"PYTHONHASHSEED": "4242"}, []),
    ("OMP, MKL and ATEN preset", {"OMP_NUM_THREADS": "2", "MKL_CBWR": "AVX512"}, []),
    ("one core", {}, ["taskset", "-c", "0"]),
    ("256 files, 4 MiB stack", {}, ["bash", "-c", 'ulimit -n 256 -s 4096; exec "$@"', "bash"]),
    ("two busy loops beside it", {}, []),
]


def certificate(
    *arguments: str, extra: dict[str, str] | None = None, prefix: list[str] | None = None
) -> dict:
    validate = [sys.executable, str(REPOSITORY / "validation"), "--device", "cpu", "--json", "-"]
    with tempfile.TemporaryDirectory() as elsewhere:
        done = subprocess.run(
            [*(prefix or []), *validate, *arguments],
            env={**os.environ, **(extra or {})},
            cwd=elsewhere,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            check=False,
        )
    return json.loads(done.stdout)


def digests(issued: dict) -> str:
    return json.dumps([check["digests"] for check in issued["checks"]], sort_keys=True)


def times() -> None:
    issued = certificate()
    print(f"{'check':12} {'wall s':>8} {'CPU s':>8}")
    for check in issued["checks"]:
        if check["milliseconds"]:
            wall, cpu = check["milliseconds"] / 1000, check["cpu_milliseconds"] / 1000
            print(f"{check['name']:12} {wall:8.1f} {cpu:8.1f}")
    wall = issued["milliseconds"] / 1000
    cpu = sum(check["cpu_milliseconds"] for check in issued["checks"]) / 1000
    print(f"{'all':12} {wall:8.1f} {cpu:8.1f}   {issued['verdict']}")
    print(f"bound {BOUND_SECONDS} s, wall/bound {wall / BOUND_SECONDS:.2f}")
    print(f"CPU time / two cores {cpu / 2:.1f} s, load before and now {os.getloadavg()}")


def repeat(count: int) -> None:
    seen: dict[str, list[str]] = {}
    for index in range(count):
        name, extra, prefix = CONDITIONS[index % len(CONDITIONS)]
        beside = [
            subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(2 * ("busy" in name))
        ]
        try:
            issued = certificate("--only", "transformer", "neighbours", extra=extra, prefix=prefix)
        finally:
            for process in beside:
                process.kill()
        seen.setdefault(digests(issued), []).append(name)
        print(f"{index + 1:3} {name:28} {issued['verdict']}", flush=True)
    print(f"{count} runs, {len(seen)} different digest(s), ratio {len(seen) / 1:.0f}")


if __name__ == "__main__":
    times()
    repeat(int(sys.argv[1]) if len(sys.argv) > 1 else 20)
