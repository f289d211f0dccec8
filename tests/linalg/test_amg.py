"""Multigrid on the device does as PyAMG does with the same smoothers, and as well where they are others."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import scipy.sparse.linalg as la

from gsparse import GpuSparseMatrix
from gsparse.device.base import Device
from gsparse.errors import FactorizationError, ShapeError
from gsparse.linalg import amg, cg, isai
from tests.linalg.problems import Count, convection, laplacian, residual, right_hand_side
from tests.support import host

pyamg = pytest.importorskip("pyamg")

S = laplacian(16)
B = right_hand_side(S)

SAME = {
    "jacobi": ("jacobi", {"iterations": 2, "omega": 0.9}),
    "jacobi, no rho": ("jacobi", {"omega": 0.6, "withrho": False}),
    "richardson": ("richardson", {"iterations": 3}),
    "chebyshev": ("chebyshev", {"degree": 3, "iterations": 2}),
}
OTHER = {
    "gauss_seidel": ("gauss_seidel", {"sweep": "symmetric"}),
    "gauss_seidel, twice": ("gauss_seidel", {"sweep": "symmetric", "iterations": 2}),
    "sor": ("sor", {"omega": 1.2, "sweep": "symmetric"}),
    "schwarz": ("schwarz", {"sweep": "symmetric"}),
}


def hierarchy(
    S: Any, smoother: Any = SAME["jacobi"], build: Any = pyamg.smoothed_aggregation_solver, **options: Any
) -> Any:
    """Have PyAMG build a hierarchy of several levels, the same every time."""
    np.random.seed(0)
    options = {"presmoother": smoother, "postsmoother": smoother, "max_coarse": 4, **options}
    return build(sp.csr_matrix(S), **options)


def positive(n: int, dtype: Any) -> Any:
    """Give a Hermitian, positive definite operator."""
    return sp.csr_array(laplacian(n, dtype) + 0.5 * sp.eye_array(n * n, dtype=dtype), dtype=dtype)


def dense(M: Any, name: str = "matvec") -> Any:
    product, eye = getattr(M, name), np.eye(M.shape[0], dtype=M.dtype)
    return np.stack([host(product(column)) for column in eye], axis=1)


def close(found: Any, expected: Any, tolerance: float = 1e-12) -> None:
    np.testing.assert_allclose(found, expected, rtol=0, atol=tolerance * max(1, abs(expected).max()))


@pytest.mark.parametrize("cycle", ["V", "W"])
@pytest.mark.parametrize("smoother", SAME)
def test_a_cycle_is_pyamgs_with_the_same_smoother(device: Device, smoother: str, cycle: str) -> None:
    ml = hierarchy(S, SAME[smoother])
    assert len(ml.levels) >= 3
    close(amg(ml, cycle=cycle, device=device) @ B, ml.aspreconditioner(cycle) @ B)


@pytest.mark.parametrize("pair", [("jacobi", None), (None, "jacobi"), ("jacobi", "richardson")], ids=str)
def test_smoothers_before_and_after_may_differ(real_device: Device, pair: tuple[Any, Any]) -> None:
    ml = hierarchy(S, presmoother=pair[0], postsmoother=pair[1])
    close(amg(ml, device=real_device) @ B, ml.aspreconditioner() @ B)


@pytest.mark.parametrize("build", [pyamg.ruge_stuben_solver, pyamg.rootnode_solver], ids=lambda build: build.__name__)
def test_any_of_pyamgs_hierarchies_is_taken(real_device: Device, build: Any) -> None:
    ml = hierarchy(S, SAME["jacobi"], build)
    close(amg(ml, device=real_device) @ B, ml.aspreconditioner() @ B)


def test_blocks_and_several_unknowns_a_point(real_device: Device) -> None:
    A, near_null_space = pyamg.gallery.linear_elasticity((8, 8), format="bsr")
    ml = pyamg.smoothed_aggregation_solver(
        A, B=near_null_space, max_coarse=10, presmoother="jacobi", postsmoother="jacobi"
    )
    b = right_hand_side(A)
    close(amg(ml, device=real_device) @ b, ml.aspreconditioner() @ b, 1e-10)


@pytest.mark.parametrize("build", [pyamg.smoothed_aggregation_solver, pyamg.ruge_stuben_solver], ids=["SA", "RS"])
@pytest.mark.parametrize("smoother", OTHER)
def test_cg_takes_about_as_many_iterations_as_with_smoothers_by_rows(
    real_device: Device, smoother: str, build: Any
) -> None:
    T = laplacian(40)
    ml, b, count = hierarchy(T, OTHER[smoother], build), right_hand_side(T), Count()
    la.cg(T, b, M=ml.aspreconditioner(), rtol=1e-9, callback=count)
    found = cg(GpuSparseMatrix(T, device=real_device), b, M=amg(ml, device=real_device), rtol=1e-9, full_output=True)
    assert found.info == 0
    assert found.iterations <= count.calls + 3
    assert residual(T, found.x, b) < 1e-8


@pytest.mark.parametrize("options", [{}, {"smoother": "jacobi"}, {"smoother": "l1_jacobi", "sweeps": 3}], ids=str)
def test_a_matrix_gets_a_hierarchy_of_its_own(device: Device, options: dict[str, Any]) -> None:
    T = laplacian(24)
    A, b = GpuSparseMatrix(T, device=device), right_hand_side(T)
    M = amg(A, **options)
    found = cg(A, b, M=M, rtol=1e-9, full_output=True)
    assert found.info == 0
    assert found.iterations <= 16
    assert residual(T, found.x, b) < 1e-8
    assert "rows 576 →" in repr(M)


@pytest.mark.parametrize("cycle", ["V", "W"])
@pytest.mark.parametrize("dtype", ["float64", "complex128"])
def test_it_is_hermitian_and_positive_definite(real_device: Device, dtype: str, cycle: str) -> None:
    T = positive(9, dtype)
    for smoother in (SAME["jacobi"], OTHER["gauss_seidel"]):
        M = dense(amg(hierarchy(T, smoother), cycle=cycle, device=real_device))
        close(M, M.conj().T)
        assert np.linalg.eigvalsh(M).min() > 0


@pytest.mark.parametrize("cycle", ["V", "W"])
@pytest.mark.parametrize("dtype", ["float64", "complex128"])
def test_adjoint_is_the_conjugate_transpose(real_device: Device, dtype: str, cycle: str) -> None:
    ml = hierarchy(
        convection(8, dtype), presmoother=SAME["jacobi"], postsmoother="gauss_seidel", symmetry="nonsymmetric"
    )
    M = amg(ml, cycle=cycle, device=real_device)
    close(dense(M, "rmatvec"), dense(M).conj().T)


def test_gmres_of_a_matrix_that_is_not_symmetric(real_device: Device) -> None:
    T = convection(24)
    b, plain, count = right_hand_side(T), Count(), Count()
    la.gmres(T, b, rtol=1e-9, callback=plain, callback_type="pr_norm")
    M = amg(GpuSparseMatrix(T, device=real_device))
    x, info = la.gmres(T, b, M=M, rtol=1e-9, callback=count, callback_type="pr_norm")
    assert info == 0
    assert count.calls < plain.calls / 2
    assert residual(T, x, b) < 1e-7


def test_right_hand_sides_side_by_side(device: Device) -> None:
    b = right_hand_side(S, 3)
    M = amg(hierarchy(S), device=device)
    x, info = cg(GpuSparseMatrix(S, device=device), b, M=M, rtol=1e-9)
    assert info == 0
    assert np.all(residual(S, x, b) < 1e-8)


def test_levels_in_float32_cost_no_iterations(device: Device) -> None:
    ml, A = hierarchy(S), GpuSparseMatrix(S, device=device)
    full = cg(A, B, M=amg(ml, device=device), rtol=1e-9, full_output=True)
    half = cg(A, B, M=amg(ml, device=device, dtype=np.float32), rtol=1e-9, full_output=True)
    assert half.x.dtype == np.float64
    assert abs(half.iterations - full.iterations) <= 1
    assert residual(S, half.x, B) < 1e-8


@pytest.mark.parametrize("dtype", ["float32", "complex64", "complex128"])
def test_every_dtype(real_device: Device, dtype: str) -> None:
    T = positive(12, dtype)
    for inner in (None, np.float32):
        M = amg(hierarchy(positive(12, np.result_type(dtype, np.float64))), device=real_device, dtype=inner)
        found = cg(GpuSparseMatrix(T, device=real_device), right_hand_side(T), M=M, rtol=1e-5, full_output=True)
        assert found.info == 0
        assert found.iterations < 16


def test_scipys_cg_takes_it_as_M(device: Device) -> None:
    M, count = amg(hierarchy(S), device=device), Count()
    x, info = la.cg(S, B, M=M, rtol=1e-9, callback=count)
    assert info == 0
    assert count.calls < 20
    assert residual(S, x, B) < 1e-8


def test_a_singular_coarsest_level_is_inverted_as_far_as_it_goes(real_device: Device) -> None:
    line = sp.diags_array([-1.0, 2.0, -1.0], offsets=[-1, 0, 1], shape=(200, 200)).tolil()
    line[0, 0] = line[199, 199] = 1  # (Neumann: constants are its kernel)
    T, b = line.tocsr(), np.sin(2 * np.pi * (np.arange(200) + 0.5) / 200)
    found = cg(GpuSparseMatrix(T, device=real_device), b, M=amg(hierarchy(T), device=real_device), full_output=True)
    assert found.info == 0
    assert found.iterations < 30


def test_a_hierarchy_of_one_level_is_its_inverse(real_device: Device) -> None:
    close(
        dense(amg(hierarchy(laplacian(5), max_coarse=100), device=real_device)), np.linalg.inv(laplacian(5).toarray())
    )


def test_the_same_bits_every_time(device: Device) -> None:
    ml = hierarchy(S, OTHER["gauss_seidel"])
    first, second = (host(amg(ml, device=device) @ B) for _ in range(2))
    np.testing.assert_array_equal(first, second)


def test_misuse_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    ml = hierarchy(S)
    for options, match in (
        ({"cycle": "X"}, "cycle must be 'V' or 'W', got 'X'"),
        ({"smoother": "gauss_seidel"}, "smoother must be 'auto' or one of"),
        ({"sweeps": 2}, "go with a smoother that is not 'auto'"),
        ({"smoother": "jacobi", "sweeps": 0}, "sweeps must be at least 1"),
        ({"dtype": np.float16}, "dtype must be float32 or float64, got float16"),
    ):
        with pytest.raises(ValueError, match=match):
            amg(ml, **options)
    with pytest.raises(ShapeError, match="needs a square matrix"):
        amg(sp.csr_array((3, 4)))
    monkeypatch.setattr("gsparse.linalg.multigrid.amg._MAX_COARSE", 3)
    with pytest.raises(FactorizationError, match="build the hierarchy with more levels"):
        amg(hierarchy(S, max_coarse=100))
    monkeypatch.setitem(sys.modules, "pyamg", None)
    with pytest.raises(ImportError, match="pip install pyamg"):
        amg(S)


# ------------------------------------------------------------------------------------------------------- symmetry


def elasticity(n: int) -> tuple[sp.csr_array, Any]:
    """Give a stiffness matrix that is symmetric but for rounding, and its near null space."""
    K, near = pyamg.gallery.linear_elasticity((n, n), format="bsr")
    d = np.exp(0.3 * np.random.default_rng(0).standard_normal(K.shape[0]))
    T = sp.csr_array(sp.diags_array(d) @ sp.csr_array(K) @ sp.diags_array(d))
    assert 0 < abs(T - T.T).max() < 1e-15 * abs(T).max()
    return T, near / d[:, None]


@pytest.mark.parametrize("how", ["isai", "amg of a matrix", "amg of a hierarchy"])
def test_a_matrix_that_is_symmetric_but_for_rounding_takes_no_more_iterations(real_device: Device, how: str) -> None:
    def iterations(T: Any) -> int:
        A = GpuSparseMatrix(T, device=real_device)
        np.random.seed(0)
        if how == "amg of a hierarchy":
            M = amg(pyamg.smoothed_aggregation_solver(T, B=near), device=real_device)
        else:
            M = isai(A) if how == "isai" else amg(A)
        found = cg(A, np.ones(T.shape[0]), M=M, rtol=1e-8, maxiter=400, full_output=True)
        assert found.info == 0
        return found.iterations

    T, near = elasticity(24)
    assert abs(iterations(T) - iterations(sp.csr_array((T + T.T) / 2))) <= 2


def test_a_hierarchys_own_symmetry_chooses_its_smoother(device: Device) -> None:
    T = laplacian(16)
    rough = sp.csr_array(T + sp.diags_array(np.full(255, 1e-10), offsets=1))  # far above rounding
    smoothers = {
        "hermitian": (T, "chebyshev"), "symmetric": (rough, "chebyshev"), "nonsymmetric": (T, "l1_jacobi"),
    }  # fmt: skip
    for symmetry, (S, name) in smoothers.items():
        ml = hierarchy(S, OTHER["gauss_seidel"], symmetry=symmetry)
        assert f"; smoother {name}, 2 steps>" in repr(amg(ml, device=device))
    # The name that PyAMG gives by default says nothing of a matrix that clearly is not symmetric.
    assert "l1_jacobi" in repr(amg(hierarchy(convection(16), OTHER["gauss_seidel"]), device=device))
    # Without a name of its own, the matrix decides.
    ml = hierarchy(rough, OTHER["gauss_seidel"], pyamg.ruge_stuben_solver)
    assert "l1_jacobi" in repr(amg(ml, device=device))


def test_a_declared_symmetry_is_believed(real_device: Device) -> None:
    T = sp.csr_array(laplacian(24) + sp.diags_array(np.full(575, 1e-3), offsets=1))
    for said, name in ((True, "chebyshev"), (None, "l1_jacobi"), (False, "l1_jacobi")):
        assert name in repr(amg(GpuSparseMatrix(T, device=real_device, symmetric=said)))


def test_a_line_names_the_smoothers(real_device: Device) -> None:
    ml = hierarchy(S, presmoother=SAME["jacobi"], postsmoother="richardson")
    text = repr(amg(ml, device=real_device))
    assert text.endswith("; smoother jacobi, 2 steps before, richardson, 1 step after>")
    assert repr(amg(ml, smoother="l1_jacobi", device=real_device)).endswith("; smoother l1_jacobi, 2 steps>")


@pytest.mark.parametrize("size", [3, 24])
def test_a_matrix_with_nan_is_refused(real_device: Device, size: int) -> None:
    T = laplacian(size)
    ml = hierarchy(T)
    T.data[T.indptr[2]] = np.nan
    with pytest.raises(FactorizationError, match=r"amg needs finite values, row 2 of the matrix holds nan"):
        amg(GpuSparseMatrix(T, device=real_device))
    for level in ml.levels:
        level.A.data[0] = np.nan
    with pytest.raises(FactorizationError, match=r"amg needs finite values, row 0"):
        amg(ml, device=real_device)
