"""The contract of Krylov decompositions: `kernels_of(device).decomposition.Decomposition`, implemented by each backend.

A decomposition of an operator B has m orthonormal vectors, and the projected matrix H:

    B·V = V·H + v_m·hᴴ          V = [v₀ ... v_{m-1}]

The process is that of `gsparse.kernels.basis`: w has been orthogonalized once when step j begins, s = Vᴴw is what is
left in it of the vectors v₀ to v_{j-1}, and the caller computes u = B·w. The step finishes vⱼ and computes the next w:

    vⱼ = (w - V·s) / norm;  w = (u - [V vⱼ]·p) / norm;  s = [V vⱼ]ᴴw          norm² = wᴴw - |s|²

Nothing is decided on the device. The coefficients of all steps are recorded in a table, which the host reads when a
cycle of steps is over. Let N have the columns [s; norm] and U the columns [p + norm·s_next; norm·norm_next]. Then
W = V·N and B·W = V·U, so H = U·N⁻¹ (`gsparse.linalg.eigen.krylov_space`). A cycle begins with step `first`: the vectors
before it were kept when the process was restarted.

There are two ways to p = Vᴴu:

    project (any operator)       reads V, w, u: j + 2 vectors
    predict (Hermitian)          reads no vectors: p = Vᴴ·B·w = (B·V)ᴴw = Hᴴ·[s; norm], of the columns of H before j,
                                 and the last element of p follows from wᴴu. It differs from the projection by rounding
                                 errors of earlier steps. The next s is measured, and removed in the next step.

and then

    orthogonalize                reads V, w, u, writes vⱼ, w: j + 4 vectors

A step of Lanczos' process with full reorthogonalization thus reads the basis once.

With an inner product xᴴMy instead of xᴴy, the sums of `orthogonalize` are not those that are needed. The caller then
computes z = M·w after the step and calls `measure`, which reads the basis once more.

References
----------
H. D. Simon, "The Lanczos algorithm with partial reorthogonalization", Math. Comp. 42, 1984; K. Wu, H. Simon,
"Thick-restart Lanczos method for large symmetric eigenvalue problems", SIAM J. Matrix Anal. Appl. 22(2), 2000;
D. Bielich et al., see `gsparse.kernels.basis`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from gsparse.device.base import Device
from gsparse.device.dtypes import Array
from gsparse.kernels.calls import Call
from gsparse.kernels.steps import StepState


class Decomposition(ABC):
    """Vectors of a Krylov decomposition, and the table of its coefficients.

    The calls that the methods return neither wait nor allocate.

    Parameters
    ----------
    device : Device
    state : StepState
        State of a program with the sum `wu`, from which `predict` reads wᴴu. Its `reduce` adds up sums over all ranks
        that share the vectors.
    vectors : array, shape (capacity + 1, n)
        The basis; the last row is w.
    u : array, shape (n,)
        The operator's product with w.
    hermitian : bool
        Whether steps call `predict`, and not `project`.
    measures : bool
        Whether every step is followed by `measure`, because the inner product is not the standard one.

    Attributes
    ----------
    capacity : int
        The largest number of basis vectors, m.
    w : array, shape (n,)
    table : array, shape (m + 1, 2, m + 2)
        Row j holds s of step j with wᴴw behind it, and p with wᴴu behind it, in double precision. s of the first step
        of a cycle is not in it, but in `start`.
    start : array, shape (3 * m + 2,)
        What the host passes to a cycle: s of its first step with wᴴw behind it, then the diagonal of H of the vectors
        that exist already, and their coupling to the first new one.
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
        # start, then what `predict` finds: alpha, beta, the last elements of p and the norms, m of each.
        self.memory = device.xp.zeros(3 * m + 2 + 4 * m, wide)
        self.start = self.memory[: 3 * m + 2]

    def begin(self, first: int, values: npt.ArrayLike = 0.0, couplings: npt.ArrayLike = 0.0) -> None:
        """Queue the upload of what a cycle begins with. w is normalized and orthogonal to the vectors that exist.

        Parameters
        ----------
        first : int
            Number of vectors that exist: the first step of the cycle.
        values, couplings : array, shape (first,)
            For `predict`: the part of H that belongs to these vectors is diagonal. `values` is its diagonal, and
            `couplings` is row `first` of H.
        """
        m = self.capacity
        host = np.zeros(self.start.size, self.start.dtype)
        host[first] = 1
        host[m + 2 : m + 2 + first], host[2 * m + 2 : 2 * m + 2 + first] = values, couplings
        self.start[...] = self.device.upload(host)

    @abstractmethod
    def project(self, j: int, first: int) -> Call:
        """Bind p = Vᴴu and wᴴu of step j, in a cycle that began with step `first`."""

    @abstractmethod
    def predict(self, j: int, first: int) -> Call:
        """Bind the computation of p for a Hermitian operator, from earlier coefficients and the sum `wu`."""

    @abstractmethod
    def orthogonalize(self, j: int, first: int) -> Call:
        """Bind the pass that finishes vⱼ and computes the next w and, unless `measures`, its sums s and wᴴw."""

    @abstractmethod
    def measure(self, j: int, z: Array) -> Call:
        """Bind the sums s = Vᴴz and wᴴz of the first j vectors, for step j, where z = M·w."""

    @abstractmethod
    def finish(self, j: int) -> Call:
        """Bind what completes the table after step j - 1: s and wᴴw of step j, which is not taken."""

    def _s(self, j: int, first: int) -> Array:
        """Return the row of s of step j, with wᴴw at place j."""
        return self.start[: self.capacity + 2] if j == first else self.table[j, 0]

    def _p(self, j: int) -> Any:
        return self.table[j, 1]


class DecompositionKernels(Protocol):
    """Krylov decompositions."""

    @property
    def Decomposition(self) -> type[Decomposition]:
        """The backend's implementation of `Decomposition`."""
        ...
