"""The base classes of preconditioners, and the passes over vectors of which their products consist."""

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

# `d` is a diagonal, and `omega` the weight of a relaxation. The `begin` passes relax from x = 0, for which no product
# is needed; in the `relax` passes, r is A·x. A pass `..._residual` is the last one before a residual: it copies b to r,
# from which the caller then subtracts A·x.
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

# ``build(x, y)`` returns the calls that write the product with x into y. `build` itself may allocate memory and
# synchronize; the calls do not.
CallBuilder = Callable[[Array, Array], list[Call]]


class VectorPasses:
    """Makes the calls of the passes of `PROGRAM`, for vectors of one dtype on one device.

    Parameters
    ----------
    device : Device
    dtype : dtype
    columns : int
        Number of columns of each vector, which are stored one after the other.
    """

    def __init__(self, device: Device, dtype: np.dtype[Any], columns: int) -> None:
        self.device, self.dtype, self.columns = device, dtype, columns
        self._states: dict[float, SolveState] = {}

    def bind(self, name: str, omega: float = 1.0, **vectors: Array) -> Call:
        """Return the call that runs pass `name` on these vectors, with the relaxation weight `omega`."""
        state = self._states.get(omega)
        if state is None:
            state = self._states[omega] = SolveState(self.device, PROGRAM, self.dtype, self.columns, capacity=1)
            state.set(omega=omega)
        return state.bind(name, vectors)

    def vector(self, rows: int) -> Array:
        """Return a device array of zeros with `rows` elements for each column."""
        return self.device.xp.zeros(self.columns * rows, self.dtype)

    def diagonal(self, values: Array, *, adjoint: bool = False) -> Array:
        """Return a diagonal in the dtype of the vectors, repeated for each column, and conjugated with `adjoint`."""
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
        The dtype of the preconditioner's values. If it is complex, the vectors must be complex too.
    kind : str
        Name of the function that returned the preconditioner, such as "jacobi".
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
        """Allocate the memory that products need, and return the function that makes the calls of a product."""

    def _product_of(self, device: Device, x: Array, columns: int, adjoint: bool) -> Array:
        """Return the product with x, computed in buffers that the next call reuses.

        SciPy calls this once per iteration with a new vector. Copying this vector to the same buffer saves making the
        calls again.
        """
        key = (device, x.dtype, columns, adjoint, device.stream_key())
        latest = self._latest
        if latest[0] != key:
            latest = self._latest = (None,)  # frees the old buffers before allocating new ones
            bound = self.bind(device, x.dtype, columns, adjoint=adjoint)
            latest = self._latest = (key, bound, device.xp.empty_like(x), device.xp.empty_like(x))
        _, bound, source, target = latest
        source[...] = x
        bound(source, target)
        return target.copy()


class MatrixPreconditioner(Preconditioner):
    """A preconditioner that is computed from the entries of a matrix, and can be updated for other values.

    Functions of `gsparse.linalg`, such as `ilu`, return it; users do not construct it. Pass it as `M` to solvers of
    `gsparse.linalg`, SciPy or CuPy.

    Parameters
    ----------
    matrix : SquareMatrix
        The matrix that the user passed to such a function.
    kind : str
        Name of the function.
    compute : callable, optional
        ``compute(matrix, latest)`` returns the values that products use. `latest` is the result for the previous
        matrix, which has the same structure; None for the first matrix.

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

    # Whether products also multiply by the matrix itself, so that the preconditioner must keep a copy of it.
    _KEEPS_MATRIX: ClassVar[bool] = False

    def __init__(
        self, matrix: SquareMatrix, kind: str, compute: Callable[[SquareMatrix, Any], Any] | None = None
    ) -> None:
        super().__init__(matrix.device, matrix.size, matrix.dtype, kind)
        self._structure, self._compute_values = matrix.structure, compute
        self._values: Any = None
        self._set_values(matrix)

    def update(self, A: Any) -> Self:
        """Compute the preconditioner again for a matrix of the same structure, in place.

        Everything that depends on the structure only is reused: orders of rows, levels and positions of entries.
        Choices that depended on the values of the first matrix, such as an "auto" option, are reused too. If a new
        preconditioner makes the same choices, its values are the same, bit by bit. If an error is raised, the
        preconditioner remains as it was. This method is meant for sequences of matrices, as in Newton's method, time
        steps, or changing coefficients.

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
            If the shape or the positions of the entries differ.
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
        """Compute the values that products use, and then replace the old ones. All calls but the first are updates."""
        assert self._compute_values is not None
        self._values = self._compute_values(matrix, self._values)
