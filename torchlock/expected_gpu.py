"""CUDA that is expected and absent: the doctor's first finding, for the certificate."""

from __future__ import annotations

import dataclasses
import subprocess
from pathlib import Path
from typing import Any

from torchlock.doctor.diagnosis import judge
from torchlock.doctor.probes import gather
from torchlock.doctor.probes.machine import Machine

SIGNS = ("/proc/driver/nvidia", "/dev/nvidia0", "/dev/nvidiactl", "/dev/dxg")
NVIDIA = "0x10de"
"""The PCI vendor number of NVIDIA."""


def cuda_is_expected(device: str, root: Path = Path("/")) -> bool:
    """Say whether CUDA should work: it is asked for, or the machine shows an NVIDIA GPU."""
    if device == "cuda" or any((root / sign.lstrip("/")).exists() for sign in SIGNS):
        return True
    vendors = (root / "sys/bus/pci/devices").glob("*/vendor")
    return any(_text(vendor) == NVIDIA for vendor in vendors)


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def why_absent(python: Path) -> dict[str, Any] | None:
    """Return the doctor's verdict where torch under `python` finds no CUDA, else None.

    It has `status`, and `finding` with code, cause, certainty and fix where there is one.
    """
    if _available(python):
        return None
    diagnosis = judge(gather(Machine(python=str(python))))
    finding: dict[str, Any] = {}
    if diagnosis.findings:
        shown = dataclasses.asdict(diagnosis.findings[0])
        finding = {key: shown[key] for key in ("code", "cause", "certainty", "fix")}
    return {"status": diagnosis.status, "finding": finding}


def _available(python: Path) -> bool:
    asked = "import torch; raise SystemExit(not torch.cuda.is_available())"
    try:
        done = subprocess.run(
            [python, "-B", "-c", asked], capture_output=True, check=False, timeout=300
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0
