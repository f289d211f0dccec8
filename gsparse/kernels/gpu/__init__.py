"""The GPU backend: kernels in CUDA C++ (`src/`), and the functions that bind and launch them."""

from __future__ import annotations

from gsparse.kernels.contract import Kernels
from gsparse.kernels.gpu import (
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

# mypy compares each module with the protocol at the same position in `Kernels`.
KERNELS = Kernels(
    aggregation, basis, blocks, edits, encode, exchange, layout, prolongation, reductions, relaxation, sparse_pairs,
    sparse_products, sparse_rows, spmm, spmv, steps, transpose, triangular,
)  # fmt: skip


def instantiations(lanes: int) -> list[tuple[str, str]]:
    """List (source file, name expression) of every kernel that may be needed at run time."""
    return [kernel for module in vars(KERNELS).values() for kernel in module.instantiations(lanes)]
