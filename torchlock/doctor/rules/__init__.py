"""All rules, from the hardware up to the program."""

from __future__ import annotations

from torchlock.doctor.findings import Rule
from torchlock.doctor.rules import (
    abi,
    build_variant,
    children,
    compat_libs,
    compile_stack,
    container,
    driver_version,
    fabric,
    gpu_driver_support,
    gpu_state,
    host_kernel,
    kubernetes,
    libraries,
    limits,
    mig,
    nccl,
    permissions,
    process,
    slurm,
    visibility,
    wheel_arch,
    wsl,
)

RULES: tuple[Rule, ...] = (
    *gpu_state.RULES,
    *wsl.RULES,
    *host_kernel.RULES,
    *gpu_driver_support.RULES,
    *compat_libs.RULES,
    *driver_version.RULES,
    *fabric.RULES,
    *kubernetes.RULES,
    *slurm.RULES,
    *container.RULES,
    *permissions.RULES,
    *mig.RULES,
    *visibility.RULES,
    *libraries.RULES,
    *build_variant.RULES,
    *wheel_arch.RULES,
    *abi.RULES,
    *compile_stack.RULES,
    *nccl.RULES,
    *limits.RULES,
    *process.RULES,
    *children.RULES,
)
