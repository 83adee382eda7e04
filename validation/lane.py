"""The environment a check runs in: set before torch is imported, and reported afterwards.

The portable lane makes CPU results independent of the CPU: one code path for ATen, oneDNN and
MKL, and one thread. The GPU lane makes a GPU's results repeat. Both are lists of variables.
"""

from __future__ import annotations

from collections.abc import Mapping

PORTABLE = {
    "ATEN_CPU_CAPABILITY": "avx2",
    "ONEDNN_MAX_CPU_ISA": "AVX2",
    "MKL_CBWR": "COMPATIBLE",
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
}

GPU = {
    "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
    "NCCL_ALGO": "Ring",
    "NCCL_PROTO": "Simple",
    "NCCL_NVLS_ENABLE": "0",
}

# For every child: leave the installation as it is, and keep the user's locale out of messages.
HOUSEKEEPING = {
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTHONSAFEPATH": "1",
    "PYTHONHASHSEED": "0",
    "PYTHONUTF8": "1",
    "LC_ALL": "C",
}

# Families of variables that change numbers: what a user has preset is dropped, and said so.
_NUMERIC_FAMILIES = (
    "ATEN_",
    "ONEDNN_",
    "DNNL_",
    "MKL_",
    "OMP_",
    "KMP_",
    "GOMP_",
    "OPENBLAS_",
    "CUBLAS_",
    "CUDNN_",
    "NVIDIA_TF32_",
    "TORCH_ALLOW_TF32_",
    "TORCH_COMPILE_",
    "TORCHDYNAMO_",
    "TORCHINDUCTOR_",
)
_GPU_ONLY = ("NCCL_ALGO", "NCCL_PROTO", "NCCL_NVLS_ENABLE")


def environment(user: Mapping[str, str], lane: Mapping[str, str]) -> dict[str, str]:
    """`user`'s environment with `lane` laid over it and nothing else that changes numbers."""
    kept = {name: value for name, value in user.items() if not _is_numeric(name)}
    return {**kept, **HOUSEKEEPING, **lane}


def overridden(user: Mapping[str, str], lane: Mapping[str, str]) -> dict[str, str]:
    """Variables the user preset that the lane drops or changes, each with the user's value."""
    return {
        name: value
        for name, value in sorted(user.items())
        if _is_numeric(name) and lane.get(name) != value
    }


def _is_numeric(name: str) -> bool:
    return name.startswith(_NUMERIC_FAMILIES) or name in _GPU_ONLY
