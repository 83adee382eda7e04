"""The stack as torch sees it: versions, libraries really loaded, modules really imported."""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import importlib.util
import os
import platform
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from validation import lane, loaded
from validation.checks import Settings
from validation.outcome import DOES_NOT_HOLD, HOLDS, Outcome

MODULES = ("torch", "torchvision", "torchaudio", "numpy", "triton")
_CBWR_BRANCHES = {1: "off", 2: "auto", 3: "COMPATIBLE"}


def run(settings: Settings) -> Outcome:
    """Imports the stack and reports what that loaded; never looks at what should be there."""
    sites = loaded.site_packages()
    # Looked for before they are imported: a stranger's numpy can crash torch.
    shadows = loaded.modules(_found(), sites)
    if shadows:
        return Outcome("stack", DOES_NOT_HOLD, "; ".join(_told(shadows)))
    faults: list[str] = []
    imported: dict[str, Any] = {}
    for name in MODULES:
        try:
            imported[name] = importlib.import_module(name)
        except Exception as error:  # a broken installation can raise anything
            faults.append(f"import {name} fails: {type(error).__name__}: {error}")
    if "torch" not in imported:
        return Outcome("stack", DOES_NOT_HOLD, "; ".join(faults))
    torch = imported["torch"]
    # torch itself writes this module at run time, where TMPDIR says.
    made = str(settings.scratch)
    own = Path(__file__).resolve().parents[2]
    origins = {
        name: str(module.__file__)
        for name, module in list(sys.modules.items())
        if getattr(module, "__file__", None) and not str(module.__file__).startswith(made)
    }
    strangers = loaded.modules(origins, [*sites, *loaded.standard_library(), own / "validation"])
    versions = _versions(imported)
    libraries = loaded.libraries(Path("/proc/self/maps").read_text(), sites)
    faults += _told(strangers)
    faults += [
        f"library {o.name} comes from {o.path}" for o in libraries if o.place == loaded.ELSEWHERE
    ]
    took = _lane_report(torch)
    faults += _lane_faults(took)
    inside = sum(o.place == loaded.ENVIRONMENT for o in libraries)
    evidence = "; ".join(faults) or (
        f"torch {versions['torch']}, CUDA {versions['cuda']}, cuDNN {versions['cudnn']}, NCCL"
        f" {versions['nccl']}; {inside} libraries from the environment,"
        f" {len(libraries) - inside} from the foundation; portable lane in effect"
    )
    return Outcome(
        "stack",
        DOES_NOT_HOLD if faults else HOLDS,
        evidence,
        details={
            "versions": versions,
            "libraries": [{"name": o.name, "from": o.place} for o in libraries],
            "lane": took,
        },
    )


def _found() -> dict[str, str]:
    """Which file each module of the stack would be imported from."""
    specs = {name: importlib.util.find_spec(name) for name in MODULES}
    return {name: str(spec.origin) for name, spec in specs.items() if spec and spec.origin}


def _told(strangers: list[loaded.Origin]) -> list[str]:
    """A sentence for each top-level package, for a few of them only."""
    first: dict[str, loaded.Origin] = {}
    for origin in strangers:
        first.setdefault(origin.name.partition(".")[0], origin)
    return [f"module {o.name} comes from {o.path}" for o in list(first.values())[:5]]


def _versions(imported: dict[str, Any]) -> dict[str, str]:
    torch = imported["torch"]
    versions = {name: str(module.__version__) for name, module in imported.items()}
    nccl = ".".join(map(str, torch.cuda.nccl.version())) if torch.version.cuda else "none"
    return {
        **versions,
        "torch commit": str(torch.version.git_version),
        "cuda": str(torch.version.cuda),
        "cudnn": str(torch.backends.cudnn.version()),
        "nccl": nccl,
        "python": platform.python_version(),
    }


def _lane_report(torch: ModuleType) -> dict[str, str]:
    """What each library says of itself, not what the variables ask for."""
    return {
        "aten": str(torch.backends.cpu.get_cpu_capability()),
        "threads": str(torch.get_num_threads()),
        "mkl": _mkl_branch(torch),
        "onednn": _onednn_isa(torch),
    }


def _lane_faults(took: dict[str, str]) -> list[str]:
    expected = {"aten": "AVX2", "threads": "1", "mkl": lane.PORTABLE["MKL_CBWR"]}
    faults = [
        f"the portable lane did not take effect: {name} reports {took[name]}, not {value}"
        for name, value in expected.items()
        if took[name] != value
    ]
    if "AVX2" not in took["onednn"] or "512" in took["onednn"]:
        faults.append(f"the portable lane did not take effect: oneDNN reports {took['onednn']}")
    return faults


def _mkl_branch(torch: ModuleType) -> str:
    # MKL is linked into libtorch_cpu; mkl_cbwr_get(MKL_CBWR_ALL) is exported under this name.
    library = ctypes.CDLL(str(Path(str(torch.__file__)).parent / "lib" / "libtorch_cpu.so"))
    try:
        branch = library.mkl_serv_cbwr_get(-1)
    except AttributeError:
        return "unknown (this build of torch has no MKL)"
    return _CBWR_BRANCHES.get(branch, f"branch {branch}")


def _onednn_isa(torch: ModuleType) -> str:
    """The ISA that oneDNN prints for its first primitive in verbose mode."""
    with tempfile.TemporaryFile() as printed:
        mkldnn = torch.backends.mkldnn
        with _standard_output_to(printed.fileno()), mkldnn.verbose(mkldnn.VERBOSE_ON):
            # Large enough for ATen to hand it to oneDNN.
            torch.nn.functional.conv2d(torch.ones(8, 16, 32, 32), torch.ones(16, 16, 3, 3))
        printed.seek(0)
        text = printed.read().decode("utf-8", "replace")
    for line in text.splitlines():
        if ",cpu,isa:" in line:
            return line.partition(",cpu,isa:")[2]
    return "nothing"


@contextlib.contextmanager
def _standard_output_to(descriptor: int) -> Iterator[None]:
    sys.stdout.flush()
    saved = os.dup(1)
    os.dup2(descriptor, 1)
    try:
        yield
    finally:
        ctypes.CDLL(None).fflush(None)
        os.dup2(saved, 1)
        os.close(saved)
