"""The functions of `gsparse.linalg.gradients` as functions of JAX, whose gradients are again such functions.

JAX's cotangents are the conjugates of that module's gradients: a small change dz changes the differentiated number by
the real part of cotangent·dz. Outside of traced code, the functions get JAX's arrays directly. Traced code calls them
back with arrays on the host.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gsparse.linalg import gradients


@dataclass(frozen=True, eq=False)
class FixedArguments:
    """The arguments that JAX neither differentiates nor traces.

    Attributes
    ----------
    A : DeviceMatrix
    solver : callable, optional
        None for products.
    options : mapping
        Arguments of the solver.
    """

    A: Any
    solver: Any = None
    options: Mapping[str, Any] = field(default_factory=dict)


def matmul(A: Any, x: Any, values: Any = None) -> Any:
    """Multiply; `gsparse.jax.matmul` describes the arguments."""
    fixed = FixedArguments(gradients.parse_matrix(A))
    return differentiable_product(fixed, False, *_of_one_dtype(values, x))


def solve(
    A: Any, b: Any, values: Any = None, *, solver: Callable[..., Any], rtol: float | None = None, **options: Any
) -> Any:
    """Solve; `gsparse.jax.solve` describes the arguments."""
    gradients.check_square_solver(solver)
    matrix = gradients.parse_matrix(A)
    values, b = _of_one_dtype(values, b)
    options["rtol"] = rtol if rtol is not None else 1e-5 if b.dtype in (jnp.float32, jnp.complex64) else 1e-8
    return differentiable_solution(FixedArguments(matrix, solver, options), False, values, b)


def _of_one_dtype(values: Any, x: Any) -> tuple[Any, Any]:
    """Return both as JAX arrays. Their dtype is JAX's common dtype of both and float32, so never an integer dtype."""
    x = jnp.asarray(x)
    if values is None:
        return None, x.astype(jnp.promote_types(x.dtype, jnp.float32))
    values = jnp.asarray(values)
    dtype = jnp.promote_types(jnp.promote_types(values.dtype, x.dtype), jnp.float32)
    return values.astype(dtype), x.astype(dtype)


def _call(function: Callable[..., Any], results: Any, *arrays: Any) -> Any:
    """Call a function with arrays. Traced code calls it back later, with arrays on the host.

    `results` describes the shapes and dtypes of the function's results.
    """
    if any(isinstance(array, jax.core.Tracer) for array in arrays):

        def on_host(*hosts: Any) -> Any:
            returned = function(*(None if array is None else np.asarray(array) for array in hosts))
            return jax.tree.map(lambda result, array: np.asarray(array, result.dtype), results, returned)

        return jax.pure_callback(on_host, results, *arrays, vmap_method="sequential")
    return jax.tree.map(lambda result, array: jnp.asarray(array, result.dtype), results, function(*arrays))


def _like(cotangent: Any, x: Any) -> Any:
    """Return a cotangent in the dtype of x. If x is real, take the real part."""
    is_real = not jnp.issubdtype(x.dtype, jnp.complexfloating)
    return (cotangent.real if is_real else cotangent).astype(x.dtype)


# ------------------------------------------------------------------------------------------------------------ products


@partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def differentiable_product(fixed: FixedArguments, adjoint: bool, values: Any, x: Any) -> Any:
    """Return A(values)·x, or A(values)ᴴ·x with `adjoint`."""
    A = fixed.A
    dtype = x.dtype if values is not None else jnp.promote_types(x.dtype, jax.dtypes.canonicalize_dtype(A.dtype))
    result = jax.ShapeDtypeStruct((A.shape[1 if adjoint else 0], *x.shape[1:]), dtype)
    return _call(lambda v, x: gradients.product(A, v, x, adjoint=adjoint), result, values, x)


def _product_forward(fixed: FixedArguments, adjoint: bool, values: Any, x: Any) -> Any:
    return differentiable_product(fixed, adjoint, values, x), (values, x)


def _product_backward(fixed: FixedArguments, adjoint: bool, saved: Any, cotangent: Any) -> Any:
    values, x = saved
    gradient = jnp.conj(cotangent)
    if values is None:
        return None, _like(jnp.conj(differentiable_product(fixed, not adjoint, None, gradient)), x)
    if not adjoint:
        of_x, of_values = product_gradients(fixed, values, gradient, x)
    else:
        of_x = differentiable_product(fixed, False, values, gradient)
        of_values = entry_products(fixed, x, gradient)
    return jnp.conj(of_values), jnp.conj(of_x)


differentiable_product.defvjp(_product_forward, _product_backward)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def entry_products(fixed: FixedArguments, left: Any, right: Any) -> Any:
    """Return left_i·conj(right_j) for each entry (i, j) of A, summed over the columns of `left` and `right`."""
    A = fixed.A
    result = jax.ShapeDtypeStruct((A.nnz,), left.dtype)
    return _call(lambda left, right: gradients.entry_products(A, left, right), result, left, right)


def _entries_forward(fixed: FixedArguments, left: Any, right: Any) -> Any:
    return entry_products(fixed, left, right), (left, right)


def _entries_backward(fixed: FixedArguments, saved: Any, cotangent: Any) -> Any:
    left, right = saved
    gradient = jnp.conj(cotangent)
    of_left = differentiable_product(fixed, False, gradient, right)
    of_right = differentiable_product(fixed, True, gradient, left)
    return jnp.conj(of_left), jnp.conj(of_right)


entry_products.defvjp(_entries_forward, _entries_backward)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def product_gradients(fixed: FixedArguments, values: Any, gradient: Any, x: Any) -> Any:
    """Return A(values)ᴴ·gradient and ``entry_products(gradient, x)``, computed in one pass over the entries."""
    A = fixed.A
    results = (jax.ShapeDtypeStruct(x.shape, x.dtype), jax.ShapeDtypeStruct(values.shape, values.dtype))
    return _call(lambda v, g, x: gradients.product_gradients(A, v, g, x), results, values, gradient, x)


def _gradients_forward(fixed: FixedArguments, values: Any, gradient: Any, x: Any) -> Any:
    return product_gradients(fixed, values, gradient, x), (values, gradient, x)


def _gradients_backward(fixed: FixedArguments, saved: Any, cotangents: Any) -> Any:
    def separately(values: Any, gradient: Any, x: Any) -> Any:
        of_x = differentiable_product(fixed, True, values, gradient)
        return of_x, entry_products(fixed, gradient, x)

    return jax.vjp(separately, *saved)[1](cotangents)


product_gradients.defvjp(_gradients_forward, _gradients_backward)


# -------------------------------------------------------------------------------------------------------------- solves


@partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def differentiable_solution(fixed: FixedArguments, adjoint: bool, values: Any, b: Any) -> Any:
    """Return the solution of A(values)·x = b, or of A(values)ᴴ·x = b with `adjoint`."""
    A, solver, options = fixed.A, fixed.solver, fixed.options
    dtype = b.dtype if values is not None else jnp.promote_types(b.dtype, jax.dtypes.canonicalize_dtype(A.dtype))

    def solution(values: Any, b: Any) -> Any:
        return gradients.solution(A, values, b, solver, options, adjoint=adjoint)

    return _call(solution, jax.ShapeDtypeStruct(b.shape, dtype), values, b)


def _solution_forward(fixed: FixedArguments, adjoint: bool, values: Any, b: Any) -> Any:
    x = differentiable_solution(fixed, adjoint, values, b)
    return x, (values, b, x)


def _solution_backward(fixed: FixedArguments, adjoint: bool, saved: Any, cotangent: Any) -> Any:
    values, b, x = saved
    options = {name: option for name, option in fixed.options.items() if name != "x0"}
    others = FixedArguments(fixed.A, fixed.solver, options)
    w = differentiable_solution(others, not adjoint, values, jnp.conj(cotangent))
    of_values = None
    if values is not None:
        of_values = -jnp.conj(entry_products(fixed, *((x, w) if adjoint else (w, x))))
    return of_values, _like(jnp.conj(w), b)


differentiable_solution.defvjp(_solution_forward, _solution_backward)
