"""torch.compile makes a kernel with the environment's C++ compiler, and Triton's tools start."""

import subprocess
import sys

import torch
from triton.backends.nvidia.compiler import _path_to_binary


@torch.compile
def doubled_sine(x: torch.Tensor) -> torch.Tensor:
    """An operation the compiler fuses into one kernel."""
    return torch.sin(x) * 2


faults = []
x = torch.linspace(0, 1, 1024)
if not torch.allclose(doubled_sine(x), torch.sin(x) * 2):
    faults.append("the compiled function gives other values than the plain one")
for tool in ("ptxas", "cuobjdump", "nvdisasm"):
    path, _ = _path_to_binary(tool)
    if not path.startswith(sys.prefix) or "libexec" not in path:
        faults.append(f"Triton takes {tool} from {path}")
    subprocess.run([path, "--version"], check=True, stdout=subprocess.DEVNULL)
if faults:
    sys.exit("\n".join(faults))
