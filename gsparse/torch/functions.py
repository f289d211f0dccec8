"""The functions of `gsparse.linalg.gradients` as functions of PyTorch, whose gradients are again such functions.

This module computes nothing itself. If a gradient is to be differentiated again (``create_graph=True``), the functions
call each other through PyTorch, which records the calls.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from gsparse.linalg import gradients

# The default of rtol, and the default for right-hand sides of single precision. `gsparse.linalg.solve` has the same two
# numbers, but also considers the dtype of A.
_RTOL, _SINGLE_RTOL = 1e-8, 1e-5
_SINGLE = (torch.float32, torch.complex64, torch.float16, torch.bfloat16)


def matmul(A: Any, x: Tensor, values: Tensor | None = None) -> Tensor:
    """Multiply; `gsparse.torch.matmul` describes the arguments."""
    matrix = gradients.parse_matrix(A)
    return DifferentiableProduct.apply(matrix, *_of_one_dtype(values, x), False)


def solve(
    A: Any,
    b: Tensor,
    values: Tensor | None = None,
    *,
    solver: Callable[..., Any],
    rtol: float | None = None,
    **options: Any,
) -> Tensor:
    """Solve; `gsparse.torch.solve` describes the arguments."""
    matrix = gradients.parse_matrix(A)
    gradients.check_square_solver(solver)
    values, b = _of_one_dtype(values, b)
    options["rtol"] = rtol if rtol is not None else _SINGLE_RTOL if b.dtype in _SINGLE else _RTOL
    return DifferentiableSolution.apply(matrix, values, b, False, solver, options)


def _of_one_dtype(values: Tensor | None, x: Tensor) -> tuple[Tensor | None, Tensor]:
    """Return both tensors in their common dtype by PyTorch's rules; x unchanged if `values` is None."""
    for name, tensor in (("x or b", x), ("values", x if values is None else values)):
        if not isinstance(tensor, Tensor):
            raise TypeError(f"{name} must be a PyTorch tensor, got {type(tensor).__name__}: use torch.as_tensor")
    if values is None:
        return None, x
    dtype = torch.promote_types(values.dtype, x.dtype)
    return values.to(dtype), x.to(dtype)


def _as(gradient: Tensor, like: Tensor) -> Tensor:
    """Return a gradient in the dtype of the tensor `like`. If `like` is real, take the real part."""
    gradient = gradient.real if gradient.is_complex() and not like.is_complex() else gradient
    return gradient.to(like.dtype)


class DifferentiableProduct(Function):  # type: ignore[misc]
    """A(values)·x, or A(values)ᴴ·x with `adjoint`."""

    @staticmethod
    def forward(A: Any, values: Tensor | None, x: Tensor, adjoint: bool) -> Any:
        return gradients.product(A, values, x, adjoint=adjoint)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        A, values, x, adjoint = inputs
        ctx.A, ctx.adjoint = A, adjoint
        ctx.save_for_backward(values, x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        (values, x), A, adjoint, (_, of_values, of_x, _) = ctx.saved_tensors, ctx.A, ctx.adjoint, ctx.needs_input_grad
        gradient = gradient.contiguous()
        if of_values and of_x and not adjoint and not torch.is_grad_enabled():
            x_gradient, values_gradient = gradients.product_gradients(A, values, gradient, x)
            return None, values_gradient, x_gradient, None
        values_gradient = x_gradient = None
        if of_values:
            values_gradient = DifferentiableEntryProducts.apply(A, *((x, gradient) if adjoint else (gradient, x)))
        if of_x:
            x_gradient = _as(DifferentiableProduct.apply(A, values, gradient, not adjoint), x)
        return None, values_gradient, x_gradient, None


class DifferentiableEntryProducts(Function):  # type: ignore[misc]
    """left_i·conj(right_j) for each entry (i, j) of A, summed over the columns of `left` and `right`."""

    @staticmethod
    def forward(A: Any, left: Tensor, right: Tensor) -> Any:
        return gradients.entry_products(A, left, right)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.A, left, right = inputs
        ctx.save_for_backward(left, right)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        (left, right), A, (_, of_left, of_right) = ctx.saved_tensors, ctx.A, ctx.needs_input_grad
        gradient = gradient.contiguous()
        left_gradient = DifferentiableProduct.apply(A, gradient, right, False) if of_left else None
        right_gradient = DifferentiableProduct.apply(A, gradient, left, True) if of_right else None
        return None, left_gradient, right_gradient


class DifferentiableSolution(Function):  # type: ignore[misc]
    """The solution of A(values)·x = b, or of A(values)ᴴ·x = b with `adjoint`."""

    @staticmethod
    def forward(A: Any, values: Tensor | None, b: Tensor, adjoint: bool, solver: Any, options: Any) -> Any:
        return gradients.solution(A, values, b, solver, options, adjoint=adjoint)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.A, values, b, ctx.adjoint, ctx.solver, ctx.options = inputs
        ctx.like = torch.empty(0, dtype=b.dtype)
        ctx.save_for_backward(values, output)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        (values, x), A, adjoint, needs = ctx.saved_tensors, ctx.A, ctx.adjoint, ctx.needs_input_grad
        options = {name: value for name, value in ctx.options.items() if name != "x0"}
        w = DifferentiableSolution.apply(A, values, gradient.contiguous(), not adjoint, ctx.solver, options)
        values_gradient = -DifferentiableEntryProducts.apply(A, *((x, w) if adjoint else (w, x))) if needs[1] else None
        return None, values_gradient, _as(w, ctx.like) if needs[2] else None, None, None, None
