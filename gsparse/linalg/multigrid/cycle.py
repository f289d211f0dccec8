"""A cycle of multigrid, whose levels are on one device.

A V-cycle on a level, in PyAMG's terms:

    x = presmooth(x, b)                 from x = 0; on the second visit of a W-cycle, from the first visit's x
    b_coarse = R·(b - A·x)              restriction of the residual
    x_coarse ≈ A_coarse⁻¹·b_coarse      a cycle on the next level, or the dense inverse on the coarsest
    x += P·x_coarse                     prolongation of the correction
    x = postsmooth(x, b)
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from gsparse.device.base import Device
from gsparse.device.dtypes import Array
from gsparse.errors import FactorizationError, SmootherWarning
from gsparse.kernels.steps import Call
from gsparse.linalg.operators import MatrixOperator, Operator
from gsparse.linalg.preconditioners.base import CallBuilder, Preconditioner, VectorPasses
from gsparse.linalg.preconditioners.relaxation import Smoother
from gsparse.linalg.small_matrices import hashed_vector
from gsparse.matrix.arrays import frames_to_the_caller


@dataclass(frozen=True, eq=False)
class Level:
    """A level of the hierarchy that is smoothed, with its matrix and its transfers to the next coarser level.

    If the coarsest level is solved with its inverse, it is not a `Level`.

    Attributes
    ----------
    operator : MatrixOperator
    restriction, prolongation : MatrixOperator or None
        None for a coarsest level that is only smoothed.
    presmoother, postsmoother : Smoother
    """

    operator: MatrixOperator
    restriction: MatrixOperator | None
    prolongation: MatrixOperator | None
    presmoother: Smoother
    postsmoother: Smoother

    @property
    def size(self) -> int:
        return self.operator.shape[0]


# ``cycle(b, x, guess)`` returns the calls of a cycle on one level. Without `guess`, x starts as zero.
LevelCycle = Callable[[Array, Array, bool], list[Call]]


class MultigridPreconditioner(Preconditioner):
    """A multigrid cycle that begins with x = 0. ``print(M)`` shows its levels.

    Parameters
    ----------
    device : Device
    levels : sequence of Level
        The levels, beginning with the finest.
    coarse : MatrixOperator or None
        Inverse of the coarsest matrix; None if the last of the levels is the coarsest, and is only smoothed.
    cycle_index : int
        Number of visits to the next coarser level: 1 for a V-cycle, 2 for a W-cycle. The dense inverse is applied once.
    dtype : dtype or None
        The dtype of the vectors inside the cycle; None for the dtype of the solve.
    coarse_nnz : int, optional
        Number of entries of the coarsest matrix, if `coarse` is its inverse.
    """

    def __init__(
        self,
        device: Device,
        levels: Sequence[Level],
        coarse: MatrixOperator | None,
        cycle_index: int,
        dtype: npt.DTypeLike | None,
        coarse_nnz: int = 0,
    ) -> None:
        finest = levels[0].operator if levels else coarse
        assert finest is not None
        super().__init__(device, finest.shape[0], finest.dtype, "amg")
        self.levels, self.coarse, self._cycle_index = tuple(levels), coarse, cycle_index
        self._inner, self._coarse_nnz = None if dtype is None else np.dtype(dtype), coarse_nnz

    def __repr__(self) -> str:
        sizes = " → ".join(f"{rows:,}" for rows, _ in self.sizes)
        smoothers = f"; smoother {self._smoothers}" if self.levels else ""
        return f"{super().__repr__()[:-1]}: rows {sizes}{smoothers}>"

    @property
    def _smoothers(self) -> str:
        """The names of the smoothers of the finest level, as one text."""
        names = dict.fromkeys(str(s) for level in self.levels[:1] for s in (level.presmoother, level.postsmoother))
        return f"{' before, '.join(names)}{' after' if len(names) > 1 else ''}" or "none"

    def __str__(self) -> str:
        return hierarchy_table(self.sizes, self.operator_complexity, self.grid_complexity, self._remarks())

    def _remarks(self) -> dict[str, str]:
        """Return the additional lines of the table, as a dict from heading to text."""
        coarse = "smoothing only" if self.coarse is None else "dense inverse"
        return {"Coarse solver": coarse, "Smoother": self._smoothers, "Memory": f"{self.nbytes / 1e6:.1f} MB"}

    @property
    def sizes(self) -> list[tuple[int, int]]:
        """The number of rows and the number of entries of each level, beginning with the finest."""
        sizes = [(level.size, int(level.operator.matrix.nnz)) for level in self.levels]
        return sizes if self.coarse is None else [*sizes, (self.coarse.shape[0], self._coarse_nnz)]

    @property
    def operator_complexity(self) -> float:
        """Number of entries of the matrices of all levels, divided by the number of entries of the finest level."""
        entries = [nnz for _, nnz in self.sizes]
        return sum(entries) / max(entries[0], 1)

    @property
    def grid_complexity(self) -> float:
        """Total number of rows of all levels, divided by the number of rows of the finest level."""
        rows = [size for size, _ in self.sizes]
        return sum(rows) / max(rows[0], 1)

    @property
    def nbytes(self) -> int:
        """Bytes of the CSR arrays of the matrices of all levels and of the transfers between them."""
        operators = [o for level in self.levels for o in (level.operator, level.restriction, level.prolongation)]
        matrices = {id(o.matrix): o.matrix for o in (*operators, self.coarse) if o is not None}
        return sum(int(matrix._prepared()[0].csr.nbytes) for matrix in matrices.values())

    def _prepare(self, passes: VectorPasses, adjoint: bool) -> CallBuilder:
        inner = passes.dtype if self._inner is None else inner_dtype(self._inner, passes.dtype)
        if inner == passes.dtype:
            return self._cycle(passes, adjoint)
        xp, narrow = passes.device.xp, VectorPasses(passes.device, inner, passes.columns)
        x_inside, y_inside = narrow.vector(self.shape[0]), narrow.vector(self.shape[0])
        calls = self._cycle(narrow, adjoint)(x_inside, y_inside)
        return lambda x, y: [
            lambda: xp.copyto(x_inside, x, casting="same_kind"),
            *calls,
            lambda: xp.copyto(y, y_inside, casting="same_kind"),
        ]

    def _cycle(self, passes: VectorPasses, adjoint: bool) -> CallBuilder:
        cycle: LevelCycle | None = None
        visits = self._cycle_index
        if self.coarse is not None:
            invert = self.coarse.bind(passes.device, passes.dtype, passes.columns, adjoint=adjoint)
            cycle, visits = (
                lambda b, x, guess: [partial(invert, b, x)],
                1,
            )  # an exact solve, so a second visit would change nothing
        for level in reversed(self.levels):
            cycle, visits = _bound_cycle(passes, level, adjoint, cycle, visits), self._cycle_index
        assert cycle is not None
        finest = cycle
        return lambda x, y: finest(x, y, False)


def _bound_cycle(
    passes: VectorPasses, level: Level, adjoint: bool, coarser: LevelCycle | None, visits: int
) -> LevelCycle:
    """Return the cycle of a level for vectors of one dtype; `coarser` is the cycle of the next coarser level or None.

    The result holds device arrays, and the preconditioner refers to the result. So the result must not refer to the
    preconditioner: only the garbage collector would free the arrays of such a reference cycle.
    """
    smoothers = (level.presmoother, level.postsmoother)[:: -1 if adjoint else 1]
    before, after = (smoother.bind(passes, level.operator, adjoint) for smoother in smoothers)
    r, vectors = passes.vector(level.size), (passes.device, passes.dtype, passes.columns)
    if coarser is None or level.restriction is None or level.prolongation is None:
        return lambda b, x, guess: [
            *before.calls(x, b, r, guess=guess, residual=False),
            *after.calls(x, b, r, guess=True, residual=False),
        ]
    transfers = (level.restriction, level.prolongation)[:: -1 if adjoint else 1]
    restrict, prolong = (
        transfers[0].bind(*vectors, adjoint=adjoint),
        transfers[1].bind(*vectors, adjoint=adjoint, beta=1),
    )
    coarse_x, coarse_b = (passes.vector(level.prolongation.shape[1]) for _ in range(2))
    return lambda b, x, guess: [
        *before.calls(x, b, r, guess=guess, residual=True),
        partial(restrict, r, coarse_b),
        *(call for number in range(visits) for call in coarser(coarse_b, coarse_x, number > 0)),
        partial(prolong, coarse_x, x),
        *after.calls(x, b, r, guess=True, residual=False),
    ]


def hierarchy_table(
    sizes: Sequence[tuple[int, int]], operator_complexity: float, grid_complexity: float, remarks: Mapping[str, str]
) -> str:
    """Return a table of the levels, as PyAMG prints it.

    Parameters
    ----------
    sizes : sequence of (int, int)
        Rows and entries of each level.
    operator_complexity, grid_complexity : float
    remarks : mapping of str to str
        Additional lines above the levels: from heading to text.
    """
    total = sum(nnz for _, nnz in sizes)
    lines = {
        "Number of levels": f"{len(sizes):6d}",
        "Operator complexity": f"{operator_complexity:6.3f}",
        "Grid complexity": f"{grid_complexity:6.3f}",
        **{heading: f" {text}" for heading, text in remarks.items()},
    }
    rows = [f"{f'{heading}:':22}{text}" for heading, text in lines.items()]
    rows.append("  level   unknowns      entries")
    for number, (size, nnz) in enumerate(sizes):
        rows.append(f"{number:7d} {size:10d} {nnz:12d} [{100 * nnz / max(total, 1):5.2f} %]")
    return "\n".join(rows)


def inner_dtype(inner: np.dtype[Any], outer: np.dtype[Any]) -> np.dtype[Any]:
    """Return `inner`, or the complex dtype of its precision if `outer`, the dtype of the vectors, is complex."""
    return np.dtype(np.result_type(inner, np.complex64)) if outer.kind == "c" else inner


def check_cycle(M: MultigridPreconditioner, A: Operator) -> None:
    """Apply a cycle to a pseudorandom vector, and check that the residual does not grow too much. Synchronizes.

    For matrices for which multigrid is not meant, a smoother may diverge on any level.

    Parameters
    ----------
    M : MultigridPreconditioner
        If several ranks share the matrix, they all call this function at the same time.
    A : Operator
        The matrix of the finest level.

    Raises
    ------
    FactorizationError
        If the residual is not finite.

    Warns
    -----
    SmootherWarning
        If the residual has grown so much that a product with M loses all of its digits.
    """
    if not M.levels:
        return
    device, dtype, xp = M.device, M.dtype, M.device.xp
    b = hashed_vector(device, A.shape[0], dtype, first_row=A.first_index)
    x, residual = device.empty(b.size, dtype), device.empty(b.size, dtype)
    with np.errstate(all="ignore"):
        M.bind(device, dtype)(b, x)
        A.bind(device, dtype)(x, residual)
        residual -= b
        squares = xp.stack([xp.square(xp.abs(v).astype(np.float64)).sum() for v in (residual, b)])
        if A.ranks is not None:
            A.ranks.allreduce(squares)
        of_residual, of_b = device.read_async(squares, None if A.ranks is None else A.ranks.wait)()  # synchronizes
        growth = float(np.sqrt(of_residual / of_b))
    if growth <= 1 / float(np.finfo(dtype).eps):  # up to a growth of 4e14, gmres has converged
        return
    outcome = f"is {growth:.1e} times larger" if np.isfinite(growth) else "is not finite"
    text = (
        f"amg: after one cycle the residual {outcome}, because the smoother {M.levels[0].presmoother} diverges for "
        "this matrix: use another one, such as smoother='jacobi_ne', or another method, such as spsolve(A, b) or "
        "gmres(A, b) without M"
    )
    if not np.isfinite(growth):
        raise FactorizationError(text)
    warnings.warn(text, SmootherWarning, stacklevel=frames_to_the_caller())
