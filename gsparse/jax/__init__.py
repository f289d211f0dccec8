"""Sparse products and solves that JAX can differentiate by vectors and by the values of the matrix.

The structure of the matrix is fixed. Its values are an array, like any other parameter of a model. Gradients exist only
at the stored entries. Arrays on the device of the matrix are not copied. Within `jax.jit`, `jax.vmap` and other
transformations that trace a function, JAX calls back to Python, with arrays on the host. Needs JAX 0.5 or later.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from gsparse.linalg import solve as _solve

__all__ = ["matmul", "solve"]


def matmul(A: Any, x: Any, values: Any = None) -> Any:
    """Multiply a sparse matrix by an array: ``A @ x``, differentiable in `x` and in the values of the matrix.

    Reverse-mode differentiation (`jax.grad`, `jax.vjp`) is supported, also of gradients.

    Parameters
    ----------
    A : GpuSparseMatrix, shape (M, N)
        The matrix, or a transposed view of one. With `values`, only its structure is used, and is prepared for products
        only once.
    x : jax.Array, shape (N,) or (N, k)
        An array of a real or complex dtype.
    values : jax.Array, shape (nnz,), optional
        The values of the matrix, in the order of ``A.data``; by default those of `A`, which are constants.

    Returns
    -------
    jax.Array, shape (M,) or (M, k)
        In JAX's common dtype of the operands and float32.

    Raises
    ------
    ImportError
        If JAX is not installed.
    ShapeError, DtypeError, DeviceError
        If the shapes, dtypes or devices of the operands do not fit.
    TypeError
        If `A` is not a GpuSparseMatrix.

    Examples
    --------
    >>> import gsparse, gsparse.jax, jax, jax.numpy
    >>> A = gsparse.GpuSparseMatrix([[1.0, 2.0], [0.0, 3.0]])
    >>> values, x = jax.numpy.array([1.0, 2.0, 3.0]), jax.numpy.array([1.0, 10.0])
    >>> gradients = jax.grad(lambda values, x: gsparse.jax.matmul(A, x, values).sum(), (0, 1))(values, x)
    >>> [gradient.tolist() for gradient in gradients]
    [[1.0, 10.0, 10.0], [1.0, 5.0]]
    """
    return _functions().matmul(A, x, values)


def solve(
    A: Any,
    b: Any,
    values: Any = None,
    *,
    solver: Callable[..., Any] = _solve,
    rtol: float | None = None,
    **options: Any,
) -> Any:
    """Solve A·x = b, differentiable in `b` and in the values of the matrix.

    The gradient takes one solve with the adjoint of A, with the same solver, preconditioner and tolerance.

    Parameters
    ----------
    A : GpuSparseMatrix, shape (N, N)
        See `matmul`.
    b : jax.Array, shape (N,) or (N, k)
        The right-hand side.
    values : jax.Array, shape (nnz,), optional
        See `matmul`.
    solver : callable, optional
        A solver of `gsparse.linalg` for square matrices, such as `gsparse.linalg.cg`. By default
        `gsparse.linalg.solve`, which chooses a method.
    rtol : float, optional
        The solve has converged when ``norm(b - A @ x) <= rtol * norm(b)``. The solve for the gradient has the same
        tolerance, relative to its own right-hand side. By default 1e-8, or 1e-5 if the common dtype of `b` and `values`
        is in single precision.
    **options
        Further arguments of the solver, see `gsparse.torch.solve`. They are constants.

    Returns
    -------
    jax.Array, shape (N,) or (N, k)
        In JAX's common dtype of the operands and float32.

    Raises
    ------
    ImportError
        If JAX is not installed.
    ValueError
        If `solver` is a function of `gsparse.linalg` that does not solve square systems.
    ShapeError, DtypeError, DeviceError, TypeError
        As for `matmul`.

    Warns
    -----
    ConvergenceWarning
        If a solve did not reach the tolerance.

    Examples
    --------
    >>> import gsparse, gsparse.jax, jax, jax.numpy
    >>> A = gsparse.GpuSparseMatrix([[2.0, 0.0], [1.0, 4.0]])
    >>> values, b = jax.numpy.array([2.0, 1.0, 4.0]), jax.numpy.array([2.0, 5.0])
    >>> gradient = jax.grad(lambda values: gsparse.jax.solve(A, b, values)[1])(values)
    >>> gradient.round(3).tolist()
    [0.125, -0.25, -0.25]
    """
    return _functions().solve(A, b, values, solver=solver, rtol=rtol, **options)


def _functions() -> Any:
    try:
        return import_module("gsparse.jax.functions")
    except ModuleNotFoundError as error:
        if error.name not in ("jax", "jaxlib"):
            raise
        raise ImportError("gsparse.jax needs JAX: pip install jax", name="jax") from error
