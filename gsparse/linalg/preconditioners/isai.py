"""Incomplete sparse approximate inverses (ISAI): each row is the solution of a small dense system."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any, Literal

import numpy as np
import scipy.sparse as sp

from gsparse.device.dtypes import Array
from gsparse.errors import FactorizationError
from gsparse.formats import Csr
from gsparse.kernels.backends import kernels_of
from gsparse.linalg.operators import MatrixOperator
from gsparse.linalg.preconditioners.base import CallBuilder, MatrixPreconditioner, VectorPasses
from gsparse.linalg.preconditioners.square_matrix import (
    SquareMatrix,
    solve_batch,
)
from gsparse.linalg.registry import register
from gsparse.sparse.construction import on_host

# Maximum number of entries in a row of the inverse, which is also the size of the system that determines the row. Of a
# longer row, only the largest entries are kept.
_MAX_LENGTH = 128
# Systems are padded to one of these sizes, so that rows of similar length are solved in one batch.
_SIZES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, _MAX_LENGTH)
# Maximum number of elements of the systems of one batch.
_BATCH = 1 << 23


@register("preconditioner")
def isai(A: Any, power: int = 1, kind: Literal["auto", "general", "spd"] = "auto") -> MatrixPreconditioner:
    """Precondition with an incomplete sparse approximate inverse, which is applied by one or two sparse products.

    Row i of the inverse W solves (W·A)[i, J] = I[i, J], where J are the columns in which row i may have entries: one
    dense system per row, independent of the others. For "spd", the same is done for the lower triangular G with G·A·Gᴴ
    ≈ I. The preconditioner GᴴG is then Hermitian and positive definite, as `cg` requires. It is computed from A alone
    and never breaks down for a Hermitian positive definite A.

    Parameters
    ----------
    A : sparse array, shape (N, N)
        A GpuSparseMatrix, or a sparse array that can be converted to one.
    power : int, optional
        W has the structure of this power of A. A higher power approximates the inverse better and takes more time. If a
        row would have more than 128 entries, only the diagonal and the 127 largest others are kept.
    kind : {"auto", "general", "spd"}, optional
        "auto" is "spd" if A is Hermitian with a positive diagonal, otherwise "general". A counts as Hermitian if it was
        declared so (``symmetric=``) or, without a declaration, is Hermitian up to rounding.

    Returns
    -------
    MatrixPreconditioner
        To be passed as `M` to solvers of `gsparse.linalg`, SciPy or CuPy.

    Raises
    ------
    FactorizationError
        If the system of a row is singular, or for "spd" not positive definite, or if a value is not finite.
    ShapeError
        If A is not square.
    TypeError
        If A is an operator whose entries cannot be read.
    ValueError
        If `power` is less than 1, or there is no such `kind`.

    References
    ----------
    .. [1] H. Anzt, T. K. Huckle, J. Bräckle, J. Dongarra, "Incomplete sparse approximate inverses for parallel
       preconditioning", Parallel Computing 71, 2018.
    .. [2] L. Yu. Kolotilina, A. Yu. Yeremin, "Factorized sparse approximate inverse preconditionings I", SIAM J. Matrix
       Anal. Appl. 14(1), 1993.

    Examples
    --------
    >>> import numpy, scipy.sparse
    >>> from gsparse import GpuSparseMatrix
    >>> from gsparse.linalg import cg, isai
    >>> S = scipy.sparse.diags_array([-1.0, 2.0, -1.0], offsets=[-1, 0, 1], shape=(100, 100))
    >>> A = GpuSparseMatrix(S, device="cpu")
    >>> result = cg(A, numpy.ones(100), M=isai(A, power=2), full_output=True)
    >>> result.info, result.iterations < 40
    (0, True)
    """
    if power < 1:
        raise ValueError(f"power must be at least 1, got {power}")
    if kind not in ("auto", "general", "spd"):
        raise ValueError(f"kind must be 'auto', 'general' or 'spd', got {kind!r}")
    with SquareMatrix.of(A, "isai") as matrix:
        if kind == "auto":
            is_positive = matrix.has_positive_diagonal()
            kind = "spd" if is_positive and matrix.is_hermitian() else "general"
        return ApproximateInverse(matrix, power, kind == "spd")


class ApproximateInverse(MatrixPreconditioner):
    """The product with W, or with GᴴG; see `isai`."""

    def __init__(self, matrix: SquareMatrix, power: int, spd: bool) -> None:
        self._spd = spd
        pattern = _pattern(matrix, power, lower=spd).with_data(matrix.device.no_values(matrix.dtype))
        super().__init__(matrix, "isai", partial(_updated_inverse, pattern, spd))

    def _prepare(self, passes: VectorPasses, adjoint: bool) -> CallBuilder:
        kind = (passes.device, passes.dtype, passes.columns)
        if not self._spd:
            multiply = self._values.bind(*kind, adjoint=adjoint)
            return lambda x, y: [partial(multiply, x, y)]
        # The adjoint of GᴴG is GᴴG itself.
        first, second = (self._values.bind(*kind, adjoint=is_adjoint) for is_adjoint in (False, True))
        between = passes.vector(self.shape[0])
        return lambda x, y: [partial(first, x, between), partial(second, between, y)]


def _pattern(matrix: SquareMatrix, power: int, *, lower: bool) -> Csr:
    """Return the pattern of the inverse, with sorted columns and a full diagonal. Synchronizes.

    The pattern is that of a power of |A| plus a dominant diagonal, computed on the host. If a row has more than
    `_MAX_LENGTH` entries, only the diagonal and the largest others are kept.
    """
    device, xp = matrix.device, matrix.device.xp
    weights = on_host(device, matrix.csr.with_data(xp.abs(matrix.csr.data).astype(np.float64)))
    # A dominant diagonal ensures that this matrix and its powers have a diagonal entry in each row.
    base = weights = sp.csr_array(weights + sp.diags_array(weights.sum(axis=1) + 1.0))
    for _ in range(power - 1):
        weights = weights @ base
    if lower:
        weights = sp.tril(weights, format="csr")
    weights = sp.csr_array(weights)
    weights.sort_indices()
    index = matrix.csr.indices.dtype
    pattern = Csr(
        matrix.csr.shape,
        device.upload(weights.indptr.astype(index)),
        device.upload(weights.indices.astype(index)),
        device.upload(weights.data),
    )
    if int(np.diff(weights.indptr).max(initial=0)) <= _MAX_LENGTH:
        return pattern
    rows = kernels_of(device).sparse_rows.row_numbers(device, pattern.indptr, pattern.nnz)
    # Sort the diagonal first: if coefficients jump, another entry of a power may be much larger than the diagonal.
    is_other = rows != pattern.indices
    order = xp.lexsort(xp.stack([-pattern.data, is_other.astype(np.float64), rows.astype(np.float64)]))
    place = xp.empty(pattern.nnz, np.int64)
    place[order] = xp.arange(pattern.nnz)
    cut: Csr = kernels_of(device).sparse_rows.keep_entries(device, pattern, place - pattern.indptr[rows] < _MAX_LENGTH)
    return cut


def _updated_inverse(pattern: Csr, spd: bool, matrix: SquareMatrix, latest: MatrixOperator | None) -> MatrixOperator:
    inverse = _inverse(matrix, pattern, spd=spd)
    return matrix.operator_of(inverse) if latest is None else MatrixOperator(latest.matrix.with_data(inverse.data))


def _inverse(matrix: SquareMatrix, pattern: Csr, *, spd: bool) -> Csr:
    """Return the inverse: solve the systems of all rows, in batches of similar size. Synchronizes."""
    xp = matrix.device.xp
    if matrix.size and not matrix.csr.nnz:
        raise matrix.error_of_row(0, "isai", "")  # the row is empty
    data = xp.zeros(pattern.nnz, matrix.dtype)
    for rows, size in _groups(matrix, pattern):
        places, inside, columns = _places(xp, pattern, rows, size)
        is_last = (columns == rows[:, None])[:, :, None].astype(matrix.dtype)
        solutions, is_good = solve_batch(xp, _systems(matrix, columns, inside, transpose=not spd), is_last)
        rows_of_inverse = solutions[:, :, 0]
        if spd:
            pivots = (solutions * is_last).sum(axis=(1, 2)).real
            is_good &= pivots > 0
            rows_of_inverse = xp.conj(rows_of_inverse) / xp.sqrt(xp.where(is_good, pivots, 1))[:, None]
        _raise_if_singular(matrix, rows, is_good, spd)
        data[places[inside]] = rows_of_inverse[inside]
    return pattern.with_data(data)


def _groups(matrix: SquareMatrix, pattern: Csr) -> Iterator[tuple[Array, int]]:
    """Yield pairs (rows, size). The systems of these rows have similar sizes, and are padded to `size`."""
    xp, smaller = matrix.device.xp, 0
    lengths = xp.diff(pattern.indptr)
    for size in _SIZES:
        rows = xp.flatnonzero((lengths > smaller) & (lengths <= size))
        smaller, count = size, max(1, _BATCH // size**2)
        for first in range(0, int(rows.size), count):
            yield rows[first : first + count], size


def _places(xp: Any, pattern: Csr, rows: Array, size: int) -> tuple[Array, Array, Array]:
    """Pad each row to `size` entries. Return their positions, whether an entry exists, and its column (else -1)."""
    places = pattern.indptr[rows][:, None] + xp.arange(size)
    inside = places < pattern.indptr[rows + 1][:, None]
    columns = xp.where(inside, pattern.indices[xp.minimum(places, pattern.nnz - 1)], -1)
    return places, inside, columns


def _systems(matrix: SquareMatrix, columns: Array, inside: Array, *, transpose: bool) -> Array:
    """Return the matrices A[J, J], or their transposes, for each row J of `columns`, padded with the identity."""
    xp, csr = matrix.device.xp, matrix.csr
    columns = columns.astype(np.int64)
    left, right = columns[:, :, None], columns[:, None, :]
    keys = right * matrix.size + left if transpose else left * matrix.size + right
    positions = xp.minimum(xp.searchsorted(matrix.keys, keys.ravel()).reshape(keys.shape), csr.nnz - 1)
    both = inside[:, :, None] & inside[:, None, :]
    systems = xp.where(both & (matrix.keys[positions] == keys), csr.data[positions], matrix.dtype.type(0))
    return systems + xp.where(both, 0, xp.eye(columns.shape[1])).astype(matrix.dtype)


def _raise_if_singular(matrix: SquareMatrix, rows: Array, is_good: Array, spd: bool) -> None:
    first_bad = kernels_of(matrix.device).reductions.first_where(matrix.device, is_good, "zero")
    if first_bad is None:
        return
    row = int(rows[first_bad])  # synchronizes
    if spd:
        raise FactorizationError(f"isai: A is not positive definite, seen at row {row}: use kind='general' with gmres")
    fault = f"isai: the system of row {row} is singular: use another power, or ilu0(A, shift=0.01)"
    raise matrix.error_of_row(row, "isai", fault)
