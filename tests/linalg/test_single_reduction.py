"""`cg(..., single_reduction=True)` returns what `cg` returns, with one sum over all ranks per iteration."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

import gsparse
from gsparse.device.base import Device
from gsparse.distributed import RankMatrix, RowPartition, SingleCommunicator
from gsparse.linalg import SolveResult, cg, jacobi
from tests.linalg.problems import (
    jumping_coefficients,
    laplacian,
    matrix,
    poisson,
    residual,
    right_hand_side,
)
from tests.support import on_device

S = laplacian(7)
B = right_hand_side(S)


def solve(A: Any, b: Any, *args: Any, **options: Any) -> SolveResult:
    result: SolveResult = cg(A, b, *args, single_reduction=True, full_output=True, **options)
    return result


def solve_both(A: Any, b: Any, **options: Any) -> tuple[SolveResult, SolveResult]:
    """Return the result of plain conjugate gradients, and that with a single reduction."""
    return cg(A, b, full_output=True, **options), solve(A, b, **options)


def test_it_refines_solutions_in_mixed_precision(real_device: Device) -> None:
    plain, result = solve_both(matrix(real_device, S), B, rtol=1e-10, inner_dtype="float32")
    assert result.info == 0
    assert abs(result.iterations - plain.iterations) <= 3
    assert residual(S, result.x, B) < 1e-10


@pytest.mark.parametrize("rtol", [0.0, 1e-300])
@pytest.mark.parametrize("scale", [1.0, 1e-140])
@pytest.mark.parametrize("single_reduction", [False, True])
def test_a_definite_matrix_is_not_called_indefinite_after_the_residual_has_become_rounding_error(
    rtol: float, scale: float, single_reduction: bool
) -> None:
    """The residual shrinks until its square underflows; which scalar becomes zero first is a matter of roundings."""
    eigenvalues = sp.csr_array(sp.diags_array(np.linspace(1e-2, 1, 60)))
    A, b = matrix(gsparse.device.get_device("cpu"), eigenvalues), np.full(60, scale)
    result = cg(A, b, rtol=rtol, maxiter=3000, single_reduction=single_reduction, full_output=True)
    assert "positive definite" not in result.advice
    assert result.info == 0 or "rounding error" in result.advice
    assert np.isfinite(result.x).all()
    assert result.relative_residual < 1e-13


# ------------------------------------------------------------------------------------------------------------ rounding


@pytest.mark.parametrize("M", [None, jacobi])
@pytest.mark.parametrize(
    "T", [poisson(32), jumping_coefficients(12, 1e6), jumping_coefficients(12, 1e9)], ids=["poisson", "1e6", "1e9"]
)
def test_it_takes_few_more_iterations_than_plain_conjugate_gradients(T: sp.csr_array, M: Any) -> None:
    if M is None and T.max() > 1e8:
        pytest.skip("rounding alone changes the number of iterations by more")
    A = gsparse.GpuSparseMatrix(T, device="cpu")
    plain, result = solve_both(A, right_hand_side(T), rtol=1e-8, M=M and M(A))
    assert (plain.info, result.info) == (0, 0)
    # Without a preconditioner, rounding changes the number of iterations, and differs between processors.
    assert abs(result.iterations - plain.iterations) <= (0.15 if M is None else 0.04) * plain.iterations
    assert result.relative_residual < 1.5e-8


@pytest.mark.parametrize("condition", [1e4, 1e8, 1e10])
@pytest.mark.parametrize("smooth", [True, False])
def test_ill_conditioned_systems_are_solved_as_accurately_as_without_it(condition: float, smooth: bool) -> None:
    rng = np.random.default_rng(0)
    Q = np.linalg.qr(rng.standard_normal((200, 200)))[0]
    T = (Q * np.linspace(1 / condition, 1, 200)) @ Q.T
    T = sp.csr_array((T + T.T) / 2)
    b = T @ np.ones(200) if smooth else np.ones(200)
    plain, result = solve_both(gsparse.GpuSparseMatrix(T, device="cpu"), b, rtol=1e-10)
    # Without smoothness, x is so large that neither reaches the tolerance.
    is_solved = condition < 1e6 or smooth
    assert (plain.info == 0) == (result.info == 0) == (plain.relative_residual <= 1e-9) == is_solved
    assert result.relative_residual <= 3 * max(plain.relative_residual, 1e-10)


@pytest.mark.parametrize(("dtype", "rtol", "lost"), [("float64", 1e-12, 4e-11), ("float32", 1e-5, 2e-2)])
def test_the_true_residual_replaces_one_that_rounding_has_made_too_small(
    dtype: str, rtol: float, lost: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The figures are those of the docstring of `cg`."""
    T = jumping_coefficients(12, 1e6).astype(dtype)
    A, b = gsparse.GpuSparseMatrix(T, device="cpu"), right_hand_side(T)
    result = solve(A, b, rtol=rtol)
    assert result.info == 0
    assert result.residuals.size == result.iterations + 1
    assert result.relative_residual <= 1.01 * rtol
    assert A.stats.products >= result.iterations
    monkeypatch.setattr("gsparse.linalg.krylov.single_reduction._confirm", lambda *args: None)
    without = solve(A, b, rtol=rtol)
    assert without.residuals[-1] <= rtol * np.linalg.norm(b)
    assert lost / 2 <= without.relative_residual <= 2 * lost
    assert without.iterations < result.iterations <= 1.3 * without.iterations


def test_only_right_hand_sides_whose_residual_is_wrong_go_on(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """The residual of the second column is right, because its solution is smooth."""
    T = jumping_coefficients(6, 1e6)
    A, b = matrix(device, T), right_hand_side(T, 2)
    b[:, 1] = T @ np.ones(T.shape[0])
    result = solve(A, b, rtol=1e-13)
    alone = [solve(A, b[:, j], rtol=1e-13) for j in range(2)]
    monkeypatch.setattr("gsparse.linalg.krylov.single_reduction._confirm", lambda *args: None)
    assert solve(A, b, rtol=1e-13).iterations < result.iterations
    assert result.info == 0
    for j in range(2):
        assert np.isfinite(result.residuals[:, j]).sum() == pytest.approx(alone[j].iterations + 1, abs=3)
        assert residual(T, result.x[:, j], b[:, j]) < 2e-12


# ----------------------------------------------------------------------------------------------------- sums over ranks


class CountingCommunicator(SingleCommunicator):
    """Communicator of a single rank that counts its sums, which leave the device as if there were other ranks."""

    def __init__(self) -> None:
        self.calls = 0

    def allreduce(self, values: Any) -> None:
        self.calls += 1


@pytest.mark.parametrize("columns", [None, 2])
@pytest.mark.parametrize(("M", "plain_sums"), [(None, 2), (jacobi, 3)])
def test_an_iteration_has_one_sum_over_all_ranks(device: Device, M: Any, plain_sums: int, columns: int | None) -> None:
    T = laplacian(9)
    rows, communicator = RowPartition((0, T.shape[0])), CountingCommunicator()
    A = RankMatrix(T, rows, rows, communicator, device=device)
    A.split()  # so that the first solve has no sums for the halo
    preconditioner, b = M and M(A.diagonal), on_device(device, right_hand_side(T, columns))

    def sums(single_reduction: bool) -> float:
        counts = []
        for maxiter in (4, 14):
            before = communicator.calls
            result = cg(A, b, M=preconditioner, rtol=0, maxiter=maxiter, callback=lambda x: None,
                        single_reduction=single_reduction, full_output=True)  # fmt: skip
            assert result.iterations == maxiter
            counts.append(communicator.calls - before)
        return (counts[1] - counts[0]) / 10

    assert sums(single_reduction=True) == 1
    assert sums(single_reduction=False) == plain_sums


def test_a_profile_has_rows_for_its_steps(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    if device.kind != "cpu":
        monkeypatch.setitem(device.__dict__, "runs_blocks_together", False)
    A = matrix(device, S)
    with gsparse.profile() as p:
        result = solve(A, B, M=jacobi(A))
    calls = {row.name: row.calls for row in p.rows() if row.kind == "step"}
    for name in ("preconditioned_weigh", "preconditioned_advance"):
        assert calls[f"cg_single_reduction: {name}"] >= result.iterations
