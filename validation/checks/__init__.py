"""The checks, in the order they run. Nothing here imports torch; a check's module may."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Check:
    """One check: `module` has `run(settings) -> Outcome`; `lane` is "portable" or "gpu".

    It is given `seconds`; `alone` keeps other checks away while it runs. `guarded`: operations
    whose bits depend on the CPU's maker stop it (`validation/guard.py`).
    """

    name: str
    module: str
    question: str
    seconds: int
    lane: str = "portable"
    alone: bool = False
    guarded: bool = False


@dataclass(frozen=True)
class Nodes:
    """The machines that run the ddp check together; one machine alone by default."""

    count: int = 1
    rank: int = 0
    endpoint: str = ""


@dataclass(frozen=True)
class Settings:
    """What a check may depend on. `scratch` is a directory of its own, removed afterwards."""

    scratch: Path
    nodes: Nodes = field(default_factory=Nodes)


CHECKS = (
    Check(
        "stack",
        "validation.checks.stack",
        "Is what torch loads the environment's own, and nothing else?",
        seconds=900,
        alone=True,  # the others wait for what it says
    ),
    Check(
        "transformer",
        "validation.checks.transformer",
        "Does a Transformer learn in fp32, bf16 and fp16, and leave the recorded bits?",
        seconds=900,
        guarded=True,
    ),
    Check(
        "resume",
        "validation.checks.resume",
        "Does a run that was saved and loaded in a new process end with the same bits?",
        seconds=900,
        guarded=True,
    ),
    Check(
        "ddp",
        "validation.checks.ddp",
        "Do two DDP ranks leave the bits of one process, and does a dead rank end the run?",
        seconds=1800,
        guarded=True,
    ),
    Check(
        "neighbours",
        "validation.checks.neighbours",
        "Do torchvision, torchaudio, numpy and DataLoader workers leave the recorded bits?",
        seconds=900,
        guarded=True,
    ),
    Check(
        "compile",
        "validation.checks.compiled",
        "Does torch.compile work on the CPU, and agree with eager within a bound?",
        seconds=900,
    ),
    Check(
        "gpu",
        "validation.checks.gpu",
        "Does the GPU repeat its bits at the size users train, alone and under NCCL DDP?",
        seconds=3600,
        lane="gpu",
        alone=True,  # it measures
    ),
)


def named(name: str) -> Check:
    """The check of that name; raises KeyError."""
    return {check.name: check for check in CHECKS}[name]
