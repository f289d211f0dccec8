"""Sparse products and solves that PyTorch can differentiate by vectors and by the values of the matrix.

The structure of the matrix is fixed. Its values are a tensor, like any other parameter of a model. Gradients exist only
at the stored entries. Tensors on the device of the matrix are not copied. On a GPU, work is queued on CuPy's current
stream, and this stream and PyTorch's current stream wait for each other. Needs PyTorch 2.4 or later.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from gsparse.linalg import solve as _solve

__all__ = ["matmul", "solve"]


def matmul(A: Any, x: Any, values: Any = None) -> Any:
    """Multiply a sparse matrix by a tensor: ``A @ x``, differentiable in `x` and in the values of the matrix.

    Both gradients are computed in one pass over the matrix, and can themselves be differentiated.

    Parameters
    ----------
    A : GpuSparseMatrix, shape (M, N)
        The matrix, or a transposed view of one. With `values`, only its structure is used, and is prepared for products
        only once.
    x : Tensor, shape (N,) or (N, k)
        A dense tensor, of a real or complex dtype that `A` can have.
    values : Tensor, shape (nnz,), optional
        The values of the matrix, in the order of ``A.data``; by default those of `A`, which are constants. PyTorch's
        common dtype of `values` and `x` must be float32, float64, complex64 or complex128.

    Returns
    -------
    Tensor, shape (M,) or (M, k)
        On the device of `x`, in PyTorch's common dtype of both tensors. Without `values`, in NumPy's common dtype of
        `A` and `x`.

    Raises
    ------
    ImportError
        If PyTorch is not installed.
    ShapeError, DtypeError, DeviceError
        If the shapes, dtypes or devices of the operands do not fit.
    TypeError
        If `A` is not a GpuSparseMatrix, or `x` or `values` is not a tensor.

    Notes
    -----
    Do not write to `values` or `x` in place between a product and its ``backward()``: PyTorch detects it and raises.
    Complex gradients follow PyTorch's convention: the gradient in the values is ``gradient[i] * conj(x[j])``.

    Examples
    --------
    >>> import gsparse, gsparse.torch, torch
    >>> A = gsparse.GpuSparseMatrix([[1.0, 2.0], [0.0, 3.0]], device="cpu")
    >>> values = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
    >>> x = torch.tensor([1.0, 10.0], requires_grad=True)
    >>> gsparse.torch.matmul(A, x, values).sum().backward()
    >>> values.grad, x.grad
    (tensor([ 1., 10., 10.]), tensor([1., 5.]))
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

    The gradient takes one solve with the adjoint of A, with the same solver, preconditioner and tolerance. Iterations
    are not recorded, so the memory does not depend on their number. Gradients can themselves be differentiated.

    Parameters
    ----------
    A : GpuSparseMatrix, shape (N, N)
        See `matmul`.
    b : Tensor, shape (N,) or (N, k)
        The right-hand side.
    values : Tensor, shape (nnz,), optional
        See `matmul`.
    solver : callable, optional
        A solver of `gsparse.linalg` for square matrices, such as `gsparse.linalg.cg`. By default
        `gsparse.linalg.solve`, which chooses a method.
    rtol : float, optional
        The solve has converged when ``norm(b - A @ x) <= rtol * norm(b)``. The solve for the gradient has the same
        tolerance, relative to its own right-hand side. By default 1e-8, or 1e-5 if the common dtype of `b` and `values`
        is in single precision.
    **options
        Further arguments of the solver, such as ``M=`` for a preconditioner of `A`. Gradients use the adjoint of `M`,
        except with `cg` and `minres`, for which `M` must be Hermitian. A preconditioner that was made for other values
        may be good enough; ``M.update(A.with_data(values.detach()))`` updates it. Gradients do not use ``x0=``.

    Returns
    -------
    Tensor, shape (N,) or (N, k)
        On the device of `b`.

    Raises
    ------
    ImportError
        If PyTorch is not installed.
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
    >>> import gsparse, gsparse.torch, torch
    >>> A = gsparse.GpuSparseMatrix([[2.0, 0.0], [1.0, 4.0]], device="cpu")
    >>> values = torch.tensor([2.0, 1.0, 4.0], dtype=torch.float64, requires_grad=True)
    >>> b = torch.tensor([2.0, 5.0], dtype=torch.float64, requires_grad=True)
    >>> x = gsparse.torch.solve(A, b, values)
    >>> x[1].backward()
    >>> b.grad.round(decimals=3), values.grad.round(decimals=3)
    (tensor([-0.1250,  0.2500], dtype=torch.float64), tensor([ 0.1250, -0.2500, -0.2500], dtype=torch.float64))
    """
    return _functions().solve(A, b, values, solver=solver, rtol=rtol, **options)


def _functions() -> Any:
    try:
        return import_module("gsparse.torch.functions")
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise ImportError("gsparse.torch needs PyTorch: pip install torch", name="torch") from error
