"""The contract of Krylov bases: `kernels_of(device).basis.Arnoldi`, implemented by each backend.

Arnoldi's process for an operator B orthogonalizes every vector twice, with two passes over the basis per iteration: the
second orthogonalization is delayed until the next iteration, where it shares a pass with the first one of the next
vector, and the norm follows from Pythagoras' theorem. At the beginning of iteration j the vectors v₀ to vⱼ₋₁ are
finished. w has been orthogonalized against them once, s = Vᴴw is the remaining projection, and ‖w - V·s‖ is known (for
j = 0, it is in the cell `norm`). The caller computes u = B·w. Then

    project          p = Vᴴu, wᴴu (and so vⱼᴴu)                              reads V, w, u: j + 2 vectors
    orthogonalize    vⱼ = (w - V·s) / norm;  w = (u - [V vⱼ]·p) / norm;
                     s = [V vⱼ]ᴴw, wᴴw                                       reads V, w, u; writes vⱼ, w: j + 4

Column j of the Hessenberg matrix is p/norm - H·s/norm + s, because B·vⱼ = (u - B·V·s) / norm and B·V = V·H. It is
made triangular at once: Q is the product of the rotations and R = Q·H, so Q·H·s is R·s and H is never stored. The last
entry of Q·e₁·norm is the residual of the least-squares problem. Of all this, the next two passes need only s and the
norm. A backend may therefore compute the rest during these passes, and learns one iteration later that a cycle ends.

With `flexible`, u = A·z for any vector z, for instance w after a preconditioner that changes between iterations. The
vector of the solution that corresponds to vⱼ is then z/norm, the column is p/norm + s without a correction by H·s, and
the solution is a combination of the vectors z.

References
----------
D. Bielich, J. Langou, S. Thomas, K. Świrydowicz, I. Yamazaki, E. Boman, "Low-synch Gram–Schmidt with delayed
reorthogonalization for Krylov solvers", Parallel Computing 112, 2022. Their DCGS2 computes s in the same pass as p.
Here the pass that computes w also computes s, so that the residual is known one iteration earlier.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Protocol

import numpy as np

from gsparse.device.base import Device
from gsparse.device.dtypes import Array
from gsparse.kernels.calls import Call
from gsparse.kernels.steps import StepState

# The cells that these passes share with the steps of a program:
#   cycle_end         0 while the cycle runs; set when column j of R is finished: 1 if the residual is small enough,
#                     2 at a breakdown (B·w is in the span of the basis), 3 at the iteration limit. If it is not 0,
#                     passes do nothing.
#   norm              norm of the first vector of a cycle; set by the step that sets w
#   residual          residual of the least-squares problem; set together with `cycle_end`, when it is also recorded in
#                     the history and `iteration` is incremented
#   inner_tolerance   the cycle ends at a residual of this size or less
#   limit             the maximal number of iterations
# A residual that is NaN also sets `stop` to 2.
ARNOLDI_CELLS = ("cycle_end", "norm", "residual", "inner_tolerance", "limit")


class Arnoldi(ABC):
    """A basis and its least-squares problem, for each right-hand side.

    The calls that the methods return neither wait nor allocate, and do nothing once `stop` is set.

    Parameters
    ----------
    device : Device
    state : StepState
        State of a program that has `ARNOLDI_CELLS`. Its `reduce` adds up sums over all ranks that share the vectors:
        once per iteration if the backend finishes columns of R one iteration later.
    w, u : array, shape (columns * n,)
        See the module's docstring.
    restart : int
        Maximal number of vectors.
    dtype : dtype
        Dtype in which the basis is stored: that of w, or the same kind with half the precision.
    flexible : bool
        Whether u is A·z for a vector z of the caller, see the module's docstring.

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
        # Zeros, because passes may read vectors before they test `stop`.
        self.vectors = device.xp.zeros((restart, self.columns, self.size), dtype)
        self.preconditioned = device.empty((restart if flexible else 0, w.size), w.dtype)
        self.places = tuple(state.program.cells[name] for name in ARNOLDI_CELLS)
        self.epsilon = float(np.finfo(w.dtype).eps)

    @abstractmethod
    def project(self, j: int) -> Call:
        """Bind the inner products of the basis and of w with u, in iteration j of a cycle."""

    @abstractmethod
    def orthogonalize(self, j: int) -> Call:
        """Bind the pass that finishes vⱼ and computes the next w."""

    @abstractmethod
    def finish_column(self, j: int) -> Call:
        """Bind the end of iteration j: it finishes column j of R, and decides whether the cycle goes on.

        Every later pass of the cycle and `combine` do this as well, if it has not been done. Only a caller that must
        know the decision earlier needs this call.
        """

    @abstractmethod
    def combine(self, x: Array) -> Call:
        """Bind the end of a cycle: x += V·y (Z·y where flexible), y the solution of the least-squares problem."""


class BasisKernels(Protocol):
    """Arnoldi's process."""

    @property
    def Arnoldi(self) -> type[Arnoldi]:
        """The backend's implementation of `Arnoldi`."""
        ...
