"""`solve` finds a method for every kind of matrix, and says the truth about its result."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import scipy.sparse.linalg as la

import gsparse
from gsparse import GpuSparseMatrix
from gsparse.device.base import Device
from gsparse.errors import ConvergenceWarning, FactorizationError, ShapeError, SingularMatrixError
from gsparse.linalg import amg, cg, solve
from gsparse.linalg.automatic import attempts, plan
from gsparse.linalg.automatic.attempts import make_preconditioner
from gsparse.linalg.automatic.plan import methods_for
from gsparse.linalg.automatic.problem import MatrixProperties, examine
from gsparse.linalg.direct import factorization
from gsparse.linalg.direct.factorization import LIBRARIES
from gsparse.linalg.direct.factors import FactorLibrary
from gsparse.linalg.preconditioners.square_matrix import SquareMatrix
from tests.linalg.problems import (
    convection,
    exchanged,
    indefinite,
    laplacian,
    rectangular,
    right_hand_side,
    saddle_point,
)
from tests.support import DTYPES, host, matrix_folder, on_device, random_values


def neumann(n: int) -> sp.csr_array:
    """Return the 5-point Laplacian with Neumann boundaries: its null space holds constants."""
    line = sp.diags_array([-1.0, 2.0, -1.0], offsets=[-1, 0, 1], shape=(n, n)).tolil()
    line[0, 0] = line[n - 1, n - 1] = 1
    eye = sp.eye_array(n)
    return sp.csr_array(sp.kron(line, eye) + sp.kron(eye, line))


def badly_scaled(n: int) -> sp.csr_array:
    rng = np.random.default_rng(1)
    scales = [sp.diags_array(10.0 ** rng.uniform(-5, 5, n * n)) for _ in range(2)]
    return sp.csr_array(scales[0] @ convection(n) @ scales[1])


def helmholtz(n: int) -> sp.csr_array:
    """Return a complex symmetric matrix, which is not Hermitian."""
    return sp.csr_array(laplacian(n) - (0.3 - 0.4j) * sp.eye_array(n * n))


def strongly_dominant(n: int) -> sp.csr_array:
    return sp.csr_array(laplacian(n) + 8 * sp.eye_array(n * n))


# The matrix for a number of grid points, and the first method that is tried for a large one.
PROBLEMS: dict[str, tuple[Callable[[int], Any], str]] = {
    "symmetric, positive definite": (laplacian, "cg with amg"),
    "Hermitian, positive definite": (
        lambda n: laplacian(n, complex) + 0.5 * sp.eye_array(n * n), "cg with amg",
    ),
    "strongly dominant": (strongly_dominant, "cg with jacobi"),
    "indefinite": (indefinite, "minres with absolute_diagonal"),
    "saddle point": (saddle_point, "minres with absolute_diagonal"),
    "nonsymmetric": (convection, "fgmres with amg"),
    "nonsymmetric, positive entries": (lambda n: abs(convection(n)) + sp.eye_array(n * n), "gmres with ilu0"),
    "complex symmetric": (helmholtz, "gmres with ilu0"),
    "zeros on the diagonal": (exchanged, "direct"),
    "badly scaled": (badly_scaled, "gmres with ilu0"),
    "pure Neumann": (neumann, "cg with amg"),
}  # fmt: skip


def assert_true(S: Any, result: Any, b: Any) -> None:
    """Check that the residual in a result is that of its solution."""
    norms = np.linalg.norm(b - S @ host(result.x), axis=0) / np.linalg.norm(b, axis=0)
    np.testing.assert_allclose(result.relative_residual, norms, rtol=1e-3, atol=1e-13)


@pytest.fixture
def iterative(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let small matrices take the methods of large ones, and switch factorizations off."""
    monkeypatch.setattr(plan, "DIRECT_SIZE", 0)
    monkeypatch.setattr(attempts, "_SMALL", 0)
    monkeypatch.setattr(attempts, "_MAX_OPERATIONS", 0)
    on_host = {name: library for name, library in LIBRARIES.items() if library.runs_on_host}
    monkeypatch.setattr(factorization, "LIBRARIES", on_host)


@pytest.mark.parametrize("problem", PROBLEMS)
@pytest.mark.usefixtures("iterative")
@pytest.mark.few(1)
def test_an_iterative_method_is_found_for_every_kind_of_matrix(device: Device, problem: str) -> None:
    make, first = PROBLEMS[problem]
    S = sp.csr_array(make(11))
    b = S @ right_hand_side(S)
    result = solve(GpuSparseMatrix(S, device=device), b)
    assert result.info == 0, str(result)
    assert result.attempts[0].method == first
    assert result.method == result.attempts[-1].method
    assert result.attempts[-1].outcome == "converged"
    assert np.linalg.norm(b - S @ result.x) <= 1e-8 * np.linalg.norm(b)
    assert_true(S, result, b)
    assert result.why in str(result)


@pytest.mark.parametrize("problem", [name for name in PROBLEMS if name != "pure Neumann"])
@pytest.mark.few(6)
def test_a_small_matrix_is_factorized(real_device: Device, problem: str) -> None:
    S = sp.csr_array(PROBLEMS[problem][0](9))
    b = S @ right_hand_side(S, 2)
    x, info = solve(GpuSparseMatrix(S, device=real_device), b)
    assert info == 0
    assert np.all(np.linalg.norm(b - S @ x, axis=0) <= 1e-8 * np.linalg.norm(b, axis=0))
    assert solve(GpuSparseMatrix(S, device=real_device), b).method == "direct"


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.usefixtures("iterative")
def test_the_tolerance_decides_the_precision_of_the_solution(device: Device, dtype: Any) -> None:
    S = sp.csr_array(laplacian(9, dtype) + sp.eye_array(81), dtype=dtype)
    A, b = GpuSparseMatrix(S, device=device), right_hand_side(S)
    by_default, tight = solve(A, b), solve(A, b, rtol=1e-10)
    assert (by_default.info, tight.info) == (0, 0)
    assert by_default.x.dtype == dtype
    assert tight.x.dtype == np.result_type(dtype, np.float64)
    assert by_default.relative_residual <= (1e-5 if np.dtype(dtype).char in "fF" else 1e-8)
    assert tight.relative_residual <= 1e-10
    assert_true(S.astype(tight.x.dtype), tight, b.astype(tight.x.dtype))


def test_the_solution_is_an_array_of_the_kind_of_b(device: Device) -> None:
    S = laplacian(8)
    A, b = GpuSparseMatrix(S, device=device), right_hand_side(S, 3)
    for right in (b, on_device(device, b), b[:, 0], on_device(device, b[:, 0].copy())):
        result = solve(A, right)
        assert result.info == 0
        assert type(result.x) is type(right)
        assert result.x.shape == right.shape
        assert np.shape(result.relative_residual) == right.shape[1:]


def test_every_kind_of_matrix_is_accepted(real_device: Device) -> None:
    S, b = laplacian(8), right_hand_side(laplacian(8))
    for A in (S, sp.csc_matrix(S), S.toarray(), GpuSparseMatrix(S, device=real_device), GpuSparseMatrix(S).T):
        x, info = solve(A, b)
        assert info == 0
        assert np.linalg.norm(b - S @ x) <= 1e-8 * np.linalg.norm(b)
    result = solve(la.aslinearoperator(S), b)
    assert (result.info, result.method) == (0, "gmres")
    assert "cannot be read" in result.why
    T = sp.csr_array(sp.diags_array(np.arange(1.0, 5.0)), dtype=int)
    assert solve(T, np.arange(1, 5)).x.tolist() == [1, 1, 1, 1]


@pytest.mark.parametrize("kind", ["csr_matrix", "from an spmatrix", "transposed", "conjugated"])
@pytest.mark.whole
def test_matrices_of_every_class_are_scaled_for_lsmr(real_device: Device, kind: str) -> None:
    S = rectangular(3000, 2500, "complex128")
    A: Any = GpuSparseMatrix(S, device=real_device)
    if kind == "csr_matrix":
        A = gsparse.sparse.csr_matrix(A)
    elif kind == "from an spmatrix":
        A = GpuSparseMatrix(sp.csr_matrix(S), device=real_device)
    else:
        A, S = (A.T, S.T) if kind == "transposed" else (A.conj(), S.conj())
    scales = 10.0 ** np.random.default_rng(0).uniform(-4, 4, A.shape[1])
    b = S @ (right_hand_side(S.T) * scales)
    result = solve(A.multiply(1 / scales[None, :]), b)
    assert (result.info, result.method) == (0, "lsmr with column_norms")
    assert result.relative_residual <= 1e-8


# ------------------------------------------------------------------------------------------------ singular matrices


def test_a_consistent_neumann_problem_has_a_solution_of_mean_zero(device: Device) -> None:
    S = neumann(10)
    b = S @ right_hand_side(S, 2)
    given = on_device(device, b + 1e-12)  # rounding errors
    result = solve(GpuSparseMatrix(S, device=device), given)
    assert result.info == 0
    assert "singular" in result.why
    np.testing.assert_allclose(host(result.x).mean(axis=0), 0, atol=1e-12)
    np.testing.assert_array_equal(host(given), b + 1e-12)
    assert_true(S, result, b + 1e-12)


def test_an_inconsistent_neumann_problem_is_reported(device: Device) -> None:
    S = neumann(10)
    b = S @ right_hand_side(S) + 0.1
    with pytest.warns(ConvergenceWarning, match="is constant, for which there is no solution"):
        result = solve(GpuSparseMatrix(S, device=device), b)
    assert result.info > 0
    expected = np.linalg.lstsq(S.toarray(), b)[0]
    np.testing.assert_allclose(result.x, expected - expected.mean(), rtol=0, atol=1e-6)
    assert_true(S, result, b)


@pytest.mark.usefixtures("iterative")
def test_the_rest_of_a_singular_system_is_said_to_be_solved_only_if_it_is() -> None:
    S = neumann(30)
    b = np.random.default_rng(3).standard_normal(S.shape[0]) + 1
    with pytest.warns(ConvergenceWarning, match="x solves the system without that part"):
        solve(GpuSparseMatrix(S, device="cpu"), b)
    with pytest.warns(ConvergenceWarning, match="without that part, no method reached rtol"):
        solve(GpuSparseMatrix(S, device="cpu"), b, rtol=1e-16, maxiter=1)


def test_a_constant_part_within_the_tolerance_counts_for_the_tolerance(real_device: Device) -> None:
    S = neumann(40)
    for rtol, share in ((0.03, 0.9), (0.03, 0.99), (1e-4, 0.95)):
        b = S @ right_hand_side(S)
        b += share * rtol * np.linalg.norm(b) / 40  # there are 1600 rows
        result = solve(GpuSparseMatrix(S, device=real_device), b, rtol=rtol)
        assert result.info == 0
        assert result.relative_residual <= rtol
        assert_true(S, result, b)
    b = S @ right_hand_side(S) * 1e-150
    assert solve(GpuSparseMatrix(S, device=real_device), b).relative_residual <= 1e-8


def test_other_singular_systems_are_solved_if_they_are_consistent(real_device: Device) -> None:
    repeated = np.where(np.arange(144) == 7, 8, np.arange(144))  # row and column 7 are those of 8
    T = sp.csr_array(laplacian(12)[repeated][:, repeated])
    b = T @ right_hand_side(T)
    result = solve(GpuSparseMatrix(T, device=real_device), b)
    assert result.info == 0
    assert_true(T, result, b)
    with pytest.warns(ConvergenceWarning, match="b is not in its range"):
        result = solve(GpuSparseMatrix(T, device=real_device), right_hand_side(T))
    assert result.info > 0
    r = right_hand_side(T) - T @ result.x
    assert np.linalg.norm(T.T @ r) < 1e-5 * np.linalg.norm(r) * la.norm(T)


def test_an_empty_row_is_no_obstacle_unless_its_equation_has_no_solution(real_device: Device) -> None:
    S = laplacian(8).tolil()
    S[5, :] = 0
    S[:, 5] = 0
    T, b = sp.csr_array(S), np.ones(64)
    T.eliminate_zeros()
    b[5] = 0
    assert solve(GpuSparseMatrix(T, device=real_device), b).info == 0
    b[5] = 1
    with pytest.warns(ConvergenceWarning):
        result = solve(GpuSparseMatrix(T, device=real_device), b)
    assert result.info != 0
    assert_true(T, result, b)


# -------------------------------------------------------------------------------------------------- least squares


@pytest.mark.parametrize("shape", [(90, 40), (40, 90)], ids=str)
@pytest.mark.parametrize("dtype", ["float64", "complex128"])
@pytest.mark.parametrize("is_small", [True, False], ids=["factorized", "iterative"])
def test_a_rectangular_system_is_solved_by_least_squares(
    device: Device, monkeypatch: pytest.MonkeyPatch, shape: tuple[int, int], dtype: str, is_small: bool
) -> None:
    if not is_small:
        monkeypatch.setattr(plan, "DIRECT_SIZE", 0)
    S = rectangular(*shape, dtype)
    b = random_values(np.random.default_rng(0), (shape[0], 2), S.dtype)
    result = solve(GpuSparseMatrix(S, device=device), b)
    assert result.info == 0
    assert result.method == ("direct" if is_small else "lsmr")
    expected = np.linalg.lstsq(S.toarray(), b)[0]
    np.testing.assert_allclose(result.x, expected, rtol=0, atol=1e-5 * abs(expected).max())
    assert_true(S, result, b)


@pytest.mark.parametrize("shape", [(90, 40), (40, 90), (60, 60)], ids=str)
@pytest.mark.parametrize("dtype", ["float64", "complex128", "int64"])
@pytest.mark.parametrize("is_small", [True, False], ids=["factorized", "iterative"])
def test_a_damped_solution_minimizes_the_sum(
    device: Device, monkeypatch: pytest.MonkeyPatch, shape: tuple[int, int], dtype: str, is_small: bool
) -> None:
    if not is_small:
        monkeypatch.setattr(plan, "DIRECT_SIZE", 0)
    S = (rectangular(*shape, "complex128" if dtype == "complex128" else "float64") * 3).astype(dtype)
    b = random_values(np.random.default_rng(0), (shape[0], 2), np.result_type(S.dtype, np.float64))
    result = solve(GpuSparseMatrix(S, device=device), b, damp=2.0)
    assert (result.info, result.method) == (0, "direct" if is_small else "lsmr")
    assert "damp" in result.reason
    dense = S.toarray()
    expected = np.linalg.solve(dense.conj().T @ dense + 4.0 * np.eye(shape[1]), dense.conj().T @ b)
    np.testing.assert_allclose(result.x, expected, rtol=0, atol=1e-6 * abs(expected).max())
    own = np.linalg.norm(b - dense @ result.x, axis=0) / np.linalg.norm(b, axis=0)
    np.testing.assert_allclose(result.relative_residual, own, rtol=1e-10)


def test_damping_has_the_dtype_of_the_matrix_and_begins_at_x0(monkeypatch: pytest.MonkeyPatch) -> None:
    S = rectangular(900, 300, "float32")
    b = random_values(np.random.default_rng(0), (900,), S.dtype)
    x = solve(S, b, damp=1.0).x
    assert x.dtype == np.float32
    monkeypatch.setattr(plan, "DIRECT_SIZE", 0)
    again = solve(GpuSparseMatrix(S, device="cpu"), b, damp=1.0, x0=x)
    assert again.iterations <= 2
    np.testing.assert_allclose(again.x, x, rtol=0, atol=1e-5)


@pytest.mark.usefixtures("iterative")
def test_a_least_squares_solution_is_not_sought_again_from_itself() -> None:
    S, rng = rectangular(900, 300), np.random.default_rng(0)
    b = S @ rng.standard_normal(300) + 0.01 * rng.standard_normal(900)
    result = solve(GpuSparseMatrix(S, device="cpu"), b)
    assert result.info == 0
    assert len(result.residuals) == result.iterations + 1  # those of one run, which begins with x = 0
    assert result.residuals[0] == pytest.approx(np.linalg.norm(b))


@pytest.mark.parametrize("shape", [(900, 700), (700, 900)], ids=str)
def test_a_large_least_squares_problem_may_be_factorized(shape: tuple[int, int]) -> None:
    S = rectangular(*shape)
    b = random_values(np.random.default_rng(0), (shape[0], 1), S.dtype)
    found, expected = attempts.solve_directly(S, b), np.linalg.lstsq(S.toarray(), b)[0]
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-9 * abs(expected).max())


# ------------------------------------------------------------------------------------------------- failures and limits


@pytest.mark.usefixtures("iterative")
def test_a_solution_that_has_not_converged_comes_with_a_warning(device: Device) -> None:
    S, b = laplacian(20), right_hand_side(laplacian(20))
    with pytest.warns(ConvergenceWarning, match="no method reached rtol=1.0e-14"):
        result = solve(GpuSparseMatrix(S, device=device), b, rtol=1e-14, maxiter=2)
    assert result.info > 0
    assert result.advice
    assert len(result.attempts) > 3
    assert_true(S, result, b)
    assert result.relative_residual < 1  # the best solution of all attempts


@pytest.mark.parametrize("make", [laplacian, indefinite, convection])
@pytest.mark.usefixtures("iterative")
def test_no_method_iterates_with_a_maxiter_of_zero(real_device: Device, make: Any) -> None:
    S, guess = make(12), np.full(144, 0.5)
    with pytest.warns(ConvergenceWarning):
        result = solve(GpuSparseMatrix(S, device=real_device), right_hand_side(S), x0=guess, maxiter=0)
    assert result.info == 1
    assert not any(attempt.iterations for attempt in result.attempts)
    np.testing.assert_array_equal(result.x, guess)


@pytest.mark.parametrize("stored", [np.float64, np.float32, int])
@pytest.mark.usefixtures("iterative")
def test_only_matrices_in_single_precision_are_solved_by_corrections(
    real_device: Device, stored: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    S, original, seen = laplacian(12).astype(stored), attempts._run, []

    def run(*args: Any) -> Any:
        seen.append(args[-1].get("inner_dtype"))
        return original(*args)

    monkeypatch.setattr(attempts, "_run", run)
    assert solve(GpuSparseMatrix(S, device=real_device), right_hand_side(S).astype(complex)).info == 0
    assert seen and all((inner is not None) == (stored == np.float32) for inner in seen)


@pytest.mark.usefixtures("iterative")
def test_the_next_method_follows_where_one_does_not_exist(real_device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    S, b = laplacian(12), right_hand_side(laplacian(12))
    A = GpuSparseMatrix(S, device=real_device)

    def impossible(name: str, *args: Any) -> Any:
        if name == "amg":
            raise ImportError("amg is missing")
        return make_preconditioner(name, *args)

    monkeypatch.setattr("gsparse.linalg.automatic.attempts.make_preconditioner", impossible)
    result = solve(A, b)
    assert [attempt.method for attempt in result.attempts] == ["cg with amg", "cg with ic0"]
    assert result.attempts[0].outcome == "impossible: amg is missing"
    assert result.info == 0


@pytest.mark.parametrize("size", [5, 30])
def test_superlu_solves_where_the_library_of_the_gpu_fails(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: Any) -> Any:
        raise SingularMatrixError("a pivot is zero")

    first = FactorLibrary("first", "the first", False, lambda device, kind: "", fail)
    monkeypatch.setattr(factorization, "LIBRARIES", {"first": first, **LIBRARIES})
    monkeypatch.setattr(attempts, "_SMALL", 100)
    S = convection(size)
    A, b = GpuSparseMatrix(S, device="cpu"), right_hand_side(S, 2)
    assert np.linalg.norm(b - S @ attempts.solve_directly(A, b)) <= 1e-12 * np.linalg.norm(b)
    if size == 30:
        monkeypatch.setattr(attempts, "_MAX_OPERATIONS", 0)
        with pytest.raises(FactorizationError, match="more than a minute"):
            attempts.solve_directly(A, b)


@pytest.mark.usefixtures("iterative")
def test_an_indefinite_matrix_with_a_positive_diagonal_is_solved(real_device: Device) -> None:
    S = sp.csr_array(laplacian(16) - 1.3 * sp.eye_array(256))  # its diagonal is positive
    b = S @ right_hand_side(S)
    result = solve(GpuSparseMatrix(S, device=real_device), b)
    assert result.info == 0
    assert_true(S, result, b)


@pytest.mark.parametrize("damp", [-1.0, np.nan, np.inf])
def test_damping_that_means_nothing_is_refused(damp: float) -> None:
    with pytest.raises(ValueError, match="damp must be"):
        solve(sp.eye_array(3), np.ones(3), damp=damp)


def test_an_operator_cannot_be_damped() -> None:
    with pytest.raises(TypeError, match="lsmr"):
        solve(la.LinearOperator((3, 3), matvec=lambda x: x), np.ones(3), damp=1.0)


def test_bad_input_is_refused(real_device: Device) -> None:
    S, b = laplacian(5), np.ones(25)
    A = GpuSparseMatrix(S, device=real_device)
    with pytest.raises(ValueError, match="solve needs finite values: b hold"):
        solve(A, np.where(np.arange(25) == 3, np.nan, b))
    with pytest.raises(ValueError, match="solve needs finite values: A hold"):
        solve(A.with_data(np.full(S.nnz, np.inf)), b)
    with pytest.raises(ValueError, match="rtol must be at least 0 and less than 1, got 2"):
        solve(A, b, rtol=2)
    with pytest.raises(ShapeError, match="incompatible dimensions"):
        solve(A, np.ones(24))
    distributed = type("Distributed", (), {"__gsparse_call__": None})()
    with pytest.raises(TypeError, match="on one device"):
        solve(distributed, b)


def test_extremes_of_size_are_solved(real_device: Device) -> None:
    assert solve(sp.csr_array((0, 0)), np.zeros(0)).x.shape == (0,)
    assert solve(GpuSparseMatrix(sp.csr_array([[4.0]]), device=real_device), np.array([2.0])).x.tolist() == [0.5]
    result = solve(GpuSparseMatrix(laplacian(5), device=real_device), np.zeros(25))
    assert (result.info, result.x.any()) == (0, False)


def test_an_initial_guess_is_used(real_device: Device) -> None:
    S = laplacian(50)
    expected = right_hand_side(S)
    result = solve(GpuSparseMatrix(S, device=real_device), S @ expected, x0=expected)
    assert (result.info, result.iterations) == (0, 0)
    np.testing.assert_array_equal(result.x, expected)


def test_a_factorization_that_would_take_too_long_is_refused() -> None:
    rng = np.random.default_rng(0)
    S = sp.csr_array(sp.random_array((12_000, 12_000), density=5e-4, rng=rng) + 9 * sp.eye_array(12_000))
    with pytest.raises(FactorizationError, match="more than a minute"):
        attempts.solve_directly(S, np.ones((12_000, 1)))


# ---------------------------------------------------------------------------------------------------- the choice


def properties(device: Device, S: Any) -> MatrixProperties:
    with SquareMatrix.of(GpuSparseMatrix(sp.csr_array(S), device=device), "test") as matrix:
        return examine(matrix)


def test_properties_are_those_of_the_matrix(device: Device) -> None:
    found = properties(device, laplacian(7))
    assert (found.is_hermitian, found.has_positive_diagonal, found.is_dominant, found.is_m_matrix) == 4 * (True,)
    assert (found.has_constant_null_space, found.num_zero_diagonal, found.block_size) == (False, 0, 1)
    assert properties(device, neumann(7)).has_constant_null_space
    assert properties(device, strongly_dominant(7)).is_strongly_dominant
    assert properties(device, saddle_point(6)).num_zero_diagonal == 6
    assert not properties(device, convection(7)).is_hermitian
    assert not properties(device, abs(convection(7))).is_m_matrix
    assert properties(device, -laplacian(7)).has_positive_diagonal is False


@pytest.mark.parametrize("size", [2, 3, 6])
def test_the_unknowns_of_a_node_are_found(device: Device, size: int) -> None:
    block = np.random.default_rng(0).random((size, size)) + 1
    assert properties(device, sp.kron(laplacian(5), block)).block_size == size
    assert properties(device, sp.kron(sp.eye_array(5), block)).block_size in (1, size)


@pytest.mark.parametrize("size", [2, 3])
def test_the_unknowns_of_a_node_are_found_although_zeros_were_dropped(device: Device, size: int) -> None:
    rng = np.random.default_rng(0)
    S = sp.csr_array(sp.kron(laplacian(12), rng.random((size, size)) + 1))
    S.data[rng.random(S.nnz) < 0.2] = 0
    S.eliminate_zeros()
    assert properties(device, S).block_size == size


@pytest.mark.parametrize(
    "S",
    [
        pytest.param(sp.diags_array(np.ones(13), offsets=np.arange(-6, 7), shape=(600, 600)), id="band"),
        pytest.param(sp.diags_array([1.0, -4.0, 6.0, -4.0, 1.0], offsets=range(-2, 3), shape=(600, 600)), id="plate"),
        pytest.param(sp.kron(laplacian(5), np.ones((5, 5))), id="blocks of another size"),
        pytest.param(abs(laplacian(24)) @ abs(laplacian(24)), id="scalar problem with wide rows"),
    ],
)
def test_neighbouring_rows_that_are_alike_are_no_unknowns_of_a_node(device: Device, S: Any) -> None:
    assert properties(device, S).block_size == 1


def test_a_solve_of_elasticity_uses_the_unknowns_of_a_node_without_zeros(real_device: Device) -> None:
    pyamg = pytest.importorskip("pyamg", reason="needs PyAMG")
    K, _ = pyamg.gallery.linear_elasticity((40, 40), format="bsr")
    S = sp.csr_array(K)
    S.data[abs(S.data) < 1e-10 * abs(S.data).max()] = 0
    S.eliminate_zeros()
    assert GpuSparseMatrix(S, device="cpu").block_shape == (1, 1)
    result = solve(GpuSparseMatrix(S, device=real_device), np.ones(S.shape[0]))
    A = GpuSparseMatrix(S, device=real_device)
    alone = cg(A, np.ones(S.shape[0]), M=amg(A), rtol=1e-8, full_output=True)
    assert result.info == 0
    assert result.iterations < 0.7 * alone.iterations


def test_the_choice_is_a_function_of_the_properties() -> None:
    base = MatrixProperties(10_000, 10_000, 50_000, np.dtype(float))
    chains = {
        "definite": MatrixProperties(**{**vars(base), "is_hermitian": True, "has_positive_diagonal": True}),
        "indefinite": MatrixProperties(**{**vars(base), "is_hermitian": True}),
        "nonsymmetric": base,
    }
    for found in chains.values():
        names = [candidate.name for candidate in methods_for(found)]
        assert len(names) == len(set(names))
        assert "direct" in names[1:]
        assert names[-1] == "lsmr with column_norms"
        small = MatrixProperties(**{**vars(found), "num_rows": 100, "num_cols": 100})
        assert methods_for(small)[0].name == "direct"
        singular = MatrixProperties(**{**vars(small), "has_constant_null_space": True})
        assert methods_for(singular)[0].name != "direct"


# ------------------------------------------------------------------------------------------- matrices from applications


@pytest.mark.whole
@pytest.mark.timeout(1200)
@pytest.mark.filterwarnings("ignore::gsparse.errors.ConvergenceWarning")
def test_application_matrices_are_solved_or_said_not_to_be(real_device: Device) -> None:
    lines, solved, tried = [], 0, 0
    for path in sorted(matrix_folder().glob("*.npz")):
        S = sp.csr_array(sp.load_npz(path))
        if S.shape[0] != S.shape[1] or S.shape[0] >= 50_000:
            continue
        S = S.astype(float) if S.dtype.kind in "biu" else S
        x = np.random.default_rng(0).standard_normal(S.shape[0])
        b = S @ x
        result = solve(GpuSparseMatrix(S, device=real_device), b)
        true = np.linalg.norm(b - S @ host(result.x)) / np.linalg.norm(b)
        np.testing.assert_allclose(result.relative_residual, true, rtol=1e-3, atol=1e-13)
        assert (result.info == 0) == (true <= 1e-8)
        solved, tried = solved + (result.info == 0), tried + 1
        lines.append(
            f"{path.stem:24} {S.shape[0]:6} {'' if result.info else 'solved':7} {true:.1e} {result.attempts[-1].method}"
        )
    print("\n".join([*lines, f"{solved} of {tried} solved to 1e-8"]))
    assert tried == 44
    assert solved >= 34  # the others are adjacency matrices of graphs, which are singular


@pytest.mark.parametrize("dtype", [np.int8, np.int32, np.int64])
def test_least_squares_of_a_matrix_of_integers_are_solved(device: Device, dtype: Any) -> None:
    S = sp.csr_array((sp.random_array((40, 20), density=0.2, rng=0) * 10 + 5 * sp.eye_array(40, 20)).astype(dtype))
    b = np.arange(40.0)
    x = solve(GpuSparseMatrix(S, device=device), b).x
    assert np.linalg.norm(S.T @ (S @ x - b)) < 1e-6 * np.linalg.norm(S.T @ b)
