"""`gsparse.torch`: PyTorch's own gradient checks, of first and second order, and what users may rely on."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

import gsparse.linalg
from gsparse import GpuSparseMatrix
from gsparse.device.base import Device
from gsparse.errors import ConvergenceWarning, DtypeError, ShapeError
from tests.linalg.problems import laplacian
from tests.support import from_lengths, random_values, with_types

torch = pytest.importorskip("torch", reason="needs PyTorch")
import gsparse.torch  # noqa: E402  (needs PyTorch)

DTYPES = ("float64", "complex128")


def tensor(array: Any, device: Device | None = None, *, requires_grad: bool = True) -> Any:
    """Return a tensor, on the GPU if that is the device of a test and PyTorch supports it."""
    on_gpu = device is not None and device.name.startswith("gpu") and torch.cuda.is_available()
    return torch.from_numpy(np.array(array)).to("cuda" if on_gpu else "cpu").requires_grad_(requires_grad)


def array(found: Any) -> Any:
    return found.detach().cpu().numpy()


def rectangular(rng: np.random.Generator) -> sp.csr_array:
    """Return a matrix with unsorted and repeated entries, and with empty rows and columns."""
    return from_lengths([3, 0, 5, 1], 5, rng)


def square(rng: np.random.Generator, dtype: Any) -> sp.csr_array:
    """Return a well-conditioned matrix that is not symmetric."""
    S = sp.csr_array(sp.random_array((6, 6), density=0.3, rng=rng) + 3 * sp.eye_array(6))
    S.data = S.data.astype(dtype) + (1j * rng.random(S.nnz) if np.dtype(dtype).kind == "c" else 0)
    return S


# ------------------------------------------------------------------------------------------------------------ products


@pytest.mark.few(4)
@pytest.mark.parametrize("shape", [(5,), (5, 1), (5, 3)])
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_product_passes_the_gradient_checks_of_both_orders(
    device: Device, dtype: str, shape: Any, rng: np.random.Generator
) -> None:
    S = rectangular(rng)
    A = GpuSparseMatrix(S, device=device)
    values, x = (tensor(random_values(rng, size, dtype), device) for size in (S.nnz, shape))
    assert torch.autograd.gradcheck(lambda v, x: gsparse.torch.matmul(A, x, v), (values, x))
    assert torch.autograd.gradgradcheck(lambda v, x: gsparse.torch.matmul(A, x, v), (values, x))
    assert torch.autograd.gradcheck(lambda x: gsparse.torch.matmul(A, x), (x,))
    assert torch.autograd.gradcheck(lambda v: gsparse.torch.matmul(A, x.detach(), v), (values,))


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_product_with_a_transposed_view_passes_the_gradient_checks(
    device: Device, dtype: str, rng: np.random.Generator
) -> None:
    S = with_types(rectangular(rng), dtype, np.int64, rng)
    A = GpuSparseMatrix(S, device=device)
    values, x = (tensor(random_values(rng, size, dtype), device) for size in (S.nnz, (4, 2)))
    for view in (A.T, A.H):
        assert torch.autograd.gradcheck(lambda v, x: gsparse.torch.matmul(view, x, v), (values, x))
        assert torch.autograd.gradgradcheck(lambda v, x: gsparse.torch.matmul(view, x, v), (values, x))
        assert torch.autograd.gradcheck(lambda x: gsparse.torch.matmul(view, x), (x,))


def test_gradients_of_real_and_complex_operands_have_the_dtypes_of_the_operands(rng: np.random.Generator) -> None:
    S = rectangular(rng)
    for kind in (with_types(S, complex, np.int32, rng), S):
        A = GpuSparseMatrix(kind, device="cpu")
        for v, x in ((float, complex), (complex, float), (np.float32, float), (float, np.float32)):
            values, vector = (tensor(random_values(rng, size, kind)) for size, kind in ((S.nnz, v), (5, x)))
            gsparse.torch.matmul(A, vector, values).abs().sum().backward()
            assert (values.grad.dtype, vector.grad.dtype) == (values.dtype, vector.dtype)
            alone = vector.detach().clone().requires_grad_()
            gsparse.torch.matmul(A, alone).abs().sum().backward()
            assert alone.grad.dtype == vector.dtype
    A = GpuSparseMatrix(S, device="cpu")
    values, x = tensor(random_values(rng, S.nnz, float)), tensor(random_values(rng, 5, complex))
    assert torch.autograd.gradcheck(lambda v, x: gsparse.torch.matmul(A, x, v), (values, x))
    C = GpuSparseMatrix(with_types(S, complex, np.int32, rng), device="cpu")
    x = tensor(random_values(rng, 5, float))
    assert torch.autograd.gradcheck(lambda x: gsparse.torch.matmul(C, x), (x,))


@pytest.mark.parametrize("columns", [None, 4])
def test_gradients_of_a_product_equal_those_of_a_dense_product(device: Device, columns: Any, rng: Any) -> None:
    # One column is much longer than the others, so the two gradients are computed separately.
    rows, cols = np.arange(5000), np.where(rng.random(5000) < 0.9, 0, rng.integers(1, 40, 5000))
    S = sp.csr_array(sp.coo_array((rng.standard_normal(5000), (rows, cols)), shape=(5000, 40)))
    shape = (40,) if columns is None else (40, columns)
    values, x = tensor(S.data, device), tensor(rng.standard_normal(shape), device)
    weight = rng.standard_normal((5000, *shape[1:]))
    y = gsparse.torch.matmul(GpuSparseMatrix(S, device=device), x, values)
    (y * tensor(weight, device)).sum().backward()
    np.testing.assert_allclose(array(x.grad), S.T @ weight, rtol=1e-11, atol=1e-12)
    pairs = weight[S.tocoo().coords[0]] * array(x)[S.indices]
    np.testing.assert_allclose(
        array(values.grad), pairs if columns is None else pairs.sum(axis=1), rtol=1e-11, atol=1e-13
    )


def test_gradients_are_the_same_bits_in_every_run_and_add_up(device: Device, rng: np.random.Generator) -> None:
    S = from_lengths(rng.integers(0, 30, 300), 200, rng)
    A, results = GpuSparseMatrix(S, device=device), []
    for _ in range(2):
        values, X = tensor(S.data, device), tensor(np.random.default_rng(1).standard_normal((200, 7)), device)
        gsparse.torch.matmul(A, X, values).square().sum().backward()
        results.append((array(values.grad).tobytes(), array(X.grad).tobytes()))
        first = values.grad.clone()
        gsparse.torch.matmul(A, X, values).square().sum().backward()
        torch.testing.assert_close(values.grad, 2 * first)
    assert results[0] == results[1]


# -------------------------------------------------------------------------------------------------------------- solves


@pytest.mark.few(3)
@pytest.mark.parametrize("solver", ["solve", "gmres", "fgmres"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_solve_passes_the_gradient_checks_of_both_orders(dtype: str, solver: str, rng: np.random.Generator) -> None:
    S = square(rng, dtype)
    A = GpuSparseMatrix(S, device="cpu")
    values, b = tensor(S.data), tensor(random_values(rng, 6, dtype))
    options: Any = {"solver": getattr(gsparse.linalg, solver), "rtol": 1e-13}
    if solver == "gmres":
        options["M"] = gsparse.linalg.ilu0(A)
    assert torch.autograd.gradcheck(lambda v, b: gsparse.torch.solve(A, b, v, **options), (values, b))
    assert torch.autograd.gradgradcheck(lambda v, b: gsparse.torch.solve(A, b, v, **options), (values, b))


@pytest.mark.parametrize("name", ["ilu0", "gauss_seidel", "isai"])
def test_gradients_of_solves_use_the_adjoint_of_the_preconditioner(device: Device, name: str, rng: Any) -> None:
    S = square(rng, "complex128")
    A = GpuSparseMatrix(S, device=device)
    M: Any = getattr(gsparse.linalg, name)(A)
    values, B = tensor(S.data, device), tensor(random_values(rng, (6, 2), "complex128"), device)
    weight = random_values(rng, (6, 2), "complex128")
    X = gsparse.torch.solve(A, B, values, solver=gsparse.linalg.gmres, M=M, rtol=1e-13)
    (X * tensor(weight, device).detach().conj()).sum().real.backward()
    W = np.linalg.solve(S.toarray().conj().T, weight)
    np.testing.assert_allclose(array(B.grad), W, rtol=1e-10)
    rows, columns = S.tocoo().coords
    expected = -(W[rows] * array(X).conj()[columns]).sum(axis=1)
    np.testing.assert_allclose(array(values.grad), expected, rtol=1e-9)


@pytest.mark.parametrize("solver", ["cg", "minres"])
def test_a_hermitian_solve_needs_no_adjoint(solver: str, monkeypatch: pytest.MonkeyPatch) -> None:
    S = sp.csr_array(laplacian(4) + sp.eye_array(16))
    A = GpuSparseMatrix(S, device="cpu")
    monkeypatch.setattr("gsparse.linalg.gradients.AdjointOperator", None)
    M, function = gsparse.linalg.ic0(A), getattr(gsparse.linalg, solver)
    coefficients, b = tensor(np.linspace(1, 2, 16)), tensor(np.linspace(0, 1, 16))
    rows, columns = (torch.from_numpy(part.astype(np.int64)) for part in S.tocoo().coords)

    def solution(c: Any, b: Any) -> Any:
        # The matrix is symmetric for all coefficients: those of both unknowns are multiplied.
        values = torch.from_numpy(S.data) * (c[rows] + c[columns])
        return gsparse.torch.solve(A, b, values, solver=function, M=M, rtol=1e-13)

    assert torch.autograd.gradcheck(solution, (coefficients, b))
    assert torch.autograd.gradgradcheck(solution, (coefficients, b))


def test_a_solve_with_constant_values_is_differentiable_in_the_right_hand_side(rng: np.random.Generator) -> None:
    A = GpuSparseMatrix(square(rng, float), device="cpu")
    b = tensor(rng.standard_normal((6, 2)))
    assert torch.autograd.gradcheck(lambda b: gsparse.torch.solve(A, b, rtol=1e-13), (b,))


def test_a_solve_that_does_not_converge_warns() -> None:
    A = GpuSparseMatrix(laplacian(20), device="cpu")
    with pytest.warns(ConvergenceWarning):
        gsparse.torch.solve(A, torch.ones(400, dtype=torch.float64), solver=gsparse.linalg.cg, maxiter=2)


def test_single_precision_is_solved_to_its_own_tolerance() -> None:
    S = laplacian(8).astype(np.float32)
    A, b = GpuSparseMatrix(S, device="cpu"), tensor(np.ones(64, np.float32))
    values = tensor(S.data)
    gsparse.torch.solve(A, b, values, solver=gsparse.linalg.cg).sum().backward()
    assert values.grad.dtype == b.grad.dtype == torch.float32
    np.testing.assert_allclose(S @ b.grad.numpy(), np.ones(64), atol=1e-3)


# --------------------------------------------------------------------------------------------------------------- usage


def test_values_and_vectors_on_the_device_are_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    A = GpuSparseMatrix(laplacian(5), device="cpu")
    values, x = tensor(laplacian(5).data), tensor(np.ones(25))
    seen: list[tuple[int, int]] = []
    from gsparse.linalg import gradients

    multiply = gradients.multiply

    def record(matrix: Any, vector: Any, **options: Any) -> Any:
        seen.append((matrix._arrays.data.current_array().ctypes.data, vector.data_ptr()))
        return multiply(matrix, vector, **options)

    monkeypatch.setattr(gradients, "multiply", record)
    gsparse.torch.matmul(A, x, values)
    assert seen == [(values.data_ptr(), x.data_ptr())]


def test_the_structure_is_transposed_once_for_all_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    from gsparse.kernels.cpu import transpose

    calls: list[int] = []
    csr_transpose = transpose.csr_transpose
    monkeypatch.setattr(transpose, "csr_transpose", lambda *args: calls.append(1) or csr_transpose(*args))
    S = rectangular(np.random.default_rng(0))
    A, x = GpuSparseMatrix(S, device="cpu"), tensor(np.ones(5))
    for factor in (1.0, 2.0, 3.0):
        values = tensor(factor * S.data)
        (gradient,) = torch.autograd.grad(gsparse.torch.matmul(A, x, values).sum(), x, create_graph=True)
        gsparse.torch.matmul(A, x, values).sum().backward()
        np.testing.assert_allclose(gradient.detach().numpy(), factor * S.sum(axis=0))
    assert calls == [1]


def test_tensors_on_the_host_are_copied_to_the_device_of_the_matrix_and_back(device: Device, rng: Any) -> None:
    S = rectangular(rng)
    values, x = tensor(S.data), tensor(rng.standard_normal((5, 2)))
    y = gsparse.torch.matmul(GpuSparseMatrix(S, device=device), x, values)
    y.sum().backward()
    assert {t.device.type for t in (y, x.grad, values.grad)} == {"cpu"}
    np.testing.assert_allclose(array(values.grad), array(x).sum(axis=1)[S.indices], rtol=1e-12)


@pytest.mark.whole
def test_gradients_are_timed_beside_torch_sparse() -> None:
    script = Path(__file__).resolve().parents[1] / "asv_bench" / "measure_gradients.py"
    command = [sys.executable, str(script), "--quick", "--device", "cpu"]
    printed = subprocess.run(command, capture_output=True, text=True, check=True, timeout=600).stdout
    lines = [line.split() for line in printed.splitlines() if "gsparse" in line]
    assert len(lines) == 11
    assert all(float(line[-2]) < 1e-6 for line in lines)  # the largest error


def test_writing_to_a_saved_tensor_is_detected() -> None:
    A, values = GpuSparseMatrix(laplacian(3), device="cpu"), tensor(laplacian(3).data)
    y = gsparse.torch.matmul(A, torch.ones(9, dtype=torch.float64), values)
    with torch.no_grad():
        values += 1
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_functions_that_transform_functions_accept_products() -> None:
    A, S = GpuSparseMatrix(laplacian(3), device="cpu"), laplacian(3)
    gradient = torch.func.grad(lambda x: gsparse.torch.matmul(A, x).sum())(torch.ones(9, dtype=torch.float64))
    np.testing.assert_allclose(gradient.numpy(), S.T @ np.ones(9))


def test_gradient_descent_finds_the_values_of_a_matrix(rng: np.random.Generator) -> None:
    S = from_lengths(np.full(20, 3), 10, rng)
    A, X = GpuSparseMatrix(S, device="cpu"), tensor(rng.standard_normal((10, 40)), requires_grad=False)
    target, values = gsparse.torch.matmul(A, X), torch.nn.Parameter(torch.zeros(S.nnz, dtype=torch.float64))
    optimizer = torch.optim.LBFGS([values], max_iter=60)

    def loss() -> Any:
        optimizer.zero_grad()
        misfit = (gsparse.torch.matmul(A, X, values) - target).square().mean()
        misfit.backward()
        return misfit

    optimizer.step(loss)
    found = A.with_data(values.detach().numpy())
    np.testing.assert_allclose(found.toarray(), S.toarray(), atol=1e-3)  # repeated entries are known by their sum


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (lambda A, x, v: (A, x, v[:-1]), ShapeError, "takes as many values"),
        (lambda A, x, v: (A, x[:-1], v), ShapeError, "takes x of shape"),
        (lambda A, x, v: (A, x.detach().numpy(), v), TypeError, "must be a PyTorch tensor"),
        (lambda A, x, v: (A, x, v.detach().numpy()), TypeError, "values must be a PyTorch tensor"),
        (lambda A, x, v: (A.toarray(), x, v), TypeError, "A must be a GpuSparseMatrix"),
        (lambda A, x, v: (A, x.half(), v.half()), DtypeError, "values must be float32"),
    ],
)
def test_a_bad_argument_is_refused(arguments: Any, error: Any, message: str) -> None:
    A = GpuSparseMatrix(laplacian(3), device="cpu")
    with pytest.raises(error, match=message):
        gsparse.torch.matmul(*arguments(A, tensor(np.ones(9)), tensor(laplacian(3).data)))


def test_a_solver_for_least_squares_is_refused() -> None:
    A = GpuSparseMatrix(laplacian(3), device="cpu")
    with pytest.raises(ValueError, match="must be one for square systems"):
        gsparse.torch.solve(A, torch.ones(9, dtype=torch.float64), solver=gsparse.linalg.lsqr)
