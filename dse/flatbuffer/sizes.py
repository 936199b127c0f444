"""Element types and the bytes that tensors need."""

from __future__ import annotations

import math
from collections.abc import Sequence

from dse.flatbuffer.schema import enum_name

# Bits of each TensorType; strings, resources and variants have no fixed size.
_BITS = {
    "FLOAT32": 32,
    "FLOAT16": 16,
    "INT32": 32,
    "UINT8": 8,
    "INT64": 64,
    "BOOL": 8,
    "INT16": 16,
    "COMPLEX64": 64,
    "INT8": 8,
    "FLOAT64": 64,
    "COMPLEX128": 128,
    "UINT64": 64,
    "UINT32": 32,
    "UINT16": 16,
    "INT4": 4,
    "BFLOAT16": 16,
    "INT2": 2,
    "UINT4": 4,
    "FLOAT8_E4M3FN": 8,
    "FLOAT8_E5M2": 8,
}
HANDLE_TYPES = frozenset({"resource", "variant"})


def dtype_name(tensor_type: int) -> str:
    """Return the lower-case name of a TensorType number, for example ``float32``."""
    name = enum_name("TensorType", tensor_type)
    return name.lower() if name else f"type{tensor_type}"


def element_bits(dtype: str) -> int | None:
    """Return the bits of one element, or None where elements have no fixed size."""
    return _BITS.get(dtype.upper())


def dense_bytes(dtype: str, shape: Sequence[int]) -> int | None:
    """Return the bytes of a dense tensor, or None where elements have no fixed size.

    Sub-byte types are packed without gaps; the last byte may be partly used.
    """
    bits = element_bits(dtype)
    return None if bits is None else (math.prod(shape) * bits + 7) // 8
