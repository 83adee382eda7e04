"""The stack imports, in the locked versions, from the locked tree and from precompiled code."""

import importlib
import importlib.metadata
import sys
from pathlib import Path

from torchlock.lock import read_lock

MODULES = (
    "torch",
    "torch._inductor",
    "torch.utils.tensorboard",
    "torchvision",
    "torchaudio",
    "triton",
    "numpy",
    "matplotlib.pyplot",
    "jupyterlab",
    "ipykernel",
    "ipywidgets",
    "tqdm",
    "pytest",
    "invoke",
)

source, site = map(Path, sys.argv[1:])
faults = []
for name in MODULES:
    module = importlib.import_module(name)
    file, cached = Path(module.__file__ or ""), Path(module.__cached__ or "")
    if not file.resolve().is_relative_to(site):
        faults.append(f"{name} comes from {file}, not from {site}")
    if not cached.is_file():
        faults.append(f"{name} has no precompiled byte code at {cached}")
for wheel in read_lock(source / "conda-lock.yml").wheels("linux-64"):
    version = importlib.metadata.version(wheel.name)
    if version != wheel.version:
        faults.append(f"{wheel.label} is locked, {version} is there")

import torch  # noqa: E402

said = (torch.__version__, torch.version.cuda, torch.backends.cudnn.version())
if said != ("2.7.1+cu126", "12.6", 90501):
    faults.append(f"torch, CUDA and cuDNN say {said}")
if faults:
    sys.exit("\n".join(faults))
