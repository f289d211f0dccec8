"""`spsolve_triangular` on every device: solutions, structures that hurt, and errors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import scipy.sparse.linalg as la

from gsparse import GpuSparseMatrix
from gsparse.device.base import Device
from gsparse.errors import FactorizationError, ShapeError, SingularMatrixError
from gsparse.linalg import spsolve_triangular
from tests.support import DTYPES, host, on_device, random_values


def triangle(n: int, dtype: Any, rng: np.random.Generator, *, lower: bool, dense_row: bool = False) -> sp.csr_array:
    """Return a triangular matrix with a few entries a row, and one dense row if that is wanted."""
    S = sp.random_array((n, n), density=min(1.0, 4 / max(n, 1)), rng=rng).tolil()
    if dense_row:
        S[n - 1 if lower else 0, :] = 0.5
    S = (sp.tril(S, -1) if lower else sp.triu(S, 1)).tocsr()
    S.data = random_values(rng, S.nnz, dtype)
    return sp.csr_array(S + sp.diags_array(2 + abs(random_values(rng, n, dtype))), dtype=dtype)


def chain(n: int, dtype: Any) -> sp.csr_array:
    """Return a bidiagonal matrix: every level has one row."""
    return sp.csr_array(sp.diags_array([-0.5, 2.0], offsets=[-1, 0], shape=(n, n)), dtype=dtype)


def assert_solution(S: Any, x: Any, b: Any) -> None:
    """Check that |b - S·x| is within the rounding errors of a substitution, row by row."""
    dtype = np.result_type(S.dtype, b.dtype)
    assert (x.dtype, x.shape) == (dtype, b.shape)
    wide = np.clongdouble if dtype.kind == "c" else np.longdouble
    A, x = S.toarray().astype(wide), x.astype(wide)
    lengths = np.diff(S.indptr).reshape(-1, *(1,) * (b.ndim - 1)) + 4
    error, bound = abs(b - A @ x), 4 * lengths * np.finfo(dtype).eps * (abs(A) @ abs(x) + abs(b))
    assert (error <= bound).all()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("lower", [True, False])
@pytest.mark.parametrize("columns", [None, 1, 5, 8, 33, 70])
def test_solutions_are_those_of_a_substitution(
    device: Device, dtype: Any, lower: bool, columns: int | None, rng: np.random.Generator
) -> None:
    for n, dense_row in ((1, False), (70, False), (150, True)):
        S = triangle(n, dtype, rng, lower=lower, dense_row=dense_row)
        b = random_values(rng, n if columns is None else (n, columns), dtype)
        before = b.copy()
        A = GpuSparseMatrix(S, device=device)
        assert_solution(S, spsolve_triangular(A, b, lower), b)
        np.testing.assert_array_equal(b, before)
        unit = S - sp.diags_array(S.diagonal()) + sp.eye_array(n, dtype=dtype)
        assert_solution(sp.csr_array(unit, dtype=dtype), spsolve_triangular(A, b, lower, unit_diagonal=True), b)


@pytest.mark.parametrize("index", [np.int32, np.int64])
@pytest.mark.parametrize("columns", [1, 9])
def test_narrow_and_wide_levels_take_turns(device: Device, index: Any, columns: int, rng: np.random.Generator) -> None:
    """Levels of one row, of a few, of more than a block has threads for, and rows with many entries after them."""
    wide = 40 if columns > 1 else 1100
    n = 3 + wide + 5 + 1
    S = sp.lil_array((n, n))
    S[1, 0], S[2, 1] = 1.0, -1.0
    S[3 : 3 + wide, 2] = 0.5  # one wide level
    for row in range(3 + wide, 3 + wide + 5):  # five rows of a level, with many entries each
        S[row, 3 : 3 + wide] = rng.standard_normal(wide) / wide
    S[n - 1, : n - 1] = rng.standard_normal(n - 1) / n  # one row with entries from all levels
    S = sp.csr_array(S.tocsr() + 2 * sp.eye_array(n))
    S.indices, S.indptr = S.indices.astype(index), S.indptr.astype(index)
    b = rng.standard_normal((n, columns))
    assert_solution(S, spsolve_triangular(GpuSparseMatrix(S, device=device), b), b)


def test_columns_do_not_depend_on_each_other(device: Device, rng: np.random.Generator) -> None:
    S = triangle(90, float, rng, lower=True)
    A, b = GpuSparseMatrix(S, device=device), rng.standard_normal((90, 40))
    x = spsolve_triangular(A, b)
    np.testing.assert_array_equal(x, spsolve_triangular(A, b))
    b[:, 7], b[:, 35] = np.nan, np.inf
    changed = spsolve_triangular(A, b)
    others = [column for column in range(40) if column not in (7, 35)]
    np.testing.assert_array_equal(changed[:, others], x[:, others])
    assert not np.isfinite(changed[:, [7, 35]]).all(axis=0).any()


def test_nan_of_the_matrix_reaches_the_rows_that_depend_on_it(device: Device) -> None:
    S = chain(20, float)
    S[5, 4] = np.nan
    x = spsolve_triangular(GpuSparseMatrix(S, device=device), np.ones(20))
    assert np.isfinite(x[:5]).all()
    assert np.isnan(x[5:]).all()


def test_dtypes_are_promoted_as_in_scipy(real_device: Device, rng: np.random.Generator) -> None:
    for stored in ("float32", "float64", "complex64"):
        S = triangle(30, stored, rng, lower=True)
        for right in ("float32", "float64", "complex128", "int32"):
            b = random_values(rng, 30, right)
            x = spsolve_triangular(GpuSparseMatrix(S, device=real_device), b)
            expected = la.spsolve_triangular(sp.csr_array(S), b)
            assert x.dtype == expected.dtype
            np.testing.assert_allclose(x, expected, rtol=1e-4, atol=1e-4)  # SciPy divides by pivots in the dtype of A
            assert_solution(sp.csr_array(S), x, b)


def test_a_solution_is_where_the_right_hand_side_is(device: Device, rng: np.random.Generator) -> None:
    S = triangle(40, float, rng, lower=False)
    A, b = GpuSparseMatrix(S, device=device), rng.standard_normal((40, 9))
    for right in (b, on_device(device, b), np.asfortranarray(b), b[:, ::2]):
        x = spsolve_triangular(A, right, lower=False)
        assert type(x) is type(right)
        assert_solution(S, host(x), host(right))
    assert_solution(sp.csr_array(S.T), spsolve_triangular(A.T, b), b)  # a view


def test_empty_systems_have_empty_solutions(device: Device) -> None:
    assert spsolve_triangular(GpuSparseMatrix((0, 0), device=device), np.zeros((0, 3))).shape == (0, 3)
    A = GpuSparseMatrix(chain(3, float), device=device)
    assert spsolve_triangular(A, np.zeros((3, 0))).shape == (3, 0)


def test_wrong_matrices_are_refused_with_a_remedy(real_device: Device) -> None:
    S = chain(6, float)
    A = GpuSparseMatrix(S, device=real_device)
    with pytest.raises(FactorizationError, match=r"not upper triangular: it has an entry at \(1, 0\): pass lower=True"):
        spsolve_triangular(A, np.ones(6), lower=False)
    stored_zero = sp.csr_array(S + sp.coo_array(([0.0], ([0], [5])), shape=(6, 6)))
    spsolve_triangular(GpuSparseMatrix(stored_zero, device=real_device), np.ones(6))
    S[3, 3] = 0
    with pytest.raises(SingularMatrixError, match="zero entry on diagonal, in row 3: pass unit_diagonal=True"):
        spsolve_triangular(GpuSparseMatrix(S, device=real_device), np.ones(6))
    with pytest.raises(np.linalg.LinAlgError):
        spsolve_triangular(GpuSparseMatrix((2, 2), device=real_device), np.ones(2))
    with pytest.raises(ShapeError, match=r"b must have shape \(6,\) or \(6, k\)"):
        spsolve_triangular(A, np.ones(5))
    with pytest.raises(ShapeError, match="square"):
        spsolve_triangular(GpuSparseMatrix((2, 3), device=real_device), np.ones(2))
