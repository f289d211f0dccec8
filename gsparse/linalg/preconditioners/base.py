"""The common part of preconditioners: passes over vectors, which are bound to the arrays that a product uses."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, Self

import numpy as np

from gsparse.device.base import Device
from gsparse.device.dtypes import Array
from gsparse.device.memory import address_of
from gsparse.errors import DeviceError, DtypeError
from gsparse.kernels.steps import Call, Program, Step
from gsparse.linalg.krylov.solve_state import SolveState
from gsparse.linalg.operators import Apply, Operator
from gsparse.linalg.preconditioners.square_matrix import SquareMatrix

# `d` is a diagonal, and `omega` the weight of a relaxation. The passes `begin` are relaxations from x = 0, for which no
# product is needed; in the other ones r is A·x. A pass `..._residual` is the last one before a residual: it copies b to
# r, from which the caller then subtracts A·x.
PROGRAM = Program(
    "preconditioner",
    "x b r d",
    (
        Step("copy", each="x = b"),
        Step("scale", each="x = d * b"),
        Step("begin", each="x = omega * b"),
        Step("begin_scaled", each="x = omega * d * b"),
        Step("begin_residual", each="x = omega * b; r = b"),
        Step("begin_scaled_residual", each="x = omega * d * b; r = b"),
        Step("relax", each="x += omega * (b - r)"),
        Step("relax_scaled", each="x += omega * d * (b - r)"),
        Step("relax_residual", each="x += omega * (b - r); r = b"),
        Step("relax_scaled_residual", each="x += omega * d * (b - r); r = b"),
    ),
)

# ``build(x, y)`` returns the calls that write the product with x into y. It may itself allocate memory and wait.
CallBuilder = Callable[[Array, Array], list[Call]]


class VectorPasses:
    """Binds passes to vectors of one dtype on one device.

    Parameters
    ----------
    device : Device
    dtype : dtype
    columns : int
        Number of columns that an array holds, one after the other.
    """

    def __init__(self, device: Device, dtype: np.dtype[Any], columns: int) -> None:
        self.device, self.dtype, self.columns = device, dtype, columns
        self._states: dict[float, SolveState] = {}

    def bind(self, name: str, omega: float = 1.0, **vectors: Array) -> Call:
        """Bind a pass to its vectors and to the relaxation weight `omega`."""
        state = self._states.get(omega)
        if state is None:
            state = self._states[omega] = SolveState(self.device, PROGRAM, self.dtype, self.columns, capacity=1)
            state.set(omega=omega)
        return state.bind(name, vectors)

    def vector(self, rows: int) -> Array:
        """Allocate an array of zeros for all columns."""
        return self.device.xp.zeros(self.columns * rows, self.dtype)

    def diagonal(self, values: Array, *, adjoint: bool = False) -> Array:
        """Return a diagonal in the form that passes need: in their dtype, and repeated for each column."""
        xp = self.device.xp
        values = xp.conj(values) if adjoint else values
        values = values.astype(self.dtype, copy=False)
        return xp.tile(values, self.columns) if self.columns > 1 else values


class Preconditioner(Operator):
    """An approximate inverse on one device.

    Parameters
    ----------
    device : Device
    size : int
        Number of rows and columns.
    dtype : dtype
        If it is complex, the vectors have to be complex too.
    kind : str
        Name of the function that returns such preconditioners.
    """

    def __init__(self, device: Device, size: int, dtype: np.dtype[Any], kind: str) -> None:
        self.device, self.shape, self.dtype = device, (size, size), np.dtype(dtype)
        self._kind = kind
        self._latest: tuple[Any, ...] = (None,)

    def __repr__(self) -> str:
        return f"<{self._kind} preconditioner of shape {self.shape}, dtype {self.dtype}, on {self.device.name}>"

    def home(self) -> Device:
        return self.device

    def bind(self, device: Device, dtype: np.dtype[Any], columns: int = 1, *, adjoint: bool = False) -> Apply:
        if device is not self.device:
            raise DeviceError(
                f"the preconditioner lives on {self.device.name}, the vectors on {device.name}: bring one to the other"
            )
        if self.dtype.kind == "c" and dtype.kind != "c":
            raise DtypeError(f"a {self.dtype} preconditioner needs complex vectors, got {dtype}: solve in complex128")
        build = self._prepare(VectorPasses(device, dtype, columns), adjoint)
        calls: dict[tuple[int, int], list[Call]] = {}

        def apply(x: Array, y: Array) -> None:
            key = address_of(x), address_of(y)
            if key not in calls:
                calls[key] = build(x, y)
            for call in calls[key]:
                call()

        return apply

    @abstractmethod
    def _prepare(self, passes: VectorPasses, adjoint: bool) -> CallBuilder:
        """Allocate the memory that products need, and return a function that binds products to arrays."""

    def _product_of(self, device: Device, x: Array, columns: int, adjoint: bool) -> Array:
        """Multiply in buffers that are kept for the next call.

        SciPy calls this once per iteration, each time with another vector. Copying it to the same buffer saves binding
        the calls to a new array each time.
        """
        key = (device, x.dtype, columns, adjoint, device.stream_key())
        latest = self._latest
        if latest[0] != key:
            latest = self._latest = (None,)  # frees the buffers first
            bound = self.bind(device, x.dtype, columns, adjoint=adjoint)
            latest = self._latest = (key, bound, device.xp.empty_like(x), device.xp.empty_like(x))
        _, bound, source, target = latest
        source[...] = x
        bound(source, target)
        return target.copy()


class MatrixPreconditioner(Preconditioner):
    """A preconditioner that was made of the entries of a matrix, and can be updated for other values.

    The functions of `gsparse.linalg` return it, and users do not construct it. It is passed as `M` to solvers of
    `gsparse.linalg`, SciPy or CuPy.

    Parameters
    ----------
    matrix : SquareMatrix
        The matrix that was passed to that function.
    kind : str
        Name of the function.
    compute : callable, optional
        ``compute(matrix, latest)`` returns what products need. `latest` is what it returned for the matrix before,
        which has the same structure, or None the first time.

    Examples
    --------
    >>> import numpy, scipy.sparse
    >>> from gsparse import GpuSparseMatrix
    >>> from gsparse.linalg import cg, ic0
    >>> S = scipy.sparse.diags_array([-1.0, 2.0, -1.0], offsets=[-1, 0, 1], shape=(100, 100))
    >>> A = GpuSparseMatrix(S.tocsr(), device="cpu")
    >>> M = ic0(A)
    >>> for factor in (1.0, 2.0, 3.0):
    ...     B = A.with_data(factor * A.device_data)
    ...     x, info = cg(B, numpy.ones(100), M=M.update(B))
    """

    # Whether products multiply by the matrix itself, so that a copy of it must be kept.
    _KEEPS_MATRIX: ClassVar[bool] = False

    def __init__(
        self, matrix: SquareMatrix, kind: str, compute: Callable[[SquareMatrix, Any], Any] | None = None
    ) -> None:
        super().__init__(matrix.device, matrix.size, matrix.dtype, kind)
        self._structure, self._compute_values = matrix.structure, compute
        self._values: Any = None
        self._set_values(matrix)

    def update(self, A: Any) -> Self:
        """Compute the preconditioner again for other values, and change it in place.

        What depends on the structure alone is kept: orders of rows, levels, and where entries are. So is what was
        chosen by the values of the first matrix, such as an "auto" option. If a new preconditioner makes the same
        choices, the result equals it to the bit. If an error is raised, the preconditioner remains as it was. This is
        for sequences of matrices: Newton's method, time steps, changing coefficients.

        Parameters
        ----------
        A : sparse array, shape (N, N)
            A matrix with the structure, the dtype and the device of the first one, for instance
            ``A.with_data(values)``.

        Returns
        -------
        MatrixPreconditioner
            This object, which has changed. Synchronizes.

        Raises
        ------
        StructureError
            If the matrix has another shape, or an entry at another place.
        DeviceError, DtypeError
            If the matrix lives on another device, or has another dtype.
        FactorizationError
            As for a new preconditioner.
        """
        with SquareMatrix.of(A, self._kind, keep=self._KEEPS_MATRIX) as matrix:
            matrix.check_structure(self.device, self._structure, self._kind)
            self._set_values(matrix)
        self._latest = (None,)
        return self

    def _set_values(self, matrix: SquareMatrix) -> None:
        """Compute what products need, and then replace it. Every call but the first is an update."""
        assert self._compute_values is not None
        self._values = self._compute_values(matrix, self._values)
