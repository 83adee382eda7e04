"""Digests of small runs, printed as JSON; run natively and under emulated CPUs.

Uses one process only: under qemu-user a child would run on the real CPU.
"""

from __future__ import annotations

import dataclasses
import json
import sys

import torch

from validation import training
from validation.checks import neighbours, transformer
from validation.model import SMALL

TINY = dataclasses.replace(SMALL, steps=3)


def unfused() -> str:
    """fp32 with the for-loop AdamW, whose square root is MKL's; the guard would refuse it."""
    run = training.start(TINY, "fp32", fused=False)
    training.train(run)
    return training.run_digest(run)


def square_roots() -> str:
    from validation.digest import digest

    source = torch.Generator().manual_seed(1)
    return digest({"roots": torch.rand(4096, generator=source).sqrt()})


torch.use_deterministic_algorithms(True)
result = {
    "cpu": torch.backends.cpu.get_cpu_capability(),
    "transformer": transformer.train_all(TINY, judge_learning=False).digests,
    "neighbours": {
        name: getattr(neighbours, name)()
        for name in ("nms", "resize", "resnet_block", "spectrogram", "resample")
    },
    "unfused": unfused(),
    "square roots": square_roots(),
}
json.dump(result, sys.stdout)
