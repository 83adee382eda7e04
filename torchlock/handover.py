"""An `invoke` that is not the tool's own: the stack carries one too, for its users' projects.

Inside an activated environment that one comes first on PATH. It can import tasks.py but not what
the tool runs on, so the command is handed over to the tool's own Python. Standard library only.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
NEEDED = ("truststore", "rattler", "conda_lock", "filelock")


def hand_over() -> None:
    """Go on in `.venv`'s Python where this one lacks the tool's dependencies; else return.

    Exits with 2 and says what to type where there is no `.venv`.
    """
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if not missing:
        return
    tool = ROOT / ".venv" / "bin" / "python"
    if tool.exists() and Path(sys.prefix) != tool.parent.parent:
        os.execv(tool, [str(tool), "-m", "invoke", *sys.argv[1:]])  # noqa: S606
    sys.stderr.write(
        f"error: {sys.executable} lacks what torchlock runs on ({', '.join(missing)})\n"
        f"  next: cd {ROOT} && python3 -m venv .venv && .venv/bin/python -m pip install "
        "--require-hashes -r requirements.txt && .venv/bin/invoke --list\n"
    )
    raise SystemExit(2)
