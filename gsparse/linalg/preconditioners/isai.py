"""Incomplete sparse approximate inverses: a small dense system for each row."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import numpy as np
import scipy.sparse as sp

from gsparse.device.dtypes import Array
from gsparse.errors import FactorizationError
from gsparse.formats import Csr
from gsparse.linalg.preconditioners.base import Preconditioner
from gsparse.linalg.preconditioners.diagonal import ProductPreconditioner
from gsparse.linalg.preconditioners.square_matrix import SquareMatrix, first_where, on_host, rows_of, select, solve_each
from gsparse.linalg.registry import register

__all__ = ["isai"]

# Entries that a row of the inverse may have: a system is as large. Of longer rows the largest are taken.
_MAX_LENGTH = 128
# Rows are solved for together with others of about their length: each of these sizes holds what is above the last.
_SIZES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, _MAX_LENGTH)
# Elements of the systems solved at one time.
_BATCH = 1 << 23


@register("preconditioner")
def isai(A: Any, power: int = 1, kind: Literal["auto", "general", "spd"] = "auto") -> Preconditioner:
    """Precondition with an incomplete sparse approximate inverse: one sparse product, or two, an application.

    Row i of the inverse W solves (W·A)[i, J] = I[i, J] for the places J where row i may have entries: a dense system a
    row, all of them independent. For "spd" the same is done for the lower triangular G of G·A·Gᴴ ≈ I, which needs
    nothing but A itself, never breaks down where A is Hermitian and positive definite, and makes GᴴG the same: what cg
    needs. (An inverse of incomplete Cholesky factors would need these, and has their breakdowns.)

    Parameters
    ----------
    A : sparse array, shape (N, N)
        GpuSparseMatrix, or what becomes one.
    power : int, optional
        W has entries where A to this power has. More of them approximate better and cost more. Rows of more than 128
        keep the largest.
    kind : {"auto", "general", "spd"}, optional
        "auto" is "spd" where A has a positive diagonal and is Hermitian: as it was declared (``symmetric=``), else but
        for rounding.

    Returns
    -------
    Preconditioner
        For `M` of the solvers here, of SciPy and of CuPy.

    Raises
    ------
    FactorizationError
        Where the system of a row is singular, or for "spd" not positive definite, or a value is not finite.
    ShapeError, TypeError, ValueError

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
    >>> found = cg(A, numpy.ones(100), M=isai(A, power=2), full_output=True)
    >>> found.info, found.iterations < 40
    (0, True)
    """
    if power < 1:
        raise ValueError(f"power must be at least 1, got {power}")
    if kind not in ("auto", "general", "spd"):
        raise ValueError(f"kind must be 'auto', 'general' or 'spd', got {kind!r}")
    with SquareMatrix.of(A, "isai") as matrix:
        if kind == "auto":
            positive = first_where(matrix.device, ~(matrix.diagonal.real > 0)) is None
            kind = "spd" if positive and matrix.is_hermitian() else "general"
        pattern = _pattern(matrix, power, lower=kind == "spd")
        W = matrix.operator_of(_inverse(matrix, pattern, spd=kind == "spd"))
        factors = [(W, False), (W, True)] if kind == "spd" else [(W, False)]
        return ProductPreconditioner(*factors, kind="isai")


def _pattern(matrix: SquareMatrix, power: int, *, lower: bool) -> Csr:
    """Give the places of the inverse's entries; the diagonal is among them, columns rise. Values are weights."""
    device, xp = matrix.device, matrix.device.xp
    weights = on_host(device, matrix.csr.with_data(xp.abs(matrix.csr.data).astype(np.float64)))
    base = weights = sp.csr_array(weights + sp.diags_array(weights.sum(axis=1) + 1.0))  # (the diagonal always stays)
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
    rows = rows_of(device, pattern)
    order = xp.lexsort(xp.stack([-pattern.data, rows.astype(np.float64)]))
    place = xp.empty(pattern.nnz, np.int64)
    place[order] = xp.arange(pattern.nnz)
    return select(device, pattern, place - pattern.indptr[rows] < _MAX_LENGTH, pattern.data)


def _inverse(matrix: SquareMatrix, pattern: Csr, *, spd: bool) -> Csr:
    """Solve the systems of all rows, those of about the same size together. Synchronizes."""
    xp = matrix.device.xp
    data = xp.zeros(pattern.nnz, matrix.dtype)
    for rows, size in _groups(matrix, pattern):
        places, inside, columns = _places(xp, pattern, rows, size)
        is_last = (columns == rows[:, None])[:, :, None].astype(matrix.dtype)
        solutions, is_good = solve_each(xp, _systems(matrix, columns, inside, transpose=not spd), is_last)
        found = solutions[:, :, 0]
        if spd:
            pivots = (solutions * is_last).sum(axis=(1, 2)).real
            is_good &= pivots > 0
            found = xp.conj(found) / xp.sqrt(xp.where(is_good, pivots, 1))[:, None]
        _check(matrix, rows, is_good, spd)
        data[places[inside]] = found[inside]
    return pattern.with_data(data)


def _groups(matrix: SquareMatrix, pattern: Csr) -> Iterator[tuple[Array, int]]:
    """Give rows whose systems are about as large, and the size that holds them."""
    xp, smaller = matrix.device.xp, 0
    lengths = xp.diff(pattern.indptr)
    for size in _SIZES:
        rows = xp.flatnonzero((lengths > smaller) & (lengths <= size))
        smaller, count = size, max(1, _BATCH // size**2)
        for first in range(0, int(rows.size), count):
            yield rows[first : first + count], size


def _places(xp: Any, pattern: Csr, rows: Array, size: int) -> tuple[Array, Array, Array]:
    """Give each row's positions, which of them it has, and its columns, -1 past the last."""
    places = pattern.indptr[rows][:, None] + xp.arange(size)
    inside = places < pattern.indptr[rows + 1][:, None]
    columns = xp.where(inside, pattern.indices[xp.minimum(places, pattern.nnz - 1)], -1)
    return places, inside, columns


def _systems(matrix: SquareMatrix, columns: Array, inside: Array, *, transpose: bool) -> Array:
    """Give A[J, J] for each row's columns J, or its transpose; the identity past the last of them."""
    xp, csr = matrix.device.xp, matrix.csr
    columns = columns.astype(np.int64)
    left, right = columns[:, :, None], columns[:, None, :]
    wanted = right * matrix.size + left if transpose else left * matrix.size + right
    found = xp.minimum(xp.searchsorted(matrix.keys, wanted.ravel()).reshape(wanted.shape), csr.nnz - 1)
    both = inside[:, :, None] & inside[:, None, :]
    systems = xp.where(both & (matrix.keys[found] == wanted), csr.data[found], matrix.dtype.type(0))
    return systems + xp.where(both, 0, xp.eye(columns.shape[1])).astype(matrix.dtype)


def _check(matrix: SquareMatrix, rows: Array, is_good: Array, spd: bool) -> None:
    broken = first_where(matrix.device, ~is_good)
    if broken is None:
        return
    row = int(rows[broken])  # synchronizes
    if spd:
        raise FactorizationError(f"isai: A is not positive definite, seen at row {row}: use kind='general' with gmres")
    raise FactorizationError(f"isai: the system of row {row} is singular: use another power, or ilu0(A, shift=0.01)")
