"""What is known of GPUs, drivers, CUDA and wheels. Sources: docs/design.md, NVIDIA's release notes.

GPU generations are given by compute capability (major, minor).
"""

from __future__ import annotations

import re

from torchlock.doctor.evidence import Gpu

# The lowest driver on which a CUDA major runs at all (minor-version compatibility, Linux).
DRIVER_FLOOR = {11: "450.80.02", 12: "525.60.13", 13: "580"}

# Driver branch -> the CUDA version its libcuda implements.
BRANCH_CUDA = {
    450: (11, 0), 455: (11, 1), 460: (11, 2), 465: (11, 3), 470: (11, 4), 495: (11, 5),
    510: (11, 6), 515: (11, 7), 520: (11, 8), 525: (12, 0), 530: (12, 1), 535: (12, 2),
    545: (12, 3), 550: (12, 4), 555: (12, 5), 560: (12, 6), 565: (12, 7), 570: (12, 8),
    575: (12, 9), 580: (13, 0), 590: (13, 1),
}  # fmt: skip

# The last driver branch that supports a generation, and the first one.
LAST_BRANCH = (((3, 8), 470), ((7, 3), 580))
FIRST_BRANCH = (((10, 0), 570), ((9, 0), 515), ((8, 9), 520), ((8, 0), 450), ((7, 5), 410))

_CHIPS = (
    (r"\bG[FK]1\d\d|\bGK2\d\d", (3, 5)), (r"\bGM\d\d\d", (5, 2)), (r"\bGP100", (6, 0)),
    (r"\bGP\d\d\d", (6, 1)), (r"\bGV1\d\d", (7, 0)), (r"\bTU1\d\d", (7, 5)),
    (r"\bGA100", (8, 0)), (r"\bGA1\d\d", (8, 6)), (r"\bAD1\d\d", (8, 9)), (r"\bGH\d\d\d", (9, 0)),
    (r"\bGB10[02]", (10, 0)), (r"\bGB110", (10, 3)), (r"\bGB20\d", (12, 0)),
    (r"\bGB10B?\b", (12, 1)),
)  # fmt: skip
_NAMES = (
    (r"RTX (PRO )?\d{4} Blackwell|RTX PRO 6000|RTX 50\d0", (12, 0)), (r"DGX Spark|GB10\b", (12, 1)),
    (r"\b(GB|B)300\b", (10, 3)), (r"\b(GB|B)[12]00\b", (10, 0)),
    (r"\bG?H(100|200|20|800)\b", (9, 0)),
    (r"\bGH200", (9, 0)), (r"RTX 40\d0|RTX \d000 Ada|\bL(4|40S?|20|2)\b", (8, 9)),
    (r"\bA(100|30|800)\b", (8, 0)), (r"RTX 30[5-9]0|RTX A\d+|\bA(10G?|16|2|40)\b", (8, 6)),
    (r"RTX 20[5-8]0|GTX 16\d0|\bT4\b|\bT4G|TITAN RTX|Quadro RTX|\bT(1000|600|400)\b", (7, 5)),
    (r"\bV100|TITAN V\b|GV100", (7, 0)), (r"\bP100", (6, 0)),
    (r"GTX 10[1-8]0|GT 1030|TITAN X[Pp ].*Pascal|TITAN Xp|\bP(4|40|6)\b|Quadro P\d+|\bMX[123]\d0",
     (6, 1)),
    (r"GTX 9[5-9]0|GTX TITAN X|\bM(4|40|60|6)\b|Quadro M\d+", (5, 2)),
    (r"GTX 7[45]0|840M|940M", (5, 0)),
    (r"\bK(80|40|20)[cmx]?\b|GTX 7[678]0|GT 7[0123]0|Quadro K\d+", (3, 7)),
)  # fmt: skip
_DATA_CENTRE = (
    r"\b(Tesla|A100|A30|A40|A10G?|A2|A16|A800|H100|H20|H200|H800|GH200|B[123]00|GB[23]00|L4|L40S?|"
    r"L20|L2|T4G?|V100|P100|P40|P4|P6|K80|M40|M60|GRID)[A-Z]{0,2}(?![A-Za-z0-9])"
)

GENERATIONS = (
    ((12, 0), "Blackwell"), ((10, 0), "Blackwell"), ((9, 0), "Hopper"), ((8, 9), "Ada"),
    ((8, 0), "Ampere"), ((7, 5), "Turing"), ((7, 0), "Volta"), ((6, 0), "Pascal"),
    ((5, 0), "Maxwell"), ((0, 0), "Kepler or older"),
)  # fmt: skip

# What cuInit's codes mean (cuda.h, CUresult).
CUINIT = {
    0: "success", 2: "out of memory", 3: "initialization error", 34: "stub library",
    46: "device busy or unavailable", 100: "no device", 101: "invalid device",
    304: "operating system call failed", 801: "operation not supported",
    802: "system not yet initialized", 803: "driver mismatch",
    804: "forward compatibility not supported on this GPU", 805: "MPS connection failed",
    999: "unknown error",
}  # fmt: skip

# torch release -> torchvision release; torchaudio has torch's own number.
TORCHVISION = {
    "2.0.0": "0.15.1", "2.0.1": "0.15.2", "2.1.0": "0.16.0", "2.1.1": "0.16.1", "2.1.2": "0.16.2",
    "2.2.0": "0.17.0", "2.2.1": "0.17.1", "2.2.2": "0.17.2", "2.3.0": "0.18.0", "2.3.1": "0.18.1",
    "2.4.0": "0.19.0", "2.4.1": "0.19.1", "2.5.0": "0.20.0", "2.5.1": "0.20.1", "2.6.0": "0.21.0",
    "2.7.0": "0.22.0", "2.7.1": "0.22.1", "2.8.0": "0.23.0", "2.9.0": "0.24.0", "2.9.1": "0.24.1",
    "2.10.0": "0.25.0",
}  # fmt: skip

# What torch 2.7.1 pins (its wheel's metadata).
PINS_2_7_1 = {
    "nvidia-cublas-cu12": "12.6.4.1", "nvidia-cuda-cupti-cu12": "12.6.80",
    "nvidia-cuda-nvrtc-cu12": "12.6.77", "nvidia-cuda-runtime-cu12": "12.6.77",
    "nvidia-cudnn-cu12": "9.5.1.17", "nvidia-cufft-cu12": "11.3.0.4",
    "nvidia-cufile-cu12": "1.11.1.6", "nvidia-curand-cu12": "10.3.7.77",
    "nvidia-cusolver-cu12": "11.7.1.2", "nvidia-cusparse-cu12": "12.5.4.2",
    "nvidia-cusparselt-cu12": "0.6.3", "nvidia-nccl-cu12": "2.26.2",
    "nvidia-nvjitlink-cu12": "12.6.85", "nvidia-nvtx-cu12": "12.6.77", "triton": "3.3.1",
}  # fmt: skip

# Library stem -> the wheel (without -cuNN) that carries it.
WHEEL_OF = {
    "libcublas": "nvidia-cublas", "libcublasLt": "nvidia-cublas", "libnvblas": "nvidia-cublas",
    "libcudnn": "nvidia-cudnn", "libnccl": "nvidia-nccl", "libcudart": "nvidia-cuda-runtime",
    "libnvrtc": "nvidia-cuda-nvrtc", "libnvrtc-builtins": "nvidia-cuda-nvrtc",
    "libcupti": "nvidia-cuda-cupti", "libcufft": "nvidia-cufft", "libcurand": "nvidia-curand",
    "libcusolver": "nvidia-cusolver", "libcusparse": "nvidia-cusparse",
    "libcusparseLt": "nvidia-cusparselt", "libcufile": "nvidia-cufile",
    "libnvJitLink": "nvidia-nvjitlink", "libnvToolsExt": "nvidia-nvtx",
    "libnvshmem_host": "nvidia-nvshmem",
}  # fmt: skip

# GPU code in the published builds: (release, tag) -> architectures.
WHEEL_ARCHS = {
    ("2.7", "cu118"): (50, 60, 70, 75, 80, 86, 90),
    ("2.7", "cu126"): (50, 60, 70, 75, 80, 86, 90),
    ("2.7", "cu128"): (75, 80, 86, 90, 100, 120),
}


def stem(soname: str) -> str:
    """`libcudnn` for `libcudnn_ops.so.9`: the name of the library's family."""
    name = soname.partition(".so")[0]
    return "libcudnn" if name.startswith("libcudnn") else name


def is_cuda_library(soname: str) -> bool:
    """True for a library that the NVIDIA wheels carry."""
    return stem(soname) in WHEEL_OF


def chip_capability(text: str) -> tuple[int, ...] | None:
    """Compute capability from a PCI description such as `GP104GL [Tesla P4]`."""
    for pattern, capability in _CHIPS:
        if re.search(pattern, text):
            return capability
    return None


def capability(gpu: Gpu) -> tuple[int, ...] | None:
    """Compute capability as nvidia-smi states it, else by the GPU's name."""
    if gpu.capability and len(gpu.capability) == 2:
        return gpu.capability
    for pattern, known in _NAMES:
        if re.search(pattern, gpu.name, re.I):
            return known
    return chip_capability(gpu.name)


def generation(of: tuple[int, ...]) -> str:
    """The marketing name of a generation, for messages."""
    return next((name for since, name in GENERATIONS if of >= since), "unknown")


def is_data_centre(name: str) -> bool:
    """True for GPUs on which forward compatibility (cuda-compat) is supported."""
    return bool(re.search(_DATA_CENTRE, name, re.I)) and not re.search("GeForce|TITAN", name, re.I)


def archs_of(release: str, tag: str) -> tuple[int, ...]:
    """The architectures of a published torch build, () where not known."""
    return WHEEL_ARCHS.get((".".join(release.split(".")[:2]), tag), ())


def runs_on(archs: tuple[str, ...], gpu: tuple[int, ...]) -> bool:
    """Whether a build with `archs` (sm_NN, compute_NN) has code for a GPU.

    A cubin runs on the same major and an equal or higher minor; PTX on anything newer;
    an `a` or `f` suffix ties a cubin to its own generation.
    """
    for arch in archs:
        parts = re.fullmatch(r"(sm|compute)_(\d{1,3})(\d)([af]?)", arch)
        if not parts:
            continue
        built = (int(parts[2]), int(parts[3]))
        if parts[1] == "sm" and built[0] == gpu[0] and built <= gpu and not parts[4]:
            return True
        if built == gpu or (parts[1] == "compute" and built <= gpu and not parts[4]):
            return True
    return False
