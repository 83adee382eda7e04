"""Digests of result bits: the same digest if and only if names, types, shapes and bits agree."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Mapping
from typing import Any

import torch


def digest(values: Mapping[str, Any]) -> str:
    """`sha256:...` over `values`, in the order of their names.

    A value is a tensor (any device, any shape, dense), bytes, text, an int, a float, or a
    list of those; raises TypeError for anything else.
    """
    state = hashlib.sha256()
    for name in sorted(values):
        _feed(state, name)
        _feed(state, values[name])
    return f"sha256:{state.hexdigest()}"


def _feed(state: hashlib._Hash, value: object) -> None:
    if isinstance(value, torch.Tensor):
        tensor = value.detach().to("cpu").contiguous()
        kind, content = f"{tensor.dtype}{list(tensor.shape)}", _raw(tensor)
    elif isinstance(value, list):
        kind, content = f"list {len(value)}", b""
    elif isinstance(value, str):
        kind, content = "text", value.encode()
    elif isinstance(value, bytes):
        kind, content = "bytes", value
    elif isinstance(value, int):
        kind, content = "int", str(value).encode()
    elif isinstance(value, float):
        kind, content = "float", struct.pack("<d", value)
    else:
        raise TypeError(f"no digest for a {type(value).__name__}")
    # Lengths first, so that no two different sequences of values give the same stream.
    state.update(f"{kind}:{len(content)}:".encode())
    state.update(content)
    if isinstance(value, list):
        for item in value:
            _feed(state, item)


def _raw(tensor: torch.Tensor) -> bytes:
    # numpy knows no bfloat16: hand it the bytes. A flat view first, since a scalar has no last
    # dimension to reinterpret.
    return bytes(tensor.reshape(-1).view(torch.uint8).numpy().tobytes())
