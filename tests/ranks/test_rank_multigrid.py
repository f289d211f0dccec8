"""Multigrid over ranks: iterations near those of one rank, the same bits in every run, updates, and errors."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from asv_bench.elliptic_problems import checkerboard, convection_diffusion, diffusion, elasticity, poisson
from gsparse import GpuSparseMatrix
from gsparse.device.base import Device
from gsparse.distributed import Communicator, RankMatrix, RowPartition, run_ranks
from gsparse.distributed.ranks import rank_levels
from gsparse.distributed.ranks.communicator import StagedCommunicator
from gsparse.errors import CoarseningWarning, FactorizationError, ShapeError, StructureError
from gsparse.linalg import amg, bicgstab, cg, gmres, rigid_body_modes
from tests.proof.emulated_device import EmulatedDevice
from tests.ranks.groups import run_sockets
from tests.support import on_device

RTOL = 1e-8


def problem(name: str) -> tuple[sp.csr_array, int, dict[str, Any]]:
    """Return a matrix, its block size, and further arguments of `amg`."""
    if name == "poisson":
        return poisson(18, 7), 1, {}
    if name == "jumps":
        return diffusion(checkerboard(16, 3, 4)), 1, {}
    if name == "anisotropic":
        return diffusion(np.ones((30, 30)), (1.0, 1e-3)), 1, {}
    if name == "elasticity":
        S, coordinates = elasticity((8, 5, 5))
        return S, 3, {"block_size": 3, "B": rigid_body_modes(coordinates)}
    if name == "complex":
        S = poisson(12, 7).astype(np.complex128)
        phases = sp.diags_array(np.exp(1j * np.arange(S.shape[0])))
        return sp.csr_array(phases @ S @ phases.conj()), 1, {"B": np.exp(1j * np.arange(S.shape[0]))}
    assert name == "convection"
    return convection_diffusion(40, 20.0), 1, {}


PROBLEMS = ["poisson", "jumps", "anisotropic", "elasticity", "complex", "convection"]


def blocks(size: int, world_size: int, block_size: int = 1) -> RowPartition:
    nodes = RowPartition.by_rows(size // block_size, world_size).row_bounds
    return RowPartition(tuple(block_size * bound for bound in nodes))


def solve(
    S: sp.csr_array,
    partition: RowPartition,
    device: Device,
    arguments: dict[str, Any],
    solver: Callable[..., Any] = cg,
    columns: int = 1,
    work: Callable[[RankMatrix, Any], Any] = lambda A, M: None,
) -> tuple[np.ndarray, int, list[Any]]:
    """Return the solution, the iterations, and what `work` returns on each rank."""
    b = np.random.default_rng(0).standard_normal((S.shape[0], columns)).astype(S.dtype)
    b = b[:, 0] if columns == 1 else b

    def on_rank(communicator: Communicator) -> Any:
        own = partition.rows(communicator.rank)
        parts = {name: value[own] if name in ("B", "BH") else value for name, value in arguments.items()}
        with device.active():
            A = RankMatrix(S[own.start : own.stop], partition, partition, communicator, device)
            M = amg(A, **parts)
            result = solver(A, on_device(device, b[own]), M=M, rtol=RTOL, full_output=True)
            return device.download(device.xp.asarray(result.x)), result, work(A, M)

    parts = run_ranks(on_rank, partition.world_size, timeout=1000.0)
    assert all(result.info == 0 for _, result, _ in parts)
    x = np.concatenate([part for part, *_ in parts])
    assert np.linalg.norm(b - S @ x) <= 10 * RTOL * np.linalg.norm(b)
    return x, parts[0][1].iterations, [more for *_, more in parts]


@pytest.fixture
def small_levels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Distribute also levels of a hundred rows."""
    monkeypatch.setattr(rank_levels, "_MAX_REPLICATED_ROWS", {"cpu": 60, "gpu": 60})
    monkeypatch.setattr(rank_levels, "_MIN_ROWS_PER_RANK", 30)


@pytest.mark.parametrize("name", PROBLEMS)
@pytest.mark.parametrize("world_size", [2, 4])
@pytest.mark.parametrize("distributes_all", [False, True])
@pytest.mark.few(6)
def test_iterations_are_within_two_of_those_of_one_rank(
    cpu: Device, name: str, world_size: int, distributes_all: bool, request: pytest.FixtureRequest
) -> None:
    if distributes_all:
        request.getfixturevalue("small_levels")
    S, block_size, arguments = problem(name)
    solver = gmres if name == "convection" else cg
    b = np.random.default_rng(0).standard_normal(S.shape[0]).astype(S.dtype)
    one = solver(GpuSparseMatrix(S, device=cpu), b, M=amg(GpuSparseMatrix(S, device=cpu), **arguments), rtol=RTOL,
                 full_output=True)  # fmt: skip
    partition = blocks(S.shape[0], world_size, block_size)
    _, iterations, _ = solve(S, partition, cpu, arguments, solver)
    assert iterations <= one.iterations + 2


@pytest.fixture
def cpu() -> Device:
    from gsparse.device.select import get_device

    return get_device("cpu")


@pytest.mark.parametrize(
    "arguments",
    [{"cycle": "W"}, {"dtype": "float32"}, {"smoother": "jacobi"}, {"smoother": "l1_jacobi"},
     {"smoother": "gauss_seidel"}, {"smoother": ("sor", {"omega": 1.2})}, {"smoother": "block_jacobi"},
     {"strength": "symmetric"}, {"strength": None}, {"symmetry": "nonsymmetric"}, {"symmetry": "symmetric"},
     {"max_levels": 2}],
    ids=str,
)  # fmt: skip
@pytest.mark.few(4)
def test_options_change_multigrid_and_need_iterations_as_on_one_device(
    cpu: Device, small_levels: None, arguments: dict[str, Any]
) -> None:
    S = poisson(14, 7)
    if arguments == {"symmetry": "symmetric"}:  # the default is "nonsymmetric" for this matrix
        S = sp.csr_array(S + 1e-9 * sp.triu(S, 1))

    def apply(A: RankMatrix, M: Any) -> tuple[Any, Any]:
        own = A.rows.rows(A.communicator.rank)
        return M.matvec(b[own]), amg(A).matvec(b[own])

    A, b = GpuSparseMatrix(S, device=cpu), np.random.default_rng(0).standard_normal(S.shape[0])
    solver = bicgstab if arguments.get("symmetry") == "nonsymmetric" else cg
    one = solver(A, b, M=amg(A, **arguments), rtol=RTOL, full_output=True)
    _, iterations, vectors = solve(S, blocks(S.shape[0], 3), cpu, arguments, solver, work=apply)
    assert iterations <= one.iterations + 3
    assert all((with_option != default).any() for with_option, default in vectors)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_several_right_hand_sides_have_the_solutions_of_their_columns(
    cpu: Device, small_levels: None, dtype: str
) -> None:
    S = poisson(12, 7).astype(dtype)
    partition, X = blocks(S.shape[0], 3), np.random.default_rng(0).standard_normal((S.shape[0], 4)).astype(dtype)

    def on_rank(communicator: Communicator) -> Any:
        own = partition.rows(communicator.rank)
        A = RankMatrix(S[own], partition, partition, communicator, cpu)
        M = amg(A)
        assert {level.operator.dtype for level in M.levels} == {np.dtype(dtype)}
        X_own, alone = S[own] @ X, [cg(A, S[own] @ x, M=M, rtol=1e-5)[0] for x in X.T]
        result = cg(A, X_own, M=M, rtol=1e-5, full_output=True)
        assert (result.info, result.x.dtype) == (0, np.dtype(dtype))
        np.testing.assert_allclose(result.x, np.stack(alone, axis=1), atol=1e-3)
        return result.x

    np.testing.assert_allclose(np.concatenate(run_ranks(on_rank, 3)), X, atol=1e-3)


def test_the_product_is_hermitian_and_its_adjoint_is_the_adjoint(cpu: Device, small_levels: None) -> None:
    """Products of all unit vectors give the matrix of the cycle, and those of the adjoint its conjugate transpose."""
    for S, symmetric in ((poisson(6, 7), True), (convection_diffusion(14, 5.0), False)):
        partition = blocks(S.shape[0], 3)
        eye = np.eye(S.shape[0])

        def multiply(communicator: Communicator, S: sp.csr_array = S, partition: RowPartition = partition) -> Any:
            own = partition.rows(communicator.rank)
            A = RankMatrix(S[own.start : own.stop], partition, partition, communicator, cpu)
            M = amg(A, max_coarse=10)
            return M.matmat(eye[own]), M.rmatmat(eye[own])

        plain, adjoint = (np.concatenate(parts) for parts in zip(*run_ranks(multiply, 3), strict=True))
        size = np.abs(plain).max()
        assert np.abs(plain.conj().T - adjoint).max() <= 1e-12 * size
        assert (np.abs(plain - plain.T).max() <= 1e-12 * size) == symmetric


@pytest.mark.parametrize("world_size", [2, 3])
def test_the_same_number_of_ranks_gives_the_same_bits(cpu: Device, small_levels: None, world_size: int) -> None:
    S = diffusion(checkerboard(12, 3, 4))
    first, second = (solve(S, blocks(S.shape[0], world_size), cpu, {})[0] for _ in range(2))
    assert np.array_equal(first, second)


@pytest.mark.parametrize("bounds", [(0, 0, 512, 512), (0, 512, 512, 512), (0, 0, 0, 512), (0, 1, 300, 512)], ids=str)
def test_ranks_may_have_few_rows_or_none(cpu: Device, small_levels: None, bounds: tuple[int, ...]) -> None:
    S = poisson(8, 7)
    for arguments in ({}, {"symmetry": "nonsymmetric"}):
        solver = gmres if arguments else cg
        _, iterations, _ = solve(S, RowPartition(bounds), cpu, arguments, solver)
        assert iterations < 20


def test_small_matrices_are_solved_and_those_that_cannot_be_coarsened_warn(
    cpu: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    for S in (poisson(3, 7), sp.eye_array(40, format="csr") * 3.0, sp.csr_array(np.array([[2.0]]))):
        _, iterations, _ = solve(sp.csr_array(S), blocks(S.shape[0], 3), cpu, {})
        assert iterations <= 3
    monkeypatch.setattr(rank_levels, "_MAX_REPLICATED_ROWS", {"cpu": 60, "gpu": 60})
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a diagonal matrix needs no coarser level
        solve(sp.csr_array(sp.diags_array(np.linspace(1, 2, 400))), blocks(400, 2), cpu, {})
    S = poisson(20, 5)
    with pytest.warns(CoarseningWarning, match="max_coarse does not let it be coarsened"):
        solve(S, blocks(S.shape[0], 2), cpu, {"max_coarse": 1000})
    with pytest.warns(CoarseningWarning, match="too few strong connections within the ranks"):
        _, _, sizes = solve(S, blocks(S.shape[0], 2), cpu, {"strength": ("symmetric", {"theta": 0.9})},
                            work=lambda A, M: M.sizes)  # fmt: skip
    assert sizes == [[(400, S.nnz)]] * 2


def test_all_ranks_say_that_a_smoother_diverges(cpu: Device) -> None:
    S = sp.csr_array(poisson(30, 5) + sp.diags_array([10.0], offsets=[1], shape=(900, 900)))
    partition = blocks(900, 3)

    def set_up(communicator: Communicator) -> str:
        A = RankMatrix(S[partition.rows(communicator.rank)], partition, partition, communicator, cpu)
        with pytest.raises(FactorizationError, match="the residual is not finite, because the smoother") as caught:
            amg(A)
        return str(caught.value)

    assert len(set(run_ranks(set_up, 3))) == 1


def test_levels_are_listed_for_all_ranks(cpu: Device, small_levels: None) -> None:
    S = poisson(16, 7)
    _, _, parts = solve(
        S, blocks(S.shape[0], 4), cpu, {}, work=lambda A, M: (M.sizes, str(M), repr(M), M.aggregates, M.nbytes)
    )
    sizes = parts[0][0]
    assert all(part[0] == sizes for part in parts)
    assert sizes[0] == (S.shape[0], S.nnz)
    assert all(coarse[0] < fine[0] for fine, coarse in pairwise(sizes))
    assert "Ranks:                 4" in parts[0][1]
    assert f"rows {S.shape[0]:,}" in parts[0][2]
    for _, _, _, aggregates, nbytes in parts:
        assert len(aggregates[0]) == S.shape[0] // 4
        assert nbytes > 0


@pytest.mark.parametrize(
    "arguments", [{"strength": None, "max_levels": 2}, {}], ids=["the same aggregates", "other aggregates"]
)
def test_an_update_makes_multigrid_of_the_new_values(
    cpu: Device, small_levels: None, arguments: dict[str, Any]
) -> None:
    S, b = poisson(12, 7), np.random.default_rng(0).standard_normal(12**3)
    partition = blocks(S.shape[0], 3)
    changed = sp.csr_array(S + sp.diags_array(np.linspace(0, 20, S.shape[0])))

    def on_rank(communicator: Communicator) -> Any:
        own = partition.rows(communicator.rank)
        A, B = (RankMatrix(part[own], partition, partition, communicator, cpu) for part in (S, changed))
        M, new = amg(A, **arguments), amg(B, **arguments)
        old = cg(B, b[own], M=M, rtol=RTOL, full_output=True).iterations
        assert M.update(B) is M
        other = S[own].copy()
        other[0, own.start] = 0
        other.eliminate_zeros()
        with pytest.raises(StructureError, match="use amg"):
            M.update(RankMatrix(other, partition, partition, communicator, cpu))
        if arguments:  # the aggregates follow from the structure
            np.testing.assert_array_equal(M.matvec(b[own]), new.matvec(b[own]))
        return old, *(cg(B, b[own], M=which, rtol=RTOL, full_output=True).iterations for which in (M, new))

    for before, updated, new in run_ranks(on_rank, 3):
        assert updated == new
        assert before > 4 * new


def test_errors_name_what_to_do(cpu: Device) -> None:
    S = poisson(6, 7)

    def on_rank(communicator: Communicator, matrix: sp.csr_array, columns: Any, arguments: dict[str, Any]) -> None:
        partition = RowPartition((0, 100, 216))
        own = partition.rows(communicator.rank)
        amg(RankMatrix(matrix[own], partition, columns or partition, communicator, cpu), **arguments)

    bad = S.copy()
    bad.data[500] = np.nan
    for matrix, columns, arguments, error, text in (
        (S, None, {"block_size": 3}, ShapeError, "multiples of 3"),
        (S, RowPartition((0, 90, 216)), {}, ShapeError, "distributed alike"),
        (bad, None, {}, FactorizationError, "row .* holds nan"),
        (S, None, {"B": np.ones(5)}, ShapeError, "a row for each"),
        (S, None, {"cycle": "F"}, ValueError, "cycle must be"),
        (S, None, {"BH": np.ones(100)}, ValueError, "BH is for nonsymmetric"),
        (S, None, {"surprise": 1}, TypeError, "surprise"),
    ):
        with pytest.raises(error, match=text):
            run_ranks(on_rank, 2, matrix, columns, arguments)


def test_multigrid_over_ranks_runs_on_each_device(real_device: Device, small_levels: None) -> None:
    for name in PROBLEMS:
        S, block_size, arguments = problem(name)
        solver = gmres if name == "convection" else cg
        expected = solve(S, blocks(S.shape[0], 1, block_size), real_device, arguments, solver)[1]
        first, second = (solve(S, blocks(S.shape[0], 2, block_size), real_device, arguments, solver) for _ in range(2))
        assert first[1] <= expected + 2
        assert np.array_equal(first[0], second[0])


class _LikeNccl(StagedCommunicator):
    """A communicator that, like NCCL's, exchanges nothing if a rank has no arrays, and has another one for the host."""

    def on(self, device: Device) -> Communicator:
        return self._host_communicator if device.is_host else self

    def exchange(self, sends: Any, receives: Any) -> Callable[[], None]:
        return super().exchange(sends, receives) if sends or receives else lambda: None


def test_ranks_without_rows_of_a_level_make_the_same_calls(cpu: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rank_levels, "_MAX_REPLICATED_ROWS", {"cpu": 60, "gpu": 60})
    monkeypatch.setattr(rank_levels, "_MIN_ROWS_PER_RANK", 150)
    S = poisson(16, 7)
    partition = blocks(S.shape[0], 4)

    def on_rank(communicator: Communicator) -> list[int]:
        own = partition.rows(communicator.rank)
        M = amg(RankMatrix(S[own], partition, partition, _LikeNccl(communicator, cpu), cpu))
        return [level.operator.shape[0] for level in M.levels]

    sizes = run_sockets(on_rank, 4)
    assert 0 in sizes[1]


@pytest.mark.parametrize("lanes", [32, 64])
@pytest.mark.few(1)
def test_multigrid_over_ranks_runs_with_the_kernels_of_gpus(lanes: int, small_levels: None) -> None:
    S = poisson(7, 7)
    for arguments in ({}, {"symmetry": "nonsymmetric"}):
        solver = gmres if arguments else cg
        _, iterations, _ = solve(S, blocks(S.shape[0], 2), EmulatedDevice(lanes), arguments, solver)
        assert iterations < 15
