"""`invoke env` against `uv pip sync` for the wheels alone and `conda-lock install`, warm caches.

    python benchmarks/env.py [ROUNDS] [--without-conda-lock]

All install the locked wheels, which must be in the artifact store (`invoke env` fills it), each
side from a warm cache of its own below it (12 GB in all) and into fresh prefixes. The conda half
is the packages that the tests make (CPython and pip among them), for no conda channel may be in
reach; conda is the one that conda-lock carries. Prints the best of ROUNDS each, and ratios.
`invoke env` judges every artifact before and every installed file after: the first run reads
them all, the others those that changed since; uv and conda-lock do neither. "As typed" is the
command with all it starts; "in Python" leaves out what starting takes (Python, `invoke`, reading
the lock and the recorded trees) and shows the steps. The conda half can be measured so alone, for
its lock is not the repository's. Where other programs keep the machine busy, the CPU seconds tell
more than the wall's.
"""

from __future__ import annotations

import hashlib
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.conda.conda_client import client_environment, write_client
from tests.conda.packing import bundled_wheels, demo_binary, demo_text, pack_python, pack_wheel
from tests.support.locks import lock_text
from torchlock.artifacts import Store, default_store, fetch
from torchlock.formats.conda import read_conda
from torchlock.lock import Package, parse_lock, read_lock
from torchlock.realize.prefix import make_prefix
from torchlock.realize.venv import make_venv
from torchlock.records import read_records
from torchlock.repository import this_repository
from torchlock.uv import uv_command, uv_environment

PLATFORM = "linux-64"


def main() -> None:
    rounds = next((int(word) for word in sys.argv[1:] if word.isdigit()), 3)
    repository = this_repository()
    records = read_records(repository.records, PLATFORM)
    store = default_store()
    wheels = read_lock(repository.lock).wheels(PLATFORM)
    paths = fetch(wheels, store)
    with tempfile.TemporaryDirectory(dir=store.root) as name:  # one file system, as links need
        scratch = Path(name)
        local = [replace(w, url=p.as_uri()) for w, p in zip(wheels, paths, strict=True)]
        text = lock_text([*foundation(scratch), *local])
        (scratch / "conda-lock.yml").write_text(text)
        lock = parse_lock(text)
        steps: list[tuple[float, str]] = []

        def note(message: str) -> None:
            if not message.startswith(("artifacts", "installed files", "making")):
                steps.append((time.perf_counter(), message.split(maxsplit=1)[0]))
            elif "read" in message:
                print(f"  {message}")

        def ours(kind: str, place: Path) -> Run:
            steps[:] = [(time.perf_counter(), "preparing")]
            make = make_prefix if kind == "conda" else make_venv
            run = timed(lambda: make(lock, records, place, default_store(), say=note))
            steps.append((time.perf_counter(), ""))
            return replace(run, steps=tuple((a[1], b[0] - a[0]) for a, b in pairwise(steps)))

        # Prefixes stay until the end: taking one away touches the files that it shares.
        cache = scratch / "uv"
        uv_pip_sync(scratch, scratch / "first", wheels, store, cache)
        (store.root / "stamps").unlink(missing_ok=True)
        print("every file read:")
        reading = ours("conda", scratch / "reading")
        uv, conda, venv, typed = [], [], [], []
        for n in range(rounds):  # by turns, so that noise falls on all
            work = partial(uv_pip_sync, scratch, scratch / f"u{n}", wheels, store, cache)
            uv.append(timed(work))
            print(f"round {n + 1}:")
            conda.append(ours("conda", scratch / f"c{n}"))
            venv.append(ours("venv", scratch / f"v{n}"))
            typed.append(timed(partial(invoke_env, scratch / f"t{n}")))
        size = sum(w.size for w in records.wheels.values()) / 1e9
        load = os.getloadavg()[0]
        print(f"{len(wheels)} wheels, {size:.2f} GB; best of {rounds}, warm caches; "
              f"{os.cpu_count()} cores, load average {load:.1f}")  # fmt: skip
        print(f"uv pip sync, the wheels alone:         {min(uv)}")
        print(f"invoke env, as typed:                  {min(typed)}")
        print_ratio(min(typed), min(uv))
        show("venv", min(venv), min(uv))
        show("conda", min(conda), min(uv))
        print(f"invoke env that reads every file:      {reading}", flush=True)
        if "--without-conda-lock" in sys.argv:
            return
        client, environment = write_client(scratch), client_environment(scratch)
        place = scratch / "conda-lock"
        theirs = timed(partial(conda_lock_install, scratch, place, client, environment))
        print(f"conda-lock install (conda 24.7), once: {theirs}")
        print(
            f"conda-lock install / invoke env:       {theirs.wall / min(conda).wall:6.2f} (aim: 5)"
        )


@dataclass(frozen=True, order=True)
class Run:
    """What one run took, its programs included, in seconds; and its steps."""

    wall: float
    cpu: float
    steps: tuple[tuple[str, float], ...] = ()

    def __str__(self) -> str:
        return f"{self.wall:6.2f} s, CPU {self.cpu:6.2f} s"


def timed(work: Callable[[], object]) -> Run:
    wall, cpu = time.perf_counter(), cpu_seconds()
    work()
    return Run(time.perf_counter() - wall, cpu_seconds() - cpu)


def cpu_seconds() -> float:
    return sum(
        usage.ru_utime + usage.ru_stime
        for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
        for usage in [resource.getrusage(who)]
    )


def show(kind: str, made: Run, uv: Run) -> None:
    """Print what making one foundation took, its steps, and its ratio to uv's time."""
    print(f"in Python, foundation {kind + ':':17}{made}; the steps:")
    for step, seconds in made.steps:
        print(f"  {step:37}{seconds:6.2f} s")
    print_ratio(made, uv)


def print_ratio(ours: Run, uv: Run) -> None:
    print(f"  against uv pip sync:                 {ours.wall / uv.wall:6.2f} (aim: 1.5), "
          f"CPU {ours.cpu / uv.cpu:.2f}")  # fmt: skip


def invoke_env(place: Path) -> None:
    command = [sys.executable, "-m", "invoke", "env", "--prefix", str(place)]
    here = this_repository().root
    subprocess.run(command, cwd=here, check=True, capture_output=True)


def foundation(scratch: Path) -> list[Package]:
    channel = scratch / "channel"
    made = [
        pack_python(channel, scratch),
        demo_text(channel),
        demo_binary(channel, scratch),
        pack_wheel(channel, bundled_wheels()["pip"]),
    ]
    return [locked(path) for path in made]


def locked(path: Path) -> Package:
    content, data = read_conda(path), path.read_bytes()
    return Package(
        name=content.name,
        version=content.version,
        manager="conda",
        platform=PLATFORM,
        url=path.as_uri(),
        sha256=hashlib.sha256(data).hexdigest(),
        md5=hashlib.md5(data).hexdigest(),
        dependencies={},
    )


def uv_pip_sync(
    scratch: Path, place: Path, wheels: Sequence[Package], store: Store, cache: Path
) -> None:
    requirements = scratch / "requirements.txt"
    requirements.write_text(
        "".join(f"{w.name}=={w.version} --hash=sha256:{w.sha256}\n" for w in wheels)
    )
    common = ["--no-config", "--quiet", "--cache-dir", str(cache)]
    wheelhouse = store.root / "wheelhouse"
    for command in (
        ["venv", "--python", "3.11", str(place)],
        ["pip", "sync", "--python", str(place), "--require-hashes", "--no-index",
         "--find-links", str(wheelhouse), str(requirements)],
    ):  # fmt: skip
        subprocess.run([*uv_command(), *command, *common], env=uv_environment(), check=True)


def conda_lock_install(
    scratch: Path, place: Path, client: Path, environment: Mapping[str, str]
) -> None:
    conda_lock = Path(sys.executable).with_name("conda-lock")
    command = [conda_lock, "install", "--conda", client, "--prefix", place,
               scratch / "conda-lock.yml"]  # fmt: skip
    subprocess.run(list(map(str, command)), env=environment, check=True, capture_output=True)


if __name__ == "__main__":
    os.environ["CONDA_REGISTER_ENVS"] = "false"  # these prefixes are on nobody's list
    main()
