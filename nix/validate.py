"""Judge the files of this environment, then run `validation` in it: `python validate.py ...`.

What `invoke validate` does, with the modules that an environment of the locked wheels alone can
import. Arguments are those of `python -m validation`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

SOURCE = Path(__file__).resolve().parent.parent
sys.path[0] = str(SOURCE)

from torchlock.errors import TorchlockError  # noqa: E402
from torchlock.inside import environment_inside  # noqa: E402
from torchlock.lock import read_lock  # noqa: E402
from torchlock.records import check_records, read_records  # noqa: E402
from torchlock.repository import Repository  # noqa: E402
from torchlock.verify import Verdict, find_site, verify  # noqa: E402

PLATFORM = "linux-64"


def context(repository: Repository, prefix: Path) -> tuple[dict[str, object], Verdict]:
    """Return what `validation` is told of lock and files, and the verdict on the files.

    Raises `TorchlockError` when the recorded trees are not those of the lock.
    """
    lock = read_lock(repository.lock)
    records = read_records(repository.records, PLATFORM)
    check_records(records, lock.wheels(PLATFORM))
    verdict = verify(find_site(prefix), records)
    told: dict[str, object] = {
        "lock": {
            "digest": lock.digest,
            "verdict": "holds",
            "evidence": f"{lock.digest}; the recorded trees are those of its wheels",
        },
        "files": {
            "verdict": "holds" if verdict.holds else "does not hold",
            "tree": verdict.tree,
            "wheels": dict(verdict.trees),
            "evidence": f"{verdict.files} files, {len(verdict.findings)} findings, "
            f"tree {verdict.tree}",
        },
        "foundation": "nix",
    }
    return told, verdict


def main(arguments: list[str]) -> int:
    """Run the proof and return its exit code."""
    try:
        told, verdict = context(Repository(SOURCE), Path(sys.prefix))
    except TorchlockError as error:
        print(f"error: {error}", file=sys.stderr)  # noqa: T201
        return error.code
    for finding in verdict.findings[:10]:
        print(f"  {finding.kind}: {finding.path}: {finding.detail}", file=sys.stderr)  # noqa: T201
    environment = environment_inside(os.environ)
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch, "context.json")
        path.write_text(json.dumps(told))
        command = [sys.executable, str(SOURCE / "validation"), "--context", str(path), *arguments]
        return subprocess.run(command, env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
