"""C++ name expressions of kernel instantiations, and the dtypes that kernels are instantiated for."""

from __future__ import annotations

from functools import cache
from itertools import product
from typing import Any

import numpy as np

from gsparse.device.dtypes import COMPUTE_DTYPES, storage_dtype
from gsparse.formats.launch import LANE_BYTES

__all__ = ["CPP_TYPES", "NARROW", "expression", "loads_choices", "packs", "plain_types"]

CPP_TYPES: dict[np.dtype[Any], str] = {
    np.dtype(np.uint8): "unsigned char",
    np.dtype(np.uint16): "unsigned short",
    np.dtype(np.int32): "int",
    np.dtype(np.uint32): "unsigned int",
    np.dtype(np.int64): "long long",
    np.dtype(np.uint64): "unsigned long long",
    np.dtype(np.float32): "float",
    np.dtype(np.float64): "double",
    np.dtype(np.complex64): "Complex<float>",
    np.dtype(np.complex128): "Complex<double>",
}

# The dtypes of codes: columns relative to a base, places in a table of values, numbers of row patterns.
NARROW = (np.dtype(np.uint8), np.dtype(np.uint16))

# csr_spmm: bytes of neighbouring columns that one access takes.
_PACK_BYTES = 16


@cache
def expression(name: str, *arguments: np.dtype[Any] | int | str) -> str:
    """Write the C++ name expression of one instantiation.

    Examples
    --------
    >>> expression("csr_vector", np.dtype("float32"), np.dtype("int32"), np.dtype("float64"), np.dtype("int32"), 8)
    'csr_vector<float, int, double, int, 8>'
    """
    return f"{name}<{', '.join(CPP_TYPES[a] if isinstance(a, np.dtype) else str(a) for a in arguments)}>"


def plain_types() -> list[tuple[Any, np.dtype[Any]]]:
    """Return each dtype that values may be stored in, with each that products of them compute in."""
    return [(s, c) for s, c in product(COMPUTE_DTYPES, COMPUTE_DTYPES) if storage_dtype(s, c) == s]


def packs(itemsize: int) -> tuple[int, ...]:
    """Return how many elements of this size one access can take together, without 1, the largest number first.

    Examples
    --------
    >>> [packs(itemsize) for itemsize in (4, 8, 16)]
    [(4, 2), (2,), ()]
    """
    return tuple(n for n in (4, 2) if n * itemsize <= _PACK_BYTES)


def loads_choices(itemsize: int, columns_per_load: int) -> tuple[int, ...]:
    """Return the numbers of accesses, of `columns_per_load` columns each, that a lane can make for an entry.

    Examples
    --------
    >>> loads_choices(8, 2), loads_choices(8, 1)
    ((1, 2), (1, 2, 4))
    """
    return tuple(n for n in (1, 2, 4) if n * columns_per_load * itemsize <= LANE_BYTES)
