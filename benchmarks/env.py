"""`invoke env --foundation conda` against `conda-lock install` and `uv pip sync`, warm caches.

    python benchmarks/env.py [ROUNDS]

All three install the locked wheels, which must be in the artifact store (`invoke env` fills it).
The conda half is the packages that the tests make (CPython and pip among them), for no conda
channel may be in reach; conda is the one that conda-lock carries. Prints wall times, the best
of ROUNDS each, and their ratios. `invoke env` hashes every artifact before and every installed
file after; the others do neither.
"""

from __future__ import annotations

import ensurepip
import hashlib
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.conda.conda_client import client_environment, write_client
from tests.conda.packing import demo_binary, demo_text, pack_python, pack_wheel
from tests.support.locks import lock_text
from torchlock.artifacts import default_store, fetch
from torchlock.formats.conda import read_conda
from torchlock.lock import Package, parse_lock, read_lock
from torchlock.realize.prefix import make_prefix
from torchlock.records import read_records
from torchlock.repository import this_repository
from torchlock.uv import uv_command, uv_environment

PLATFORM = "linux-64"


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 3
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
        place = scratch / "prefix"
        said: list[tuple[float, str]] = []

        def note(message: str) -> None:
            said.append((time.perf_counter(), message))

        def ours() -> None:
            said[:] = [(time.perf_counter(), "hashing artifacts")]
            make_prefix(lock, records, place, default_store(), say=note)  # which hashes all it uses
            note("done")

        ours()  # the caches are warm from here on
        shutil.rmtree(place)
        uv, made = [], []
        for _ in range(rounds):  # by turns, so that noise falls on both
            uv.append(timed(lambda: uv_pip_sync(scratch, place, wheels, store.root / "uv")))
            shutil.rmtree(place)
            seconds = timed(ours)
            steps = {b[1].split()[0]: a[0] - b[0] for b, a in pairwise(said)}
            made.append((seconds, steps))
            shutil.rmtree(place)
        best, steps = min(made, key=lambda m: m[0])
        installing = min(s["linking"] + s["installing"] for _, s in made)
        size = sum(w.size for w in records.wheels.values()) / 1e9
        print(f"{len(wheels)} wheels, {size:.2f} GB; best of {rounds}, warm caches")
        print(f"uv pip sync, the wheels alone:       {min(uv):6.1f} s")
        print(f"invoke env --foundation conda:       {best:6.1f} s, of which")
        for step, seconds in steps.items():
            print(f"  {step:35}{seconds:6.1f} s")
        print(f"invoke env / uv pip sync:            {best / min(uv):6.2f} (aim: at most 1.5)")
        print(f"  the same without the two checks:   {installing / min(uv):6.2f}", flush=True)
        client = write_client(scratch)
        environment = client_environment(scratch)
        for _ in range(2):  # the first fills conda's cache of unpacked packages
            conda = timed(lambda: conda_lock_install(scratch, place, client, environment))
            shutil.rmtree(place)
        print(f"conda-lock install (conda 24.7):     {conda:6.1f} s, once")
        print(f"conda-lock install / invoke env:     {conda / best:6.2f} (aim: at least 5)")


def foundation(scratch: Path) -> list[Package]:
    channel = scratch / "channel"
    made = [
        pack_python(channel, scratch),
        demo_text(channel),
        demo_binary(channel, scratch),
        *(
            pack_wheel(channel, w)
            for w in (Path(ensurepip.__file__).parent / "_bundled").glob("p*")
        ),
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


def uv_pip_sync(scratch: Path, place: Path, wheels: Sequence[Package], cache: Path) -> None:
    requirements = scratch / "requirements.txt"
    requirements.write_text(
        "".join(f"{w.name}=={w.version} --hash=sha256:{w.sha256}\n" for w in wheels)
    )
    common = ["--no-config", "--quiet", "--cache-dir", str(cache)]
    wheelhouse = cache.parent / "wheelhouse"
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


def timed(work: Callable[[], object]) -> float:
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


if __name__ == "__main__":
    main()
