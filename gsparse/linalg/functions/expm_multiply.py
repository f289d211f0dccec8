"""The action of the matrix exponential on vectors (Al-Mohy and Higham 2011), with vectors that stay on the device.

exp(t·A)·b is computed in s steps, each with a Taylor polynomial of degree m:

    exp(t·A) = exp(t·μ) · exp(t·(A - μ·I)/s)^s          μ = trace(A)/n, which makes the norm small

    pass       equations                                                        vectors read and written
    term       b = h/j·(q - μ·b), q = A·b;  f += b;  <b, b>, <f, f>              5
    scale      f = exp(h·μ)·f;  b = f;  <b, b>                                   3          h = t/s

m and s are the pair with the fewest products whose truncation error is below the rounding error. They depend on the
1-norms of powers of A, which are estimated. After convergence, further terms are multiplied by 0. Every few terms, the
host reads whether the series has converged.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
from scipy.sparse.linalg import LinearOperator

from gsparse.device.base import Device
from gsparse.device.counters import recorded_products
from gsparse.device.dtypes import Array
from gsparse.device.interchange import DenseInput, parse_dense
from gsparse.device.select import device_of
from gsparse.errors import ShapeError
from gsparse.kernels.backends import kernels_of
from gsparse.kernels.steps import Call, Program, Step, queue
from gsparse.linalg.functions.onenormest import ShiftedNorms, trace_of
from gsparse.linalg.krylov.solve_state import SolveState
from gsparse.linalg.operators import Operator, as_operator, device_for, solve_dtype
from gsparse.matrix.arrays import frames_to_the_caller

Host = npt.NDArray[Any]

# Scalars that are computed after each term of the series: whether this term is the last that is needed, and the factor
# of the following term. If squares may over- or underflow, all m terms are computed.
_NEXT = """
    size = sqrt(bb)
    order += 1
    is_safe = 1 if ff > 1e-200 and ff < 1e300 else 0
    {factor} = 0 if is_safe > 0 and last + size <= tolerance * sqrt(ff) else step / order
    last = size
"""
# A pass must not read a scalar that it assigns, so the factors of odd and of even terms have names of their own.
PROGRAM = Program(
    "expm_multiply",
    "b f q",
    (
        Step("begin", each="f = b", sums="bb = abs2(b)", after="last = sqrt(bb); order = 1; odd = step"),
        Step(
            "odd_term",
            each="b = odd * (q - shift * b); f += b",
            sums="bb = abs2(b); ff = abs2(f)",
            after=_NEXT.format(factor="even"),
        ),
        Step(
            "even_term",
            each="b = even * (q - shift * b); f += b",
            sums="bb = abs2(b); ff = abs2(f)",
            after=_NEXT.format(factor="odd"),
        ),
        Step(
            "scale",
            each="f = growth * f; b = f",
            sums="bb = abs2(b)",
            after="last = sqrt(bb); order = 1; odd = step",
        ),
    ),
)

# The host reads after this many pairs of terms whether the series has converged.
_PAIRS_PER_CHECK = 3
# More products than this take several seconds or longer, so a warning is issued.
_MANY_PRODUCTS = 1_000_000


def expm_multiply(
    A: Any,
    B: Any,
    start: float | None = None,
    stop: float | None = None,
    num: int | None = None,
    endpoint: bool | None = None,
    traceA: complex | None = None,
) -> Array:
    """Compute exp(t·A)·B without the exponential, for one time or for evenly spaced times.

    Parameters
    ----------
    A : GpuSparseMatrix, sparse array, dense array or LinearOperator, shape (n, n)
        Real or complex. An operator needs `rmatvec` too.
    B : array, shape (n,) or (n, k)
        NumPy or CuPy, real or complex. A sparse array is made dense.
    start, stop, num, endpoint : optional
        The times, as for `numpy.linspace`, by default 50 of them. If none of the four is given, t is 1. Otherwise,
        `start` and `stop` are required.
    traceA : complex, optional
        The trace of A, which only affects the speed. For an operator, it is estimated with a warning. If it is complex
        and there is one time, the result is complex too, as in SciPy.

    Returns
    -------
    array, shape (n,) or (n, k), or with a new first axis for the times
        NumPy or CuPy, as B. As in SciPy, several times are computed in double precision.

    Raises
    ------
    ShapeError
        If A is not square, or B does not have a row for each row of A.
    ValueError
        If B has more than two dimensions, `num` is less than 2, or a time or `traceA` is not finite; or if t·‖A - μI‖
        is so large that rounding errors leave no correct digit.
    TypeError
        If a time or `traceA` is no number, or a time is complex: exp(z·A)·B for a complex z is
        ``expm_multiply(z * A, B)``.
    DeviceError
        If A is on one GPU and B on another.
    DeviceMemoryError

    Warns
    -----
    UserWarning
        If the trace of an operator is estimated, or if the result may take more than a million products with A.

    Notes
    -----
    The relative error is about the machine precision times t·‖A - μI‖; in float64 it can be 100 times as large, as in
    SciPy. The work is proportional to t·‖A - μI‖. All columns are computed together. Times that are close to each other
    share one series.

    References
    ----------
    .. [1] A. H. Al-Mohy, N. J. Higham, "Computing the action of the matrix exponential, with an application to
       exponential integrators", SIAM J. Sci. Comput. 33(2), 2011.

    Examples
    --------
    >>> import numpy, scipy.sparse
    >>> from gsparse import GpuSparseMatrix
    >>> from gsparse.linalg import expm_multiply
    >>> A = GpuSparseMatrix(scipy.sparse.diags_array([0.0, 1.0, 2.0]), device="cpu")
    >>> expm_multiply(A, numpy.ones(3)).round(6)
    array([1.      , 2.718282, 7.389056])
    >>> expm_multiply(A, numpy.ones(3), start=0, stop=1, num=3).shape
    (3, 3)
    """
    B = B.toarray() if sp.issparse(B) else B
    if device_of(B) is None:
        B = np.asarray(B)
        B = B.astype(solve_dtype(B), copy=False)
    b = parse_dense(B)
    if len(np.shape(A)) != 2 or A.shape[0] != A.shape[1]:
        raise ShapeError(f"expected A to be like a square matrix, got shape {np.shape(A)}")
    if b.ndim not in (1, 2):
        raise ValueError(f"expected B to be like a matrix or a vector, got shape {b.shape}")
    if b.shape[0] != A.shape[0]:
        raise ShapeError(f"shapes of matrices A {A.shape} and B {b.shape} are incompatible")
    is_interval = any(argument is not None for argument in (start, stop, num, endpoint))
    begin, end = _parse_times(start, stop) if is_interval else (0.0, 1.0)
    if traceA is not None:
        _check_finite("traceA", traceA)
    if traceA is None and isinstance(A, LinearOperator):
        text = "Trace of LinearOperator not available, it will be estimated. Provide `traceA` to ensure performance."
        warnings.warn(text, UserWarning, stacklevel=2)
    device = device_for(A, B)
    with device.active(), device.memory_guard(), device.own_stream():
        action = _Action.of(device, as_operator(A, device), b, traceA, in_double=is_interval)
        _warn_of_many_products(action, abs(begin) + abs(end - begin))
        if not is_interval:
            action.advance(1.0)
            result = action.solution.copy()[None]
        else:
            result = _at_times(action, begin, end, 50 if num is None else num, endpoint is None or endpoint)
        return _deliver(b, device, result, is_interval)


def _parse_times(start: Any, stop: Any) -> tuple[float, float]:
    """Return the first and the last time. Both times and their difference must be real and finite."""
    for name, time in (("start", start), ("stop", stop)):
        if time is None:
            raise TypeError(f"{name} is missing: several times need both start and stop, as in numpy.linspace")
        if np.iscomplexobj(time):
            raise TypeError(
                f"{name} must be a real number, got {time!r}: for complex times z, pass z * A in place of A"
            )
        _check_finite(name, time)
    if not np.isfinite(float(stop) - float(start)):
        raise ValueError(f"stop - start must be finite, got {stop!r} - {start!r}")
    return start, stop


def _check_finite(name: str, number: Any) -> None:
    if np.ndim(number) or np.asarray(number).dtype.kind not in "biufc":
        raise TypeError(f"{name} must be a number, got {number!r}")
    if not np.isfinite(number):
        raise ValueError(f"{name} must be finite, got {number!r}")


def _warn_of_many_products(action: _Action, span: float) -> None:
    """Issue a warning, before the first product, if the time `span` takes many products."""
    degree, steps = action.norms.degree_and_steps(span, action.columns) if action.solution.size else (0, 1)
    if degree * steps > _MANY_PRODUCTS:
        warnings.warn(
            f"expm_multiply takes up to {degree * steps:.0e} products with A, because a step covers only "
            f"{span / steps:.0e} of the time {span:.0e}: pass shorter times if that takes too long",
            UserWarning,
            stacklevel=frames_to_the_caller(),
        )


def _deliver(b: DenseInput, device: Device, result: Array, is_interval: bool) -> Array:
    """Return the results in the shape and library of b. `result` holds one time after the other."""
    shape = (len(result), b.shape[0]) if b.ndim == 1 else (len(result), *b.shape[::-1])
    result = result.reshape(shape)
    result = result if b.ndim == 1 else result.transpose(0, 2, 1)
    result = device.download(result) if b.is_on_host else result
    return b.returned(result if is_interval else result[0])


@dataclass(eq=False)
class _Action:
    """Columns that `advance` multiplies by exp(t·A), in place.

    Attributes
    ----------
    norms : ShiftedNorms
    shift : complex
        μ
    columns : int
    solution : array, shape (columns * n,)
    """

    device: Device
    dtype: np.dtype[Any]
    product: Callable[[Array, Array], None]
    norms: ShiftedNorms
    shift: complex
    columns: int
    solution: Array
    is_resident: bool

    @classmethod
    def of(cls, device: Device, A: Operator, b: DenseInput, trace: complex | None, *, in_double: bool) -> _Action:
        dtype = np.dtype(np.result_type(solve_dtype(A), solve_dtype(b)))
        if in_double or np.asarray(trace).dtype.kind == "c":
            dtype = np.dtype(np.result_type(dtype, np.float64 if in_double else np.complex64))
        columns = 1 if b.ndim == 1 else int(b.shape[1])
        size = A.shape[0]
        flat = b.flat(device, dtype, columns).copy() if size * columns else device.xp.zeros(0, dtype)
        if trace is None:
            trace = trace_of(A, device, dtype)
        shift = complex(trace) / max(size, 1)
        shift = shift if dtype.kind == "c" else shift.real
        norms = ShiftedNorms(A, device, dtype, shift)
        product = A.bind(device, dtype, columns) if size * columns else lambda x, y: None
        return cls(device, dtype, product, norms, shift, columns, flat, A.is_resident)

    def __post_init__(self) -> None:
        device, size = self.device, self.solution.size
        self._b, self._q = self.solution.copy(), device.xp.zeros(size, self.dtype)
        self._state = SolveState(device, PROGRAM, self.dtype, max(self.columns, 1), 1)
        vectors = {"b": self._b, "f": self.solution, "q": self._q}
        kernels_of(device).steps.compile_steps(device, PROGRAM, self.dtype)
        self._steps = {step.name: self._state.bind(step.name, vectors) for step in PROGRAM.steps}
        self._graph_of_pair: Call | None = None
        self._num_pairs = 0

    def _queue_pair(self) -> None:
        for name in ("odd_term", "even_term"):
            self.product(self._b, self._q)
            self._steps[name]()

    def _run_pair(self) -> None:
        """Queue the work of two terms of the series; from the third call on, as a CUDA graph."""
        self._num_pairs += 1
        if self._num_pairs == 3 and self.is_resident and not self.device.is_host:
            with recorded_products() as count_products:
                launch = self.device.capture(self._queue_pair)
            self._graph_of_pair = lambda: queue([launch, count_products])
        (self._graph_of_pair or self._queue_pair)()

    def advance(self, t: complex) -> None:
        """Multiply the columns by exp(t·A), in place. Synchronizes."""
        if not self.solution.size:
            return
        degree, steps = self.norms.degree_and_steps(t, self.columns)
        h = t / steps
        self._b[...] = self.solution
        epsilon = float(np.finfo(self.dtype).eps) / 2
        self._state.set(shift=self.shift, step=h, growth=np.exp(h * self.shift), tolerance=epsilon)
        self._steps["begin"]()
        for _ in range(steps):
            self._run_series(degree)
            self._steps["scale"]()

    def _run_series(self, degree: int) -> None:
        for pair in range(1, -(-degree // 2) + 1):
            self._run_pair()
            if pair % _PAIRS_PER_CHECK == 0 and not self._state.read()["odd"].any():
                return

    def powers(self, degree: int, h: complex) -> Array:
        """Return a device array whose row p is (h·(A - μI))^p·b/p!, for p = 0 to `degree`."""
        table = self.device.empty((degree + 1, self.solution.size), self.dtype)
        table[0] = self.solution
        for p in range(1, degree + 1):
            self.product(table[p - 1], self._q)
            table[p] = self.dtype.type(h / p) * (self._q - self.dtype.type(self.shift) * table[p - 1])
        return table


def _at_times(action: _Action, start: float, stop: float, num: int, endpoint: bool) -> Array:
    """Return exp(t·A)·B for evenly spaced times t. Synchronizes."""
    times, step = np.linspace(start, stop, num, endpoint=endpoint, retstep=True)
    if num < 2:
        raise ValueError(f"at least two time points are required, got num={num}")
    action.advance(times[0])
    result = action.device.empty((num, action.solution.size), action.dtype)
    result[0] = action.solution
    intervals = num - 1
    if not action.solution.size:
        return result
    degree, steps = action.norms.degree_and_steps(step * intervals, action.columns)
    if intervals <= steps:
        for place in range(1, num):
            action.advance(step)
            result[place] = action.solution
        return result
    # Times within one step share its series: the terms b, A·h·b, ... are summed for several fractions of h.
    group = intervals // steps
    for first in range(0, intervals, group):
        count = min(group, intervals - first)
        table = action.powers(degree, step * count)
        shares = np.arange(1, count + 1) / count
        factors = (shares[:, None] ** np.arange(degree + 1)) * np.exp(action.shift * step * count * shares)[:, None]
        on_device = action.device.upload(np.ascontiguousarray(factors.astype(action.dtype)))
        result[first + 1 : first + count + 1] = on_device @ table
        action.solution[...] = result[first + count]
    return result
