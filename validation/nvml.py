"""GPU utilisation through the driver's own library (NVML), sampled while a block runs."""

from __future__ import annotations

import contextlib
import ctypes
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

_SUCCESS = 0


class _Utilization(ctypes.Structure):
    # nvmlUtilization_t: per cent of the last sample period with a kernel running, memory busy.
    _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))


@dataclass
class Samples:
    """Per cent of time the GPU was busy, one value a sample; empty where NVML cannot tell."""

    busy: list[int] = field(default_factory=list)

    def mean(self) -> int | None:
        """The mean in whole per cent, or None without samples."""
        return round(sum(self.busy) / len(self.busy)) if self.busy else None


@contextlib.contextmanager
def sampled(uuid: str, *, period: float = 0.1) -> Iterator[Samples]:
    """Samples the GPU "GPU-..." every `period` seconds while the block runs."""
    samples = Samples()
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        yield samples
        return
    handle = ctypes.c_void_p()
    found = (
        nvml.nvmlInit_v2() == _SUCCESS
        and nvml.nvmlDeviceGetHandleByUUID(uuid.encode(), ctypes.byref(handle)) == _SUCCESS
    )
    if not found:
        yield samples
        return
    done = threading.Event()

    def sample() -> None:
        rates = _Utilization()
        while not done.wait(period):
            if nvml.nvmlDeviceGetUtilizationRates(handle, ctypes.byref(rates)) == _SUCCESS:
                samples.busy.append(rates.gpu)

    thread = threading.Thread(target=sample, daemon=True)
    thread.start()
    try:
        yield samples
    finally:
        done.set()
        thread.join()
        nvml.nvmlShutdown()
