"""Products and solves with values as an argument, and their derivatives, without a library that differentiates."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from gsparse import GpuSparseMatrix
from gsparse.device.base import Device
from gsparse.errors import DtypeError, ShapeError
from gsparse.linalg import cg, factorized, gmres, ilu0, jacobi
from gsparse.linalg.gradients import entry_products, parse_matrix, product, product_gradients, solution, with_values
from gsparse.linalg.operators import as_operator
from tests.linalg.problems import convection, laplacian
from tests.support import from_lengths, host, random_values, with_types

VIEWS = {"A": lambda A: A, "A.T": lambda A: A.T, "A.H": lambda A: A.H}


def made(rng: np.random.Generator, dtype: Any, index: Any = np.int32) -> sp.csr_array:
    """Return a matrix with unsorted and repeated entries, and with empty rows and columns."""
    return with_types(from_lengths(rng.integers(0, 9, 33), 70, rng), dtype, index, rng)


def dense(S: sp.csr_array, values: Any, view: str) -> Any:
    """Return the dense matrix with other values. Views that are transposed have values in the same order."""
    array = sp.csr_array((values, S.indices, S.indptr), shape=S.shape).toarray()
    return array if view == "A" else array.T


def real_change(gradient: Any, change: Any) -> float:
    """Return by how much a number changes that has this gradient."""
    return float(np.vdot(gradient, change).real)


@pytest.mark.few(4)
@pytest.mark.parametrize("columns", [None, 1, 3, 40])
@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("dtype", ["float64", "complex128"])
def test_the_gradients_of_a_product_are_its_changes(
    device: Device, dtype: str, view: str, columns: Any, rng: np.random.Generator
) -> None:
    S = made(rng, dtype)
    A = VIEWS[view](GpuSparseMatrix(S, device=device))
    tail = () if columns is None else (columns,)
    v, dv = (random_values(rng, S.nnz, dtype) for _ in range(2))
    x, dx = (random_values(rng, (A.shape[1], *tail), dtype) for _ in range(2))
    G = random_values(rng, (A.shape[0], *tail), dtype)
    of_x, of_v = product_gradients(A, v, G, x)
    np.testing.assert_allclose(host(product(A, v, x)), dense(S, v, view) @ x, atol=1e-12)
    np.testing.assert_allclose(of_x, host(product(A, v, G, adjoint=True)), atol=1e-12)
    np.testing.assert_allclose(of_v, entry_products(A, G, x), atol=1e-12)
    # The product is linear in each argument, so the change is that of the product with the change of the argument.
    assert real_change(of_x, dx) == pytest.approx(real_change(G, dense(S, v, view) @ dx), abs=1e-10)
    assert real_change(of_v, dv) == pytest.approx(real_change(G, dense(S, dv, view) @ x), abs=1e-10)
    # The gradient of the adjoint product in the values has its vectors exchanged.
    change = dense(S, dv, view).conj().T @ G
    assert real_change(of_v.conj(), dv.conj()) == pytest.approx(real_change(x, change), abs=1e-10)


@pytest.mark.parametrize("dtype", ["float64", "complex128"])
@pytest.mark.parametrize("adjoint", [False, True])
def test_a_solution_solves_the_system_with_these_values_or_its_adjoint(
    device: Device, adjoint: bool, dtype: str, rng: np.random.Generator
) -> None:
    S = convection(6, dtype)
    A, values, b = GpuSparseMatrix(S, device=device), 2 * S.data, random_values(rng, 36, dtype)
    x = host(solution(A, values, b, gmres, {"rtol": 1e-12, "M": ilu0(A)}, adjoint=adjoint))
    matrix = 2 * S.toarray()
    np.testing.assert_allclose((matrix.conj().T if adjoint else matrix) @ x, b, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize(
    "make",
    [factorized, ilu0, lambda A: np.linalg.inv(A.toarray()), lambda A: sp.csr_array(sp.diags_array(1 / A.diagonal()))],
)
def test_the_adjoint_of_any_preconditioner_is_one(real_device: Device, make: Any) -> None:
    S, seen = convection(5), []
    A = GpuSparseMatrix(S, device=real_device)
    M = make(A)

    def record(matrix: Any, b: Any, **options: Any) -> Any:
        seen.append(options["M"].is_resident)
        return gmres(matrix, b, **options)

    x = solution(A, S.data, np.ones(25), record, {"M": M, "rtol": 1e-12, "maxiter": 99}, adjoint=True)
    np.testing.assert_allclose(S.T @ x, np.ones(25), rtol=1e-8)
    assert seen == [as_operator(M, real_device).is_resident]


def test_a_hermitian_solver_gets_the_matrix_itself_and_its_preconditioner_for_the_adjoint() -> None:
    S, seen = laplacian(5), []
    A = GpuSparseMatrix(S, device="cpu")
    M = jacobi(A)

    def record(matrix: Any, b: Any, **options: Any) -> Any:
        seen.append((matrix.format, options["M"] is M))
        return cg(matrix, b, **options)

    record.__name__ = "cg"
    for name in ("cg", "gmres"):
        record.__name__ = name
        solution(A, S.data, np.ones(25), record, {"M": M}, adjoint=True)
    assert seen == [("csr", True), ("csc", False)]


def test_values_share_what_is_known_of_the_structure_and_are_never_converted(device: Device) -> None:
    S = laplacian(40)
    A = GpuSparseMatrix(S, device=device)
    A @ np.ones(1600)
    matrix = with_values(A, 2 * S.data)
    np.testing.assert_allclose(host(matrix @ np.ones(1600)), 2 * S @ np.ones(1600), atol=1e-12)
    assert matrix._arrays.current(S.shape).structure is A._arrays.current(S.shape).structure
    assert matrix.plan.format.startswith("csr")
    assert with_values(A, None) is A


def test_matrices_of_one_structure_are_transposed_by_rearranging_values(device: Device, rng: Any) -> None:
    S = made(rng, float)
    A, x = GpuSparseMatrix(S, device=device), rng.standard_normal(33)
    structure = A._arrays.current(S.shape).structure
    assert structure.known_transposition is None
    product(A, S.data, x, adjoint=True)
    transposed = structure.known_transposition
    assert transposed is not None
    other = with_values(A, 3 * S.data)
    assert other._prepared(transpose=True)[0].structure is transposed[0]
    np.testing.assert_allclose(host(other.T @ x), 3 * (S.T @ x), atol=1e-12)
    A.release()
    assert structure.known_transposition is None


def test_a_bad_argument_is_refused() -> None:
    S = laplacian(4)
    A = GpuSparseMatrix(S, device="cpu")
    with pytest.raises(TypeError, match="must be a GpuSparseMatrix"):
        parse_matrix(S)
    with pytest.raises(DtypeError, match=r"longdouble|float128"):
        parse_matrix(GpuSparseMatrix(S.astype(np.longdouble), device="cpu"))
    with pytest.raises(ShapeError, match="as many values"):
        with_values(A, S.data[1:])
    with pytest.raises(DtypeError, match="values must be"):
        with_values(A, S.data.astype(int))
    with pytest.raises(ShapeError, match="takes arrays of shapes"):
        entry_products(A, np.ones(16), np.ones((16, 1)))
    with pytest.raises(DtypeError, match="must have one dtype"):
        entry_products(A, np.ones(16), np.ones(16, np.float32))
