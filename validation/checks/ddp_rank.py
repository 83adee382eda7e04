"""One rank of the ddp check; torch.distributed.run starts it as `-m validation.checks.ddp_rank`."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import torch
from torch import distributed
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.parallel import DistributedDataParallel

from validation import training
from validation.children import die_with_parent
from validation.guard import PortableGuard
from validation.model import FULL, SMALL, Size

MODEL = dataclasses.replace(SMALL, steps=8)
STEPS = 4
# name -> precision, micro-batches a rank takes before gradients are exchanged
MODES = {
    "fp32": ("fp32", 1),
    "bf16": ("bf16", 1),
    "fp16": ("fp16", 1),
    "fp32 no_sync": ("fp32", 2),
}
SURVIVED = ".survived"
TIMEOUT = datetime.timedelta(seconds=120)


def train(size: Size, precision: str, count: int, device: str) -> tuple[str, bool]:
    """This rank's part of a run: the digest at the end, and whether ranks agreed throughout."""
    rank, world = distributed.get_rank(), distributed.get_world_size()
    run = training.start(size, precision, device=device, dropout=0.0, scale=training.SAFE_SCALE)
    run.model = DistributedDataParallel(run.model)
    agreed = True
    for step in range(STEPS):
        first = (step * world + rank) * count
        training.step(run, range(first, first + count))
        digests: list[str] = [""] * world
        distributed.all_gather_object(digests, training.weights_digest(run))
        agreed = agreed and len(set(digests)) == 1
    return training.weights_digest(run), agreed


def _play(size: Size, precision: str, count: int, device: str, *, times: int) -> dict[str, Any]:
    """The digest of each of `times` runs, and whether ranks agreed throughout all of them."""
    runs = [train(size, precision, count, device) for _ in range(times)]
    return {
        "digests": [digest for digest, _ in runs],
        "agreed": all(agreed for _, agreed in runs),
    }


def main(scene: str, scratch: Path) -> None:
    """Plays one scene and writes rank-N.json.

    "pair": every mode once. "many": every mode twice. "four": fp32 twice, then the last rank
    dies. "gpu": every mode twice over NCCL at the size users train, one GPU a rank.
    """
    die_with_parent()
    size, device = MODEL, "cpu"
    surroundings: contextlib.AbstractContextManager[object] = PortableGuard()
    if scene == "gpu":
        size, device = FULL, f"cuda:{os.environ['LOCAL_RANK']}"
        torch.cuda.set_device(device)
        # The mathematical form of attention is deterministic on every GPU.
        surroundings = sdpa_kernel(SDPBackend.MATH)
    distributed.init_process_group("nccl" if scene == "gpu" else "gloo", timeout=TIMEOUT)
    modes = {"fp32": MODES["fp32"]} if scene == "four" else MODES
    with surroundings:
        result = {
            # Two ranks are compared with one process, which is a repetition already.
            mode: _play(size, precision, count, device, times=1 if scene == "pair" else 2)
            for mode, (precision, count) in modes.items()
        }
    rank = distributed.get_rank()
    (scratch / f"rank-{rank}.json").write_text(json.dumps(result))
    distributed.barrier()
    if scene == "four":
        if rank == distributed.get_world_size() - 1:
            os.kill(os.getpid(), signal.SIGKILL)
        # The others go on as if nothing had happened; gloo must end them.
        distributed.all_reduce(torch.ones(1))
        (scratch / f"rank-{rank}{SURVIVED}").touch()
    distributed.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
