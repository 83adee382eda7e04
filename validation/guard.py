"""Stops a check that uses an operation whose bits are known to depend on the CPU's maker.

MKL's vector square root starts from the CPU's approximate reciprocal square root. ATen calls it
for `sqrt` of a float32 or float64 tensor on the CPU and for powers of one half; AdamW and Adam
reach it unless `fused=True`. Norms (also clip_grad_norm_'s, also foreach) and layer_norm take
their roots with the exact scalar instruction and are safe.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

_ROOTS = frozenset({"aten::sqrt", "aten::sqrt_", "aten::_foreach_sqrt", "aten::_foreach_sqrt_"})
_POWERS = frozenset({"aten::pow", "aten::pow_", "aten::_foreach_pow", "aten::_foreach_pow_"})
_AFFECTED_TYPES = (torch.float32, torch.float64)


class NotPortableError(RuntimeError):
    """An operation whose bits differ between makers of CPUs was about to run."""


class PortableGuard(TorchDispatchMode):  # type: ignore[misc]
    """Raises NotPortableError when such an operation is dispatched within the `with` block."""

    def __torch_dispatch__(
        self,
        func: torch._ops.OpOverload,
        types: Sequence[Any],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> object:
        named = dict(kwargs or {})
        name = func._schema.name
        if name in _ROOTS or (name in _POWERS and _roots(args)):
            tensors = [leaf for leaf in tree_leaves((args, named)) if torch.is_tensor(leaf)]
            if any(t.device.type == "cpu" and t.dtype in _AFFECTED_TYPES for t in tensors):
                raise NotPortableError(
                    f"{name} on a {tensors[0].dtype} CPU tensor: its bits depend on the CPU's"
                    " maker (use an optimizer with fused=True, or another formula)"
                )
        return func(*args, **named)


def _roots(args: Sequence[Any]) -> bool:
    # Powers of one half, up or down, are taken as square roots.
    return any(isinstance(value, float) and abs(value) == 0.5 for value in tree_leaves(args))
