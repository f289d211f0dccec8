"""A hierarchy of PyAMG takes about as many iterations on every device as in PyAMG, whatever its smoothers are."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import scipy.sparse.linalg as la

from gsparse import GpuSparseMatrix
from gsparse.device.base import Device
from gsparse.errors import FactorizationError, SmootherWarning
from gsparse.kernels.steps import queue
from gsparse.linalg import amg, gmres
from gsparse.linalg.multigrid.pyamg_hierarchy import relaxation_for
from gsparse.linalg.multigrid.smoothers import SMOOTHERS
from gsparse.linalg.preconditioners.base import VectorPasses
from gsparse.linalg.preconditioners.gauss_seidel import make_gauss_seidel
from gsparse.linalg.preconditioners.normal_equations import projections
from gsparse.linalg.preconditioners.relaxation import SmootherPreconditioner
from gsparse.linalg.preconditioners.square_matrix import SquareMatrix
from tests.linalg.problems import Count, convection, dense, laplacian, positive, residual
from tests.support import DTYPES, host, on_device

pyamg = pytest.importorskip("pyamg")

# Iterations may be this many times PyAMG's.
MOST = 1.5
RTOL = 1e-8


def advection(n: int) -> Any:
    """Return an upwind operator: flow along the diagonal of an n×n grid."""
    return sp.csr_matrix(pyamg.gallery.advection_2d((n, n), theta=np.pi / 4)[0])


def upwind(n: int) -> Any:
    """Return convection along the diagonal of a grid with little diffusion, discretized upwind."""
    line, eye = sp.diags_array([-1.01, 1.02, -0.01], offsets=[-1, 0, 1], shape=(n, n)), sp.eye_array(n)
    return sp.csr_matrix(sp.kron(line, eye) + sp.kron(eye, line))


def helmholtz() -> Any:
    return sp.csr_matrix(pyamg.gallery.load_example("helmholtz_2D")["A"])


def recirculating_flow() -> Any:
    return sp.csr_matrix(pyamg.gallery.load_example("recirc_flow")["A"])


def elasticity(n: int) -> Any:
    return pyamg.gallery.linear_elasticity((n, n), format="bsr")


def aggregation(S: Any, smoother: Any = "block_gauss_seidel", sweep: str = "symmetric", **options: Any) -> Any:
    smoother = smoother if isinstance(smoother, tuple) or smoother is None else (smoother, {"sweep": sweep})
    options = {"presmoother": smoother, "postsmoother": smoother, "max_coarse": 10, **options}
    return pyamg.smoothed_aggregation_solver(S, **options)


def nonsymmetric(S: Any, smoother: Any = "block_gauss_seidel", **options: Any) -> Any:
    return aggregation(S, smoother, symmetry="nonsymmetric", **options)


def blackbox(S: Any) -> Any:
    return pyamg.blackbox.solver(S, pyamg.blackbox.solver_configuration(S, verb=False))


def of_elasticity(smoother: Any, **options: Any) -> Any:
    S, near_null_space = elasticity(12)
    return aggregation(S, smoother, B=near_null_space, **options)


# The hierarchy, and whether cg is used instead of gmres.
CASES: dict[str, tuple[Callable[[], Any], bool]] = {
    "recirculating flow": (lambda: nonsymmetric(recirculating_flow()), False),
    "recirculating flow, Ruge-Stüben": (lambda: pyamg.ruge_stuben_solver(recirculating_flow(), max_coarse=10), False),
    "recirculating flow, gauss_seidel_nr": (lambda: nonsymmetric(recirculating_flow(), "gauss_seidel_nr"), False),
    "recirculating flow, gauss_seidel_ne": (lambda: nonsymmetric(recirculating_flow(), "gauss_seidel_ne"), False),
    "recirculating flow, jacobi_ne": (
        lambda: nonsymmetric(recirculating_flow(), ("jacobi_ne", {"iterations": 2})), False,
    ),
    "advection": (lambda: nonsymmetric(advection(32)), False),
    "advection, Ruge-Stüben": (lambda: pyamg.ruge_stuben_solver(advection(32), max_coarse=10), False),
    "advection, blackbox solver": (lambda: blackbox(advection(24)), False),
    "advection, AIR": (lambda: pyamg.air_solver(advection(32), max_coarse=10), False),
    "upwind": (lambda: nonsymmetric(upwind(32)), False),
    "upwind, one forward sweep": (lambda: nonsymmetric(upwind(32), sweep="forward"), False),
    "upwind, sor": (lambda: nonsymmetric(upwind(32), ("sor", {"omega": 1.1, "sweep": "forward"})), False),
    "Helmholtz": (lambda: aggregation(helmholtz(), symmetry="symmetric", max_coarse=100), False),
    "Poisson": (lambda: aggregation(sp.csr_matrix(laplacian(32))), True),
    "Poisson, forward before and backward after": (
        lambda: aggregation(
            sp.csr_matrix(laplacian(32)),
            presmoother=("gauss_seidel", {"sweep": "forward"}),
            postsmoother=("gauss_seidel", {"sweep": "backward"}),
        ),
        True,
    ),
    "elasticity": (lambda: of_elasticity("block_gauss_seidel"), True),
    "elasticity, block Jacobi": (lambda: of_elasticity(("block_jacobi", {"omega": 4 / 3, "iterations": 2})), True),
}  # fmt: skip


def iterations(S: Any, b: Any, M: Any, with_cg: bool) -> int:
    """Return the number of iterations of PyAMG's own solvers until the residual is below `RTOL`."""
    solve = pyamg.krylov.cg if with_cg else partial(pyamg.krylov.fgmres, restart=200)
    residuals: list[float] = []
    x, info = solve(S, b, M=M, tol=RTOL, maxiter=200, residuals=residuals)
    assert info == 0
    assert np.linalg.norm(b - S @ x) < 2 * RTOL * np.linalg.norm(b)
    return len(residuals) - 1


@pytest.mark.parametrize("case", CASES)
@pytest.mark.few(3)
def test_iterations_are_at_most_one_and_a_half_times_pyamgs(device: Device, case: str) -> None:
    make, with_cg = CASES[case]
    np.random.seed(0)
    ml = make()
    S = sp.csr_array(ml.levels[0].A)
    b = np.random.default_rng(0).standard_normal(S.shape[0])
    M = amg(ml, device=device)
    assert "instead of" not in repr(M) or (with_cg and not device.is_host)
    theirs, ours = (iterations(S, b, m, with_cg) for m in (ml.aspreconditioner(), M))
    print(f"{case:45} PyAMG {theirs:3}, {device.name} {ours:3}   {M!r}")
    assert ours <= MOST * theirs
    if device.is_host:
        assert abs(ours - theirs) <= 1


@pytest.mark.parametrize("n", [64, 160])
@pytest.mark.few(1)
def test_wavefronts_take_at_most_one_and_a_half_times_the_iterations_of_natural_order(
    real_device: Device, n: int
) -> None:
    np.random.seed(0)
    ml = nonsymmetric(advection(n))  # its longest chain of rows has 2n rows, and there are 256 groups
    S, b = sp.csr_array(ml.levels[0].A), np.random.default_rng(0).standard_normal((n - 1) ** 2)
    natural, wavefront = (
        iterations(S, b, amg(ml, smoother=("gauss_seidel", {"ordering": ordering}), device=real_device), False)
        for ordering in ("natural", "wavefront")
    )
    assert wavefront <= MOST * natural


# ------------------------------------------------------------------------------------- the same cycles as PyAMG

FORWARD, BACKWARD, SYMMETRIC = ({"sweep": sweep} for sweep in ("forward", "backward", "symmetric"))
# Smoothers that a CPU computes as PyAMG does.
SAME: dict[str, tuple[str, dict[str, Any]]] = {
    "gauss_seidel, forward": ("gauss_seidel", FORWARD),
    "gauss_seidel, backward twice": ("gauss_seidel", {**BACKWARD, "iterations": 2}),
    "gauss_seidel, symmetric": ("gauss_seidel", SYMMETRIC),
    "sor": ("sor", {**FORWARD, "omega": 1.3, "iterations": 2}),
    "block_jacobi": ("block_jacobi", {"omega": 1.2, "iterations": 2}),
    "block_jacobi, given blocks": ("block_jacobi", {"blocksize": 4, "withrho": False, "omega": 0.7}),
    "block_gauss_seidel": ("block_gauss_seidel", SYMMETRIC),
    "block_gauss_seidel, given blocks": ("block_gauss_seidel", {"blocksize": 4, **BACKWARD}),
    "jacobi_ne": ("jacobi_ne", {"iterations": 2}),
    "gauss_seidel_ne": ("gauss_seidel_ne", {**FORWARD, "omega": 0.8}),
    "gauss_seidel_ne, symmetric": ("gauss_seidel_ne", {**SYMMETRIC, "iterations": 2}),
    "gauss_seidel_nr": ("gauss_seidel_nr", {**BACKWARD, "omega": 1.1}),
    "gauss_seidel_nr, symmetric": ("gauss_seidel_nr", {**SYMMETRIC, "iterations": 2}),
}


def small_problem(kind: str) -> Any:
    """Return a matrix of 144 rows, or of 128 if it is one of blocks."""
    if kind == "blocks":
        return elasticity(8)[0]
    S = sp.csr_matrix(laplacian(12, complex if kind == "complex" else float))
    return S if kind != "flow" else upwind(12)


@pytest.mark.parametrize("cycle", ["V", "W"])
@pytest.mark.parametrize("kind", ["symmetric", "flow", "complex", "blocks"])
@pytest.mark.parametrize("smoother", SAME)
@pytest.mark.few(6)
def test_a_cycle_on_a_cpu_is_pyamgs(smoother: str, kind: str, cycle: str) -> None:
    if (smoother, kind) == ("sor", "blocks"):
        pytest.skip("PyAMG ignores omega of block matrices")
    np.random.seed(0)
    S = small_problem(kind)
    name, options = SAME[smoother]
    symmetry = "nonsymmetric" if kind == "flow" else "hermitian"
    ml = aggregation(S, None, symmetry=symmetry, max_levels=2)
    pyamg.relaxation.smoothing.change_smoothers(ml, (name, options), (name, options))
    b = np.random.default_rng(0).standard_normal(S.shape[0]).astype(S.dtype)
    expected = ml.aspreconditioner(cycle) @ b
    np.testing.assert_allclose(
        amg(ml, cycle=cycle, device="cpu") @ b, expected, rtol=0, atol=1e-11 * abs(expected).max()
    )


@pytest.mark.parametrize("kind", ["jacobi", "block_jacobi"])
@pytest.mark.parametrize("order", ["fc", "cf"])
def test_a_cycle_with_fine_and_coarse_points_is_pyamgs(device: Device, order: str, kind: str) -> None:
    np.random.seed(0)
    ml = pyamg.air_solver(advection(10), max_coarse=10)
    options = {"f_iterations": 2, "c_iterations": 1, "iterations": 2, "omega": 0.9}
    pyamg.relaxation.smoothing.change_smoothers(ml, None, (f"{order}_{kind}", options))
    b = np.random.default_rng(0).standard_normal(81)
    M = amg(ml, device=device)
    expected = ml.aspreconditioner() @ b
    np.testing.assert_allclose(M @ b, expected, rtol=0, atol=1e-12 * abs(expected).max())
    assert f"{order}_" in repr(M)


def test_blocks_of_fine_and_coarse_points_are_relaxed(real_device: Device) -> None:
    S = elasticity(6)[0]
    level = type("Level", (), {"A": S, "splitting": np.arange(S.shape[0] // 2) % 3 == 0})()
    setup = pyamg.relaxation.smoothing._setup_call("fc_block_jacobi")
    smoother = setup(level, f_iterations=2, omega=0.8)
    x, b = np.zeros(S.shape[0]), np.random.default_rng(0).standard_normal(S.shape[0])
    smoother(S, x, b)
    with SquareMatrix.of(GpuSparseMatrix(sp.csr_array(S), device=real_device), "test") as matrix:
        ours = relaxation_for(matrix, smoother, hermitian=True)
        M = SmootherPreconditioner(matrix, "test", lambda *_: ours)
    np.testing.assert_allclose(M @ b, x, rtol=0, atol=1e-12 * abs(x).max())


# ------------------------------------------------------------------------------------------ smoothers by their names

OPTIONS: dict[str, dict[str, Any]] = {
    "sor": {"omega": 1.2}, "block_jacobi": {"block_size": 2}, "block_gauss_seidel": {"block_size": 2},
}  # fmt: skip


def named(name: str) -> Any:
    return (name, OPTIONS[name]) if name in OPTIONS else name


def hierarchy_of(S: Any, **options: Any) -> Any:
    np.random.seed(0)
    return aggregation(sp.csr_matrix(S), None, max_levels=2, **options)


@pytest.mark.parametrize("sweeps", [1, 2, 3])
@pytest.mark.parametrize("dtype", ["float64", "complex128"])
@pytest.mark.parametrize("name", [name for name in SMOOTHERS if not name.endswith(("_ne", "_nr"))])
@pytest.mark.few(3)
def test_a_cycle_of_a_hermitian_matrix_is_hermitian(device: Device, name: str, dtype: str, sweeps: int) -> None:
    S = positive(6, dtype)
    M = amg(hierarchy_of(S, max_coarse=4), smoother=named(name), sweeps=sweeps, device=device)
    W = dense(M)
    np.testing.assert_allclose(W, W.conj().T, rtol=0, atol=1e-11 * abs(W).max())
    assert np.linalg.eigvalsh(W).min() > 0
    assert re.search(rf"smoother {name}\b", repr(M))


@pytest.mark.parametrize("dtype", ["float64", "complex128"])
@pytest.mark.parametrize("name", SMOOTHERS)
@pytest.mark.few(3)
def test_the_adjoint_of_a_cycle_is_its_conjugate_transpose(device: Device, name: str, dtype: str) -> None:
    ml = hierarchy_of(convection(6, dtype), symmetry="nonsymmetric", max_coarse=4)
    M = amg(ml, smoother=named(name), sweeps=3, device=device)
    W = dense(M)
    np.testing.assert_allclose(dense(M, "rmatvec"), W.conj().T, rtol=0, atol=1e-11 * abs(W).max())


@pytest.mark.parametrize("name", SMOOTHERS)
@pytest.mark.few(2)
def test_every_smoother_serves_several_right_hand_sides_and_float32_levels(device: Device, name: str) -> None:
    S, b = laplacian(10), np.random.default_rng(0).standard_normal((100, 2))
    M = amg(hierarchy_of(S), smoother=named(name), dtype=np.float32, device=device)
    result = gmres(GpuSparseMatrix(S, device=device), b, M=M, rtol=1e-9, restart=60, full_output=True)
    assert result.info == 0
    assert np.all(residual(S, result.x, b) < 1e-8)


REPLACED = {
    "schwarz": "chebyshev", "strength_based_schwarz": "chebyshev", "cg": "chebyshev", "gmres": "chebyshev",
    "cgnr": "gauss_seidel_nr", "cgne": "gauss_seidel_ne",
}  # fmt: skip


@pytest.mark.parametrize("smoother", REPLACED)
def test_a_smoother_that_no_device_runs_is_replaced_with_one_warning(real_device: Device, smoother: str) -> None:
    ml = aggregation(sp.csr_matrix(laplacian(16)), (smoother, {}))
    with pytest.warns(SmootherWarning, match=f"the smoother {smoother} of the hierarchy is replaced by") as warned:
        M = amg(ml, device=real_device)
    assert len(warned) == 1
    assert f"; smoother {REPLACED[smoother]} instead of {smoother}" in repr(M)
    count = Count()
    b = np.random.default_rng(0).standard_normal(256)
    _, info = la.gmres(laplacian(16), b, M=M, rtol=1e-8, callback=count, callback_type="pr_norm")
    assert (info, count.calls < 40) == (0, True)


def with_flow(value: float, dtype: Any) -> sp.csr_array:
    """Return Poisson's matrix on a grid with a number added to the first diagonal above the main one."""
    return sp.csr_array(laplacian(16) + sp.diags_array([float(value)], offsets=[1], shape=(256, 256)), dtype=dtype)


# Three calls of amg for a dtype: after a cycle, the residual is small, large, and not finite.
DIVERGING: dict[str, Callable[[float, Any], Any]] = {
    **{
        name: lambda value, dtype, name=name: amg(GpuSparseMatrix(with_flow(value, dtype), device="cpu"), smoother=name)
        for name in ("auto", "gauss_seidel", "sor", "block_gauss_seidel")
    },
    "of a hierarchy": lambda value, dtype: amg(
        aggregation(sp.csr_matrix(laplacian(16).astype(dtype))), smoother=("sor", {"omega": 1 + value**2 / 15}),
        device="cpu",
    ),
}  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", DIVERGING)
def test_the_set_up_says_that_a_smoother_diverges(name: str, dtype: Any) -> None:
    make = DIVERGING[name]
    M = make(0.1, dtype)  # no warning
    with pytest.warns(SmootherWarning, match=r"the residual is .*e\+.. times larger, because .* smoother='jacobi_ne'"):
        make(5.5, dtype)
    with pytest.raises(FactorizationError, match=r"the residual is not finite, because the smoother .* diverges"):
        make(100, dtype)
    if name != "of a hierarchy":
        with pytest.raises(FactorizationError, match="diverges"):
            M.update(GpuSparseMatrix(with_flow(100, dtype), device="cpu"))


@pytest.mark.parametrize("name", ["gauss_seidel", "sor"])
def test_sweeps_that_a_polynomial_replaces_on_a_gpu_are_named(device: Device, name: str) -> None:
    options = {"sweep": "symmetric", **({"omega": 1.1} if name == "sor" else {})}
    M = amg(aggregation(sp.csr_matrix(laplacian(16)), (name, options)), device=device)
    assert (f"smoother chebyshev instead of {name}" in repr(M)) == (not device.is_host)


def test_a_row_without_diagonal_keeps_its_unknown_as_in_pyamg(device: Device) -> None:
    S = laplacian(6).tolil()
    S[7, 7] = 0
    with SquareMatrix.of(GpuSparseMatrix(sp.csr_array(S), device=device), "test") as matrix:
        smoother = make_gauss_seidel(matrix, (False,), ordering="natural")
        bound = smoother.bind(VectorPasses(device, np.dtype(float), 1), matrix.operator, adjoint=False)
        x, b = np.random.default_rng(0).standard_normal((2, 36))
        ours, right_side, work = (on_device(device, vector) for vector in (x, b, np.zeros(36)))
        with device.active():
            queue(bound.calls(ours, right_side, work, guess=True, residual=False))
    kept = x[7]
    pyamg.relaxation.relaxation.gauss_seidel(sp.csr_matrix(S), x, b)
    assert x[7] == kept
    np.testing.assert_allclose(host(ours), x, rtol=0, atol=1e-13)


def test_a_dense_column_makes_projections_cimminos_method(gpu_device: Device) -> None:
    """A CPU projects on one row after the other."""
    device = gpu_device
    S = sp.lil_array(sp.eye_array(3000))
    S[:, 0] = 1
    with SquareMatrix.of(GpuSparseMatrix(sp.csr_array(S), device=device), "test") as matrix:
        assert str(projections(matrix, (False,), of_residual=False)).startswith("jacobi_ne instead of gauss_seidel_ne")
        assert str(projections(matrix, (False,), of_residual=True)).startswith("gauss_seidel_nr")
