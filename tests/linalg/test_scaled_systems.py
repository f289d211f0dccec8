"""Solvers take the same iterations whatever the units of A and b are, also where squares of float32 values overflow."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from inspect import signature
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from scipy.sparse.linalg import LinearOperator

from gsparse import linalg
from gsparse.device.base import Device
from gsparse.device.select import get_device
from gsparse.distributed import RankMatrix, RowPartition, run_ranks
from gsparse.linalg.krylov.linear_system import make_linear_system
from gsparse.linalg.krylov.units import ONES
from tests.linalg.problems import laplacian, matrix, right_hand_side

S = sp.csr_array(laplacian(6) + sp.eye_array(36))
B = right_hand_side(S)
# ---------------------------------------------------------------------- scales at which squares leave the range

FAR = {"f": (-120, -66, 0, 66, 120), "d": (-1000, -540, 0, 540, 1000)}
SIZE = 12
METHODS: dict[str, dict[str, Any]] = {
    "cg": {},
    "cg with one reduction": {"single_reduction": True},
    "cg in two precisions": {"inner_dtype": np.float32},
    "bicgstab": {},
    "gmres": {},
    "fgmres": {},
    "minres": {},
    "chebyshev": {},
    "lsqr": {},
    "lsmr": {},
    "solve": {},
}


def base_system(dtype: str) -> tuple[Any, Any]:
    """Return a positive definite matrix of a small condition number and a right-hand side, both of magnitude 1."""
    off_diagonal = -1 + 0.5j if dtype in "FD" else -1.0
    diagonals = [np.conj(off_diagonal), 3.0, off_diagonal]
    S = sp.diags_array(diagonals, offsets=[-1, 0, 1], shape=(SIZE, SIZE), dtype=dtype).tocsr()
    return S, np.linspace(1, 2, SIZE).astype(dtype)


def times_power(array: Any, exponent: Any) -> Any:
    """Return an array times powers of two, one factor or one for each column, which need not be in range."""
    parts = np.ascontiguousarray(array).view(array.real.dtype).reshape(*array.shape, -1)
    exponents = np.asarray(exponent)[..., None]
    with np.errstate(over="ignore", under="ignore"):
        return np.ldexp(parts, exponents).astype(array.real.dtype).view(array.dtype).reshape(array.shape)


def call(method: str, A: Any, b: Any, **options: Any) -> Any:
    """Solve to a tolerance of 1e-5, without warnings."""
    if method in ("lsqr", "lsmr"):
        options = {"atol": 1e-6, "btol": 1e-6, **options}
    elif method != "solve":
        options = {"rtol": 1e-6, "full_output": True, **options}
    if method in ("lsqr", "lsmr"):
        options["full_output"] = True
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return getattr(linalg, method.split(maxsplit=1)[0])(A, b, **METHODS[method], **options)


def true_residuals(dtype: str, x: Any, exponents: Any) -> Any:
    """Return norm(b - A·x) / norm(b) of each column, computed where A and b are of magnitude 1."""
    S, b = base_system(dtype)
    wide = "D" if dtype in "FD" else "d"
    scaled = times_power(x.astype(wide), -np.asarray(exponents))
    with np.errstate(all="ignore"):
        residuals = np.linalg.norm((b[:, None] if x.ndim == 2 else b) - S.astype(wide) @ scaled, axis=0)
    return np.where(np.isnan(residuals), np.inf, residuals) / np.linalg.norm(b)


@pytest.mark.parametrize("dtype", "fdFD")
@pytest.mark.parametrize("method", METHODS)
def test_a_solve_converges_at_every_scale_or_says_that_x_is_out_of_range(method: str, dtype: str) -> None:
    S, b = base_system(dtype)
    real, info = dtype.lower(), np.finfo(dtype)
    exponents = np.array(FAR[real])
    B = times_power(np.repeat(b[:, None], exponents.size, 1), exponents)
    for of_A in FAR[real]:
        A = matrix(get_device("cpu"), S.copy())
        A.data[:] = times_power(S.data, of_A)
        of_x = exponents - of_A
        fits = (info.minexp + 3 < of_x) & (of_x < info.maxexp - 3)
        together = call(method, A, B)
        assert (together.info == 0) == fits.all(), (of_A, together)
        for column, of_b in enumerate(FAR[real]):
            result = call(method, A, B[:, column])
            assert (result.info == 0) == fits[column], (of_A, of_b, result)
            assert result.info == 0 or "overflows or underflows" in result.reason
            if fits[column]:
                both = np.stack([result.x, together.x[:, column]], axis=1)
                assert (true_residuals(dtype, both, of_x[column]) < 1e-4).all(), (of_A, of_b)
                assert not method.startswith("ls") or result.statistics[0] in (1, 2)
            else:
                assert not method.startswith("ls") or result.statistics[0] == 7


@pytest.mark.parametrize("dtype", "fdFD")
@pytest.mark.parametrize("method", METHODS)
def test_a_claim_about_an_operator_without_entries_is_true_at_every_scale(method: str, dtype: str) -> None:
    S, b = base_system(dtype)
    for of_A in FAR[dtype.lower()]:
        scaled = S.copy()
        scaled.data = times_power(S.data, of_A)
        A = LinearOperator(S.shape, scaled.__matmul__, scaled.conj().T.__matmul__, dtype=dtype)
        for of_b in FAR[dtype.lower()]:
            with np.errstate(all="ignore"):
                result = call(method, A, times_power(b, of_b))
            is_true = true_residuals(dtype, result.x, of_b - of_A) < 1e-4
            assert is_true or (result.info and not (result.statistics and result.statistics[0] in (0, 1, 2, 4, 5)))


OPTIONS: dict[str, tuple[str, Callable[..., dict[str, Any]]]] = {
    # a name, the method, and its options for the powers of two by which A and x are multiplied
    "callback": ("cg", lambda A, of_A, of_x: {}),
    "minres, shift": ("minres", lambda A, of_A, of_x: {"shift": -of_A}),
    "chebyshev, bounds": ("chebyshev", lambda A, of_A, of_x: {"bounds": (0.5 * of_A, 6 * of_A)}),
    "chebyshev, bounds and M": ("chebyshev", lambda A, of_A, of_x: {"bounds": (0.1, 2.0), "M": linalg.jacobi(A)}),
    "lsqr, damp": ("lsqr", lambda A, of_A, of_x: {"damp": 2 * of_A, "calc_var": True}),
    "lsmr, damp": ("lsmr", lambda A, of_A, of_x: {"damp": 2 * of_A}),
    **{
        f"{method}, M": (method, lambda A, of_A, of_x: {"M": linalg.jacobi(A)})
        for method in ("cg", "cg with one reduction", "bicgstab", "gmres", "fgmres", "minres")
    },
    "cg, M and x0": ("cg", lambda A, of_A, of_x: {"M": linalg.jacobi(A), "x0": "Mb"}),
    **{method: (method, lambda A, of_A, of_x: {"x0": np.ones(SIZE) * of_x}) for method in METHODS},
}


@pytest.mark.parametrize(("of_A", "of_b"), [(0, 300), (0, -300), (300, 300), (-300, -300), (300, 0), (-300, -150)])
@pytest.mark.parametrize("name", OPTIONS)
def test_arguments_and_results_are_in_the_units_of_the_caller(name: str, of_A: int, of_b: int) -> None:
    (method, options), (S, b) = OPTIONS[name], base_system("d")
    results, calls = [], []
    for a, c in ((0, 0), (of_A, of_b)):
        A = matrix(get_device("cpu"), S * 2.0**a)
        given = options(A, 2.0**a, 2.0 ** (c - a))
        if name == "callback":
            given["callback"] = calls.append
        elif method != "solve" and "maxiter" in signature(getattr(linalg, method.split()[0])).parameters:
            given["maxiter"] = 5
        results.append(call(method, A, b * 2.0**c, **given))
    first, second = results
    assert second.info == first.info
    np.testing.assert_allclose(second.x / 2.0 ** (of_b - of_A), first.x, rtol=1e-12)
    is_norm_of_M = ", M" in name and method in ("minres", "gmres")
    of_norms = of_b - of_A / 2 * ((method == "minres") + 2 * (method == "gmres")) * is_norm_of_M
    np.testing.assert_allclose(second.residuals / 2.0**of_norms, first.residuals, rtol=1e-9, atol=1e-13)
    if calls:
        np.testing.assert_allclose(calls[-1], second.x)
        np.testing.assert_allclose(calls[len(calls) // 2 - 1], first.x)
    if method == "lsqr":
        of_values = (0, 0, of_b, of_b, of_A, 0, of_A + of_b, of_b - of_A, -2 * of_A)
    else:
        of_values = (0, 0, of_b, of_A + of_b, of_A, 0, of_b - of_A)
    for value, expected, exponent in zip(second.statistics, first.statistics, of_values, strict=False):
        np.testing.assert_allclose(value / 2.0**exponent, expected, rtol=1e-9, atol=1e-13)
    np.testing.assert_allclose(
        second.normal_residuals / 2.0 ** (of_A + of_b), first.normal_residuals, rtol=1e-9, atol=1e-13
    )


def test_a_system_in_the_usual_range_is_solved_as_it_is(real_device: Device) -> None:
    A = matrix(real_device, S)
    for exponent in (-190, 0, 190):
        system = make_linear_system(A, B * 2.0**exponent, np.ones(36))
        assert system.units is ONES
        assert system.A.matrices == (A,)
        np.testing.assert_array_equal(real_device.download(system.b), B * 2.0**exponent)


@pytest.mark.parametrize("method", ["cg", "bicgstab", "chebyshev", "minres", "lsqr", "lsmr"])
def test_a_guess_far_from_the_solution_makes_no_claim_false(method: str) -> None:
    S, b = base_system("d")
    for exponent in (-60, -300, -900):
        result = call(method, matrix(get_device("cpu"), S), b * 2.0**exponent, x0=np.linspace(1, 2, SIZE))
        is_true = true_residuals("d", result.x, exponent) < 1e-4
        assert is_true or result.info != 0, exponent


@pytest.mark.parametrize("method", ["cg", "minres", "gmres"])
def test_every_device_scales_and_returns_to_the_units_of_the_caller(device: Device, method: str) -> None:
    S, b = base_system("d")
    A = matrix(device, S * 2.0**900)
    result = call(method, A, b * 2.0**-50, M=linalg.jacobi(A))
    assert result.info == 0
    assert true_residuals("d", result.x, -950) < 1e-4


@pytest.mark.parametrize(("of_A", "of_b"), [(900, 0), (0, -900), (-900, 600)])
@pytest.mark.parametrize("method", ["cg", "minres", "lsqr"])
def test_ranks_scale_in_the_same_way_and_copy_x_in_the_units_of_the_caller(method: str, of_A: int, of_b: int) -> None:
    S, b = base_system("d")
    rows, copies = RowPartition.by_nnz(S.indptr, 3), []

    def solve(communicator: Any) -> Any:
        own = rows.rows(communicator.rank)
        A = RankMatrix(S[own] * 2.0**of_A, rows, rows, communicator, device="cpu")
        if communicator.rank == 0:
            A.observer = lambda loop: copies.append((loop.system.in_units_of_caller(loop.vectors["x"]).copy(), loop))
        return call(method, A, b[own] * 2.0**of_b)

    results = run_ranks(solve, 3)
    fits = of_b - of_A < 1000
    assert {result.info == 0 for result in results} == {fits}
    if fits:
        assert true_residuals("d", np.concatenate([result.x for result in results]), of_b - of_A) < 1e-4
        np.testing.assert_array_equal(copies[-1][0], results[0].x)
        np.testing.assert_array_equal(copies[-1][1].residuals, results[0].residuals)
