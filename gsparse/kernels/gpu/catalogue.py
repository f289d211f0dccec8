"""Every kernel instantiation that run time can ask for, as C++ name expressions: one table for run time and proofs.

The instantiations of products with a vector stand beside their binding (`gsparse.kernels.gpu.spmv.instantiations`).
"""

from __future__ import annotations

from itertools import product

import numpy as np

from gsparse.device.dtypes import COMPUTE_DTYPES, INDEX_DTYPES
from gsparse.kernels.gpu import spmv
from gsparse.kernels.gpu.expressions import NARROW, expression, loads_choices, packs, plain_types

__all__ = ["instantiations"]

# What rows are laid out by: any type of each size.
_ITEMS = tuple(np.dtype(name) for name in ("uint8", "uint16", "int32", "int64", "complex128"))
_WORDS = (np.dtype(np.int32), np.dtype(np.int64))


def instantiations(lanes: int) -> list[tuple[str, str]]:
    """List (source file, name expression) of every kernel for a warp of `lanes` lanes."""
    products = spmv.instantiations(lanes)
    return [*products, *_sums(), *_columns(), *_set_up(), *_triangular(), *_basis(), *_halo()]


def _sums() -> list[tuple[str, str]]:
    return [("sums.cu", expression("sum_partials", wide)) for wide in map(np.dtype, ("float64", "complex128"))]


def _columns() -> list[tuple[str, str]]:
    found = []
    for index in INDEX_DTYPES:
        for stored, compute in (types for types in plain_types() if types[0].kind == types[1].kind):
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
        found += [("setup_entries.cu", expression("encode_columns", index, code)) for code in NARROW]
        found += [("setup_entries.cu", expression("mirrored", index, stored)) for stored in COMPUTE_DTYPES]
        for word in _WORDS:
            found += [("setup_entries.cu", expression(name, index, word)) for name in ("row_keys", "gather_rows")]
            found += [("setup_entries.cu", expression("rows_follow", index, word, code)) for code in NARROW]
    keys = (np.dtype(np.uint32), np.dtype(np.uint64))
    found += [("setup_entries.cu", expression("collect_keys", key)) for key in keys]
    found.append(("setup_entries.cu", expression("survive", np.dtype(np.int64))))
    return found + [("setup_entries.cu", expression("encode_keys", *types)) for types in product(keys, NARROW)]


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
