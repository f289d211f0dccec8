"""Every kernel instantiation that run time can ask for, as C++ name expressions: one table for run time and proofs."""

from __future__ import annotations

from functools import cache
from itertools import product
from typing import Any

import numpy as np

from gsparse.device.dtypes import COMPUTE_DTYPES, INDEX_DTYPES, storage_dtype
from gsparse.formats.launch import LANE_BYTES

__all__ = [
    "CPP_TYPES",
    "PATTERN_ROWS",
    "SPLIT_SHAPES",
    "expression",
    "instantiations",
    "loads_choices",
    "packs",
    "threads_per_row_choices",
]

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

# csr_split: threads a block, entries and row ends a thread.
SPLIT_SHAPES = ((256, 8),)
# row_pattern_values: rows a thread, of few rows and of many.
PATTERN_ROWS = (1, 3)
# csr_spmm: bytes of neighbouring columns that one access takes.
_PACK_BYTES = 16

# Files of products whose kernels there are once more, with dots.
_WITH_DOTS = tuple(f"spmv_{name}.cu" for name in ("csr", "adaptive", "ellpack", "pattern"))
_NARROW = (np.dtype(np.uint8), np.dtype(np.uint16))
# What rows are laid out by: any type of each size.
_ITEMS = tuple(np.dtype(name) for name in ("uint8", "uint16", "int32", "int64", "complex128"))
_WORDS = (np.dtype(np.int32), np.dtype(np.int64))


@cache
def expression(name: str, *arguments: np.dtype[Any] | int | str) -> str:
    """Write the C++ name expression of one instantiation.

    Examples
    --------
    >>> expression("csr_vector", np.dtype("float32"), np.dtype("int32"), np.dtype("float64"), np.dtype("int32"), 8)
    'csr_vector<float, int, double, int, 8>'
    """
    return f"{name}<{', '.join(CPP_TYPES[a] if isinstance(a, np.dtype) else str(a) for a in arguments)}>"


def threads_per_row_choices(lanes: int) -> tuple[int, ...]:
    """Give the powers of two from 2 to the lanes of a warp: the threads that `csr_vector` can give a row."""
    return tuple(2**power for power in range(1, lanes.bit_length()))


def packs(itemsize: int) -> tuple[int, ...]:
    """Give how many elements of this size one access can take together, the most first; 1 aside.

    Examples
    --------
    >>> [packs(itemsize) for itemsize in (4, 8, 16)]
    [(4, 2), (2,), ()]
    """
    return tuple(n for n in (4, 2) if n * itemsize <= _PACK_BYTES)


def loads_choices(itemsize: int, columns_per_load: int) -> tuple[int, ...]:
    """Give how many accesses of so many columns a lane can make for an entry.

    Examples
    --------
    >>> loads_choices(8, 2), loads_choices(8, 1)
    ((1, 2), (1, 2, 4))
    """
    return tuple(n for n in (1, 2, 4) if n * columns_per_load * itemsize <= LANE_BYTES)


def instantiations(lanes: int) -> list[tuple[str, str]]:
    """List (source file, name expression) of every kernel for a warp of `lanes` lanes."""
    products = _products(lanes)
    with_dots = ((file.replace(".cu", "_dots.cu"), name) for file, name in products if file in _WITH_DOTS)
    return [*products, *with_dots, *_columns(), *_set_up(), *_triangular(), *_basis(), *_halo()]


def _plain_types() -> list[tuple[Any, np.dtype[Any]]]:
    """Give the dtypes that values may be stored in, with those that products compute in."""
    return [(s, c) for s, c in product(COMPUTE_DTYPES, COMPUTE_DTYPES) if storage_dtype(s, c) == s]


def _products(lanes: int) -> list[tuple[str, str]]:
    plain = _plain_types()
    coded = list(product((*_NARROW, "Same"), COMPUTE_DTYPES))
    found = []
    for value, compute in plain + coded:
        for column, index in (*((i, i) for i in INDEX_DTYPES), *product(_NARROW[1:], INDEX_DTYPES)):
            types = (value, column, compute, index)
            found.append(("spmv_csr.cu", expression("csr_scalar", *types)))
            found += [("spmv_csr.cu", expression("csr_vector", *types, n)) for n in threads_per_row_choices(lanes)]
            found.append(("spmv_adaptive.cu", expression("csr_adaptive", *types)))
            found += [("spmv_split.cu", expression("csr_split", *types, *shape)) for shape in SPLIT_SHAPES]
        for column in (*INDEX_DTYPES, *_NARROW):
            for name in ("ellpack", "blocked_ellpack"):
                found.append(("spmv_ellpack.cu", expression(name, value, column, compute)))
        found += [("spmv_pattern.cu", expression("row_pattern", code, value, compute)) for code in _NARROW]
    found += [("sums.cu", expression("sum_partials", wide)) for wide in map(np.dtype, ("float64", "complex128"))]
    for compute in COMPUTE_DTYPES:
        found += [("spmv_split.cu", expression("csr_split_carry", compute, n)) for n in (1, lanes)]
        for code, rows in product(_NARROW, PATTERN_ROWS):
            found.append(("spmv_pattern.cu", expression("row_pattern_values", code, compute, rows)))
    return found


def _columns() -> list[tuple[str, str]]:
    found = []
    for index in INDEX_DTYPES:
        for stored, compute in (types for types in _plain_types() if types[0].kind == types[1].kind):
            for each in (*packs(compute.itemsize), 1):
                shapes = ((loads, each) for loads in loads_choices(compute.itemsize, each))
                found += [("spmm_csr.cu", expression("csr_spmm", stored, compute, index, *shape)) for shape in shapes]
    return found


def _set_up() -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = [("setup_rows.cu", expression("list_chunks", np.dtype(np.int32)))]
    placed = ("place_long_rows", "place_row_blocks", "place_tiles", "sort_rows", "place_slices")
    for index in INDEX_DTYPES:
        found.append(("setup_survey.cu", expression("survey", index)))
        found += [("setup_rows.cu", expression(name, index)) for name in placed]
        for item in _ITEMS:
            found += [("setup_rows.cu", expression(name, item, index)) for name in ("lay_out", "lay_out_long")]
        found.append(("setup_entries.cu", expression("run_span", index)))
        found += [("setup_entries.cu", expression("encode_columns", index, code)) for code in _NARROW]
        found += [("setup_entries.cu", expression("mirrored", index, stored)) for stored in COMPUTE_DTYPES]
        for word in _WORDS:
            found += [("setup_entries.cu", expression(name, index, word)) for name in ("row_keys", "gather_rows")]
            found += [("setup_entries.cu", expression("rows_follow", index, word, code)) for code in _NARROW]
    keys = (np.dtype(np.uint32), np.dtype(np.uint64))
    found += [("setup_entries.cu", expression("collect_keys", key)) for key in keys]
    found.append(("setup_entries.cu", expression("survive", np.dtype(np.int64))))
    return found + [("setup_entries.cu", expression("encode_keys", *types)) for types in product(keys, _NARROW)]


def _triangular() -> list[tuple[str, str]]:
    types = product((dtype for dtype in COMPUTE_DTYPES if dtype.kind in "fc"), INDEX_DTYPES)
    return [("triangular.cu", expression(name, *pair)) for pair in types for name in ("ilu0_levels", "solve_levels")]


def _halo() -> list[tuple[str, str]]:
    types = product((dtype for dtype in COMPUTE_DTYPES if dtype.kind in "fc"), INDEX_DTYPES)
    return [
        ("halo.cu", expression(name, *pair)) for pair in types for name in ("gather", "scatter_add", "scatter_add_dots")
    ]


def _basis() -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    for compute in (dtype for dtype in COMPUTE_DTYPES if dtype.kind in "fc"):
        for name in ("sums", "settle", "solve"):
            found.append(("basis.cu", expression(f"basis_{name}", compute)))
        stored = (s for s in COMPUTE_DTYPES if s.kind == compute.kind and s.itemsize <= compute.itemsize)
        for pair in product(stored, (compute,)):
            found += [("basis.cu", expression(f"basis_{name}", *pair)) for name in ("project", "combine")]
            found += [("basis.cu", expression("basis_orthogonalize", *pair, is_held)) for is_held in (0, 1)]
    return found
