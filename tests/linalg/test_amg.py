"""Multigrid on the device matches PyAMG with the same smoothers and converges as fast with replaced ones."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from gsparse import GpuSparseMatrix
from gsparse.device.base import Device
from gsparse.errors import FactorizationError, ShapeError
from gsparse.linalg import amg, cg
from gsparse.linalg.preconditioners.square_matrix import SquareMatrix
from tests.linalg.problems import close, convection, dense, laplacian, right_hand_side

pyamg = pytest.importorskip("pyamg")

S = laplacian(16)
B = right_hand_side(S)

DEVICE_SMOOTHERS = {
    "jacobi": ("jacobi", {"iterations": 2, "omega": 0.9}),
    "jacobi, no rho": ("jacobi", {"omega": 0.6, "withrho": False}),
    "richardson": ("richardson", {"iterations": 3}),
    "chebyshev": ("chebyshev", {"degree": 3, "iterations": 2}),
}


def hierarchy(
    S: Any, smoother: Any = DEVICE_SMOOTHERS["jacobi"], build: Any = pyamg.smoothed_aggregation_solver, **options: Any
) -> Any:
    """Return a PyAMG hierarchy of several levels, which is the same for every call."""
    np.random.seed(0)
    options = {"presmoother": smoother, "postsmoother": smoother, "max_coarse": 4, **options}
    return build(sp.csr_matrix(S), **options)


@pytest.mark.parametrize("cycle", ["V", "W"])
@pytest.mark.parametrize("smoother", DEVICE_SMOOTHERS)
@pytest.mark.few(1)
def test_a_cycle_matches_pyamg_with_the_same_smoother(device: Device, smoother: str, cycle: str) -> None:
    ml = hierarchy(S, DEVICE_SMOOTHERS[smoother])
    assert len(ml.levels) >= 3
    close(amg(ml, cycle=cycle, device=device) @ B, ml.aspreconditioner(cycle) @ B, 1e-12)


def of_elasticity() -> Any:
    A, near_null_space = pyamg.gallery.linear_elasticity((8, 8), format="bsr")
    return pyamg.smoothed_aggregation_solver(
        A, B=near_null_space, max_coarse=10, presmoother="jacobi", postsmoother="jacobi"
    )


HIERARCHIES = {
    "a presmoother only": lambda: hierarchy(S, postsmoother=None),
    "a postsmoother only": lambda: hierarchy(S, presmoother=None),
    "two smoothers": lambda: hierarchy(S, postsmoother="richardson"),
    "Ruge-Stüben": lambda: hierarchy(S, build=pyamg.ruge_stuben_solver),
    "root nodes": lambda: hierarchy(S, build=pyamg.rootnode_solver),
    "several unknowns per point": of_elasticity,
}


@pytest.mark.parametrize("kind", HIERARCHIES)
def test_the_cycle_of_every_kind_of_hierarchy_matches_pyamg(real_device: Device, kind: str) -> None:
    ml = HIERARCHIES[kind]()
    b = right_hand_side(ml.levels[0].A)
    close(amg(ml, device=real_device) @ b, ml.aspreconditioner() @ b, 1e-10 if "several" in kind else 1e-12)


@pytest.mark.parametrize("cycle", ["V", "W"])
@pytest.mark.parametrize("dtype", ["float64", "complex128"])
def test_adjoint_is_the_conjugate_transpose(real_device: Device, dtype: str, cycle: str) -> None:
    ml = hierarchy(
        convection(8, dtype),
        presmoother=DEVICE_SMOOTHERS["jacobi"],
        postsmoother="gauss_seidel",
        symmetry="nonsymmetric",
    )
    M = amg(ml, cycle=cycle, device=real_device)
    close(dense(M, "rmatvec"), dense(M).conj().T, 1e-12)


def test_a_singular_coarsest_level_is_pseudo_inverted(real_device: Device) -> None:
    line = sp.diags_array([-1.0, 2.0, -1.0], offsets=[-1, 0, 1], shape=(200, 200)).tolil()
    line[0, 0] = line[199, 199] = 1  # Neumann boundary: the null space holds constants
    T, b = line.tocsr(), np.sin(2 * np.pi * (np.arange(200) + 0.5) / 200)
    result = cg(GpuSparseMatrix(T, device=real_device), b, M=amg(hierarchy(T), device=real_device), full_output=True)
    assert result.info == 0
    assert result.iterations < 30


@pytest.mark.parametrize("dtype", [np.float64, np.complex128])
@pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning", "ignore:invalid value:RuntimeWarning")
def test_a_coarsest_matrix_that_overflows_is_refused(real_device: Device, dtype: Any) -> None:
    A = np.full((3, 3), np.finfo(dtype).max, dtype)
    with pytest.raises(FactorizationError, match="the coarsest matrix has a value that is not finite"):
        amg(GpuSparseMatrix(sp.csr_array(A), device=real_device))


def test_a_hierarchy_of_one_level_is_its_inverse(real_device: Device) -> None:
    close(
        dense(amg(hierarchy(laplacian(5), max_coarse=100), device=real_device)), np.linalg.inv(laplacian(5).toarray())
    )


def test_misuse_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    ml = hierarchy(S)
    for options, match in (
        ({"cycle": "X"}, "cycle must be 'V' or 'W', got 'X'"),
        ({"smoother": "gauss_siedel"}, "smoother must be 'auto' or one of"),
        ({"smoother": ("sor", {"omga": 1.2})}, "the smoother 'sor' has no option 'omga'"),
        ({"sweeps": 2}, "sweeps needs a smoother other than 'auto'"),
        ({"smoother": "jacobi", "sweeps": 0}, "sweeps must be at least 1"),
        ({"dtype": np.float16}, "dtype must be float32 or float64, got float16"),
    ):
        with pytest.raises(ValueError, match=match):
            amg(ml, **options)
    with pytest.raises(ShapeError, match="needs a square matrix"):
        amg(sp.csr_array((3, 4)))
    monkeypatch.setattr("gsparse.linalg.multigrid.pyamg_hierarchy.MAX_INVERTED", 3)
    with pytest.raises(FactorizationError, match="build the hierarchy with more levels"):
        amg(hierarchy(S, max_coarse=100))


# ------------------------------------------------------------------------------------------------------- symmetry


# A smoother that no device runs: the symmetry decides what replaces it.
KRYLOV = ("gmres", {"maxiter": 2})


@pytest.mark.filterwarnings("ignore::gsparse.errors.SmootherWarning")
def test_a_hierarchys_own_symmetry_chooses_its_smoother(device: Device) -> None:
    T = laplacian(16)
    rough = sp.csr_array(T + sp.diags_array(np.full(255, 1e-10), offsets=1))  # far above rounding
    smoothers = {
        "hermitian": (T, "chebyshev"), "symmetric": (rough, "chebyshev"), "nonsymmetric": (T, "gauss_seidel"),
    }  # fmt: skip
    for symmetry, (S, name) in smoothers.items():
        assert name in repr(amg(hierarchy(S, KRYLOV, symmetry=symmetry), device=device))
    # PyAMG's default symmetry "hermitian" is ignored for a matrix that is clearly not symmetric.
    assert "gauss_seidel" in repr(amg(hierarchy(convection(16), KRYLOV), device=device))
    # A hierarchy without a symmetry attribute takes the symmetry of the matrix.
    assert "gauss_seidel" in repr(amg(hierarchy(rough, KRYLOV, pyamg.ruge_stuben_solver), device=device))


@pytest.mark.whole
def test_a_declared_symmetry_is_not_checked_by_amg(real_device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    T = sp.csr_array(laplacian(24) + sp.diags_array(np.full(575, 1e-3), offsets=1))
    for declared in (True, None, False):
        checks: list[float] = []
        monkeypatch.setattr(
            SquareMatrix, "equals_adjoint", lambda _, tolerance, checks=checks: checks.append(tolerance)
        )
        amg(GpuSparseMatrix(T, device=real_device, symmetric=declared))
        assert bool(checks) == (declared is None)


def test_repr_names_the_smoothers(real_device: Device) -> None:
    ml = hierarchy(S, presmoother=DEVICE_SMOOTHERS["jacobi"], postsmoother="richardson")
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
