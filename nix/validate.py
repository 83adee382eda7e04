"""Judge the files of this environment, then run `validation` in it: `python validate.py ...`.

Arguments are those of `python -m validation`.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parent.parent)

from torchlock.selfcheck import Environment, run  # noqa: E402

if __name__ == "__main__":
    sys.exit(run(Environment(Path(sys.prefix), "nix"), sys.argv[1:]))
