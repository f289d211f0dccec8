"""C++ name expressions of kernel instantiations, and the dtypes that kernels are instantiated for."""

from __future__ import annotations

from functools import cache
from itertools import product
from typing import Any

import numpy as np

from gsparse.device.dtypes import COMPUTE_DTYPES, storage_dtype
from gsparse.formats.launch import LANE_BYTES

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

# The type that items of each size are copied as, by the number of bytes.
ITEM_TYPES = {np.dtype(name).itemsize: np.dtype(name) for name in ("uint8", "uint16", "int32", "int64", "complex128")}

# The last template argument of a product with a vector: whether it also leaves partial sums of conj(x)·y (sums.cuh).
NO_DOTS, BLOCK_DOTS = "NoDots", "BlockDots"

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


def leaves_dots(expression: str) -> bool:
    """Return whether a kernel is a product that leaves partial sums of conj(x)·y.

    Examples
    --------
    >>> leaves_dots("ellpack<float, int, float, BlockDots>")
    True
    """
    return expression.endswith(f", {BLOCK_DOTS}>")


def plain_types() -> list[tuple[Any, np.dtype[Any]]]:
    """List each dtype that values may be stored in with each dtype that products of them compute in."""
    return [(s, c) for s, c in product(COMPUTE_DTYPES, COMPUTE_DTYPES) if storage_dtype(s, c) == s]


def packs(itemsize: int) -> tuple[int, ...]:
    """Return the numbers of elements of this size that one access can take, from the largest on, without 1.

    Examples
    --------
    >>> [packs(itemsize) for itemsize in (4, 8, 16)]
    [(4, 2), (2,), ()]
    """
    return tuple(n for n in (4, 2) if n * itemsize <= _PACK_BYTES)


def loads_choices(itemsize: int, columns_per_load: int) -> tuple[int, ...]:
    """Return the numbers of accesses, of `columns_per_load` columns each, that a lane may make for one entry.

    Examples
    --------
    >>> loads_choices(8, 2), loads_choices(8, 1)
    ((1, 2), (1, 2, 4))
    """
    return tuple(n for n in (1, 2, 4) if n * columns_per_load * itemsize <= LANE_BYTES)
