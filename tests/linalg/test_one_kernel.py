"""Iterations as one kernel compute the same as the steps of the method, one after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from gsparse import GpuSparseMatrix
from gsparse.device.base import Device
from gsparse.formats import Csr
from gsparse.kernels.gpu import steps
from gsparse.kernels.steps import Multiplication, Program, Step
from gsparse.linalg import bicgstab, cg, chebyshev, jacobi
from gsparse.linalg.krylov import solve_loop
from tests.conftest import make_device
from tests.proof.emulated_device import LANES, DeviceWithBlocksTogether, EmulatedDevice
from tests.proof.kernel_usage import ITERATIONS, operations_of
from tests.support import DTYPES, random_values


@pytest.fixture(params=[f"emulated:{lanes}" for lanes in LANES])
def device(request: pytest.FixtureRequest) -> DeviceWithBlocksTogether:
    return DeviceWithBlocksTogether(int(request.param.partition(":")[2]))


@pytest.fixture(autouse=True)
def two_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let two blocks share a matrix of a hundred rows."""
    monkeypatch.setattr(steps, "_ROWS_PER_BLOCK", ((20, 20), (np.inf, 1)))


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """Collect what `bind_one_kernel` returns for each solve: None if the solve runs the steps one after the other."""
    bound: list[Any] = []
    plain = solve_loop.bind_one_kernel

    def recorded(*args: Any) -> Any:
        bound.append(plain(*args))
        return bound[-1]

    monkeypatch.setattr(solve_loop, "bind_one_kernel", recorded)
    return bound


def single(A: Any, b: Any, **options: Any) -> Any:
    """Solve by conjugate gradients with one sum per iteration."""
    return cg(A, b, single_reduction=True, **options)


def system(rng: np.random.Generator, num_rows: int, dtype: Any, *, hermitian: bool = True) -> tuple[sp.csr_array, Any]:
    S = sp.random_array((num_rows, num_rows), density=min(4 / num_rows, 1.0), rng=rng, format="csr")
    S.data = random_values(rng, S.data.size, np.dtype(dtype))
    S = S + S.conj().T if hermitian else S
    S = sp.csr_array(S + sp.diags_array(np.asarray(abs(S).sum(axis=1)).ravel() + 1)).astype(dtype)
    return S, random_values(rng, num_rows, np.dtype(dtype))


def solve_both(solve: Callable[..., Any], device: Device, S: Any, b: Any, **options: Any) -> tuple[Any, Any]:
    """Solve with one kernel, and with the steps one after the other."""
    make = options.pop("precondition", None)
    results = []
    for home in (device, EmulatedDevice(device.lanes)):
        A = GpuSparseMatrix(S, device=home)
        results.append(solve(A, b, M=make and make(A), full_output=True, **options))
    return results[0], results[1]


def assert_alike(first: Any, second: Any, rtol: float = 1e-2) -> None:
    """Compare results, and the residuals of the first iterations, before rounding errors have grown."""
    assert first.info == second.info
    assert first.reason == second.reason
    assert abs(first.iterations - second.iterations) <= 2
    short = slice(min(first.iterations, second.iterations) // 2 + 1)
    np.testing.assert_allclose(first.residuals[short], second.residuals[short], rtol=rtol, equal_nan=True)


def assert_kernel_was_bound(launched: list[Any], iterates: bool = True) -> None:
    """Check that only the first of two solves ran as one kernel, or neither if they make no iteration."""
    assert [kernel is not None for kernel in launched] == ([True, False] if iterates else [])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("precondition", [None, jacobi])
@pytest.mark.parametrize("solve", [cg, single, bicgstab])
@pytest.mark.few(6)
def test_the_residuals_are_those_of_the_steps(device, solve, precondition, dtype, rng, launched):
    S, b = system(rng, 131, dtype, hermitian=solve is not bicgstab)
    rtol = 100 * float(np.finfo(dtype).eps)
    result, expected = solve_both(solve, device, S, b, precondition=precondition, rtol=rtol)
    assert_alike(result, expected)
    assert result.info == 0
    assert launched[0] is not None
    residual = np.linalg.norm(b - S @ result.x) / np.linalg.norm(b)
    assert residual <= 10 * rtol


@pytest.mark.parametrize("precondition", [None, jacobi])
def test_chebyshev_runs_as_one_kernel(device, precondition, rng, launched):
    S, b = system(rng, 90, np.float64)
    eigenvalues = np.linalg.eigvalsh(S.toarray())
    bounds = (eigenvalues[0], eigenvalues[-1]) if precondition is None else (0.1, 2.0)
    assert_alike(*solve_both(chebyshev, device, S, b, precondition=precondition, bounds=bounds, rtol=1e-9))
    assert launched[0] is not None


@pytest.mark.parametrize("solve", [cg, single, bicgstab])
@pytest.mark.parametrize("options", [{"maxiter": 0}, {"maxiter": 1}, {"maxiter": 5}, {"x0": True}], ids=str)
@pytest.mark.few(4)
def test_a_solve_stops_where_the_steps_stop(device, solve, options, rng, launched):
    S, b = system(rng, 70, np.float64)
    if "x0" in options:
        options = {"x0": rng.standard_normal(70)}
    assert_alike(*solve_both(solve, device, S, b, rtol=1e-9, **options), rtol=1e-6)
    assert_kernel_was_bound(launched, options.get("maxiter") != 0)


@pytest.mark.parametrize("solve", [cg, single, bicgstab])
@pytest.mark.parametrize("what", ["indefinite", "zero b", "NaN in b", "inf in A", "zero A"])
@pytest.mark.few(4)
def test_breakdowns_are_those_of_the_steps(device, solve, what, rng, launched):
    S, b = system(rng, 70, np.float64)
    if what == "indefinite":
        S = sp.csr_array(S - 3 * sp.eye_array(70))
    elif what == "zero b":
        b[:] = 0
    elif what == "NaN in b":
        b[33] = np.nan
    elif what == "inf in A":
        S.data[50] = np.inf
    else:
        S.data[:] = 0
    result, expected = solve_both(solve, device, S, b, rtol=1e-9, maxiter=40)
    assert (result.info, result.reason) == (expected.info, expected.reason)
    assert result.advice == expected.advice
    if launched or expected.iterations or what == "indefinite":  # the other breakdowns may precede the first iteration
        assert_kernel_was_bound(launched)


@pytest.mark.parametrize("index_dtype", [np.int32, np.int64])
@pytest.mark.parametrize("num_rows", [1, 2, 21, 64, 257])
@pytest.mark.few(4)
def test_structures_that_hurt_are_solved_as_by_the_steps(device, num_rows, index_dtype, rng, launched):
    """Empty rows, unsorted and repeated entries, and rows of up to 32 entries."""
    rows = rng.integers(0, num_rows, 3 * num_rows)
    rows = np.concatenate([rows[rows % 7 != 3], np.full(min(num_rows, 20), num_rows // 2)])
    columns, values = rng.integers(0, num_rows, rows.size), rng.standard_normal(rows.size)
    order = np.argsort(rows, kind="stable")
    indptr = np.searchsorted(rows[order], np.arange(num_rows + 1))
    arrays = values[order], columns[order].astype(index_dtype), indptr.astype(index_dtype)
    if np.diff(indptr).max() > 32:
        pytest.skip("rows are too long for the kernel")
    S = sp.csr_array(arrays, shape=(num_rows, num_rows))
    b = rng.standard_normal(num_rows)
    result, expected = solve_both(bicgstab, device, S, b, rtol=0.0, maxiter=2)
    np.testing.assert_allclose(result.residuals, expected.residuals, rtol=1e-8, atol=1e-12)
    assert result.reason == expected.reason or min(expected.residuals) < 1e-12
    assert_kernel_was_bound(launched)


def test_the_proofs_compile_the_kernels_that_solvers_use(device, rng, monkeypatch):
    S, b = system(rng, 60, np.float64)
    bound = {}

    def record(
        device: Device, program: Program, operations: tuple[Step | Multiplication, ...], csr: Csr, *rest: Any
    ) -> None:
        bound[program.name] = program, operations

    monkeypatch.setattr(steps, "bind_iterations", record)
    A = GpuSparseMatrix(S, device=device)
    for solve, options in ((cg, {}), (single, {}), (bicgstab, {}), (chebyshev, {"bounds": (1.0, 20.0)})):
        solve(A, b, maxiter=2, full_output=True, **options)
    assert bound.keys() == ITERATIONS.keys()
    for program, operations in bound.values():
        assert operations == operations_of(program)


# ---------------------------------------------------------------------------- on a GPU


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("num_rows", [1, 33, 1024, 1025, 8000, 40001, 130000])
@pytest.mark.parametrize("solve", [cg, single, bicgstab])
def test_a_gpu_computes_the_same(solve, num_rows, dtype, rng, monkeypatch):
    monkeypatch.undo()
    gpu = make_device("gpu")
    S, b = system(rng, num_rows, dtype, hermitian=solve is not bicgstab)
    rtol, results = 100 * float(np.finfo(dtype).eps), []
    for together in (True, False):
        monkeypatch.setattr(gpu, "runs_blocks_together", together)
        results.append(solve(GpuSparseMatrix(S, device=gpu), b, rtol=rtol, full_output=True))
    assert_alike(*results)
    assert np.linalg.norm(b - S @ results[0].x) <= 10 * rtol * np.linalg.norm(b)


@pytest.mark.gpu
def test_a_gpu_never_waits_for_ever(rng, monkeypatch):
    """Solves of many sizes, whose kernels reuse each other's memory, give the same bits each time."""
    monkeypatch.undo()
    gpu = make_device("gpu")
    for num_rows in (500, 3000, 20000, 60000):
        S, b = system(rng, num_rows, np.float64)
        A = GpuSparseMatrix(S, device=gpu)
        x = [cg(A, b, rtol=1e-10, full_output=True).x for _ in range(50)]
        assert all(np.array_equal(x[0], other) for other in x)
