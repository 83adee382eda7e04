"""Gzip members whose bytes depend on their input alone.

A gzip file is a sequence of members (RFC 1952, 2.2), each a header, one DEFLATE stream, CRC-32
and size. Two kinds are written: *packed* members, compressed by one pinned encoder, and
*spliced* members, whose DEFLATE stream was made by someone else and is copied as it is.

The encoder is libdeflate at level 6 through the `deflate` package. Its output depends on the
release of libdeflate but not on the processor, and `check_encoder` compares the one at hand
with the one the format version stands for.
"""

from __future__ import annotations

import hashlib
import struct
from functools import lru_cache
from typing import Any, Protocol, cast

import deflate

try:
    from isal import isal_zlib as _zlib
except ImportError:  # any inflate gives the same bytes; isal's takes half the time
    import zlib as _zlib  # type: ignore[no-redef]

from torchlock.errors import TorchlockError

HEADER = bytes([0x1F, 0x8B, 8, 0, 0, 0, 0, 0, 0, 255])
"""Deflate, no flags, no time, no extra flags, unknown operating system."""

LEVEL = 6

_PROBE = b"".join(
    hashlib.sha256(struct.pack("<I", n % 977)).hexdigest().encode() for n in range(4096)
)
_PROBE_SHA256 = "2bc860bb980e2a93f170e1d0b45c6c7ee6f143265a03b35d7ed761896a6857c7"


class _Inflater(Protocol):
    eof: bool
    unconsumed_tail: bytes
    unused_data: bytes

    def decompress(self, data: bytes | memoryview, max_length: int = ...) -> bytes: ...


def crc32(data: bytes | bytearray | memoryview, value: int = 0) -> int:
    """Return the CRC-32 of `data`, continued from `value`."""
    # libdeflate's: isal's leaves the vector registers in a state that takes OpenSSL's sha256 a
    # third longer (1.9.1, on a processor with AVX-512 and the SHA extensions).
    return int(deflate.crc32(data, value))


def inflater() -> _Inflater:
    """Return a decompressor for one raw DEFLATE stream."""
    return cast(_Inflater, cast(Any, _zlib).decompressobj(-15))


def trailer(crc: int, size: int) -> bytes:
    """Return what follows a member's DEFLATE stream."""
    return struct.pack("<II", crc, size & 0xFFFFFFFF)


def packed_member(data: bytes | bytearray | memoryview) -> bytes:
    """Return one gzip member that holds `data`, compressed by the pinned encoder."""
    packed = deflate.deflate_compress(data, LEVEL)
    return b"".join((HEADER, packed, trailer(crc32(data), len(data))))


@lru_cache
def check_encoder() -> None:
    """Raise `TorchlockError` unless the encoder at hand is the one the format stands for."""
    actual = hashlib.sha256(deflate.deflate_compress(_PROBE, LEVEL)).hexdigest()
    if actual != _PROBE_SHA256:
        raise TorchlockError(
            f"the installed deflate package ({deflate.__version__}) compresses otherwise than "
            "the pinned one, so the image would get another digest",
            hint="python -m pip install --require-hashes -r requirements.txt",
        )
