"""The contract of Krylov bases: `kernels_of(device).Arnoldi`, implemented by each backend.

Arnoldi's process for an operator B, every vector made orthogonal twice, with two passes over the basis an iteration:
the second subtraction is delayed into the next iteration's first, and the vector's norm follows from Pythagoras. At the
beginning of iteration j the vectors v₀ to vⱼ₋₁ are finished. w has been made orthogonal to them once, s = Vᴴw is what
is left of them in it, and ‖w - V·s‖ is the cell `norm`. The caller lets u = B·w. Then

    project          p = Vᴴu, wᴴu (and so vⱼᴴu)                              reads V, w, u: j + 2 vectors
    orthogonalize    vⱼ = (w - V·s) / norm;  w = (u - [V vⱼ]·p) / norm;
                     s = [V vⱼ]ᴴw, wᴴw                                       reads V, w, u; writes vⱼ, w: j + 4

Column j of the Hessenberg matrix is p/norm - H·s/norm + s, because B·vⱼ = (u - B·V·s) / norm and B·V = V·H. It is
brought to triangular form at once: Q collects the rotations, R = Q·H, so Q·H·s is R·s and H is never stored. The last
entry of Q·e₁·norm is the residual of the least-squares problem. None of this is needed by the next two passes but s
and the norm: a backend may leave it to them, to do it meanwhile, and so know an iteration later that a cycle is over.

With `flexible`, u = A·z for any z (a preconditioner that changes, applied to w). Then z/norm belongs to vⱼ instead
of B·vⱼ being what counts, nothing is to be corrected, and the solution is combined of the vectors z.

References
----------
D. Bielich, J. Langou, S. Thomas, K. Świrydowicz, I. Yamazaki, E. Boman, "Low-synch Gram–Schmidt with delayed
reorthogonalization for Krylov solvers", Parallel Computing 112, 2022. Their DCGS2 gets s out of the same pass as p;
here it comes with the pass that makes w, so that the residual is known an iteration earlier.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np

from gsparse.device.base import Device
from gsparse.device.dtypes import Array
from gsparse.kernels.calls import Call
from gsparse.kernels.steps import StepState

__all__ = ["ARNOLDI_CELLS", "Arnoldi"]

# The cells that these passes share with the steps of a program:
#   cycle_end         0 while the cycle runs. Set when an iteration is settled: 1 the residual is small enough,
#                     2 breakdown (B adds nothing new), 3 as many iterations as are allowed. Passes then do nothing.
#   norm              of the vector begun with; set by whoever sets w
#   residual          of the least-squares problem; set with `cycle_end`, when it is recorded and `iteration` counted
#   inner_tolerance   the residual that is small enough
#   limit             the number of iterations that are allowed
ARNOLDI_CELLS = ("cycle_end", "norm", "residual", "inner_tolerance", "limit")


class Arnoldi(ABC):
    """A basis, and the small problem that belongs to it, for each right-hand side.

    Nothing waits or allocates in what the methods bind; all of it does nothing once `stop` is set.

    Parameters
    ----------
    device : Device
    state : State
        Of a program that has `ARNOLDI_CELLS`. Its `reduce` adds sums up over all ranks that share the vectors: once an
        iteration where the backend settles late.
    w, u : array, shape (columns * n,)
        See the module's docstring.
    restart : int
        Vectors at most.
    dtype : dtype
        What the basis is stored in: that of w, or half of it.
    flexible : bool

    Attributes
    ----------
    vectors : array, shape (restart, columns, n)
        The basis.
    preconditioned : array, shape (restart, columns * n)
        The vectors z, of the dtype of w; without any unless `flexible`.
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
        self.vectors = device.xp.zeros((restart, self.columns, self.size), dtype)  # (passes may read ahead of `stop`)
        self.preconditioned = device.empty((restart if flexible else 0, w.size), w.dtype)
        self.places = tuple(state.program.cells[name] for name in ARNOLDI_CELLS)
        self.epsilon = float(np.finfo(w.dtype).eps)

    @abstractmethod
    def project(self, j: int) -> Call:
        """Bind the products of the basis and w with u, in iteration j of a cycle."""

    @abstractmethod
    def orthogonalize(self, j: int) -> Call:
        """Bind what finishes vⱼ and makes the next w."""

    @abstractmethod
    def settle(self, j: int) -> Call:
        """Bind what decides after iteration j whether the cycle goes on.

        Once a later pass of the cycle, or `combine`, has been called, that is done: only who has to know earlier calls
        it.
        """

    @abstractmethod
    def combine(self, x: Array) -> Call:
        """Bind the end of a cycle: x += V·y (Z·y where flexible), y the solution of the least-squares problem."""
