"""Facts about this machine that a certificate carries: read, never guessed; no names of anyone."""

from __future__ import annotations

import os
import platform
import re
from pathlib import Path
from typing import Any

CPUINFO = Path("/proc/cpuinfo")
DRIVER = Path("/proc/driver/nvidia/version")
GPUS = Path("/proc/driver/nvidia/gpus")

# The flags that choose code paths in ATen, oneDNN and MKL; others say nothing about numbers.
_NUMERIC_FLAGS = re.compile(r"(sse\d*_?\d*|ssse3|avx\w*|fma\d?|f16c|bmi\d|amx_\w+)$")


def facts() -> dict[str, Any]:
    """CPU, cores, kernel, glibc, driver and GPU models, as JSON types."""
    cpu = cpu_facts(_text(CPUINFO))
    return {
        "architecture": platform.machine(),
        "cpu": cpu["model"],
        "cpu vendor": cpu["vendor"],
        "cpu flags": cpu["flags"],
        "cores": len(os.sched_getaffinity(0)),
        "kernel": platform.release(),
        "glibc": platform.libc_ver()[1],
        "driver": driver_version(_text(DRIVER)),
        "gpus": gpu_models(GPUS),
    }


def gpu_models(directory: Path) -> list[str]:
    """The models of the GPUs that the driver lists (one directory each, by PCI address)."""
    found = []
    for path in sorted(directory.glob("*/information")):
        named = re.search(r"^Model:\s*(.+)$", _text(path), re.MULTILINE)
        found.append(named[1].strip() if named else "unknown")
    return found


def cpu_facts(text: str) -> dict[str, Any]:
    """Model, vendor and number-relevant flags from the text of /proc/cpuinfo."""
    fields: dict[str, str] = {}
    for line in text.splitlines():
        name, _, value = line.partition(":")
        fields.setdefault(name.strip(), value.strip())
    flags = sorted(set(fields.get("flags", "").split()))
    return {
        "model": fields.get("model name", "unknown"),
        "vendor": fields.get("vendor_id", "unknown"),
        "flags": [flag for flag in flags if _NUMERIC_FLAGS.match(flag)],
    }


def why_not_portable(architecture: str, flags: list[str]) -> str:
    """Why the portable lane cannot run on such a CPU, or nothing."""
    if architecture != "x86_64":
        return f"the portable lane is for x86-64, this machine is {architecture}"
    missing = [flag for flag in ("avx2", "fma") if flag not in flags]
    return f"this CPU has no {' and no '.join(m.upper() for m in missing)}" if missing else ""


def driver_version(text: str) -> str:
    """The NVIDIA driver's version from the text of /proc/driver/nvidia/version."""
    found = re.search(r"Kernel Module.*?\s(\d+\.\d+(\.\d+)?)\s", text)
    return found[1] if found else "none"


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
