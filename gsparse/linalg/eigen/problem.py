"""The arguments of eigensolvers, checked as SciPy checks them, and the order of eigenvalues for each `which`."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
from scipy.sparse.linalg import ArpackNoConvergence, LinearOperator

from gsparse.device.base import Device
from gsparse.device.dtypes import Array
from gsparse.device.select import device_of
from gsparse.errors import ShapeError
from gsparse.linalg.eigen.inner_solve import InnerSolve
from gsparse.linalg.eigen.krylov_space import Space, random_vector
from gsparse.linalg.krylov.units import times_power
from gsparse.linalg.operators import Apply, MatrixOperator, Operator, as_operator, device_for, solve_dtype

HERMITIAN = ("LM", "SM", "LA", "SA", "BE")
GENERAL = ("LM", "SM", "LR", "SR", "LI", "SI")


def hermitian_order(values: Array, which: str) -> npt.NDArray[np.intp]:
    """Return the indices of real values from the most wanted to the least. Equal values keep their order.

    Examples
    --------
    >>> import numpy
    >>> hermitian_order(numpy.array([-3.0, 0.5, 2.0]), "LM")
    array([0, 2, 1])
    >>> hermitian_order(numpy.array([-3.0, 0.5, 2.0]), "BE")
    array([2, 0, 1])
    """
    keys = {"LM": -abs(values), "SM": abs(values), "LA": -values, "SA": values}
    if which in keys:
        return np.argsort(keys[which], kind="stable")
    # Both ends: the largest, the smallest, the second largest, ...
    turns = np.stack([np.argsort(-values, kind="stable"), np.argsort(values, kind="stable")], axis=1).ravel()
    _, first_turns = np.unique(turns, return_index=True)
    return turns[np.sort(first_turns)]


def worsened(values: Array, which: str, margins: Array) -> Array:
    """Return real values moved by `margins` in the direction in which they are less wanted.

    For "BE", `values` must contain all candidates, because a value is least wanted midway between the two ends.
    """
    if which == "LM":
        return np.sign(values) * np.maximum(abs(values) - margins, 0)
    if which == "SM":
        return np.where(values < 0, -1, 1) * np.maximum(abs(values) + margins, 0)
    if which == "BE":
        center = (values.max() + values.min()) / 2 if len(values) else 0.0
        return np.where(values >= center, np.maximum(values - margins, center), np.minimum(values + margins, center))
    return values + (margins if which == "SA" else -margins)


def general_keys(values: Array, which: str, is_real: bool) -> Array:
    """Return a sort key for each complex value: a real number that is smallest for the most wanted value.

    For a real matrix, "LI" and "SI" refer to the absolute value of the imaginary part, as in SciPy.
    """
    imaginary = abs(values.imag) if is_real else values.imag
    return {
        "LM": -abs(values), "SM": abs(values), "LR": -values.real, "SR": values.real, "LI": -imaginary, "SI": imaginary,
    }[which]  # fmt: skip


def general_order(values: Array, which: str, is_real: bool) -> npt.NDArray[np.intp]:
    """Return the indices of complex values from the most wanted to the least.

    Of two conjugate values, the one with the positive imaginary part comes first.
    """
    keys = general_keys(values, which, is_real)
    return np.lexsort((-values.imag, abs(values.imag), values.real, keys))


# Smallest default of the number of basis vectors, as in SciPy.
_SMALLEST_NCV = 20
# Matrices with at most this many rows are solved as dense ones, unless the caller passes `ncv` or `maxiter`.
_SMALL = 64


@dataclass(frozen=True)
class EigenResult:
    """The result of an eigensolver; unpacks as ``w, v``.

    Attributes
    ----------
    eigenvalues : array, shape (k,)
    eigenvectors : array, shape (n, k), or None
    residuals : ndarray, shape (k,)
        ‖A·x - λ·M·x‖ of each pair, on the host; NaN if the problem was solved as a dense one, or with `OPinv`.
    restarts : int
        Number of cycles; the basis is restarted between cycles.
    products : int
        Number of steps that have extended the basis. A step takes one solve if there is a sigma or M. Otherwise it
        takes one product with A, or as many as the degree of a Chebyshev filter of `eigsh`.
    runs : int
        Number of runs. All runs after the first look for further copies of multiple eigenvalues.
    inner : InnerSolve or None
        A summary of the inner solves; None if there were none.
    """

    eigenvalues: Array
    eigenvectors: Array | None
    residuals: Array
    restarts: int
    products: int
    runs: int
    inner: InnerSolve | None = None

    def __iter__(self) -> Any:
        return iter((self.eigenvalues, self.eigenvectors))

    def __str__(self) -> str:
        worst = float(np.max(self.residuals)) if len(self.residuals) else 0.0
        text = f"{len(self.eigenvalues)} eigenvalues after {self.restarts} cycles and {self.products} products"
        text += f" in {self.runs} runs; largest residual {worst:.2e}"
        if self.inner is not None and self.inner.solves:
            inner = self.inner
            text += f"\ninner solves: {inner.solves} by {inner.method}, {inner.iterations} iterations"
            text += f", rtol {inner.rtol:.1e}" if inner.rtol else ""
        return text


@dataclass(frozen=True, eq=False)
class Eigenproblem:
    """The eigenvalue problem A·x = λ·M·x.

    Attributes
    ----------
    device : Device
    dtype : dtype
        Dtype of the vectors.
    A : Operator
    M : Operator or None
    n : int
        Number of rows of A, over all ranks.
    on_host : bool
        Whether the caller gets NumPy arrays.
    is_sparse, is_dense : bool
        Whether A is a sparse array, or a dense array; both are false for an operator.
    value_exponent, vector_exponent : int
        The eigenvalues and eigenvectors of the caller are those of this problem times 2 to these powers.
    """

    device: Device
    dtype: np.dtype[Any]
    A: Operator
    M: Operator | None
    n: int
    on_host: bool
    is_sparse: bool
    is_dense: bool
    value_exponent: int = 0
    vector_exponent: int = 0

    @property
    def epsilon(self) -> float:
        return float(np.finfo(self.dtype).eps)

    def space(self, multiply_mass: Apply | None = None) -> Space:
        """Return the vector space of this problem; the inner product is xᴴMy if the product with M is passed."""
        A = self.A
        return Space(self.device, self.dtype, A.shape[0], self.n, A.first_index, A.ranks, multiply_mass)

    def ncv(self, k: int, ncv: int | None, smallest: int) -> int:
        """Return the number of basis vectors: `ncv`, or SciPy's default; raise an error if it is below `smallest`."""
        chosen = max(2 * k + 1, _SMALLEST_NCV) if ncv is None else int(ncv)
        chosen = min(chosen, self.n)
        if chosen < smallest:
            raise ValueError(f"ncv must be at least {smallest} for k={k}, got ncv={ncv}")
        return chosen

    def deliver(self, w: Any, vectors: Array | None) -> tuple[Array, Array | None]:
        """Return w, and the rows of `vectors` as columns, in the caller's scale. Synchronizes for host arrays."""
        w = times_power(w, self.value_exponent)
        vectors = None if vectors is None else times_power(vectors, self.vector_exponent)
        if self.on_host:
            return w, None if vectors is None else np.ascontiguousarray(self.device.download(vectors).T)
        return self.device.upload(np.ascontiguousarray(w)), None if vectors is None else vectors.T.copy()


def is_small(n: int, k: int, ncv: int | None, maxiter: int | None) -> bool:
    """Return whether a problem of n rows is solved with a dense solver."""
    size = max(2 * k + 1, _SMALLEST_NCV) if ncv is None else ncv
    return size >= n or (ncv is None and maxiter is None and n <= _SMALL)


def make_problem(A: Any, M: Any, v0: Any) -> Eigenproblem:
    """Check A and M, and return the eigenproblem.

    Raises
    ------
    ValueError, TypeError
        As SciPy's functions do.
    """
    if len(np.shape(A)) != 2:
        raise ShapeError(f"expected 2-D matrix or operator (shape={np.shape(A)})")
    if A.shape[0] != A.shape[1]:
        raise ShapeError(f"expected square matrix (shape={np.shape(A)})")
    device = device_for(A, M, v0)
    with device.active(), device.memory_guard():
        operator = as_operator(A, device)
        mass = None if M is None else as_operator(M, device, "M")
    if mass is not None:
        if mass.shape != operator.shape:
            raise ShapeError(f"wrong M dimensions {mass.shape}, should be {operator.shape}")
        if mass.dtype.char.lower() != operator.dtype.char.lower():
            text = "M does not have the same type precision as A. This may adversely affect convergence"
            warnings.warn(text, stacklevel=4)
    dtype = solve_dtype(operator)
    if mass is not None and mass.dtype.kind == "c" and dtype.kind != "c":
        dtype = np.dtype(np.result_type(dtype, np.complex64))
    on_host = v0 is None or device_of(v0) is None
    is_dense = not sp.issparse(A) and not hasattr(A, "matvec") and not isinstance(A, Operator)
    is_sparse = isinstance(operator, MatrixOperator)
    return Eigenproblem(device, dtype, operator, mass, operator.whole_shape[0], on_host, is_sparse, is_dense)


# If the product overflows, the vector, whose elements are at most 1, is multiplied by 2 to this power.
_SHRINK = -64


def exponent_of_product(multiply: Callable[[Array], Array], space: Space) -> int | None:
    """Return an even e such that the operator times 2^-e has a norm near 1. Synchronizes.

    The norm is estimated by a product with a random vector. Return None if the product is zero or not finite.
    """
    x, xp = random_vector(space, 0), space.device.xp
    for shrink in (0, _SHRINK):
        with np.errstate(all="ignore"):
            y = multiply(x * 2.0**shrink)
            # Sum square roots over the ranks, because a sum of the magnitudes could overflow.
            roots = xp.zeros(1) if not y.size else xp.sqrt(abs(y).max().reshape(1).astype(np.float64))
            root = float(space.download(space.sum_over_ranks(roots))[0])
        if root == 0:
            return None
        if np.isfinite(root):
            return 2 * int(np.frexp(root)[1]) - shrink
    return None


def exponent_of_apply(product: Apply, space: Space, rows: int) -> int | None:
    """Return `exponent_of_product` for an `Apply` whose products have `rows` elements. Synchronizes."""

    def multiply(x: Array) -> Array:
        y = space.device.xp.zeros(rows, space.dtype)
        product(x, y)
        return y

    return exponent_of_product(multiply, space)


def check_dense_fallback(problem: Eigenproblem, A: Any, M: Any, k: int, limit: str, function: str) -> None:
    """Warn that k is too large for the iteration. Raise SciPy's error unless A and M are dense."""
    text = f"k >= {limit} for N * N square matrix. Attempting to use scipy.linalg.{function} instead."
    warnings.warn(text, RuntimeWarning, stacklevel=4)
    if problem.is_sparse and not problem.is_dense:
        raise TypeError(
            f"Cannot use scipy.linalg.{function} for sparse A with k >= {limit}. Use "
            f"scipy.linalg.{function}(A.toarray()) or reduce k."
        )
    if not problem.is_dense:
        raise TypeError(f"Cannot use scipy.linalg.{function} for LinearOperator A with k >= {limit}.")
    if isinstance(M, LinearOperator | Operator):
        raise TypeError(f"Cannot use scipy.linalg.{function} for LinearOperator M with k >= {limit}.")


def check_arguments(
    k: int, which: str, allowed: tuple[str, ...], maxiter: int | None, *, sigma: Any, M: Any, Minv: Any, OPinv: Any
) -> None:
    """Raise SciPy's errors for invalid arguments."""
    if k <= 0:
        raise ValueError(f"k must be greater than 0, got {k}")
    if which not in allowed:
        raise ValueError(f"which must be one of {' '.join(allowed)}, got {which!r}")
    if maxiter is not None and maxiter <= 0:
        raise ValueError(f"maxiter must be positive, maxiter={maxiter}")
    if sigma is None and OPinv is not None:
        raise ValueError("OPinv should not be specified with sigma = None.")
    if sigma is not None and Minv is not None:
        raise ValueError("Minv should not be specified when sigma is specified.")
    if M is None and Minv is not None:
        raise ValueError("Minv should not be specified with M = None.")


def start_vector(problem: Eigenproblem, v0: Any) -> Array | None:
    """Return the caller's initial vector on the device, or None."""
    if v0 is None:
        return None
    array = v0 if device_of(v0) is not None else np.asarray(v0)
    if array.size != problem.A.shape[0]:
        raise ShapeError(f"v0 must have {problem.A.shape[0]} elements, got shape {array.shape}")
    array = array.reshape(-1)
    if array.dtype.kind == "c" and problem.dtype.kind != "c":
        array = array.real
    array = array.astype(problem.dtype)
    return array if problem.device.owns(array) else problem.device.upload(np.ascontiguousarray(array))


def seed_of(rng: Any) -> int:
    """Return the seed of random vectors. Without `rng` it is always 0, so that results can be repeated."""
    return 0 if rng is None else int(np.random.default_rng(rng).integers(2**32))


def no_convergence(restarts: int, found: int, k: int, w: Array, v: Array) -> ArpackNoConvergence:
    """Return SciPy's error for missing eigenpairs. The error holds the pairs that have converged."""
    message = f"No convergence ({restarts} iterations, {found}/{k} eigenvectors converged)"
    if found >= k:
        message += ": the search for copies of multiple eigenvalues has not ended, so raise maxiter"
    return ArpackNoConvergence(message, w, v)
