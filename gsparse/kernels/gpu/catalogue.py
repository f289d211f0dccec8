"""List every kernel instantiation that may be needed at run time, for the tests that compile all of them.

Those of products with a vector are listed beside their binding (`gsparse.kernels.gpu.spmv.instantiations`).
"""

from __future__ import annotations

from itertools import product

import numpy as np

from gsparse.device.dtypes import COMPUTE_DTYPES, INDEX_DTYPES
from gsparse.kernels.gpu import (
    aggregation,
    block_products,
    blocks,
    connections,
    decomposition,
    diagonal_blocks,
    edits,
    gradients,
    hashes,
    indices,
    lane_slices,
    mailboxes,
    merged_rows,
    prolongation,
    reductions,
    relaxation,
    row_classes,
    sort,
    sparse_pairs,
    sparse_products,
    sparse_rows,
    spmm_bsr,
    spmv,
    transpose,
    triangular_blocks,
    wide_rows,
)
from gsparse.kernels.gpu.expressions import (
    ITEM_TYPES,
    LOADS_AHEAD,
    NARROW,
    expression,
    loads_choices,
    packs,
    plain_types,
)

_WORDS = (np.dtype(np.int32), np.dtype(np.int64))


def instantiations(lanes: int) -> list[tuple[str, str]]:
    """List (source file, name expression) of every kernel for a warp of `lanes` lanes."""
    algebra = (
        row_classes,
        sparse_products,
        block_products,
        merged_rows,
        wide_rows,
        sparse_rows,
        sparse_pairs,
        sort,
        transpose,
        indices,
        reductions,
        edits,
        blocks,
        hashes,
        lane_slices,
        mailboxes,
        spmm_bsr,
    )
    solvers = (connections, aggregation, prolongation, decomposition, diagonal_blocks, triangular_blocks)
    modules = [kernel for module in (*algebra, *solvers) for kernel in module.instantiations()]
    set_up = [*_set_up(), *_triangular(), *relaxation.instantiations(lanes), *_basis(), *_halo()]
    set_up += gradients.instantiations(lanes)
    return [*spmv.instantiations(lanes), *_sums(), *_columns(), *modules, *set_up]


def _sums() -> list[tuple[str, str]]:
    return [("sums.cu", expression("sum_partials", wide)) for wide in map(np.dtype, ("float64", "complex128"))]


def _columns() -> list[tuple[str, str]]:
    kernels = []
    for index in INDEX_DTYPES:
        for stored, compute in (types for types in plain_types() if types[0].kind == types[1].kind):
            for each in (*packs(compute.itemsize), 1):
                shapes = [(loads, each, 0) for loads in loads_choices(compute.itemsize, each)]
                shapes += [(loads, each, 1) for loads, *_ in shapes if loads == LOADS_AHEAD]
                kernels += [("spmm_csr.cu", expression("csr_spmm", stored, compute, index, *shape)) for shape in shapes]
    return kernels


def _set_up() -> list[tuple[str, str]]:
    kernels: list[tuple[str, str]] = [("setup_rows.cu", expression("list_chunks", np.dtype(np.int32)))]
    place_kernels = ("place_long_rows", "sort_rows", "place_slices")
    for index in INDEX_DTYPES:
        kernels.append(("setup_survey.cu", expression("survey", index)))
        kernels += [("setup_rows.cu", expression(name, index)) for name in place_kernels]
        for item in ITEM_TYPES.values():
            kernels += [("setup_rows.cu", expression(name, item, index)) for name in ("lay_out", "lay_out_long")]
        kernels.append(("setup_entries.cu", expression("run_span", index)))
        kernels += [("setup_entries.cu", expression("encode_columns", index, code)) for code in NARROW]
        kernels += [("setup_entries.cu", expression("mirrored", index, stored)) for stored in COMPUTE_DTYPES]
        for word in _WORDS:
            kernels += [("setup_entries.cu", expression(name, index, word)) for name in ("row_keys", "gather_rows")]
            kernels += [("setup_entries.cu", expression("rows_follow", index, word, code)) for code in NARROW]
    keys = (np.dtype(np.uint32), np.dtype(np.uint64))
    kernels += [("setup_entries.cu", expression("collect_keys", key)) for key in keys]
    kernels.append(("setup_entries.cu", expression("survive", np.dtype(np.int64))))
    return kernels + [("setup_entries.cu", expression("encode_keys", *types)) for types in product(keys, NARROW)]


def _triangular() -> list[tuple[str, str]]:
    types = product((dtype for dtype in COMPUTE_DTYPES if dtype.kind in "fc"), INDEX_DTYPES)
    kernels = ("ilu0_levels", "sweep_ilu0", "solve_levels", "solve_levels_of_columns")
    names = [expression(name, *pair) for pair in types for name in kernels]
    names += [expression("raise_levels", index) for index in INDEX_DTYPES]
    return [("triangular.cu", name) for name in names]


def _halo() -> list[tuple[str, str]]:
    types = list(product(COMPUTE_DTYPES, INDEX_DTYPES))
    gathers = [("halo.cu", expression("gather", *pair)) for pair in types]
    sums = (pair for pair in types if pair[0].kind in "fc")
    return gathers + [
        ("halo.cu", expression(name, *pair)) for pair in sums for name in ("scatter_add", "scatter_add_dots")
    ]


def _basis() -> list[tuple[str, str]]:
    kernels: list[tuple[str, str]] = []
    for compute in (dtype for dtype in COMPUTE_DTYPES if dtype.kind in "fc"):
        for name in ("sums", "finish_column", "solve"):
            kernels.append(("basis.cu", expression(f"basis_{name}", compute)))
        stored = (s for s in COMPUTE_DTYPES if s.kind == compute.kind and s.itemsize <= compute.itemsize)
        for pair in product(stored, (compute,)):
            kernels += [("basis.cu", expression(f"basis_{name}", *pair)) for name in ("project", "combine")]
            kernels += [("basis.cu", expression("basis_orthogonalize", *pair, is_held)) for is_held in (0, 1)]
    return kernels
