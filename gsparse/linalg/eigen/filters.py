"""Filters of Krylov spaces, and dense eigenproblems."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.linalg

from gsparse.device.base import Device
from gsparse.device.dtypes import Array
from gsparse.linalg.eigen.transforms import Filter, Transform
from gsparse.linalg.operators import Apply, DenseOperator, MatrixOperator, Operator

Host = npt.NDArray[Any]


def as_dense(operator: Operator, device: Device, dtype: np.dtype[Any]) -> Host:
    """Return the entries of an operator on the host, by products with the columns of the identity if need be."""
    if isinstance(operator, MatrixOperator):
        matrix: Any = operator.matrix
        return np.asarray(matrix.toarray()).astype(dtype, copy=False)
    if isinstance(operator, DenseOperator):
        array = operator.array
        return np.asarray(array if isinstance(array, np.ndarray) else device.download(array)).astype(dtype, copy=False)
    rows, columns = operator.shape
    product = operator.bind(device, dtype)
    y, identity = device.xp.zeros(rows, dtype), device.upload(np.eye(columns, dtype=dtype))
    result = np.empty((rows, columns), dtype)
    for column in range(columns):
        product(identity[column], y)
        result[:, column] = device.download(y)  # synchronizes
    return result


def hermitian_pairs(A: Host, M: Host | None) -> tuple[Host, Host]:
    """Return all eigenvalues of A·x = λ·M·x, ascending, and M-orthonormal eigenvectors, for Hermitian A and M.

    If M is only semidefinite, the finite eigenvalues are returned.
    """
    if M is None:
        values, vectors = np.linalg.eigh(np.asarray_chkfinite(A))
        return values, vectors
    try:
        return scipy.linalg.eigh(A, M)  # type: ignore[no-any-return]
    except scipy.linalg.LinAlgError:
        values, vectors = scipy.linalg.eig(A, M)
    is_finite = np.isfinite(values)
    values, vectors = values[is_finite].real, vectors[:, is_finite]
    order = np.argsort(values, kind="stable")
    values, vectors = values[order], vectors[:, order]
    norms = np.sqrt(np.maximum(np.einsum("ij,ij->j", vectors.conj(), M @ vectors).real, np.finfo(A.dtype).tiny))
    vectors = vectors / norms
    return values, vectors.real if A.dtype.kind != "c" and M.dtype.kind != "c" else vectors


def wide(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype in which dense problems are solved."""
    return np.dtype(np.complex128 if dtype.kind == "c" else np.float64)


def rows_of(vectors: Host, dtype: np.dtype[Any], device: Device) -> Array:
    """Return columns of a host array as rows of an array on the device."""
    return device.upload(np.ascontiguousarray(vectors.T).astype(dtype))


def products(device: Device, apply: Apply, vectors: Array, size: int | None = None) -> Array:
    """Return the products of an operator with each row, which have `size` elements if not as many as the rows."""
    result = device.empty((len(vectors), vectors.shape[1] if size is None else size), vectors.dtype)
    for x, y in zip(vectors, result, strict=True):
        apply(x, y)
    return result


# A pass of the recurrence reads three vectors and writes one; a product reads one and writes one.
_RECURRENCE_COST, _PRODUCT_COST = 4.0, 2.0
# Degrees that are used: in the first run, where the interval is a guess, and later, where it is known.
_FIRST_DEGREES, _LATER_DEGREES = (3, 15), (5, 31)
# A filter must save at least this share of the cost of a step.
_SMALLEST_GAIN = 0.25
# The largest value of a filter at the ends of the spectrum. Rounding errors of eigenpairs inside grow with it.
_LARGEST_VALUE = 1e4
# The interval ends this far below the last wanted eigenvalue, relative to the distance of the first from the last.
_MARGIN = 0.3


@dataclass(frozen=True)
class FilterRule:
    """The decision about filters for one problem.

    Attributes
    ----------
    transform : Transform
        The product with A.
    matrix_cost : float
        Bytes of the matrix over bytes of a vector.
    tol : float
        The relative tolerance of the problem.
    epsilon : float
        The relative rounding error of a vector's elements.
    """

    transform: Transform
    matrix_cost: float
    tol: float
    epsilon: float

    def _degree(self, num_vectors: int, bounds: tuple[int, int], factor: float) -> int:
        """Return the degree for which products cost `factor` times a step, or 0 if a filter does not pay."""
        step, product = 0.75 * num_vectors + 5, self.matrix_cost + _PRODUCT_COST
        term = product + _RECURRENCE_COST
        if term > (1 - _SMALLEST_GAIN) * (step + product):
            return 0
        low, high = bounds
        return int(np.clip(factor * step / term, low, high)) // 2 * 2 + 1

    def first(self, values: Array, errors: Array, count: int, which: str) -> Filter | None:
        """Return the filter for the first run, after a cycle without one.

        Parameters
        ----------
        values, errors : array
            Ritz values from the most wanted to the least, and the norms of their residuals.
        count : int
            How many are wanted.
        which : str
        """
        degree = self._degree(len(values), _FIRST_DEGREES, 2.0)
        unwanted = values[max(count + 2, len(values) // 3) :]
        if len(unwanted) < 2 or not degree:
            return None
        lowest, highest = np.argmin(values), np.argmax(values)
        ends = float(values[lowest] - errors[lowest]), float(values[highest] + errors[highest])
        if which == "LM":
            cut = float(abs(unwanted).max())
            return self._make((-cut, cut), ends, degree)
        interval = {"LA": (ends[0], unwanted.max()), "SA": (unwanted.min(), ends[1])}
        return self._make(interval.get(which, (unwanted.min(), unwanted.max())), ends, degree)

    def later(self, locked: Array, ends: tuple[float, float], which: str, num_vectors: int) -> Filter | None:
        """Return the filter for a later run, which looks for eigenvalues among and beyond the `locked` ones."""
        degree = self._degree(num_vectors, _LATER_DEGREES, 6.0)
        if not degree:
            return None
        if which == "LM":
            sizes = abs(locked)
            cut = float(sizes.min() - _MARGIN * (sizes.max() - sizes.min()))
            return self._make((-cut, cut), ends, degree)
        low, high = ends
        upper, lower = _sides(locked, which)
        if len(upper):
            high = upper.min() - _MARGIN * (max(upper.max(), ends[1]) - upper.min())
        if len(lower):
            low = lower.max() + _MARGIN * (lower.max() - min(lower.min(), ends[0]))
        return self._make((low, high), ends, degree)

    def _make(self, interval: Sequence[float], ends: tuple[float, float], degree: int) -> Filter | None:
        """Return a filter of at most this degree that does not grow too much; None if that leaves nothing."""
        low, high = max(float(interval[0]), ends[0]), min(float(interval[1]), ends[1])
        # No wider than the spectrum, and not as narrow as rounding errors.
        if not high - low > 1e-3 * (ends[1] - ends[0]):
            return None
        largest = float(np.clip(0.01 * max(self.tol, self.epsilon) / self.epsilon, 10, _LARGEST_VALUE))
        farthest = max(ends[1] - (low + high) / 2, (low + high) / 2 - ends[0]) / ((high - low) / 2)
        if farthest <= 1:
            return None
        while degree > 3 and np.cosh(degree * np.arccosh(farthest)) > largest:
            degree -= 2
        transform = self.transform
        return Filter(transform.product, transform.is_resident, low=low, high=high, degree=degree, ends=ends)


def _sides(locked: Array, which: str) -> tuple[Array, Array]:
    """Return the locked values of the upper and of the lower end of the spectrum."""
    if which == "LA":
        return locked, locked[:0]
    if which == "SA":
        return locked[:0], locked
    middle = (locked.max() + locked.min()) / 2
    return locked[locked > middle], locked[locked <= middle]
