"""Smoothed aggregation on the device takes about as many iterations as PyAMG's, and never stalls."""

from __future__ import annotations

import warnings
from functools import cache
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import scipy.sparse.linalg as la

from asv_bench.elliptic_problems import (
    EllipticProblem,
    checkerboard,
    convection_diffusion,
    diffusion,
    elasticity,
    elliptic_problems,
    graph_laplacian,
    poisson,
    shifted_helmholtz,
)
from gsparse import GpuSparseMatrix
from gsparse.bench.problems import rmat
from gsparse.device.base import Device
from gsparse.device.select import get_device
from gsparse.errors import (
    CoarseningWarning,
    DtypeError,
    FactorizationError,
    ShapeError,
    StructureError,
)
from gsparse.linalg import amg, bicgstab, cg, gmres, rigid_body_modes
from tests.linalg.problems import Count, laplacian, residual, right_hand_side
from tests.support import DTYPES, host, matrix_folder

PROBLEMS = [problem.name for problem in elliptic_problems(40)]

# The iterations of these problems jump with the size of the grid, with PyAMG as with us: for the flow, PyAMG takes 9,
# 13, 11, 13 and 14 on grids of 34, 38, 40, 42 and 46 points. With Helmholtz's problem of 40 points, 39 or 55 iterations
# are counted, in PyAMG too: 39 reduce the residual, but if GMRES then finds the residual without the preconditioner a
# little too large, another cycle begins. Therefore sums over grids of similar sizes are compared.
JUMPING = {"recirculating flow, Péclet 1000", "complex shifted Helmholtz"}
# Iterations over those of PyAMG that are allowed where Gauss-Seidel's method visits all rows of a colour at once, as it
# does on a GPU. With the same hierarchy, colours take 126 iterations where PyAMG's order takes 93 (anisotropy along an
# axis), 41 for 33 (in 3-D) and 36 for 25 (Helmholtz): a limit of 1.3 would not be one of the aggregates.
MULTICOLOR = 1.5

# Limits of the operator complexity where 1.6 does not do. Where one direction or region is coarsened at a time, a level
# has a third of the rows of the finer one. Random coefficients have strong connections without a pattern.
COMPLEXITIES = {
    "anisotropy 1:1000 along an axis": 1.9,
    "anisotropy 1:1000 in 3-D": 1.75,
    "jumps of 10⁶, cubes of 4": 1.9,
    "log-normal, 2-D": 1.65,
    "log-normal, 3-D": 2.1,
}


def grid_of(n: int, dtype: Any) -> tuple[sp.csr_array, Any]:
    """Return a Hermitian positive definite matrix, and a vector that it nearly maps to zero."""
    S, dtype = laplacian(n), np.dtype(dtype)
    phases = np.exp(2j * np.pi * np.random.default_rng(0).random(n * n)) if dtype.kind == "c" else np.ones(n * n)
    scale = sp.diags_array(phases)
    return sp.csr_array(scale.conj() @ S @ scale, dtype=dtype), phases.conj().astype(dtype)


def right_side(S: Any, *, singular: bool) -> Any:
    b = right_hand_side(S)
    return b - b.mean() if singular else b


def pyamg_iterations(problem: EllipticProblem, S: Any, options: dict[str, Any], b: Any, **more: Any) -> int:
    """Return the iterations of SciPy's solver to 1e-8 with PyAMG's smoothed aggregation."""
    pyamg, size = pytest.importorskip("pyamg"), options.get("block_size", 1)
    symmetry = options.get("symmetry", "hermitian" if problem.solver == "cg" else "nonsymmetric")
    matrix = sp.csr_matrix(S) if size == 1 else sp.csr_matrix(S).tobsr((size, size))
    np.random.seed(0)
    ml = pyamg.smoothed_aggregation_solver(matrix, B=options.get("B"), symmetry=symmetry, max_coarse=150, **more)
    count, solve = Count(), la.cg if problem.solver == "cg" else la.gmres
    extra = {} if problem.solver == "cg" else {"restart": 60, "callback_type": "pr_norm"}
    solve(S, b, M=ml.aspreconditioner(), rtol=1e-8, maxiter=500, callback=count, **extra)
    return count.calls


def solve(problem: EllipticProblem, S: Any, A: GpuSparseMatrix, b: Any, M: Any) -> int:
    """Return the iterations of the solver that suits the problem, to 1e-8."""
    extra = {"maxiter": 500} if problem.solver == "cg" else {"restart": 60, "maxiter": 5}
    result = (cg if problem.solver == "cg" else gmres)(A, b, M=M, rtol=1e-8, full_output=True, **extra)
    assert result.info == 0
    assert residual(S, result.x, b) < 1e-6
    return int(result.iterations)


def converge(A: GpuSparseMatrix, b: Any, M: Any, most: int, rtol: float = 1e-8) -> Any:
    """Return the solution by conjugate gradients, which must not take more than `most` iterations."""
    result = cg(A, b, M=M, rtol=rtol, full_output=True)
    assert result.info == 0
    assert result.iterations <= most
    return result.x


def check(name: str, n: int, device: Device) -> None:
    """Compare the iterations on a grid of n points in each direction with PyAMG's."""
    counts = []  # of a solve, of one with PyAMG's options, and of one with PyAMG, for each grid
    for size in (n - 2, n, n + 2) if name in JUMPING else (n,):
        problem = list(elliptic_problems(size))[PROBLEMS.index(name)]
        S, options = problem.make()
        A, b = GpuSparseMatrix(S, device=device), right_side(S, singular=problem.singular)
        M = amg(A, **options)
        assert M.operator_complexity <= COMPLEXITIES.get(name, 1.6)
        same_options = amg(A, strength="symmetric", smoother="gauss_seidel", **options)
        ours, with_same_options = (solve(problem, S, A, b, each) for each in (M, same_options))
        counts.append((ours, with_same_options, pyamg_iterations(problem, S, options, b)))
    *sums, pyamgs = np.sum(counts, axis=0)
    for iterations, preconditioner in zip(sums, (M, same_options), strict=True):
        allowed = MULTICOLOR if "multicolor" in repr(preconditioner) else 1.3
        assert iterations <= max(allowed * pyamgs, 10), counts


@pytest.mark.parametrize("name", PROBLEMS)
@pytest.mark.few(4)
def test_iterations_are_at_most_a_third_more_than_with_pyamg(name: str) -> None:
    check(name, 40, get_device("cpu"))


@pytest.mark.parametrize("points", [5, 7, 9, 27])
@pytest.mark.few(1)
def test_iterations_hardly_grow_with_the_grid(real_device: Device, points: int) -> None:
    counts = []
    for n in (32, 64, 128) if points in (5, 9) else (12, 18, 27):
        S = poisson(n, points)
        A = GpuSparseMatrix(S, device=real_device)
        counts.append(cg(A, right_hand_side(S), M=amg(A), rtol=1e-8, full_output=True).iterations)
    assert max(counts) <= max(1.3 * min(counts), min(counts) + 2)


@pytest.mark.parametrize("problem", ["flow", "jumps", "elastic"])
@pytest.mark.few(1)
def test_the_levels_and_the_cycle_are_the_same_on_every_device(device: Device, problem: str) -> None:
    options: dict[str, Any] = {"max_coarse": 10}
    if problem == "elastic":
        S, coordinates = elasticity((5, 3, 3))
        options |= {"B": rigid_body_modes(coordinates), "block_size": 3}
    else:
        S = convection_diffusion(20, 10.0) if problem == "flow" else diffusion(checkerboard(20, 2, 4))
    here, there = (amg(GpuSparseMatrix(S, device=d), **options) for d in (device, get_device("cpu")))
    assert len(here.aggregates) >= 1 + (problem != "elastic")
    for one, two in zip(here.aggregates, there.aggregates, strict=True):
        np.testing.assert_array_equal(host(one), host(two))
    assert here.sizes == there.sizes
    b = right_hand_side(S)
    np.testing.assert_allclose(host(here @ b), there @ b, rtol=0, atol=1e-8 * abs(there @ b).max())


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.few(1)
def test_every_dtype_converges_with_the_same_bits_each_time(device: Device, dtype: Any) -> None:
    S, B = grid_of(20, dtype)
    A, b = GpuSparseMatrix(S, device=device), right_hand_side(S)
    one, two = (amg(A, B=B, max_coarse=20) for _ in range(2))
    np.testing.assert_array_equal(host(one @ b), host(two @ b))
    assert (one @ b).dtype == dtype
    converge(A, b, one, 13, rtol=1e-8 if np.finfo(dtype).eps < 1e-10 else 1e-5)


@pytest.mark.whole
def test_levels_in_float32_cost_no_iterations(device: Device) -> None:
    S = laplacian(24)
    A, b = GpuSparseMatrix(S, device=device), right_hand_side(S)
    wide, narrow = (cg(A, b, M=amg(A, dtype=d, max_coarse=20), rtol=1e-9, full_output=True) for d in (None, np.float32))
    assert narrow.x.dtype == np.float64
    assert abs(wide.iterations - narrow.iterations) <= 1
    assert residual(S, narrow.x, b) < 1e-8
    levels = amg(A, dtype=np.float32, max_coarse=20).levels
    assert len(levels) >= 2
    assert all(level.operator.dtype == level.prolongation.dtype == np.float32 for level in levels)


# ---------------------------------------------------------------------------------------------------- candidates


def test_the_coarse_level_represents_the_candidates(real_device: Device) -> None:
    S, coordinates = elasticity((8, 3, 3))
    M = amg(GpuSparseMatrix(S, device=real_device), B=rigid_body_modes(coordinates), block_size=3, max_coarse=10)
    assert M.sizes[1][0] == 6 * (host(M.aggregates[0]).max() + 1)
    assert M.block_sizes == [3, 6][: len(M.block_sizes)]
    # Away from the boundary, where candidates are as they were, the coarse level represents them nearly.
    P, fine = M.levels[0].prolongation.matrix.toarray(), rigid_body_modes(coordinates)
    error = (P @ np.linalg.lstsq(P, fine, rcond=None)[0] - fine)[np.repeat(coordinates[:, 0] > 4, 3)]
    assert np.linalg.norm(error) < 0.05 * np.linalg.norm(fine)


def test_rigid_body_modes_are_in_the_null_space_of_a_free_body() -> None:
    S, coordinates = elasticity((3, 2, 2))
    # Rows far from the clamped end have no entries in clamped nodes.
    modes = rigid_body_modes(coordinates)
    assert modes.shape == (3 * len(coordinates), 6)
    free = np.repeat(coordinates[:, 0] > 1, 3)
    np.testing.assert_allclose((S @ modes)[free], 0, atol=1e-12)
    assert np.linalg.matrix_rank(modes) == 6
    plane = rigid_body_modes(coordinates[:, :2])
    assert plane.shape == (2 * len(coordinates), 3)
    for shape in ((4,), (4, 1), (4, 4)):
        with pytest.raises(ShapeError, match="coordinates must have the shape"):
            rigid_body_modes(np.zeros(shape))


@pytest.mark.parametrize("order", ["C", "F"])
def test_the_array_of_the_candidates_may_change_after_the_set_up(real_device: Device, order: Any) -> None:
    S, coordinates = elasticity((4, 3, 3))
    A, ones = GpuSparseMatrix(S, device=real_device), np.ones(S.shape[0])
    for put in (np.asarray, real_device.upload):
        B = put(np.array(rigid_body_modes(coordinates), order=order))
        M = amg(A, B=B, block_size=3, max_coarse=10)
        before = host(M @ ones)
        B[...] = 7
        np.testing.assert_array_equal(host(M.update(A) @ ones), before)


def test_a_block_sparse_matrix_knows_its_block_size() -> None:
    S, coordinates = elasticity((4, 3, 3))
    B = sp.bsr_array(S, blocksize=(3, 3))
    for A in (B, GpuSparseMatrix(B, device="cpu"), GpuSparseMatrix(B, device="cpu") * 2):
        assert amg(A, B=rigid_body_modes(coordinates), max_coarse=10).block_sizes[0] == 3
    A = GpuSparseMatrix(B, device="cpu")
    for other in (S, A[1:, 1:]):
        assert amg(other, max_coarse=10).block_sizes[0] == 1


@pytest.mark.parametrize("solver", [gmres, bicgstab])
@pytest.mark.few(1)
def test_left_candidates_are_for_nonsymmetric_matrices(real_device: Device, solver: Any) -> None:
    S = convection_diffusion(30, 10.0)
    A, b = GpuSparseMatrix(S, device=real_device), right_hand_side(S)
    ones = np.ones(S.shape[0])
    M = amg(A, B=ones, BH=ones)
    np.testing.assert_array_equal(host(M @ b), host(amg(A) @ b))
    result = solver(A, b, M=M, rtol=1e-8, full_output=True)
    assert result.info == 0
    assert result.iterations <= 12
    with pytest.raises(ValueError, match="BH is for nonsymmetric matrices"):
        amg(GpuSparseMatrix(laplacian(5), device=real_device), BH=np.ones(25))


# -------------------------------------------------------------------------------------------------------- update


@pytest.mark.parametrize("kind", ["scalar", "drops", "elastic", "flow", "float32"])
def test_update_equals_a_set_up_with_the_same_aggregates(real_device: Device, kind: str) -> None:
    options: dict[str, Any] = {"max_coarse": 20}
    if kind == "elastic":
        S, coordinates = elasticity((5, 3, 3))
        options |= {"B": rigid_body_modes(coordinates), "block_size": 3}
    elif kind == "flow":
        S = convection_diffusion(20, 10.0)
    else:
        S = diffusion(checkerboard(20, 2, 4)) if kind == "drops" else laplacian(20)
    options |= {"dtype": np.float32} if kind == "float32" else {}
    A, b = GpuSparseMatrix(S, device=real_device), right_hand_side(S)
    M = amg(A, **options)
    before = host(M @ b)
    # The same values give the same bits, and values that are scaled give the same cycle, scaled.
    np.testing.assert_array_equal(host(M.update(A) @ b), before)
    scaled = M.update(A.with_data(A.device_data * 4))
    assert scaled is M
    rtol = 1e-5 if kind == "float32" else 1e-10
    np.testing.assert_allclose(host(M @ b), before / 4, rtol=rtol, atol=0)
    if kind == "drops":  # the set-up of any other values would make other aggregates
        return
    # With a little more on the diagonal, a new set-up makes the same aggregates.
    is_diagonal = S.indices == np.repeat(np.arange(S.shape[0]), np.diff(S.indptr))
    B = A.with_data(real_device.upload(S.data * (1 + 0.01 * is_diagonal)))
    new = amg(B, **options)
    for one, two in zip(M.aggregates, new.aggregates, strict=True):
        np.testing.assert_array_equal(host(one), host(two))
    updated, expected = host(M.update(B) @ b), host(new @ b)
    np.testing.assert_allclose(updated, expected, rtol=0, atol=10 * rtol * abs(expected).max())
    assert abs(expected - before).max() > 1e-4 * abs(before).max()


def test_update_follows_changing_coefficients(device: Device) -> None:
    n, rng = 20, np.random.default_rng(0)
    k = np.exp(rng.standard_normal((n, n)))
    A = GpuSparseMatrix(diffusion(k), device=device)
    M, b = amg(A, max_coarse=20), rng.standard_normal(n * n)
    for _ in range(3):
        k *= np.exp(0.3 * rng.standard_normal((n, n)))
        S = diffusion(k)
        A = A.with_data(device.upload(S.data))
        x = converge(A, b, M.update(A), 14)
        assert residual(S, x, b) < 1e-7


def test_update_refuses_another_structure(real_device: Device) -> None:
    S = laplacian(12)
    M = amg(GpuSparseMatrix(S, device=real_device), max_coarse=20)
    with pytest.raises(StructureError, match="update needs the structure of the set-up"):
        M.update(GpuSparseMatrix(laplacian(13), device=real_device))
    other = S.copy()
    other.indices[1] += 1
    with pytest.raises(StructureError, match="at other places"):
        M.update(GpuSparseMatrix(other, device=real_device))
    with pytest.raises(DtypeError, match="update needs a matrix of float64, got float32"):
        M.update(GpuSparseMatrix(S.astype(np.float32), device=real_device))


# ---------------------------------------------------------------------------------------------------- robustness


def test_rows_with_a_diagonal_only_and_parts_without_connections_do_not_stall(device: Device) -> None:
    n = 16
    S = laplacian(n).tolil()
    for row in (0, 5, 77, 78):  # Dirichlet rows, and their columns
        S[row, :] = 0
        S[:, row] = 0
        S[row, row] = 3
    S = sp.csr_array(sp.block_diag([S, laplacian(9), sp.eye_array(7)]))
    S.eliminate_zeros()
    A, b = GpuSparseMatrix(S, device=device), right_hand_side(S)
    M = amg(A, max_coarse=20)
    converge(A, b, M, 14)
    isolated = host(M.aggregates[0])[[0, 5, 77, 78, *range(S.shape[0] - 7, S.shape[0])]]
    np.testing.assert_array_equal(isolated, -1)


def test_empty_rows_are_left_alone(device: Device) -> None:
    S = sp.csr_array(sp.block_diag([laplacian(14), sp.csr_array((5, 5))]))
    A, b = GpuSparseMatrix(S, device=device), np.concatenate([np.ones(196), np.zeros(5)])
    x = converge(A, b, amg(A, max_coarse=20), 12)
    np.testing.assert_array_equal(host(x)[196:], 0)


def test_the_graph_of_a_power_law_is_coarsened_without_dense_rows(real_device: Device) -> None:
    data, indices, indptr, shape = rmat(10, 8)
    S = sp.csr_array(
        graph_laplacian(sp.csr_array((data, indices, indptr), shape=shape)) + 1e-3 * sp.eye_array(shape[0])
    )
    A, b = GpuSparseMatrix(S, device=real_device), right_hand_side(S)
    M = amg(A)
    converge(A, b, M, 12)
    assert M.operator_complexity <= 1.6


def test_a_diagonal_matrix_is_smoothed_without_a_warning(device: Device) -> None:
    S = sp.csr_array(sp.diags_array(np.linspace(1, 9, 4000)))
    A, b = GpuSparseMatrix(S, device=device), np.ones(4000)
    converge(A, b, amg(A), 3)


def test_a_level_that_cannot_be_coarsened_warns(real_device: Device) -> None:
    S = poisson(16, 27)  # Its entries are 1/26 of the diagonal.
    A = GpuSparseMatrix(S, device=real_device)
    with pytest.warns(CoarseningWarning, match="level 0 of 4096 rows has too few strong connections"):
        M = amg(A, strength=("symmetric", {"theta": 0.1}))
    assert "smoothing only" in str(M)
    result = cg(A, np.ones(4096), M=M, rtol=1e-8, full_output=True)
    assert result.info == 0
    assert amg(A, strength=[("symmetric", {"theta": 0.01}), None]).sizes[-1][0] <= 150
    with pytest.warns(CoarseningWarning, match="the coarsest level has 4096 rows.*: use a smaller max_coarse"):
        amg(A, max_coarse=5000)


@cache
def _is_definite(path: Any) -> bool:
    S = sp.csr_array(sp.load_npz(path))
    if S.dtype.kind not in "fc" or S.shape[0] != S.shape[1] or abs(S - S.conj().T).max() > 1e-12 * abs(S).max():
        return False
    if not (S.diagonal().real > 0).all() or S.shape[0] > 50_000:
        return False
    try:  # SuperLU's pivots are all positive for a positive definite matrix in symmetric mode
        lu = la.splu(S.tocsc(), permc_spec="MMD_AT_PLUS_A", diag_pivot_thresh=0.0, options={"SymmetricMode": True})
    except RuntimeError:
        return False
    pivots = lu.U.diagonal().real
    # Rounding decides whether solves with a matrix converge that is singular up to rounding, such as rail_5177_S.
    return bool(pivots.min() > S.shape[0] * np.finfo(np.float64).eps * pivots.max())


@pytest.mark.whole
@pytest.mark.timeout(900)
def test_no_definite_application_matrix_takes_more_iterations_or_fails_more_often_than_with_plain_cg(
    real_device: Device,
) -> None:
    solved = []
    for path in sorted(matrix_folder().glob("*.npz")):
        if not _is_definite(path):
            continue
        S = sp.csr_array(sp.load_npz(path))
        S = S if S.dtype.kind == "c" else S.astype(np.float64)
        A, b = GpuSparseMatrix(S, device=real_device), right_hand_side(S)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", CoarseningWarning)
            M = amg(A)
        with_amg, plain = (cg(A, b, M=part, rtol=1e-8, maxiter=5000, full_output=True) for part in (M, None))
        assert with_amg.info == 0 or plain.info != 0, path.stem
        assert with_amg.iterations <= plain.iterations, path.stem
        solved.append(path.stem)
    assert len(solved) >= 5


# -------------------------------------------------------------------------------------------------- what is shown


def test_print_shows_the_hierarchy(device: Device) -> None:
    M = amg(GpuSparseMatrix(laplacian(20), device=device), max_coarse=20)
    text = str(M)
    sizes = [[int(word) for word in line.split()[:3]] for line in text.splitlines() if line.endswith("%]")]
    assert sizes == [[level, *size] for level, size in enumerate(M.sizes)]
    assert sizes[0] == [0, 400, 1920]
    complexity = sum(size[2] for size in sizes) / 1920
    assert f"{complexity:.3f}" in text
    assert M.operator_complexity == pytest.approx(complexity)
    for word in ("Operator complexity", "Grid complexity", "dense inverse", "chebyshev, 2 steps", "Memory", "products"):
        assert word in text
    assert set(M.seconds) >= {"strength", "aggregation", "prolongation", "products", "in all"}
    assert M.nbytes > 1920 * 12


def test_a_hierarchy_of_pyamg_is_shown_in_the_same_way() -> None:
    pyamg = pytest.importorskip("pyamg")
    ml = pyamg.smoothed_aggregation_solver(sp.csr_matrix(laplacian(20)), max_coarse=20)
    M = amg(ml, device="cpu")
    assert [size for size, _ in M.sizes] == [level.A.shape[0] for level in ml.levels]
    assert M.operator_complexity == pytest.approx(ml.operator_complexity())
    assert f"{ml.grid_complexity():.3f}" in str(M)


def test_misuse_is_refused() -> None:
    A = GpuSparseMatrix(laplacian(6), device="cpu")
    for options, error, match in (
        ({"strength": "evolution"}, ValueError, "strength must be None, 'classical', 'symmetric'"),
        ({"strength": ("classical", {"norm": 1})}, ValueError, "has the option 'theta'"),
        ({"strength": ("classical", {"theta": 2})}, ValueError, "theta must be a number between 0 and 1, got 2"),
        ({"strength": ("classical", {"theta": "x"})}, ValueError, "theta must be a number between 0 and 1, got 'x'"),
        ({"strength": []}, ValueError, "an empty list"),
        ({"symmetry": "hermit"}, ValueError, "symmetry must be None or one of"),
        ({"block_size": 5}, ValueError, "block_size must divide the number of rows, 36"),
        ({"max_levels": 0}, ValueError, "max_levels and max_coarse must be at least 1"),
        ({"smoother": ("gauss_seidel", {"ordering": "color"})}, ValueError, "ordering must be one of"),
        ({"B": np.ones(35)}, ShapeError, "B must have a row for each of the 36 rows"),
        ({"B": 1j * np.ones(36)}, TypeError, "B must be of real numbers"),
        ({"B": np.full(36, np.nan)}, ValueError, "B must be finite"),
        ({"BH": np.ones((36, 2)), "symmetry": "nonsymmetric"}, ValueError, "as many columns"),
    ):
        with pytest.raises(error, match=match):
            amg(A, **options)
    large = GpuSparseMatrix(laplacian(60), device="cpu")
    with pytest.raises(FactorizationError, match=r"allow more levels \(max_levels\)"):
        amg(large, max_levels=1)
    with pytest.raises(FactorizationError, match="0 in row 7"):
        saddle = sp.csr_array(laplacian(20) - 4 * sp.diags_array(np.eye(400)[7]))
        amg(GpuSparseMatrix(saddle, device="cpu"), smoother="jacobi")


def test_a_hierarchy_of_pyamg_takes_no_options_of_a_set_up() -> None:
    pyamg = pytest.importorskip("pyamg")
    ml = pyamg.smoothed_aggregation_solver(sp.csr_matrix(laplacian(8)))
    for name, value in (("B", np.ones(64)), ("strength", None), ("max_levels", 3), ("symmetry", "hermitian")):
        with pytest.raises(ValueError, match=f"{name} belongs to the set-up"):
            amg(ml, device="cpu", **{name: value})


@pytest.mark.whole
def test_a_complex_symmetric_matrix_has_the_transpose_as_restriction(real_device: Device) -> None:
    S = shifted_helmholtz(20)
    M = amg(GpuSparseMatrix(S, device=real_device), symmetry="symmetric")
    R, P = M.levels[0].restriction.matrix, M.levels[0].prolongation.matrix
    np.testing.assert_array_equal(R.toarray(), P.toarray().T)
    S, B = grid_of(20, complex)
    H = amg(GpuSparseMatrix(S, device=real_device), B=B)
    R, P = H.levels[0].restriction.matrix, H.levels[0].prolongation.matrix
    np.testing.assert_array_equal(R.toarray(), P.toarray().conj().T)
