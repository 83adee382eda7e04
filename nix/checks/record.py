"""conda-lock.yml, pylock.toml and the recorded trees speak of the same wheels."""

import sys
from pathlib import Path

from torchlock.errors import TorchlockError
from torchlock.lock import read_lock
from torchlock.pylock import render_pylock
from torchlock.records import check_records, read_records

source = Path(sys.argv[1])
try:
    lock = read_lock(source / "conda-lock.yml")
    check_records(read_records(source / "torchlock/records", "linux-64"), lock.wheels("linux-64"))
except TorchlockError as error:
    sys.exit(str(error))
if (source / "pylock.toml").read_text(encoding="utf-8") != render_pylock(lock):
    sys.exit("pylock.toml is not what conda-lock.yml says\n  next: invoke lock")
