"""The GPU: bits that repeat, NCCL, and a table of what users hope for.

Every function takes its device and size, so that all but NCCL runs on a CPU as well.
"""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from validation import nvml, training
from validation.checks import Settings
from validation.checks.ddp import disagreements, launch
from validation.model import FULL, Size
from validation.outcome import DOES_NOT_HOLD, HOLDS, NOT_JUDGED, CheckFaultError, Outcome

# name -> precision, whether TF32 may replace fp32 in matrix products
TABLE = {
    "fp32": ("fp32", False),
    "TF32": ("fp32", True),
    "fp16 AMP": ("fp16", False),
    "bf16 AMP": ("bf16", False),
}


def run(settings: Settings) -> Outcome:
    """Judges all GPUs of this machine, or says that there is none."""
    if not torch.cuda.is_available():
        nodes = sorted(path.name for path in Path("/dev").glob("nvidia[0-9]*"))
        if nodes:
            return Outcome(
                "gpu",
                NOT_JUDGED,
                f"/dev/{nodes[0]} exists, but torch cannot use it (invoke doctor says why)",
            )
        return Outcome("gpu", NOT_JUDGED, "no device", needed=False)
    return judge("cuda", FULL, settings)


def judge(device: str, size: Size, settings: Settings) -> Outcome:
    """The outcome for `device` at `size`: repetition, learning, several GPUs, the table."""
    faults: list[str] = []
    digests: dict[str, str] = {}
    try:
        return _judge(device, size, settings, faults, digests)
    except CheckFaultError as fault:
        verdict, evidence = fault.verdict, fault.evidence
    except torch.OutOfMemoryError as error:
        verdict, evidence = NOT_JUDGED, f"the model does not fit: {str(error).splitlines()[0]}"
    # What was found before stands, whatever keeps the rest from being judged.
    verdict = DOES_NOT_HOLD if faults else verdict
    return Outcome("gpu", verdict, "; ".join([*faults, evidence]), digests=digests)


def _judge(
    device: str, size: Size, settings: Settings, faults: list[str], digests: dict[str, str]
) -> Outcome:
    for precision in training.PRECISIONS:
        digests[precision] = _repeat(size, precision, device, faults)
    count = torch.cuda.device_count() if device == "cuda" else 1
    world = count * settings.nodes.count
    if count >= 2:
        digests["DataParallel"] = _repeat(size, "fp32", device, faults, several=True)
    if device == "cuda" and world >= 2:
        results = launch(settings.scratch / "gpu", settings.nodes, count, "gpu")
        faults += disagreements(results)
        digests.update(
            {f"{world} ranks, {mode}": runs["digests"][0] for mode, runs in results[0].items()}
        )
    table = {name: measure(size, name, device) for name in TABLE}
    best = max(table, key=lambda name: int(table[name]["tokens per second"]))
    several = f"NCCL DDP over {world} GPUs" if world >= 2 else "one GPU, NCCL not judged"
    evidence = "; ".join(faults) or (
        f"bits repeat in {', '.join(training.PRECISIONS)}; {several}; fastest {best},"
        f" {table[best]['tokens per second']} tokens/s"
    )
    return Outcome(
        "gpu",
        DOES_NOT_HOLD if faults else HOLDS,
        evidence,
        digests=digests,
        details={"class": device_class(device), "table": table},
    )


def device_class(device: str) -> dict[str, str]:
    """What a GPU's bits depend on: compute capability, SM count and library versions."""
    versions = {
        "torch": str(torch.__version__),
        "cuda": str(torch.version.cuda),
        "cudnn": str(torch.backends.cudnn.version()),
    }
    if device != "cuda":
        return {"name": device, **versions}
    properties = torch.cuda.get_device_properties(0)
    return {
        "name": f"cuda {properties.major}.{properties.minor},"
        f" {properties.multi_processor_count} multiprocessors",
        "gpus": str(torch.cuda.device_count()),
        "nccl": ".".join(map(str, torch.cuda.nccl.version())),
        **versions,
    }


def _repeat(
    size: Size, precision: str, device: str, faults: list[str], *, several: bool = False
) -> str:
    """The digest of a run that is made twice; what is wrong with it goes to `faults`."""
    name = "DataParallel" if several else precision
    digests = []
    for _ in range(2):
        _allow_tf32(False)
        # The mathematical form of attention is deterministic on every GPU.
        with sdpa_kernel(SDPBackend.MATH):
            run = training.start(size, precision, device=device, scale=training.SAFE_SCALE)
            if several:
                run.model = nn.DataParallel(run.model)
            training.train(run)
        digests.append(training.run_digest(run))
    if digests[0] != digests[1]:
        faults.append(f"{name} does not repeat: {digests[0]}, then {digests[1]}")
    if not training.learnt(run):
        faults.append(f"{name} does not learn: loss {run.losses[0]:.3f}, then {run.losses[-1]:.3f}")
    return digests[0]


def measure(size: Size, name: str, device: str) -> dict[str, str]:
    """Tokens per second, peak memory and utilisation of training in the mode `name` of TABLE.

    As users train: without deterministic algorithms, and with the attention torch chooses.
    """
    precision, tf32 = TABLE[name]
    run = training.start(size, precision, device=device, scale=training.SAFE_SCALE)
    torch.use_deterministic_algorithms(False)
    _allow_tf32(tf32)
    gpu = device == "cuda"
    training.train(run, 2)  # warm up
    if gpu:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
    sampling: Any = contextlib.nullcontext(nvml.Samples())
    if gpu:
        sampling = nvml.sampled(f"GPU-{torch.cuda.get_device_properties(0).uuid}")
    with sampling as samples:
        begun = time.perf_counter()
        training.train(run)
        if gpu:
            torch.cuda.synchronize()
        seconds = time.perf_counter() - begun
    _allow_tf32(False)
    tokens = (run.done - 2) * size.micro_batches * size.batch * size.length
    busy = samples.mean()
    return {
        "tokens per second": str(round(tokens / seconds)),
        "peak memory MiB": str(torch.cuda.max_memory_allocated() >> 20) if gpu else "not judged",
        "utilisation %": "not judged" if busy is None else str(busy),
    }


def _allow_tf32(allowed: bool) -> None:
    torch.backends.cuda.matmul.allow_tf32 = allowed
    torch.backends.cudnn.allow_tf32 = allowed
