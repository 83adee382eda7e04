"""The interpreter is CPython 3.11 in this environment, and starts itself again."""

import os
import subprocess
import sys
from pathlib import Path

faults = []
if sys.implementation.name != "cpython" or sys.version_info[:2] != (3, 11):
    faults.append(f"this is {sys.implementation.name} {sys.version}, not CPython 3.11")
if sys.prefix == sys.base_prefix or not Path(sys.prefix, "pyvenv.cfg").is_file():
    faults.append(f"sys.prefix is {sys.prefix}, no virtual environment")
if "LD_LIBRARY_PATH" in os.environ:
    faults.append("LD_LIBRARY_PATH is set for the programs that Python starts")
again = [sys.executable, "-c", "import sys; print(sys.prefix)"]
child = subprocess.run(again, capture_output=True, text=True, check=True).stdout.strip()
if child != sys.prefix:
    faults.append(f"sys.executable starts a Python of {child}")
if faults:
    sys.exit("\n".join(faults))
