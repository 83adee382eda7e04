"""All rules, from the hardware up to the program."""

from __future__ import annotations

from torchlock.doctor.findings import Rule
from torchlock.doctor.rules import (
    abi,
    build_variant,
    cluster,
    compile_stack,
    container,
    driver,
    fabric,
    gpu_state,
    host_kernel,
    libraries,
    limits,
    mig,
    nccl,
    permissions,
    process,
    visibility,
    wheel_arch,
    wsl,
)

RULES: tuple[Rule, ...] = (
    *gpu_state.RULES,
    *wsl.RULES,
    *host_kernel.RULES,
    *driver.RULES,
    *fabric.RULES,
    *cluster.RULES,
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
)
