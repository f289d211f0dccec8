"""Sparse algebra: distributed matrices that the workers compute from one or more others, and the owners of the rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from gsparse.distributed.client.products import VectorLayout, parts_of_ranks
from gsparse.distributed.client.row_sources import ComputedRows
from gsparse.distributed.ranks.elementwise import check_elementwise, keeps_zeros
from gsparse.distributed.ranks.partition import RowPartition, check_same_rows
from gsparse.distributed.worker.group_tasks import Computation
from gsparse.errors import ShapeError

HostArray = npt.NDArray[Any]


def multiply(A: Any, B: Any) -> Any:
    """Return A·B. The owner of row j of B becomes the owner of column j of A first, which moves no row of A."""
    if A.shape[1] != B.shape[0]:
        raise ShapeError(f"dimension mismatch: {A.shape} times {B.shape}")
    _check_together(A, B)
    layout = _layout(A._layout.rows, B._layout.columns, A._layout.permutation)
    return _result(A, "product", (A, B), layout)


def elementwise(A: Any, name: str, *operands: Any, **options: Any) -> Any:
    """Return the result of an element-wise operation. The operand is a number, a distributed matrix, or an array."""
    operand: Any = operands[0] if operands else None
    is_matrix = hasattr(operand, "_rank_group")
    check_elementwise(name, operand, is_matrix)
    if is_matrix:
        if A.shape != operand.shape:
            raise ShapeError(f"inconsistent shapes: {A.shape} and {operand.shape}")
        _check_together(A, operand)
        check_same_rows(A._layout.rows, operand._layout.rows)
        return _result(A, "element-wise", (A, operand), A._layout, name, options)
    if np.ndim(operand) and name != "astype":
        parts = _parts_of_array(A, operand)
        return _result(A, "element-wise", (A,), A._layout, name, options, parts=parts, keeps_options=True)
    is_same_structure = keeps_zeros(A.dtype, name, operand)
    return _result(A, "element-wise", (A,), A._layout, name, options, *operands, keeps_options=is_same_structure)


def _parts_of_array(A: Any, x: Any) -> list[tuple[Any]]:
    """Split a row, a column, or a dense array of the shape of A among the ranks. The parts are arrays or futures."""
    layout, (m, n) = A._layout, A.shape
    is_row = x.shape in ((n,), (1, n)) and not (x.ndim == 2 and m == 1)
    x = x.reshape(-1) if is_row else x
    if not is_row and x.shape not in ((m, 1), (m, n)):
        raise ShapeError(
            f"a matrix of shape {A.shape} takes rows {(n,)}, columns {(m, 1)}, or {A.shape}, got {x.shape}"
        )
    if x.ndim == 2 and x.shape[1] > 1 and layout.permutation is not None:
        x = x[:, layout.permutation]
    partition = layout.columns if is_row else layout.rows
    return [(part,) for part in parts_of_ranks(A._rank_group, layout, x, partition, "the operand")]


def select_rows(A: Any, numbers: HostArray) -> Any:
    """Return some rows as a distributed matrix. If their row numbers increase, the rows stay on their ranks."""
    layout = A._layout
    owned = numbers if layout.permutation is None else A._numbers_in_blocks()[numbers]
    if is_increasing := bool(np.all(owned[1:] > owned[:-1])):
        bounds = np.searchsorted(owned, layout.rows.row_bounds)
        rows = RowPartition((*bounds.tolist()[:-1], len(owned)))
    else:
        rows = RowPartition.by_rows(len(owned), layout.rows.world_size)
    new = VectorLayout.of(rows, A.shape[1])
    of_ranks: list[Any] = [owned[rows.rows(rank)] for rank in range(rows.world_size)]
    if is_increasing:
        of_ranks = [_as_range(wanted) for wanted in of_ranks]
    return _result(A, "rows", (A,), new, parts=[(wanted, rows, new.columns, layout.permutation) for wanted in of_ranks])


def _as_range(numbers: HostArray) -> HostArray | range:
    """Return increasing numbers as a range if they are consecutive, because a range is quickly sent."""
    is_range = len(numbers) > 0 and numbers[-1] - numbers[0] == len(numbers) - 1
    return range(int(numbers[0]), int(numbers[-1]) + 1) if is_range else numbers


def select_columns(A: Any, numbers: HostArray) -> Any:
    """Return some columns as a distributed matrix. The rows of A must not be permuted."""
    layout = VectorLayout.of(A._layout.rows, len(numbers))
    return _result(A, "columns", (A,), layout, numbers, layout.columns)


def stack(matrices: Sequence[Any], axis: int) -> Any:
    """Stack matrices vertically (axis 0) or horizontally (axis 1). Return a distributed matrix."""
    matrices = [A._in_matrix_order() for A in matrices]
    A, sizes = matrices[0], {B.shape[1 - axis] for B in matrices}
    if len(sizes) > 1:
        raise ShapeError(f"matrices of shapes {[B.shape for B in matrices]} cannot be stacked along axis {axis}")
    for B in matrices:
        _check_together(A, B)
    heights = [B.shape[0] for B in matrices] if axis == 0 else [A.shape[0]]
    tops, world = np.cumsum([0, *heights]).tolist(), A._layout.rows.world_size
    rows = RowPartition.by_rows(tops[-1], world) if axis == 0 else A._layout.rows
    layout = VectorLayout.of(rows, A.shape[1] if axis == 0 else sum(B.shape[1] for B in matrices))
    parts = []
    for rank in range(world):
        own = rows.rows(rank)
        ends = [(max(own.start, top), min(own.stop, top + B.shape[0])) for top, B in zip(tops, matrices, strict=False)]
        wanted = [np.arange(a - top, max(a, b) - top) for (a, b), top in zip(ends, tops, strict=False)]
        wanted = wanted if axis == 0 else [np.arange(own.start, own.stop)] * len(matrices)
        parts.append((axis, wanted, rows, layout.columns))
    return _result(A, "stack", tuple(matrices), layout, parts=parts)


def transpose(A: Any, operation: str) -> Any:
    """Return the "transpose" or the "adjoint" of a matrix as a distributed matrix."""
    return _result(A, operation, (A,), _layout(A._layout.columns, A._layout.rows, A._layout.permutation))


def _check_together(A: Any, B: Any) -> None:
    """Raise an error if the workers cannot compute with both matrices."""
    if A._rank_group.workers != B._rank_group.workers:
        raise ShapeError(
            f"the matrices lie on different workers, or on the same ones in another order, {A._rank_group.workers} and "
            f"{B._rank_group.workers}: use B = B.repartition(workers=A.workers)"
        )
    one, two = A._layout.permutation, B._layout.permutation
    if one is not two and (one is None or two is None or not np.array_equal(one, two)):
        raise ShapeError(
            "the blocks hold the rows of the two matrices in different orders (A.permutation and B.permutation): "
            "distribute both in the same order, such as that of the matrix, without reorder and partition='metis'"
        )


def _layout(rows: RowPartition, columns: RowPartition, permutation: npt.NDArray[Any] | None) -> VectorLayout:
    """Return the layout of a result. In a square matrix, row i and column i have the same owner."""
    return VectorLayout(rows, rows if rows.num_rows == columns.num_rows else columns, permutation)


def _result(
    A: Any,
    operation: str,
    operands: tuple[Any, ...],
    layout: VectorLayout,
    *arguments: Any,
    parts: Sequence[tuple[Any, ...]] | None = None,
    keeps_options: bool = False,
) -> Any:
    """Return the result of an operation as a matrix on the workers of A. `parts` are further arguments of each rank."""
    for operand in operands:
        operand._rank_group.check_open()
    sizes = {operand._source.block_size for operand in operands}
    block_size = sizes.pop() if len(sizes) == 1 and layout.shape == A.shape and layout.rows == A._layout.rows else 1
    keys = tuple(operand._rank_group.key for operand in operands)
    source = ComputedRows(layout, Computation(operation, keys, arguments), A._rank_group, block_size, parts)
    return A._computed(source, layout, keeps_options)
