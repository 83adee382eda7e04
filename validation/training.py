"""Training as users write it: AMP, accumulation, clipping, warm-up; and the bits it leaves."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from validation.digest import digest
from validation.model import Size, TextClassifier, micro_batch

PRECISIONS = ("fp32", "bf16", "fp16")
_AUTOCAST = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}
SEED = 20250604
WARM_UP = 4
GROWTH_INTERVAL = 6
# So large that the first scaled loss overflows fp16: the step is skipped, the scale halved.
OVERFLOWING_SCALE = 2.0**19
SAFE_SCALE = 2.0**10


@dataclass
class Training:
    """One run: everything that its next step depends on but torch's global generators."""

    size: Size
    precision: str
    device: str
    model: Any
    optimizer: Any
    schedule: Any
    scaler: Any
    done: int = 0
    losses: list[float] = field(default_factory=list)
    scales: list[float] = field(default_factory=list)


def start(
    size: Size,
    precision: str,
    *,
    device: str = "cpu",
    dropout: float = 0.1,
    fused: bool = True,
    scale: float = OVERFLOWING_SCALE,
) -> Training:
    """A run before its first step; weights are drawn on the CPU, whatever the device.

    Seeds torch's global generators and asks for deterministic algorithms.
    """
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(SEED)
    model = TextClassifier(size, dropout=dropout).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=size.learning_rate, fused=fused)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min(1.0, (step + 1) / WARM_UP) * (1 - step / (2 * size.steps))
    )
    scaler = torch.amp.GradScaler(
        torch.device(device).type,
        enabled=precision == "fp16",
        init_scale=scale,
        growth_interval=GROWTH_INTERVAL,
    )
    return Training(size, precision, device, model, optimizer, schedule, scaler)


def step(run: Training, micro_batches: Sequence[int]) -> None:
    """One optimizer step over the numbered micro-batches, gradients accumulated in order."""
    run.model.train()
    run.optimizer.zero_grad()
    total = 0.0
    for place, index in enumerate(micro_batches):
        last = place == len(micro_batches) - 1
        # DistributedDataParallel exchanges gradients with the last micro-batch only.
        wait = contextlib.nullcontext() if last else _no_sync(run.model)
        with wait:
            total += backward(run, index, share=len(micro_batches))
    update(run)
    run.losses.append(total)


def backward(run: Training, index: int, *, share: int) -> float:
    """Adds the gradients of micro-batch `index`, its loss divided by `share`; returns that loss."""
    tokens, labels = micro_batch(run.size, index)
    kind = _AUTOCAST[run.precision]
    with torch.amp.autocast(
        torch.device(run.device).type, dtype=kind or torch.bfloat16, enabled=kind is not None
    ):
        logits = run.model(tokens.to(run.device))
    loss = nn.functional.cross_entropy(logits.float(), labels.to(run.device)) / share
    run.scaler.scale(loss).backward()
    return float(loss.detach())


def update(run: Training) -> None:
    """Clips, steps the optimizer unless a gradient overflowed, and moves scale and schedule."""
    run.scaler.unscale_(run.optimizer)
    nn.utils.clip_grad_norm_(run.model.parameters(), 1.0)
    run.scaler.step(run.optimizer)
    run.scaler.update()
    run.schedule.step()
    run.scales.append(float(run.scaler.get_scale()))
    run.done += 1


def train(run: Training, until: int | None = None) -> None:
    """Steps `run` on to step `until` (the size's own number of steps if not given)."""
    count = run.size.micro_batches
    while run.done < (run.size.steps if until is None else until):
        step(run, range(run.done * count, (run.done + 1) * count))


def weights_digest(run: Training) -> str:
    """The digest of parameters and optimizer state."""
    return digest(_weights(run))


def run_digest(run: Training) -> str:
    """The digest of parameters, optimizer state, losses and loss scales."""
    return digest({**_weights(run), "losses": run.losses, "scales": run.scales})


def learnt(run: Training) -> bool:
    """Whether the loss fell: the last quarter's mean is below 0.7 of the first quarter's."""
    quarter = max(1, len(run.losses) // 4)
    return sum(run.losses[-quarter:]) < 0.7 * sum(run.losses[:quarter])


def save(run: Training, path: Path) -> None:
    """Writes all that the next step depends on, torch's generators included."""
    state = {
        "model": run.model.state_dict(),
        "optimizer": run.optimizer.state_dict(),
        "schedule": run.schedule.state_dict(),
        "scaler": run.scaler.state_dict(),
        "generator": torch.get_rng_state(),
        "gpu generators": torch.cuda.get_rng_state_all() if run.device != "cpu" else [],
        "done": run.done,
        "losses": run.losses,
        "scales": run.scales,
    }
    torch.save(state, path)


def load(run: Training, path: Path) -> None:
    """Puts a run that was just started where the saved one was."""
    state = torch.load(path, map_location="cpu", weights_only=True)
    run.model.load_state_dict(state["model"])
    run.optimizer.load_state_dict(state["optimizer"])
    run.schedule.load_state_dict(state["schedule"])
    run.scaler.load_state_dict(state["scaler"])
    torch.set_rng_state(state["generator"])
    if run.device != "cpu":
        torch.cuda.set_rng_state_all(state["gpu generators"])
    run.done = state["done"]
    run.losses = state["losses"]
    run.scales = state["scales"]


def _weights(run: Training) -> dict[str, Any]:
    model = getattr(run.model, "module", run.model)
    values: dict[str, Any] = {f"model.{name}": t for name, t in model.state_dict().items()}
    for index, state in run.optimizer.state_dict()["state"].items():
        values.update({f"optimizer.{index}.{name}": value for name, value in state.items()})
    return values


def _no_sync(model: nn.Module) -> contextlib.AbstractContextManager[object]:
    return model.no_sync() if hasattr(model, "no_sync") else contextlib.nullcontext()
