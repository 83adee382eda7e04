"""torch.compile on the CPU: it works, and agrees with eager within a stated bound."""

from __future__ import annotations

import os
import shutil
import sysconfig
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch._dynamo.utils import counters

from validation.checks import Settings
from validation.outcome import DOES_NOT_HOLD, HOLDS, NOT_JUDGED, Outcome
from validation.training import SEED

# Compiled code fuses and reorders float32 sums: a bound, never called identical.
BOUND = 1e-4
WIDTH = 64


def run(settings: Settings) -> Outcome:
    """Compares output and gradients of a feed-forward block, compiled and eager."""
    missing = _missing()
    if missing:
        return Outcome("compile", NOT_JUDGED, missing, needed=False)
    torch.manual_seed(SEED)
    # Small, since each kernel costs seconds of the C++ compiler: the block between attentions.
    model = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH))
    eager = _gradients(model, model)
    try:
        compiled = _gradients(model, torch.compile(model))
    except Exception as error:  # the compiler's own failures have no common type
        lines = str(error).strip().splitlines() or [""]
        return Outcome("compile", DOES_NOT_HOLD, f"{type(error).__name__}: {lines[0][:300]}")
    if not counters["stats"]["unique_graphs"]:
        return Outcome("compile", DOES_NOT_HOLD, "torch.compile ran the block without compiling it")
    difference = max(
        float((a - b).abs().max() / (a.abs().max() + 1e-12))
        for a, b in zip(eager, compiled, strict=True)
    )
    holds = difference <= BOUND
    relation = "within" if holds else "beyond"
    return Outcome(
        "compile",
        HOLDS if holds else DOES_NOT_HOLD,
        f"largest relative difference from eager {difference:.1e}, {relation} {BOUND:g}",
        details={"difference": difference.hex(), "bound": BOUND.hex()},
    )


def _missing() -> str:
    compiler = os.environ.get("CXX", "g++")
    if shutil.which(compiler) is None:
        return f"no C++ compiler ({compiler}) on this machine"
    header = Path(sysconfig.get_paths()["include"]) / "Python.h"
    return "" if header.is_file() else "no Python.h for this interpreter on this machine"


def _gradients(model: nn.Sequential, forward: Callable[[Any], Any]) -> list[Any]:
    """The output for one batch, and the gradients of its mean square."""
    model.zero_grad()
    output = forward(torch.randn(16, WIDTH, generator=torch.Generator().manual_seed(SEED)))
    output.square().mean().backward()
    return [output.detach(), *(p.grad.clone() for p in model.parameters())]
