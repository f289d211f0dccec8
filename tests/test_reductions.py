"""Sums, extremes and norms, and operations with scalars and dense arrays: SciPy's results, on every device."""

from __future__ import annotations

import operator
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import scipy.sparse.linalg as la

import gsparse
import gsparse.linalg
import gsparse.sparse
from gsparse import GpuSparseMatrix
from gsparse.device.base import Device
from gsparse.device.dtypes import COMPUTE_DTYPES
from gsparse.errors import DeviceError
from gsparse.kernels.backends import kernels_of
from gsparse.matrix import reductions
from tests.support import INDEX_DTYPES, STRUCTURES, from_lengths, host, on_device, with_types

ALL_DTYPES = [*COMPUTE_DTYPES, *(np.dtype(name) for name in ("bool", "int8", "uint16", "uint64"))]
AXES = (None, 0, 1, -1, -2)


def whole_numbers(S: Any, rng: np.random.Generator, dtype: Any = float) -> Any:
    """Return the same structure with small whole numbers, some of them 0, whose sums are exact in any order."""
    made, dtype = sp.csr_array(S.shape, dtype=dtype), np.dtype(dtype)
    values = rng.integers(0 if dtype.kind in "bu" else -3, 4, S.nnz)
    made.data = (values + 1j * rng.integers(-2, 3, S.nnz) if dtype.kind == "c" else values).astype(dtype)
    made.indices, made.indptr = S.indices.copy(), S.indptr.copy()
    return made


def outcome(call: Callable[[], Any]) -> Any:
    """Return what a call returns, or the type of its error."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return call()
    except (TypeError, ValueError, IndexError, NotImplementedError, ArithmeticError) as error:
        return type(error)


def assert_same(got: Any, want: Any, *, rtol: float = 0.0, formats: bool = True) -> None:
    """Compare kind, shape, dtype and values with SciPy's result."""
    if isinstance(want, type):
        assert isinstance(got, type)
        assert issubclass(got, want), f"{got} instead of {want}"
        return
    assert sp.issparse(got) == sp.issparse(want), f"{type(got)} instead of {type(want)}"
    if sp.issparse(want):
        if formats:
            assert got.format == want.format
        assert got.shape == want.shape
        assert got.dtype == want.dtype
        got, want = got.toarray(), want.toarray()
    assert np.shape(got) == np.shape(want)
    assert np.asarray(got).dtype == np.asarray(want).dtype
    if rtol:
        np.testing.assert_allclose(got, want, rtol=rtol)
    else:
        np.testing.assert_array_equal(got, want)


def pairs(S: Any, device: Device) -> list[tuple[Any, Any]]:
    """Return matrices of ours and SciPy's: by rows, by columns, and conjugated if complex."""
    A = GpuSparseMatrix(S.copy(), device=device)
    made = [(A, S), (A.T, S.T)]
    return made if S.dtype.kind != "c" else [*made, (A.H, S.T.conj())]


# ------------------------------------------------------------------------------------------------- reductions

REDUCTIONS: dict[str, Callable[[Any, Any], Any]] = {
    "sum": lambda A, axis: A.sum(axis=axis),
    "sum as float32": lambda A, axis: A.sum(axis=axis, dtype=np.float32),
    "sum as int16": lambda A, axis: A.sum(axis=axis, dtype=np.int16),
    "max": lambda A, axis: A.max(axis=axis),
    "min": lambda A, axis: A.min(axis=axis),
    "nanmax": lambda A, axis: A.nanmax(axis=axis),
    "nanmin": lambda A, axis: A.nanmin(axis=axis),
    "max, explicit": lambda A, axis: A.max(axis=axis, explicit=True),
    "nanmin, explicit": lambda A, axis: A.nanmin(axis=axis, explicit=True),
    "argmax": lambda A, axis: A.argmax(axis=axis),
    "argmin": lambda A, axis: A.argmin(axis=axis),
    "argmax, explicit": lambda A, axis: A.argmax(axis=axis, explicit=True),
    "argmin, explicit": lambda A, axis: A.argmin(axis=axis, explicit=True),
    "count_nonzero": lambda A, axis: A.count_nonzero(axis=axis),
}


@pytest.mark.parametrize("index", INDEX_DTYPES, ids=str)
@pytest.mark.parametrize("dtype", ALL_DTYPES, ids=str)
def test_reductions_equal_scipys_for_every_dtype(
    device: Device, dtype: Any, index: Any, rng: np.random.Generator
) -> None:
    S = whole_numbers(from_lengths(rng.integers(0, 9, 50), 12, rng), rng, dtype)
    S.indices, S.indptr = S.indices.astype(index), S.indptr.astype(index)
    if dtype == np.uint64:
        S.data[::2] += np.uint64(2**63)
    for A, T in pairs(S, device):
        for name, axis in ((name, axis) for name in REDUCTIONS for axis in AXES):
            want = outcome(lambda: REDUCTIONS[name](T.copy(), axis))
            assert_same(outcome(lambda: REDUCTIONS[name](A, axis)), want)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.complex64], ids=str)
def test_nan_and_infinity_count_as_in_scipy(device: Device, dtype: Any, rng: np.random.Generator) -> None:
    S = whole_numbers(from_lengths(rng.integers(0, 9, 40), 6, rng), rng, dtype)
    S.sum_duplicates()
    S.data[rng.integers(0, S.nnz, 30)] = np.nan
    S.data[rng.integers(0, S.nnz, 10)] = np.inf
    for (A, T), name, axis in (
        (pair, name, axis) for pair in pairs(S, device)[:2] for name in REDUCTIONS for axis in AXES
    ):
        # SciPy's sums multiply by ones, and the complex product of infinity and 1 contains NaN.
        if "int16" not in name and not (name.startswith(("nan", "sum")) and np.dtype(dtype).kind == "c"):
            want = outcome(lambda: REDUCTIONS[name](T.copy(), axis))
            assert_same(outcome(lambda: REDUCTIONS[name](A, axis)), want)


def test_subnormal_values_are_not_treated_as_zero(device: Device) -> None:
    for dtype in (np.float32, np.float64):
        tiny = np.finfo(dtype).smallest_subnormal
        S = sp.csr_array(np.array([[0, -tiny, 0], [tiny, -1, 0], [tiny, 3 * tiny, 2 * tiny]], dtype))
        A = GpuSparseMatrix(S, device=device)
        for name, axis in ((name, axis) for name in REDUCTIONS for axis in AXES):
            if "int16" not in name:
                assert_same(REDUCTIONS[name](A, axis), REDUCTIONS[name](S, axis))
        for compare in (operator.ne, operator.lt, operator.gt):
            assert_same(compare(A, 0), compare(S, 0))


@pytest.mark.parametrize("dtype", ALL_DTYPES, ids=str)
def test_sums_and_means_are_exact_enough_and_the_same_each_time(
    device: Device, dtype: Any, rng: np.random.Generator
) -> None:
    S = with_types(STRUCTURES["one dense row"](rng), dtype, np.int32, rng)
    S.sum_duplicates()
    rtol = 200 * float(np.finfo(dtype).eps) if dtype.kind in "fc" else 1e-14
    for A, T in pairs(S, device):
        for axis in AXES:
            for method in ("sum", "mean"):
                got, want = getattr(A, method)(axis=axis), getattr(T, method)(axis=axis)
                assert np.asarray(got).dtype == np.asarray(want).dtype
                size = np.max(getattr(abs(T) if dtype.kind != "b" else T, method)(axis=axis), initial=1)
                np.testing.assert_allclose(got, want, rtol=rtol, atol=rtol * float(np.real(size)))
                assert np.array_equal(getattr(A, method)(axis=axis), got, equal_nan=True)


def test_rows_that_are_cut_into_pieces_are_reduced_correctly(device: Device, rng: np.random.Generator) -> None:
    """Rows far longer than the others go through two levels, and a single run of all values through three."""
    lengths = rng.integers(0, 3, 300)
    lengths[[7, 200]] = 9000, 40_000
    S = whole_numbers(from_lengths(lengths, 60_000, rng), rng)
    S.sum_duplicates()
    A = GpuSparseMatrix(S, device=device)
    for name, axis in ((name, axis) for name in REDUCTIONS for axis in AXES):
        assert_same(REDUCTIONS[name](A, axis), REDUCTIONS[name](S, axis))
    values = rng.integers(-9, 9, 300_000).astype(float)
    data, kernels = on_device(device, values), kernels_of(device)
    assert host(kernels.reductions.sum_entries(device, None, data, "square", data.size)) == (values**2).sum()
    assert host(kernels.reductions.extreme_entries(device, None, data, "fmin", data.size)) == values.min()
    assert host(kernels.reductions.extreme_positions(device, None, data, "maximum", data.size)) == values.argmax()


@pytest.mark.parametrize("axis", [2, -3, (0, 0), (), 1.5, "rows", (0, 1, 0), [0]], ids=str)
@pytest.mark.parametrize("name", ["sum", "mean", "max", "nanmin", "argmin", "count_nonzero"])
def test_an_axis_that_scipy_refuses_is_refused(name: str, axis: Any, rng: np.random.Generator) -> None:
    S = whole_numbers(STRUCTURES["even"](rng), rng)
    A = GpuSparseMatrix(S, device="cpu")
    want = outcome(lambda: getattr(S, name)(axis=axis))
    assert isinstance(want, type)
    assert_same(outcome(lambda: getattr(A, name)(axis=axis)), want)


@pytest.mark.parametrize("name", ["sum", "mean", "max", "argmin"])
def test_axes_may_be_a_tuple(name: str, rng: np.random.Generator) -> None:
    S = whole_numbers(STRUCTURES["even"](rng), rng)
    A = GpuSparseMatrix(S, device="cpu")
    for axis in ((0,), (1,), (-1,), (0, 1), (1, -2)):
        assert_same(getattr(A, name)(axis=axis), getattr(S, name)(axis=axis))
    assert_same(getattr(A, name)(axis=np.int32(1)), getattr(S, name)(axis=1))


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.int64], ids=str)
@pytest.mark.parametrize("name", ["sum", "mean"])
def test_out_is_filled_as_in_scipy(device: Device, name: str, dtype: Any, rng: np.random.Generator) -> None:
    S = whole_numbers(from_lengths(rng.integers(0, 9, 64), 16, rng), rng)  # with powers of two, means are exact
    for A, T in pairs(S, device):
        for axis, shape in ((None, ()), (0, T.shape[1]), (1, T.shape[0]), (0, 3), (1, 4)):
            outs = np.zeros(shape, dtype), np.zeros(shape, dtype)
            want = outcome(lambda: getattr(T.copy(), name)(axis=axis, out=outs[0]))
            got = outcome(lambda: getattr(A, name)(axis=axis, out=outs[1]))
            np.testing.assert_array_equal(outs[1], outs[0])
            if name == "mean" and reductions.CASTS_FIRST and not isinstance(want, type):
                assert got is outs[1]  # SciPy 1.18 returns another array, of its own dtype
                continue
            assert_same(got, want)
            assert (got is outs[1]) == (want is outs[0])


@pytest.mark.parametrize("dtype", [np.int16, np.float32, np.complex128, bool], ids=str)
def test_values_are_cast_before_they_are_added_from_scipy_1_18_on(
    device: Device, dtype: Any, monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator
) -> None:
    monkeypatch.setattr(reductions, "CASTS_FIRST", True)
    S = whole_numbers(from_lengths(rng.integers(0, 9, 50), 12, rng), rng) * 0.75
    S.sum_duplicates()
    for A, T in pairs(S, device):
        for axis in (*AXES, (0,), (1,)):
            assert_same(A.sum(axis=axis, dtype=dtype), T.toarray().sum(axis=axis, dtype=dtype))


@pytest.mark.parametrize("name", ["max", "nanmin", "argmax"])
def test_a_numpy_array_as_out_of_min_and_max_is_refused(name: str) -> None:
    A = GpuSparseMatrix(sp.eye_array(3), device="cpu")
    with pytest.raises(ValueError, match="does not support an 'out' parameter"):
        getattr(A, name)(axis=0, out=np.zeros(3))


def test_the_trace_is_the_sum_of_the_diagonal(device: Device, rng: np.random.Generator) -> None:
    for dtype in ALL_DTYPES:
        S = whole_numbers(from_lengths(rng.integers(0, 9, 30), 20, rng), rng, dtype)
        for (A, T), offset in ((pair, offset) for pair in pairs(S, device) for offset in (0, 2, -7, 19, -29)):
            with gsparse.strict():
                assert_same(A.trace(offset), T.trace(offset))


# ------------------------------------------------------------------------------------------------------ norms


@pytest.mark.parametrize("dtype", [*COMPUTE_DTYPES, np.dtype("bool"), np.dtype("int8")], ids=str)
def test_norms_equal_scipys(device: Device, dtype: Any, rng: np.random.Generator) -> None:
    S = with_types(from_lengths(rng.integers(0, 9, 50), 30, rng), dtype, np.int32, rng)
    rtol = 100 * float(np.finfo(dtype).eps) if dtype.kind in "fc" else 1e-14
    orders = [None, "fro", "f", 1, -1, np.inf, -np.inf]
    calls = [(ord, axis) for ord in orders for axis in (None, (0, 1), (1, 0), (-1, 0))]
    calls += [(ord, axis) for ord in (None, 0, 1, 2, 3, np.inf, -np.inf) for axis in (0, 1, -1, (1,))]
    calls += [("nuc", None), (1, (0, 0)), (1, 3), (None, 1.5), ("x", 0), (-2, None), (1, (0, 1, 2))]
    for A, T in pairs(S, device):
        for ord, axis in calls:
            want = outcome(lambda: la.norm(T.copy(), ord, axis))
            assert_same(outcome(lambda: gsparse.linalg.norm(A, ord, axis)), want, rtol=rtol)


def test_norms_of_a_matrix_run_on_the_device(device: Device, rng: np.random.Generator) -> None:
    A = GpuSparseMatrix(STRUCTURES["even"](rng), device=device)
    with gsparse.strict():
        for ord, axis in ((None, None), (1, None), (np.inf, None), (-1, None), (1, 0), (1, 1), (2, 0), (None, 1)):
            gsparse.linalg.norm(A, ord, axis)
            gsparse.linalg.norm(A.T, ord, axis)


def test_scipy_computes_the_norms_of_other_matrices() -> None:
    assert gsparse.linalg.norm(sp.diags_array([3.0, 4.0])) == 5.0
    with pytest.raises(TypeError, match="not sparse"):
        gsparse.linalg.norm(np.eye(2))
    with pytest.raises(TypeError, match=r"got MatrixLinearOperator: .* svds\(A, 1"):
        gsparse.linalg.norm(la.aslinearoperator(np.eye(2)))


def test_absolute_values_neither_overflow_nor_vanish(device: Device) -> None:
    values = np.array([3e300 + 4e300j, 3e-300 + 4e-300j, 0, complex(np.inf, 1), complex(np.nan, 1)])
    A = GpuSparseMatrix(sp.csr_array((values, (range(5), range(5)))), device=device)
    np.testing.assert_allclose(gsparse.linalg.norm(A, 1, axis=1), abs(values), rtol=1e-15)


# ---------------------------------------------------------------------------------------------- dense operands

SCALINGS: dict[str, Callable[[Any, Any], Any]] = {
    "A.multiply(B)": lambda A, B: A.multiply(B),
    "A * B": lambda A, B: A * B,
    "B * A": lambda A, B: B * A,
    "A / B": lambda A, B: A / B,
}


@pytest.mark.parametrize("name", SCALINGS)
@pytest.mark.parametrize("structure", STRUCTURES)
def test_rows_columns_and_entries_are_scaled_as_in_scipy(
    device: Device, structure: str, name: str, rng: np.random.Generator
) -> None:
    S = whole_numbers(STRUCTURES[structure](rng), rng)
    for A, T in pairs(S, device):
        (M, N), apply = T.shape, SCALINGS[name]
        for shape in ((N,), (1, N), (M, 1), (M, N), (1, 1), (1,), (M,), (M + 1, N), (2, N), (M, 2), (1, 1, 1)):
            B = 2.0 ** rng.integers(-3, 4, shape)
            want = outcome(lambda: apply(T, B))
            got = outcome(lambda: apply(A, B))
            assert_same(got, want, formats=False)
            if (shape == (N,) or shape == (M, 1)) and T.shape != (1, 1):
                assert type(got) is type(A)
                assert got.device is device


@pytest.mark.parametrize("dtype", ALL_DTYPES, ids=str)
def test_scaling_has_the_dtypes_of_scipys(device: Device, dtype: Any, rng: np.random.Generator) -> None:
    S = whole_numbers(from_lengths(rng.integers(0, 9, 30), 20, rng), rng, dtype)
    for A, T in pairs(S, device):
        for other in ("bool", "int8", "uint64", "float32", "float64", "complex64", "longdouble"):
            B = np.ones(T.shape[1]).astype(other)
            for apply in SCALINGS.values():
                assert_same(apply(A, B), apply(T, B), formats=False)


def test_a_declared_symmetry_ends_when_rows_are_scaled() -> None:
    A = GpuSparseMatrix(np.array([[1.0, 2.0], [2.0, 3.0]]), device="cpu", symmetric=True)
    B = A.multiply(np.array([1.0, 10.0]))
    np.testing.assert_array_equal(B.T @ np.ones(2), [3.0, 50.0])


@pytest.mark.parametrize("dtype", ALL_DTYPES, ids=str)
def test_powers_equal_scipys(device: Device, dtype: Any, rng: np.random.Generator) -> None:
    S = whole_numbers(from_lengths(rng.integers(0, 9, 30), 20, rng), rng, dtype)
    for A, T in pairs(S, device):
        for args in ((2,), (3, np.float32), (0.5,), (-1,), (0,), (np.ones(3),), (np.array(2),), (2, np.longdouble)):
            # CuPy's powers may differ from NumPy's in the last bits.
            rtol = 0.0 if device.kind == "cpu" else 8 * float(np.finfo(S.dtype).eps) if S.dtype.kind in "fc" else 0.0
            assert_same(outcome(lambda: A.power(*args)), outcome(lambda: T.copy().power(*args)), rtol=rtol)
        assert_same(A**2, T**2)


def test_scalars_and_factors_run_on_the_device(device: Device, rng: np.random.Generator) -> None:
    S = STRUCTURES["even"](rng)
    S.sum_duplicates()
    A = GpuSparseMatrix(S, device=device)
    with gsparse.strict():
        for B in (A, A.T):
            made = (
                B.maximum(0),
                B.minimum(0.0),
                B > 0,
                B < 0,
                B != 0,
                B >= 1,
                B <= -1,
                B == 2,
                B.power(2),
                B**3,
                B + 0,
                0 - B,
            )
            assert all(isinstance(part, (type(A), type(A.T))) for part in made)
        total = sum([A, A])
    assert_same(total, S + S)


# --------------------------------------------------------------------------------------- arrays of the device


DENSE_RESULTS: dict[str, Callable[[Any, Any], Any]] = {
    "A + B": lambda A, B: A + B,
    "A - B": lambda A, B: A - B,
    "A.__rsub__(B)": lambda A, B: A.__rsub__(B),
    "A.maximum(B)": lambda A, B: A.maximum(B),
    "A.minimum(B)": lambda A, B: A.minimum(B),
    "A == B": lambda A, B: A == B,
    "A != B": lambda A, B: A != B,
    "A < B": lambda A, B: A < B,
    "A <= B": lambda A, B: A <= B,
    "A > B": lambda A, B: A > B,
    "A >= B": lambda A, B: A >= B,
}


def check_arrays_of_the_device(device: Device, make: Callable[[Any], Any], rng: np.random.Generator) -> None:
    """Compare operations with arrays of the device with SciPy's, inside of `strict()`."""
    for structure in ("even", "empty rows", "one row", "one column", "no rows"):
        S = whole_numbers(STRUCTURES[structure](rng), rng)
        for A, T in pairs(S, device):
            M, N = T.shape
            for shape in ((M, N), (1, N), (M, 1), (N,), (M, N + 1)):
                B = rng.integers(1, 4, shape).astype(float)
                for apply in (*DENSE_RESULTS.values(), *SCALINGS.values()):
                    if apply is SCALINGS["B * A"]:
                        continue
                    want = outcome(lambda apply=apply, B=B: apply(T.copy(), B))
                    with gsparse.strict():
                        got = outcome(lambda apply=apply, B=B: apply(A, make(B)))
                    if not isinstance(want, type) and not sp.issparse(want):
                        got = host(got)
                    assert_same(got, want, formats=False)


def test_counts_and_explicit_positions_have_the_types_of_scipys(device: Device) -> None:
    S = sp.csr_array(np.array([[1, 0, 2], [0, -3, 0]]))
    for T in (S, S.T, S[0], S[:0]):
        A = GpuSparseMatrix(T.tocsr(), device=device)
        functions = [lambda M: M.count_nonzero()]
        functions += [lambda M: M.argmax(explicit=True), lambda M: M.argmin(explicit=True)] if T.nnz else []
        for function in functions:
            assert type(function(A)) is np.int64  # SciPy with NumPy 2.0 counts with a plain int
            assert function(A) == function(T.tocsr())


@pytest.mark.parametrize("entries", [{}, {(0, 0): 0}, {(1, 0): 0}, {(0, 0): -1, (0, 1): 0}, {(0, 0): 1}, {(1, 1): 0}])
def test_positions_have_the_types_of_scipys(device: Device, entries: dict[tuple[int, int], int]) -> None:
    rows, columns = np.array(list(entries), int).reshape(-1, 2).T
    S = sp.csr_array((np.array(list(entries.values()), float), (rows, columns)), shape=(2, 2))
    for T in (S, -S):
        for name in ("argmax", "argmin"):
            got, want = (getattr(M, name)() for M in (GpuSparseMatrix(T, device=device), T))
            assert (got, type(got)) == (want, type(want))


def check_out_on_the_device(device: Device, make: Callable[[Any], Any], rng: np.random.Generator) -> None:
    """Compare results that are written to arrays of the device with SciPy's."""
    S = whole_numbers(from_lengths(rng.integers(0, 9, 64), 16, rng), rng)
    M = gsparse.sparse.csr_matrix(S, device=device)
    for A, T in (*pairs(S, device), (M, sp.csr_matrix(S)), (M.T, sp.csr_matrix(S).T)):
        for name in ("sum", "mean", "max", "min", "nanmax", "nanmin", "argmax", "argmin"):
            for axis in AXES:
                want = getattr(T.copy(), name)(axis=axis)
                want = want.toarray() if sp.issparse(want) else want
                out = make(np.full(np.shape(want), -5.0))
                with gsparse.strict():
                    assert getattr(A, name)(axis=axis, out=out) is out
                np.testing.assert_array_equal(host(out), want)
                with pytest.raises(ValueError, match="out dimensions do not match"):
                    getattr(A, name)(axis=axis, out=make(np.zeros((2, 2))))


def check_scalars_of_the_device(device: Device, make: Callable[[Any], Any], rng: np.random.Generator) -> None:
    """Compare operations with device arrays without dimensions with SciPy's."""
    S = whole_numbers(STRUCTURES["even"](rng), rng)
    for A, T in pairs(S, device):
        for apply in (operator.mul, operator.truediv, operator.gt, operator.ne, operator.pow):
            assert_same(apply(A, make(2.0)), apply(T, np.array(2.0)))


CHECKS = (check_arrays_of_the_device, check_out_on_the_device, check_scalars_of_the_device)


@pytest.mark.filterwarnings("ignore::scipy.sparse.SparseEfficiencyWarning")
@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.few(1)
def test_device_arrays_as_operands_give_scipys_results(check: Any, pretend: Any, rng: np.random.Generator) -> None:
    check(*pretend, rng)


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore::scipy.sparse.SparseEfficiencyWarning")
@pytest.mark.parametrize("check", CHECKS)
def test_operands_may_be_cupy_arrays(check: Any, on_gpu: Any, rng: np.random.Generator) -> None:
    check(*on_gpu, rng)


@pytest.mark.gpu
def test_first_operands_may_be_cupy_arrays(on_gpu: Any, rng: np.random.Generator) -> None:
    device, make = on_gpu
    S = whole_numbers(STRUCTURES["even"](rng), rng)
    A, B = GpuSparseMatrix(S, device=device), rng.integers(1, 4, S.shape).astype(float)
    for apply in (operator.add, operator.sub, operator.lt, operator.eq):
        np.testing.assert_array_equal(host(apply(make(B), A)), apply(B, S))
    assert_same(make(B[0]) * A, B[0] * S, formats=False)


@pytest.mark.gpu
def test_an_array_of_a_gpu_is_refused_by_a_matrix_on_the_host(on_gpu: Any) -> None:
    A, B = GpuSparseMatrix(sp.eye_array(3), device="cpu"), on_gpu[1](np.ones(3))
    for apply in (operator.mul, operator.truediv, operator.add, operator.gt):
        with pytest.raises(DeviceError, match="the matrix lives on cpu"):
            apply(A, B)
    with pytest.raises(DeviceError, match="out must live on cpu"):
        A.sum(axis=0, out=B)
