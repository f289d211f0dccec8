"""Powers of two by which solvers and eigensolvers scale operators and vectors, so that no square over- or underflows.

A solver adds up squares of vectors and divides by products of norms. Where A or b is far from 1, these leave the range
of the dtype, although A, b and x do not. A solve therefore computes with A·2^-a, M·2^m and b·2^-b, whose solution is
x·2^(a - b). An eigensolver computes with A·2^-a and M·2^-m, whose eigenvalues are λ·2^(m - a). Scaling by a power of
two rounds nothing, and the exponents are 0 unless a norm needs them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from gsparse.device.base import Device
from gsparse.device.dtypes import Array
from gsparse.linalg.operators import Apply, DenseOperator, MatrixOperator, Operator, RankGroup
from gsparse.products.prepared import PreparedMatrix
from gsparse.sparse.reductions import sums_of_squares

HostArray = npt.NDArray[Any]

# Programs add up squares in double precision. Sums below this number are subnormal, so they have lost digits, and
# scalars that are computed from them depend on how a CPU rounds.
SMALLEST_SQUARES = float(np.finfo(np.float64).tiny)
# A and b are scaled if a norm is outside 2^-n to 2^n. The keys are the bytes of a real number; the values are n, for A
# and for b. Solvers multiply vectors twice by A, divide b by A, and add up squares in double precision. Eigensolvers
# also add up squares of residuals, which are rounding errors, and, in double precision, squares of products with Aᴴ·A.
_RANGE_OF_A, _RANGE = {4: 50, 8: 200}, {4: 30, 8: 200}
# Largest exponent of a factor, for which the factor and its inverse are normal numbers. The keys are bytes as above.
_LARGEST = {4: 125, 8: 1021}
# The sum of the squares of the entries of each matrix, until its values change.
_SQUARES: WeakKeyDictionary[PreparedMatrix, float] = WeakKeyDictionary()


@dataclass(frozen=True, eq=False)
class Units:
    """The exponents of the powers of two by which one system is scaled.

    Attributes
    ----------
    b : ndarray of int, shape (columns,) or (1,)
        The norm of the caller's b is the norm in the solve times 2 to the power of this exponent.
    A, M : int
        The solve computes with A·2^-A and M·2^M, where A and M are these exponents.
    """

    b: npt.NDArray[np.int64]
    A: int = 0
    M: int = 0

    @property
    def x(self) -> npt.NDArray[np.int64]:
        """The exponents of the solution."""
        return self.b - self.A


# The exponents of a system without scaling, for any number of columns.
ONES = Units(np.zeros(1, np.int64))


def choose_units(
    device: Device, A: Operator, b: Array, columns: int, terms: Sequence[float], narrowest: np.dtype[Any]
) -> tuple[Units, HostArray | None]:
    """Return the units of a system, and the norms of the columns of b or None if A or b is scaled. Synchronizes.

    Parameters
    ----------
    terms : sequence of float
        Other numbers with which the solve computes as with elements of A, such as a shift. The scaling of A depends on
        the largest magnitude of these numbers and of A's entries.
    narrowest : dtype
        The narrowest dtype in which the system is solved.
    """
    vectors, known = b.reshape(columns, -1), [abs(term) for term in terms if np.isfinite(term)]
    squares = sums_of_squares(device, vectors)
    square_of_A = _sum_of_entries(device, A)
    if A.ranks is not None:
        square_of_A, *squares_of_b = add_over_ranks(device, A.ranks, np.array([square_of_A, *squares])).tolist()
        squares = np.array(squares_of_b)
    size_of_A = max(square_of_A**0.5, *known, 0.0)
    has_entries = bool(A.matrices) or isinstance(A, DenseOperator)
    scales_A = not _is_inside(size_of_A, _RANGE_OF_A, narrowest) and (size_of_A > 0 or has_entries)
    scales_b = [not _is_inside(square**0.5, _RANGE, b.dtype) for square in squares.tolist()]
    if not scales_A and not any(scales_b):
        return ONES, np.sqrt(squares)
    largest = [_largest(device, A), *(largest_magnitude(device, vector) for vector in vectors)]
    # Add up square roots over the ranks, because a sum of the magnitudes could overflow.
    sums = add_over_ranks(device, A.ranks, np.sqrt(largest))
    exponents = np.where(np.isfinite(sums), 2 * np.frexp(sums)[1] - 1, 0)
    exponents[sums == 0] = 0
    if any(known):
        exponent = int(np.frexp(max(known))[1])
        exponents[0] = max(int(exponents[0]), exponent) if sums[0] else exponent
    limit = _LARGEST[_bytes_of_real(b.dtype)]
    exponents = np.clip(exponents, -limit, limit).astype(np.int64)
    of_b, of_A = np.where(scales_b, exponents[1:], 0), int(exponents[0]) if scales_A else 0
    return Units(of_b, of_A) if of_A or of_b.any() else ONES, None


def add_over_ranks(device: Device, ranks: RankGroup | None, values: HostArray) -> HostArray:
    """Return the sum of host values over all ranks that share the vectors. All ranks must call it. Synchronizes."""
    if ranks is None:
        return values
    on_device = device.xp.array(values)
    ranks.allreduce(on_device)
    return device.read_async(on_device, ranks.wait)()


def exponent_of_preconditioner(device: Device, M: Operator, b: Array, columns: int, ranks: RankGroup | None) -> int:
    """Return the even m for which M·2^m changes the magnitude of b the least. Takes one product, and synchronizes."""
    product = device.xp.zeros_like(b)
    M.bind(device, b.dtype, columns)(b, product)
    sums = add_over_ranks(device, ranks, np.sqrt([largest_magnitude(device, b), largest_magnitude(device, product)]))
    if not (np.isfinite(sums).all() and sums.all()):
        return 0
    of_b, of_product = np.frexp(sums)[1].tolist()
    limit = _LARGEST[_bytes_of_real(b.dtype)] - 1
    return int(np.clip(2 * (of_b - of_product), -limit, limit))


def needed_exponent(exponents: Iterable[int | None], dtype: np.dtype[Any]) -> int:
    """Return the largest of some even exponents; 0 if numbers of magnitude 2^exponent need no scaling in `dtype`."""
    size = _bytes_of_real(dtype)
    largest, limit = max((e for e in exponents if e is not None), default=0), _LARGEST[size] - 1
    return 0 if abs(largest) <= _RANGE[size] else int(np.clip(largest, -limit, limit))


def times_power(array: Any, exponent: int) -> Any:
    """Return numbers times 2^exponent. The power itself may be out of range."""
    if not exponent:
        return array
    half = exponent // 2
    return array * 2.0**half * 2.0 ** (exponent - half)


def scaled_columns(device: Device, flat: Array, exponents: npt.NDArray[np.int64]) -> Array:
    """Return columns, stored one after the other, times 2^exponents; the same array if all exponents are 0."""
    if not exponents.any():
        return flat
    # Multiply twice, because 2^exponent may be out of range while its two factors are not.
    halves = exponents // 2, exponents - exponents // 2
    columns = flat.reshape(len(exponents), -1)  # with one exponent, all columns become one row
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        for half in halves:
            columns = columns * device.upload(np.ldexp(1.0, half).astype(flat.real.dtype))[:, None]
    return columns.reshape(-1)


def scaled_operator(operator: Operator, exponent: int, dtype: np.dtype[Any]) -> Operator:
    """Return an operator times 2^exponent, for vectors of `dtype`. Readable entries remain readable."""
    if not exponent:
        return operator
    factor = float(np.ldexp(1.0, exponent))
    is_exact = operator.dtype.kind in "fc" and np.finfo(operator.dtype).eps == np.finfo(dtype).eps
    with np.errstate(under="ignore"):
        if is_exact and isinstance(operator, MatrixOperator):
            matrix: Any = operator.matrix
            return MatrixOperator(matrix * factor)
        if is_exact and isinstance(operator, DenseOperator):
            return DenseOperator(operator.array * factor)
    return _ScaledOperator(operator, factor)


class DerivedOperator(Operator):
    """Base class of operators that are made of another operator and have its shape, device and ranks."""

    def __init__(self, operator: Operator) -> None:
        self._operator = operator
        self.shape, self.dtype, self.is_resident = operator.shape, operator.dtype, operator.is_resident

    @property
    def ranks(self) -> RankGroup | None:
        return self._operator.ranks

    @property
    def whole_shape(self) -> tuple[int, int]:
        return self._operator.whole_shape

    @property
    def first_index(self) -> int:
        return self._operator.first_index

    def home(self) -> Device:
        return self._operator.home()


class _ScaledOperator(DerivedOperator):
    """An operator times a power of two."""

    def __init__(self, operator: Operator, factor: float) -> None:
        super().__init__(operator)
        self._factor = factor

    def bind(self, device: Device, dtype: np.dtype[Any], columns: int = 1, *, adjoint: bool = False) -> Apply:
        product = self._operator.bind(device, dtype, columns, adjoint=adjoint)
        with np.errstate(over="ignore", under="ignore"):
            factor = np.finfo(dtype).dtype.type(self._factor)

        def apply(x: Array, y: Array) -> None:
            product(x, y)
            y *= factor

        return apply


def _is_inside(norm: float, ranges: dict[int, int], dtype: np.dtype[Any]) -> bool:
    """Return whether a norm needs no scaling. Zero is outside the range, because the squares may have underflowed."""
    limit = 2.0 ** ranges[_bytes_of_real(dtype)]
    return bool(1 / limit <= norm <= limit)


def _bytes_of_real(dtype: np.dtype[Any]) -> int:
    return dtype.itemsize // 2 if dtype.kind == "c" else dtype.itemsize


def _sum_of_entries(device: Device, A: Operator) -> float:
    """Return the sum of the squares of A's entries, 0 if they cannot be read. The first call synchronizes."""
    if isinstance(A, DenseOperator):
        return float(np.square(np.abs(A.array), dtype=np.float64).sum())
    return sum(_sum_of_matrix(device, matrix) for matrix in A.matrices)


def _sum_of_matrix(device: Device, matrix: Any) -> float:
    prepared = matrix._prepared()[0]
    if prepared.csr.dtype.kind not in "fc":
        return 1.0  # integers need no scaling
    if prepared not in _SQUARES:
        _SQUARES[prepared] = float(sums_of_squares(device, prepared.csr.data.reshape(1, -1))[0])
    return _SQUARES[prepared]


def _largest(device: Device, A: Operator) -> float:
    """Return the largest magnitude of A's entries, 0 if they cannot be read. Synchronizes."""
    if isinstance(A, DenseOperator):
        return largest_magnitude(device, A.array)
    return max((largest_magnitude(device, matrix._prepared()[0].csr.data) for matrix in A.matrices), default=0.0)


def largest_magnitude(device: Device, values: Array) -> float:
    """Return the largest magnitude of the real and imaginary parts of an array. Synchronizes."""
    if not values.size:
        return 0.0
    parts = values.ravel().view(values.real.dtype) if values.dtype.kind == "c" else values
    return float(abs(parts).max())
