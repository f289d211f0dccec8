"""The kernels compiled for the CPU by numba, and the threads that run them."""

from __future__ import annotations

from gsparse.kernels.contract import Kernels
from gsparse.kernels.cpu import (
    aggregation,
    basis,
    blocks,
    edits,
    encode,
    exchange,
    layout,
    prolongation,
    reductions,
    relaxation,
    sparse_pairs,
    sparse_products,
    sparse_rows,
    spmm,
    spmv,
    steps,
    transpose,
    triangular,
)

# The order is that of the fields of `Kernels`, so mypy compares each module with its protocol.
KERNELS = Kernels(
    aggregation, basis, blocks, edits, encode, exchange, layout, prolongation, reductions, relaxation, sparse_pairs,
    sparse_products, sparse_rows, spmm, spmv, steps, transpose, triangular,
)  # fmt: skip
