"""SciPy's own solvers, unmodified, end after a few products with `A.accelerated()`."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import scipy.sparse.linalg as la

from gsparse import GpuSparseMatrix
from gsparse.device.base import Device
from gsparse.errors import ShapeError
from gsparse.linalg import SolveResult, cg, jacobi
from tests.linalg.problems import Count, convection, indefinite, laplacian, residual, right_hand_side

SIDE = 14
HERMITIAN = ("cg", "minres")
GENERAL = ("cgs", "bicg", "bicgstab", "gmres", "lgmres", "gcrotmk", "tfqmr", "qmr")
PROBLEMS = {"definite": laplacian, "general": convection}

# Products that SciPy's solvers ask for: some compute a residual before the first step, or after the last.
MAX_PRODUCTS = 6


def solve(name: str, A: Any, b: Any, **options: Any) -> tuple[Any, int]:
    if name == "gmres":
        options["callback_type"] = "x"
    found: tuple[Any, int] = getattr(la, name)(A, b, **options)
    return found


def count_products(monkeypatch: pytest.MonkeyPatch, accelerated: Any) -> Counter[str]:
    """Count SciPy's calls of the operator by method; `A.stats` would also count the products of the device's solver."""
    counts: Counter[str] = Counter()
    for name in ("_matvec", "_rmatvec", "_matmat", "_rmatmat"):
        multiply = getattr(accelerated, name)

        def counted(x: Any, name: str = name, multiply: Any = multiply) -> Any:
            counts[name] += 1
            return multiply(x)

        monkeypatch.setattr(accelerated, name, counted)
    return counts


@pytest.mark.parametrize("dtype", [float, complex], ids=["real", "complex"])
@pytest.mark.parametrize(
    ("problem", "name"),
    [("definite", name) for name in (*HERMITIAN, *GENERAL)] + [("general", name) for name in GENERAL],
)
@pytest.mark.few(2)
def test_scipys_solvers_end_after_a_few_products(
    real_device: Device, problem: str, name: str, dtype: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    if name == "minres" and dtype is complex:
        pytest.skip("SciPy's minres is for real matrices")
    S = PROBLEMS[problem](SIDE, dtype)
    b = right_hand_side(S)
    A = GpuSparseMatrix(S, device=real_device)
    A @ b
    for rtol in (1e-5, 1e-7 if name == "tfqmr" else 1e-9):  # tfqmr does not notice the errors of inexact solves
        count, accelerated = Count(), A.accelerated()
        products = count_products(monkeypatch, accelerated)
        x, info = solve(name, accelerated, b, rtol=rtol, callback=count)
        assert info == 0
        assert x.dtype == S.dtype
        assert residual(S, x, b) <= rtol
        assert count.calls <= 3
        assert 0 < sum(products.values()) <= MAX_PRODUCTS
        assert isinstance(accelerated.last, SolveResult)


@pytest.mark.parametrize("name", ["cg", "gmres", "qmr"])
@pytest.mark.few(1)
def test_accelerated_solvers_converge_on_every_device(device: Device, name: str) -> None:
    S = laplacian(6)
    b = right_hand_side(S)
    x, info = solve(name, GpuSparseMatrix(S, device=device).accelerated(), b, rtol=1e-8)
    assert info == 0
    assert residual(S, x, b) < 1e-8


def test_a_tight_tolerance_is_reached_also_from_an_initial_guess(real_device: Device) -> None:
    S = laplacian(SIDE)
    b = right_hand_side(S)
    A = GpuSparseMatrix(S, device=real_device)
    count = Count()
    x, info = la.cg(A.accelerated(rtol=1e-5), b, x0=b, rtol=1e-14, callback=count)
    assert info == 0
    assert residual(S, x, b) < 1e-13
    assert count.calls <= 4


def test_the_method_is_chosen_by_the_matrix(real_device: Device) -> None:
    for make, name in ((laplacian, "cg"), (indefinite, "minres"), (convection, "bicgstab")):
        accelerated = GpuSparseMatrix(make(6), device=real_device).accelerated()
        assert accelerated._methods[0][0].__name__ == name
    told = GpuSparseMatrix(convection(6), device=real_device, symmetric=True).accelerated()
    assert told._methods[0][0] is cg


@pytest.mark.parametrize("name", ["cgg", "jacobi", "SolveResult"])
def test_the_error_for_an_unknown_method_lists_the_known_ones(real_device: Device, name: str) -> None:
    A = GpuSparseMatrix(laplacian(SIDE), device=real_device)
    with pytest.raises(ValueError, match=f"one of cg, minres, bicgstab, gmres, fgmres, got '{name}'"):
        A.accelerated(name)


@pytest.mark.few(1)
def test_a_method_a_preconditioner_and_options_are_passed_on(real_device: Device) -> None:
    S = sp.csr_array(laplacian(SIDE) + sp.diags_array(np.geomspace(1, 1e3, SIDE**2)))
    b = right_hand_side(S)
    A = GpuSparseMatrix(S, device=real_device)
    plain, helped = A.accelerated("cg"), A.accelerated("cg", jacobi(A), 1e-9, inner_dtype=np.float32)
    for accelerated in (plain, helped):
        assert la.cg(accelerated, b, rtol=1e-8)[1] == 0
    assert helped.last.iterations < plain.last.iterations
    calls = []

    def own(*arguments: Any, **options: Any) -> Any:
        calls.append(options["rtol"])
        return cg(*arguments, **options)

    la.cg(A.accelerated(own, rtol=1e-7), b)
    assert calls == [1e-7]


@pytest.mark.whole
def test_the_adjoint_is_preconditioned_by_the_adjoint(real_device: Device) -> None:
    S = convection(SIDE, complex)
    b = right_hand_side(S)
    A = GpuSparseMatrix(S, device=real_device)
    lu = la.splu(S.tocsc())
    M = la.LinearOperator(S.shape, lu.solve, lambda x: lu.solve(x, "H"), dtype=complex)
    accelerated = A.accelerated(M=M)
    assert residual(S.conj().T, accelerated.rpsolve(b), b) < 1e-9
    assert accelerated.last.iterations <= 2


def test_a_failed_solve_warns_and_scipy_continues(real_device: Device) -> None:
    S = laplacian(SIDE)
    b = right_hand_side(S)
    accelerated = GpuSparseMatrix(S, device=real_device).accelerated("cg", maxiter=12)
    with pytest.warns(RuntimeWarning, match="inexact.*maxiter"):
        x, info = la.lgmres(accelerated, b, rtol=1e-8)
    assert info == 0
    assert residual(S, x, b) < 1e-8


@pytest.mark.whole
def test_auto_goes_on_to_the_next_method(real_device: Device) -> None:
    S = laplacian(SIDE)
    b = right_hand_side(S)
    accelerated = GpuSparseMatrix(S, device=real_device).accelerated(maxiter=20)
    assert residual(S, accelerated.psolve(b), b) < 1e-9
    assert [method.__name__ for method, _ in accelerated._methods] == ["gmres"]


def test_the_accelerated_matrix_is_a_linear_operator(real_device: Device) -> None:
    S = convection(5)
    A = GpuSparseMatrix(S, device=real_device).accelerated()
    X = right_hand_side(S, 2)
    np.testing.assert_allclose(A @ X, S @ X)
    np.testing.assert_allclose(A.H @ X, S.T @ X)
    np.testing.assert_allclose(A.rmatvec(X[:, 0]), S.T @ X[:, 0])
    np.testing.assert_allclose((2 * A) @ X[:, 0], 2 * (S @ X[:, 0]))


def test_matrices_of_integers_and_of_float32_are_accelerated(real_device: Device) -> None:
    S = laplacian(SIDE)
    b = right_hand_side(S)
    for dtype in (int, np.float32):
        A = GpuSparseMatrix(S.astype(dtype), device=real_device).accelerated()
        for name in ("cg", "tfqmr"):
            x, info = solve(name, A, b, rtol=1e-4)
            assert info == 0
            assert residual(S, x, b) < 1e-4


def test_a_matrix_that_is_not_square_is_refused() -> None:
    with pytest.raises(ShapeError, match="square"):
        GpuSparseMatrix(laplacian(5)[:7], device="cpu").accelerated()
