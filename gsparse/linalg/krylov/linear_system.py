"""The system A·x = b of one solve: checked, on one device and in one dtype.

It also returns the solution as the kind of array that the caller passed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from gsparse.device.base import Device
from gsparse.device.dtypes import Array
from gsparse.device.interchange import DenseInput, parse_dense
from gsparse.device.select import device_of
from gsparse.errors import DeviceError, DtypeError, ShapeError
from gsparse.kernels.backends import kernels_of
from gsparse.linalg.krylov.units import (
    ONES,
    Units,
    add_over_ranks,
    choose_units,
    exponent_of_preconditioner,
    largest_magnitude,
    scaled_columns,
    scaled_operator,
)
from gsparse.linalg.operators import MatrixOperator, Operator, as_operator, device_for, solve_dtype
from gsparse.linalg.small_matrices import hashed_vector
from gsparse.matrix.reductions import sums_along
from gsparse.sparse.reductions import sums_of_squares

# x counts as over- or underflowing if x, converted to the user's units and rounded to its dtype, changes by more than
# this number times eps.
_ROUNDING = 16


@dataclass(eq=False)
class LinearSystem:
    """The operators and vectors of one solve, scaled so that no norm over- or underflows.

    Attributes
    ----------
    device : Device
    dtype : dtype
        The dtype of all vectors.
    A : Operator
    M : Operator or None
        The preconditioner.
    b : array, shape (columns * M,)
        On the device, one column after the other, for a matrix of M rows and N columns.
    x : array, shape (columns * N,)
        Stored as b. It holds the initial guess, which the solve overwrites with the solution.
    columns : int
        Number of right-hand sides.
    has_guess : bool
        Whether the initial guess may be nonzero.
    units : Units
        The powers of two by which A, M, b and x are scaled. Results are scaled back for the caller.
    shift : float
        Number that is subtracted from the diagonal of A, scaled like A.
    guess : array, optional
        The initial guess, if the caller has passed an array.
    b_norms : ndarray, shape (columns,), optional
        The norms of the columns of b; None if not computed yet.
    b_input : DenseInput
        b as the caller passed it. The solution is returned in its array library.
    shape : tuple of int
        Shape of the solution that is returned to the caller.
    """

    device: Device
    dtype: np.dtype[Any]
    A: Operator
    M: Operator | None
    b: Array
    x: Array
    columns: int
    has_guess: bool
    b_input: DenseInput
    shape: tuple[int, ...]
    units: Units
    shift: float = 0.0
    guess: Array | None = None
    b_norms: npt.NDArray[np.float64] | None = None

    @contextmanager
    def solving(self) -> Iterator[None]:
        """Make the device current within a ``with`` block, and run the work of the block on a stream of its own."""
        with self.device.active(), self.device.memory_guard(), self.device.own_stream():
            yield

    def tolerances(self, rtol: float, atol: float) -> npt.NDArray[np.float64]:
        """Return the largest residual norm that each right-hand side may have. Synchronizes.

        Where b is zero, x is set to zero and the tolerance is infinite.
        """
        norms = self.norms_of_b()
        tolerances: npt.NDArray[np.float64] = float(rtol) * norms
        if atol:
            with np.errstate(over="ignore", under="ignore"):
                lowest = np.minimum(np.ldexp(float(atol), -self.units.b), np.finfo(np.float64).max)
            tolerances = np.maximum(lowest, tolerances)
        for column in np.flatnonzero(norms == 0):
            self.x.reshape(self.columns, -1)[column] = 0
            tolerances[column] = np.inf
        return tolerances

    def residual(self) -> Array:
        """Return b - (A - shift·I)·x for the current x."""
        product = self.device.xp.zeros(self.b.size, self.dtype)
        self.A.bind(self.device, self.dtype, self.columns)(self.x, product)
        with np.errstate(all="ignore"):
            residual: Array = self.b - product
            return residual + self.shift * self.x if self.shift else residual

    def residual_norms(self) -> npt.NDArray[np.float64]:
        """Return norm(b - (A - shift·I)·x) of each column for the current x, computed with a product. Synchronizes."""
        return self.norms(self.residual())

    def estimated_norms_of_A(self) -> npt.NDArray[np.float64]:
        """Return norm((A - shift·I)·v) / norm(v) for a pseudorandom v, repeated for each column. Synchronizes."""
        size, dtype = self.A.shape[1], self.dtype
        vectors = self.device.empty((2, size), dtype)
        vectors[0] = hashed_vector(self.device, size, dtype, first_row=self.A.first_index)
        self.A.bind(self.device, dtype)(vectors[0], vectors[1])
        vectors[1] -= self.shift * vectors[0]
        of_v, of_product = np.sqrt(self.sum_over_ranks(sums_of_squares(self.device, vectors)))
        return np.full(self.columns, of_product / of_v)

    def is_least_squares(self, limits: npt.NDArray[np.float64], *, adjoint: bool) -> npt.NDArray[np.bool_]:
        """Return, for each column with residual r, whether norm(A.H @ r) <= limit * norm(r). Synchronizes.

        `adjoint` says whether A and A.H are different operators.
        """
        residual = self.residual()
        with np.errstate(all="ignore"):
            # Scale the residuals to magnitude 1, so that the product does not underflow.
            residual = scaled_columns(self.device, residual, -np.frexp(self._sizes(residual))[1].astype(np.int64))
            product = self.device.xp.zeros(self.x.size, self.dtype)
            self.A.bind(self.device, self.dtype, self.columns, adjoint=adjoint)(residual, product)
            if self.shift:
                product -= self.shift * residual
            # The squares of the product may underflow, which makes its norm zero. Its largest element is a lower bound.
            sizes = np.maximum(self.norms(product), self._sizes(product))
            return np.asarray(sizes <= limits * self.norms(residual))

    def _sizes(self, flat: Array) -> npt.NDArray[np.float64]:
        """Return an upper bound of each column's largest magnitude, exact without ranks. Synchronizes."""
        with np.errstate(all="ignore"):
            # Add up square roots over the ranks, because a sum of the magnitudes could overflow.
            roots = [largest_magnitude(self.device, column) ** 0.5 for column in flat.reshape(self.columns, -1)]
            return self.sum_over_ranks(np.array(roots)) ** 2

    def norms_of_b(self) -> npt.NDArray[np.float64]:
        """Return the norm of each column of b. Synchronizes unless `b_norms` is set."""
        return self.norms(self.b) if self.b_norms is None else self.b_norms

    def scales(self) -> npt.NDArray[np.float64]:
        """Return the numbers that residuals are divided by: norm(b) of each column, or 1 where b is zero."""
        norms = self.norms_of_b()
        return np.where(norms == 0, 1.0, norms)

    def norms(self, flat: Array) -> npt.NDArray[np.float64]:
        """Return the norm of each column over all ranks. Synchronizes."""
        return np.sqrt(self.sum_over_ranks(sums_of_squares(self.device, flat.reshape(self.columns, -1))))

    def sum_over_ranks(self, values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Return the sum of host values over all ranks that share the vectors. Synchronizes."""
        return add_over_ranks(self.device, self.A.ranks, values)

    def nonfinite_inputs(self) -> list[str]:
        """Return the names of the inputs that contain NaN or infinity, which may explain a breakdown. Synchronizes."""
        values = [matrix.device_data for matrix in self.A.matrices]
        inputs = {"b": [self.b], "x0": [self.guess], "A": values}
        with self.device.active():
            is_nonfinite = [any(map(self._has_nonfinite, arrays)) for arrays in inputs.values()]
        counts = self.sum_over_ranks(np.array(is_nonfinite, dtype=np.float64))
        return [name for name, count in zip(inputs, counts, strict=True) if count]

    def advice_on_zeros(self) -> str:
        """Return advice that names the first zero row or column that makes A singular. Synchronizes.

        A row counts as zero if its product with a pseudorandom vector is zero; only rows where b is not zero are named.
        A zero column is named if the row of the same number is not zero. Return "" if there is none, if A has a shift,
        or if ranks share A.
        """
        if self.A.ranks is not None or self.shift:
            return ""
        size = self.A.shape[0]
        first_where = partial(kernels_of(self.device).reductions.first_where, self.device)
        with self.device.active(), np.errstate(all="ignore"):
            product = self.device.xp.ones(size, self.dtype)
            self.A.bind(self.device, self.dtype)(hashed_vector(self.device, size, self.dtype), product)
            is_unsolvable = (product == 0) & (self.b.reshape(self.columns, -1) != 0).any(axis=0)
            row, column = first_where(is_unsolvable, "not zero"), None  # synchronizes
            if row is None and isinstance(self.A, MatrixOperator):
                is_zero = sums_along(self.A.matrix, 0, "nonzero", summed=True) == 0
                column = first_where(is_zero & (product != 0), "not zero")  # synchronizes
        if row is not None:
            fault = f"Row {row} of A is zero and b is not: A is singular, and no x solves the system"
        elif column is not None:
            fault = f"Column {column} of A is zero: A is singular, and the system has a solution for few b only"
        else:
            return ""
        return f"{fault}. Remove the row and the column of this number, or use lsqr for least squares."

    def _has_nonfinite(self, values: Any) -> bool:
        """Return whether a host or device array contains NaN or infinity; False for None. Synchronizes."""
        if values is None or values.dtype.kind not in "fc":
            return False
        if device_of(values) is None:
            return not np.isfinite(values).all()
        return kernels_of(self.device).reductions.first_where(self.device, values.reshape(-1), "not finite") is not None

    def norms_of_caller(self, norms: npt.NDArray[np.float64], exponent: int = 0) -> npt.NDArray[np.float64]:
        """Return norms of residuals, converted to the user's units and multiplied by 2 to the power of `exponent`.

        The last axis of `norms` belongs to the columns of b.
        """
        if self.units is ONES:
            return norms
        with np.errstate(over="ignore", under="ignore"):
            return np.asarray(np.ldexp(norms, self.units.b + exponent))

    def in_units_of_caller(self, x: Array) -> Array:
        """Return a solution in the user's units, as flat memory with one column after the other."""
        return x if self.units is ONES else scaled_columns(self.device, x, self.units.x)

    def columns_out_of_range(self) -> npt.NDArray[np.bool_]:
        """Round x to its dtype in the user's units, and return which columns overflow or underflow.

        Synchronizes if the system is scaled.
        """
        if self.units is ONES:
            return np.zeros(self.columns, np.bool_)
        rounded = scaled_columns(self.device, self.in_units_of_caller(self.x), -self.units.x)
        with np.errstate(all="ignore"):
            differences, sizes = self._sizes(rounded - self.x), self._sizes(self.x)
        self.x[...] = rounded
        return ~(differences <= _ROUNDING * float(np.finfo(self.dtype).eps) * sizes)

    def deliver(self, x: Array, exponents: npt.NDArray[np.int64] | None = None) -> Array:
        """Return columns, stored one after the other, as an array of the kind that the caller passed as b.

        The columns are first multiplied by 2 to the power of `exponents`, by default the exponents of the solution. One
        column is returned as a vector.
        """
        if self.units is not ONES:
            x = scaled_columns(self.device, x, self.units.x if exponents is None else exponents)
        x = x.reshape(self.columns, -1).T
        if self.b_input.is_on_host:
            x = self.device.download(x)
        x = x.reshape(self.shape) if self.columns == 1 else x
        return self.b_input.returned(x)


def parse_right_hand_side(b: Any) -> DenseInput:
    """Parse the right-hand side that a caller passed to a solver; raise a TypeError for a sparse one."""
    if hasattr(b, "tocsr"):
        raise TypeError("b is a sparse matrix, but solvers take dense right-hand sides: pass b.toarray()")
    return parse_dense(b)


def make_linear_system(
    A: Any,
    b: Any,
    x0: Any = None,
    M: Any = None,
    *,
    square: bool = True,
    dtype: Any = None,
    inner_dtype: Any = None,
    terms: Sequence[float] = (),
) -> LinearSystem:
    """Check the arguments of a solver, and bring them to one device and one dtype. Synchronizes.

    Parameters
    ----------
    A, b, x0, M
        As for the solver.
    square : bool
        Whether A has to be square.
    dtype : dtype, optional
        The dtype of all vectors, by default that of A and b together.
    inner_dtype : dtype, optional
        A narrower dtype in which corrections are computed.
    terms : sequence of float
        Other numbers with which the solve computes as with elements of A, such as a shift. The scaling keeps their
        squares in range too.

    Raises
    ------
    ShapeError, DtypeError, DeviceError, TypeError
        If the arguments do not fit together. The message says what is required and what was passed.
    ValueError
        If `x0` is a string other than "Mb".
    """
    b_input = parse_right_hand_side(b)
    guess = x0 if x0 is None or isinstance(x0, str) else parse_dense(x0)
    device = device_for(A, b_input.array, M)
    with device.active(), device.memory_guard():
        system = _make_system(device, A, b_input, guess, M, square, dtype)
        narrowest = system.dtype if inner_dtype is None else parse_dtype(inner_dtype, "inner_dtype")
        _set_units(system, guess, terms, narrowest if narrowest.char in "fdFD" else system.dtype)
    return system


def _set_units(
    system: LinearSystem, x0: DenseInput | str | None, terms: Sequence[float], narrowest: np.dtype[Any]
) -> None:
    """Scale the operators and vectors of a system, if their norms may over- or underflow. Synchronizes."""
    device, dtype, columns, M = system.device, system.dtype, system.columns, system.M
    units, system.b_norms = choose_units(device, system.A, system.b, columns, terms, narrowest)
    if units is ONES and not isinstance(x0, str):
        return
    system.b = scaled_columns(device, system.b, -units.b)
    if isinstance(x0, str):
        if M is None:
            system.x[...] = system.b
        else:
            M.bind(device, dtype, columns)(system.b, system.x)
        system.x = scaled_columns(device, system.x, np.array([units.A]))
    else:
        system.x = scaled_columns(device, system.x, -units.x)
    if units.A and M is not None:
        units = replace(units, M=exponent_of_preconditioner(device, M, system.b, columns, system.A.ranks))
        system.M = scaled_operator(M, units.M, dtype)
    system.A, system.units = scaled_operator(system.A, -units.A, dtype), units


def _make_system(
    device: Device, A: Any, b: DenseInput, x0: DenseInput | str | None, M: Any, square: bool, dtype: Any
) -> LinearSystem:
    operator, preconditioner = as_operator(A, device), None if M is None else as_operator(M, device, "M")
    rows, size = operator.shape
    if square and rows != size:
        raise ShapeError(f"expected square matrix, but got shape={(rows, size)}: use lsqr or lsmr for least squares")
    if preconditioner is not None and preconditioner.shape != operator.shape:
        raise ShapeError(
            f"matrix and preconditioner have different shapes: {operator.shape}, {preconditioner.shape}: M must have "
            "the shape of A"
        )
    if b.gpu is not None and b.gpu is not device:  # on GPUs only
        raise DeviceError(f"the matrix lives on {device.name}, b on {b.gpu.name}: bring one to the other")
    if b.ndim not in (1, 2) or b.shape[0] != rows:
        raise ShapeError(
            f"A and b have incompatible dimensions, shapes {operator.shape} and {b.shape}: b must have shape "
            f"({rows},) or ({rows}, k)"
        )
    columns = 1 if b.ndim == 1 else int(b.shape[1])
    if dtype is None:  # as in SciPy, integers and booleans of either operand count as double precision
        dtype = np.dtype(np.result_type(solve_dtype(operator), solve_dtype(b)))
    if isinstance(x0, DenseInput) and x0.dtype.kind == "c" and dtype.kind != "c":
        dtype = np.dtype(np.result_type(dtype, np.complex64))  # a real solve would drop the guess's imaginary part
    flat = b.flat(device, dtype, columns)
    if device.is_host and np.may_share_memory(flat, b.array):
        flat = flat.copy()  # numba would compile every kernel again for an array that is read-only
    x, guess = device.xp.zeros(columns * size, dtype), None
    if isinstance(x0, str):
        if x0 != "Mb":
            raise ValueError(f"x0 must be an array or 'Mb', got {x0!r}")
    elif x0 is not None:
        guess = x0.array
        if guess.size != columns * size or guess.shape[:1] != (size,):
            required = f"({size},)" if columns == 1 else f"({size}, {columns})"
            raise ShapeError(
                f"shapes of A {operator.shape} and x0 {guess.shape} are incompatible: x0 must have shape {required}"
            )
        x[...] = x0.flat(device, dtype, columns)
    shape = (size,) if columns == 1 else (size, columns)  # like SciPy, one column gives a vector
    has_guess = x0 is not None
    return LinearSystem(
        device, dtype, operator, preconditioner, flat, x, columns, has_guess, b, shape, ONES, guess=guess
    )


def parse_dtype(value: Any, name: str) -> np.dtype[Any]:
    """Return the dtype that a user passed as the argument `name`."""
    try:
        dtype: np.dtype[Any] = np.dtype(value)
    except TypeError as error:
        raise DtypeError(f"{name} must be a dtype, got {value!r}") from error
    return dtype
