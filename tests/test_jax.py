"""`gsparse.jax`: JAX's own gradient checks, of first and second order, in and outside of traced code."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

import gsparse.linalg
from gsparse import GpuSparseMatrix
from gsparse.device.base import Device
from gsparse.errors import ShapeError
from tests.linalg.problems import laplacian
from tests.support import from_lengths, random_values, with_types

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # by default JAX allocates three quarters of a GPU
jax = pytest.importorskip("jax", reason="needs JAX")
import jax.numpy as jnp  # noqa: E402
from jax.test_util import check_grads  # noqa: E402

import gsparse.jax  # noqa: E402  (needs JAX)


@pytest.fixture(autouse=True)
def in_double_precision() -> Iterator[None]:
    before = jax.config.jax_enable_x64
    jax.config.update("jax_enable_x64", True)
    yield
    jax.config.update("jax_enable_x64", before)


@pytest.fixture
def device(real_device: Device) -> Iterator[Device]:
    """Return a device on which JAX makes its arrays during the test."""
    try:
        place = jax.devices(real_device.kind)[0]
    except RuntimeError as error:
        pytest.skip(str(error))
    with jax.default_device(place):
        yield real_device


def check(function: Any, *operands: Any) -> None:
    """Compare derivatives in reverse of first and second order with finite differences, also of the traced function."""
    for variant in (function, jax.jit(function)):
        check_grads(variant, operands, order=2, modes=["rev"], atol=1e-5, rtol=1e-5)


def rectangular(rng: np.random.Generator, dtype: Any) -> sp.csr_array:
    """Return a matrix with unsorted and repeated entries, and with empty rows and columns."""
    return with_types(from_lengths([3, 0, 5, 1], 5, rng), dtype, np.int32, rng)


@pytest.mark.parametrize("shape", [(5,), (5, 3)])
@pytest.mark.parametrize("dtype", ["float64", "complex128"])
def test_a_product_passes_the_gradient_checks_of_both_orders(dtype: str, shape: Any, rng: Any, device: Device) -> None:
    S = rectangular(rng, dtype)
    A = GpuSparseMatrix(S, device=device)
    values, x = (jnp.array(random_values(rng, size, dtype)) for size in (S.nnz, shape))
    check(lambda v, x: gsparse.jax.matmul(A, x, v), values, x)
    check(lambda x: gsparse.jax.matmul(A, x), x)
    check(lambda v, z: gsparse.jax.matmul(A.T, z, v), values, jnp.array(random_values(rng, (4, *shape[1:]), dtype)))


@pytest.mark.parametrize("dtype", ["float64", "complex128"])
def test_a_solve_passes_the_gradient_checks_of_both_orders(dtype: str, rng: Any, device: Device) -> None:
    S = sp.csr_array(sp.random_array((6, 6), density=0.3, rng=rng) + 3 * sp.eye_array(6)).astype(dtype)
    A = GpuSparseMatrix(S, device=device)
    values, b = jnp.array(S.data), jnp.array(random_values(rng, 6, dtype))
    options: Any = {"solver": gsparse.linalg.gmres, "M": gsparse.linalg.ilu0(A), "rtol": 1e-13}
    check(lambda v, b: gsparse.jax.solve(A, b, v, **options), values, b)
    check(lambda b: gsparse.jax.solve(A, b), b)


def test_gradients_of_a_complex_product_are_those_of_jax(rng: Any, device: Device) -> None:
    S = rectangular(rng, "complex128")
    S.sum_duplicates()
    A, x = GpuSparseMatrix(S, device=device), jnp.array(random_values(rng, 5, "complex128"))
    rows, columns = S.tocoo().coords

    def loss(multiply: Any, values: Any, x: Any) -> Any:
        y = multiply(values, x)
        return (abs(y) ** 2).sum() + (y * jnp.arange(4.0)).sum().imag

    def dense(values: Any, x: Any) -> Any:
        return jnp.zeros(S.shape, values.dtype).at[rows, columns].set(values) @ x

    found, expected = (
        jax.grad(lambda v, x, f=function: loss(f, v, x), (0, 1))(jnp.array(S.data), x)
        for function in (lambda v, x: gsparse.jax.matmul(A, x, v), dense)
    )
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-12)


def test_a_real_vector_of_a_complex_matrix_has_a_real_gradient(rng: Any, device: Device) -> None:
    A = GpuSparseMatrix(rectangular(rng, "complex128"), device=device)
    x = jnp.array(rng.standard_normal(5))
    check(lambda x: abs(gsparse.jax.matmul(A, x)) ** 2, x)
    assert jax.grad(lambda x: (abs(gsparse.jax.matmul(A, x)) ** 2).sum())(x).dtype == x.dtype


def test_functions_that_transform_functions_accept_products(rng: Any, device: Device) -> None:
    S = rectangular(rng, "float64")
    A, X = GpuSparseMatrix(S, device=device), jnp.array(rng.standard_normal((7, 5)))
    rows = jax.vmap(lambda x: gsparse.jax.matmul(A, x))(X)
    np.testing.assert_allclose(rows, (S @ np.asarray(X).T).T, atol=1e-12)
    jacobian = jax.jacrev(lambda x: gsparse.jax.matmul(A, x))(X[0])
    np.testing.assert_allclose(jacobian, S.toarray(), atol=1e-12)


def test_single_precision_is_the_default_of_jax_and_of_solves(device: Device) -> None:
    jax.config.update("jax_enable_x64", False)
    S = laplacian(8)
    A = GpuSparseMatrix(S, device=device)
    x = gsparse.jax.solve(A, jnp.ones(64), jnp.array(S.data), solver=gsparse.linalg.cg)
    assert x.dtype == gsparse.jax.matmul(A, x).dtype == jnp.float32
    np.testing.assert_allclose(S @ np.asarray(x), np.ones(64), atol=1e-3)


def test_large_products_in_traced_code_do_not_wait_for_ever(device: Device) -> None:
    S = laplacian(400)
    A, x = GpuSparseMatrix(S, device=device), jnp.ones(160_000)
    y = jax.jit(lambda x: gsparse.jax.matmul(A, 2 * gsparse.jax.matmul(A, x)))(x)
    np.testing.assert_allclose(y, 2 * (S @ (S @ np.ones(160_000))), atol=1e-9)


def test_a_bad_argument_is_refused(device: Device) -> None:
    A = GpuSparseMatrix(laplacian(3), device=device)
    with pytest.raises(ShapeError, match="takes x of shape"):
        gsparse.jax.matmul(A, jnp.ones(8))
    with pytest.raises(TypeError, match="A must be a GpuSparseMatrix"):
        gsparse.jax.matmul(np.eye(3), jnp.ones(3))
    with pytest.raises(ValueError, match="must be one for square systems"):
        gsparse.jax.solve(A, jnp.ones(9), solver=gsparse.linalg.lsmr)
