"""The contracts of Krylov bases and decompositions: `Arnoldi` and `Decomposition`, implemented by each backend."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from gsparse.device.base import Device
from gsparse.device.dtypes import Array
from gsparse.kernels.steps import Call, StepState

# The cells (scalars of a solve) that these passes share with the steps of a program:
#   cycle_end         0 while the cycle runs. When column j of R is finished, it becomes 1 if the residual is small
#                     enough, 2 at a breakdown (B·w is in the span of the basis), 3 at the iteration limit. If it is
#                     not 0, passes do nothing.
#   norm              norm of the first vector of a cycle; set by the step that sets w
#   residual          residual of the least-squares problem. It is set together with `cycle_end`. At the same time, it
#                     is recorded in the history, and `iteration` is incremented.
#   inner_tolerance   the cycle ends at a residual of this size or less
#   limit             the maximal number of iterations
# A residual that is NaN also sets `stop` to 2.
ARNOLDI_CELLS = ("cycle_end", "norm", "residual", "inner_tolerance", "limit")


class Arnoldi(ABC):
    """The Arnoldi process and its least-squares problem, separately for each right-hand side.

    The calls that the methods return neither wait nor allocate, and do nothing once `stop` is set.

    Parameters
    ----------
    device : Device
    state : StepState
        State of a program that has `ARNOLDI_CELLS`. Its `reduce` sums over all ranks that share the vectors. It is
        called only once per iteration if the backend finishes columns of R one iteration later.
    w, u : array, shape (columns * n,)
        The vectors w and u of the module's docstring.
    restart : int
        Maximal number of vectors.
    dtype : dtype
        Dtype in which the basis is stored: the dtype of w, or the same kind of number in half the precision.
    flexible : bool
        Whether u is A·z, where the caller computes the vector z (see the module's docstring).

    Attributes
    ----------
    vectors : array, shape (restart, columns, n)
        The basis.
    preconditioned : array, shape (restart, columns * n)
        The vectors z, of the dtype of w; empty unless `flexible`.
    """

    def __init__(
        self,
        device: Device,
        state: StepState,
        w: Array,
        u: Array,
        restart: int,
        dtype: np.dtype[Any],
        *,
        flexible: bool = False,
    ) -> None:
        self.device, self.state, self.w, self.u = device, state, w, u
        self.restart, self.flexible, self.reduce = restart, flexible, state.reduce
        self.columns, self.size = state.columns, w.size // state.columns
        # Initialize with zeros, because passes may read vectors before they test `stop`.
        self.vectors = device.xp.zeros((restart, self.columns, self.size), dtype)
        self.preconditioned = device.empty((restart if flexible else 0, w.size), w.dtype)
        self.places = tuple(state.program.cells[name] for name in ARNOLDI_CELLS)
        self.epsilon = float(np.finfo(w.dtype).eps)

    @abstractmethod
    def project(self, j: int) -> Call:
        """Bind the inner products of the basis and of w with u, in iteration j of a cycle."""

    @abstractmethod
    def orthogonalize(self, j: int) -> Call:
        """Bind the pass that finishes basis vector vⱼ and computes the next w."""

    @abstractmethod
    def finish_column(self, j: int) -> Call:
        """Bind the end of iteration j: the call finishes column j of R, and decides whether the cycle goes on.

        Every later pass of the cycle, and `combine`, also do this if necessary. A caller needs this call only to get
        the decision earlier.
        """

    @abstractmethod
    def combine(self, x: Array) -> Call:
        """Bind the end of a cycle: x += V·y, or Z·y if `flexible`, where y solves the least-squares problem."""


class Decomposition(ABC):
    """The vectors of a Krylov decomposition, and the table of its coefficients.

    The calls that the methods return neither wait nor allocate.

    Parameters
    ----------
    device : Device
    state : StepState
        State of a program with the sum `wu`, from which `predict` reads wᴴu. `state.reduce` sums over all ranks that
        share the vectors.
    vectors : array, shape (capacity + 1, n)
        The basis; the last row is w.
    u : array, shape (n,)
        The operator's product with w.
    hermitian : bool
        Whether steps call `predict` in place of `project`.
    measures : bool
        Whether `measure` follows every step, because the inner product is not the standard one.

    Attributes
    ----------
    capacity : int
        The largest number of basis vectors, m.
    w : array, shape (n,)
    table : array, shape (m + 1, 2, m + 2)
        In double precision, row j holds s of step j followed by wᴴw, and p of step j followed by wᴴu. For the first
        step of a cycle, s is in `start` instead.
    start : array, shape (3 * m + 2,)
        The input of a cycle from the host: s of its first step followed by wᴴw; the diagonal of H for the vectors that
        exist already; and their coupling to the first new vector.
    """

    def __init__(
        self,
        device: Device,
        state: StepState,
        vectors: Array,
        u: Array,
        *,
        hermitian: bool,
        measures: bool = False,
    ) -> None:
        self.hermitian = hermitian
        self.device, self.state, self.vectors, self.u = device, state, vectors, u
        self.capacity, self.size = vectors.shape[0] - 1, vectors.shape[1]
        self.w, self.measures, self.reduce = vectors[self.capacity], measures, state.reduce
        wide, m = state.cells.dtype, self.capacity
        self.table = device.xp.zeros((m + 1, 2, m + 2), wide)
        # First `start`, then results of `predict`, m elements each: alpha, beta, the last elements of p, and the norms.
        self.memory = device.xp.zeros(3 * m + 2 + 4 * m, wide)
        self.start = self.memory[: 3 * m + 2]

    def begin(self, first: int, values: npt.ArrayLike = 0.0, couplings: npt.ArrayLike = 0.0) -> None:
        """Queue the upload of the input of a cycle. w must be normalized and orthogonal to the existing vectors.

        Parameters
        ----------
        first : int
            Number of existing vectors, which is also the number of the first step of the cycle.
        values, couplings : array, shape (first,)
            For `predict`: the diagonal of the part of H that belongs to the existing vectors (this part is diagonal),
            and row `first` of H.
        """
        m = self.capacity
        host = np.zeros(self.start.size, self.start.dtype)
        host[first] = 1
        host[m + 2 : m + 2 + first], host[2 * m + 2 : 2 * m + 2 + first] = values, couplings
        self.start[...] = self.device.upload(host)

    @abstractmethod
    def project(self, j: int, first: int) -> Call:
        """Bind the computation of p = Vᴴu and of wᴴu in step j of a cycle that began with step `first`."""

    @abstractmethod
    def predict(self, j: int, first: int) -> Call:
        """Bind the computation of p for a Hermitian operator, from earlier coefficients and the sum `wu`."""

    @abstractmethod
    def orthogonalize(self, j: int, first: int) -> Call:
        """Bind the pass that finishes vⱼ, and computes the next w and, unless `measures`, the sums s and wᴴw of w."""

    @abstractmethod
    def measure(self, j: int, z: Array) -> Call:
        """Bind the computation of s = Vᴴz for the first j vectors, and of wᴴz, in step j, where z = M·w."""

    @abstractmethod
    def finish(self, j: int) -> Call:
        """Bind the end of a cycle at step j: compute s and wᴴw of step j, although this step is not taken."""

    def _s(self, j: int, first: int) -> Array:
        """Return the array that holds s of step j, with wᴴw at index j."""
        return self.start[: self.capacity + 2] if j == first else self.table[j, 0]

    def _p(self, j: int) -> Any:
        return self.table[j, 1]


class BasisKernels(Protocol):
    """Arnoldi's process and Krylov decompositions."""

    @property
    def Arnoldi(self) -> type[Arnoldi]:
        """The backend's implementation of `Arnoldi`."""

    @property
    def Decomposition(self) -> type[Decomposition]:
        """The backend's implementation of `Decomposition`."""
