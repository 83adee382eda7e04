"""Verification against `xargs -P$(nproc) sha256sum` over the same files, warm cache.

    python benchmarks/verify.py PREFIX

Prints both wall times, their ratio (aim: at most 1.3) and the peak memory (aim: under 300 MB).
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from torchlock.findings import find_site
from torchlock.records import read_records
from torchlock.repository import this_repository
from torchlock.verify import verify

ROUNDS = 5


def main() -> None:
    site = find_site(Path(sys.argv[1]).absolute())
    records = read_records(this_repository().records, "linux-64")
    paths = {
        site.root(file.scheme, wheel.name) / file.path
        for wheel in records.wheels.values()
        for file in wheel.files
        if file.scheme != "site" or file.counts
    }
    with tempfile.NamedTemporaryFile() as listing:
        listing.write(b"\0".join(os.fsencode(path) for path in sorted(paths)))
        listing.flush()
        command = f"xargs -0 -P{os.cpu_count()} -n64 sha256sum < {listing.name} > /dev/null"
        hashing, verifying = [], []
        for _ in range(ROUNDS):  # by turns, so that noise falls on both
            hashing.append(timed(lambda: subprocess.run(command, shell=True, check=True)))
            verifying.append(timed(lambda: verify(site, records)))
    verdict = verify(site, records)
    print(f"{len(paths)} files, {verdict.bytes / 1e9:.2f} GB, {len(verdict.findings)} findings")
    print(f"xargs sha256sum: {min(hashing):.2f} s (of {ROUNDS}, the best)")
    print(f"verify:          {min(verifying):.2f} s")
    print(f"ratio:           {min(verifying) / min(hashing):.2f} (aim: at most 1.3)")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000
    print(f"peak memory:     {peak:.0f} MB (aim: under 300)")


def timed(work) -> float:
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


if __name__ == "__main__":
    main()
