"""torchvision, torchaudio, numpy and DataLoader workers."""

from __future__ import annotations

import os
from typing import Any

import numpy
import torch
import torchaudio
import torchvision
from torch.utils.data import DataLoader, Dataset

from validation.checks import Settings
from validation.digest import digest
from validation.outcome import DOES_NOT_HOLD, HOLDS, NOT_JUDGED, Outcome

SHARED_MEMORY = "/dev/shm"  # noqa: S108 - where worker processes pass tensors, not a scratch file
NEEDED_SHARED_BYTES = 8 << 20
SEED = 20250604


def run(settings: Settings) -> Outcome:
    """Results are compared with the reference by the caller; here with what must be equal."""
    torch.use_deterministic_algorithms(True)
    digests = {
        "nms": nms(),
        "resize": resize(),
        "resnet block": resnet_block(),
        "spectrogram": spectrogram(),
        "resample": resample(),
    }
    if not round_trips():
        return Outcome("neighbours", DOES_NOT_HOLD, "a tensor changes on its way to numpy and back")
    digests["loader, 0 workers"] = loader(0)
    free = _free(SHARED_MEMORY)
    if free < NEEDED_SHARED_BYTES:
        return Outcome(
            "neighbours",
            NOT_JUDGED,
            f"DataLoader workers: {SHARED_MEMORY} has {free >> 10} KiB free, workers pass tensors"
            " there (give the container more with --shm-size); the rest was computed",
            digests=digests,
        )
    digests["loader, 2 workers"] = loader(2)
    if digests["loader, 0 workers"] != digests["loader, 2 workers"]:
        return Outcome(
            "neighbours",
            DOES_NOT_HOLD,
            "DataLoader gives other batches with 2 workers than with none",
            digests=digests,
        )
    return Outcome(
        "neighbours",
        HOLDS,
        "nms, resize, ResNet block, spectrogram, resample; numpy round trip; same batches with 0"
        " and 2 workers",
        digests=digests,
    )


def nms() -> str:
    """Which of 200 boxes survive, and in which order."""
    source = torch.Generator().manual_seed(SEED)
    corners = torch.rand(200, 2, generator=source) * 100
    boxes = torch.cat([corners, corners + 5 + torch.rand(200, 2, generator=source) * 30], dim=1)
    scores = torch.rand(200, generator=source)
    return digest({"kept": torchvision.ops.nms(boxes, scores, 0.5)})


def resize() -> str:
    """Antialiased bilinear resizing of a byte image and of a float image."""
    source = torch.Generator().manual_seed(SEED)
    image = torch.randint(256, (3, 65, 47), generator=source, dtype=torch.uint8)
    shrink = torchvision.transforms.functional.resize
    return digest(
        {
            "bytes": shrink(image, [32, 32], antialias=True),
            "floats": shrink(image / 255, [32, 32], antialias=True),
        }
    )


def resnet_block() -> str:
    """One training step of a ResNet basic block: output, gradients, running statistics."""
    torch.manual_seed(SEED)
    block = torchvision.models.resnet.BasicBlock(16, 16)
    images = torch.randn(4, 16, 20, 20, requires_grad=True)
    output = block(images)
    output.square().mean().backward()
    gradients = {f"grad.{name}": p.grad for name, p in block.named_parameters()}
    return digest({"output": output, "images": images.grad, **gradients, **block.state_dict()})


def spectrogram() -> str:
    """The power spectrogram of a second of noise."""
    return digest({"power": torchaudio.transforms.Spectrogram(n_fft=256)(_noise())})


def resample() -> str:
    """The same noise from 16 kHz to 11.025 kHz."""
    return digest({"wave": torchaudio.functional.resample(_noise(), 16000, 11025)})


def round_trips() -> bool:
    """Whether tensors of each type keep their bits through numpy, with and without a copy."""
    source = torch.Generator().manual_seed(SEED)
    for kind in (torch.float64, torch.float32, torch.float16, torch.int64, torch.uint8):
        tensor = (torch.rand(5, 7, generator=source) * 200).to(kind)
        shared = torch.from_numpy(tensor.numpy())
        copied = torch.from_numpy(numpy.array(tensor.numpy(), copy=True))
        if len({digest({"t": each}) for each in (tensor, shared, copied)}) != 1:
            return False
    return True


class _Noise(Dataset):  # type: ignore[misc]
    """Items that depend on their index only."""

    def __len__(self) -> int:
        return 48

    def __getitem__(self, index: int) -> tuple[int, torch.Tensor]:
        return index, torch.randn(32, generator=torch.Generator().manual_seed(index))


def loader(workers: int) -> str:
    """All shuffled batches of a small data set, in the order they come."""
    batches = DataLoader(
        _Noise(),
        batch_size=8,
        shuffle=True,
        num_workers=workers,
        generator=torch.Generator().manual_seed(SEED),
        timeout=60 if workers else 0,
    )
    content: list[Any] = []
    for indices, items in batches:
        content += [indices.clone(), items.clone()]
    return digest({"batches": content})


def _noise() -> torch.Tensor:
    return torch.randn(1, 16000, generator=torch.Generator().manual_seed(SEED))


def _free(directory: str) -> int:
    try:
        state = os.statvfs(directory)
    except OSError:
        return 0
    return state.f_bavail * state.f_frsize
