"""The GPU backend: kernels in CUDA C++ (`src/`), and the functions that bind and launch them."""

from __future__ import annotations

from gsparse.kernels.contract import Kernels
from gsparse.kernels.gpu import (
    aggregation,
    basis,
    blocks,
    decomposition,
    diagonal_blocks,
    edits,
    encode,
    exchange,
    gradients,
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

# mypy compares each module with the protocol at its place.
KERNELS = Kernels(
    aggregation, basis, blocks, decomposition, diagonal_blocks, edits, encode, exchange, gradients, layout,
    prolongation, reductions, relaxation, sparse_pairs, sparse_products, sparse_rows, spmm, spmv, steps, transpose,
    triangular,
)  # fmt: skip
