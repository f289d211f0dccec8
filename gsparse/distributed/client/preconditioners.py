"""Preconditioners of a distributed matrix, as its user holds them: made and applied on the workers."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from scipy.sparse.linalg import LinearOperator

from gsparse.distributed.client.task_group import Gang
from gsparse.distributed.client.vector_layout import Layout, check_numbers
from gsparse.distributed.worker import solve_tasks

__all__ = ["DistributedPreconditioner"]

Host = npt.NDArray[Any]


class PreconditionedMatrix(Protocol):
    """What a preconditioner asks of the distributed matrix that it belongs to."""

    shape: tuple[int, int]
    dtype: np.dtype[Any]
    _gang: Gang
    _layout: Layout


class DistributedPreconditioner(LinearOperator):  # type: ignore[misc]
    """What each worker makes of its own diagonal block: block Jacobi over workers.

    `gsparse.linalg`'s solvers of the same matrix apply it on the workers, among their other steps. To all else it is an
    operator, of SciPy's solvers too: then each product goes out and back as tasks of dask, which takes milliseconds.

    Parameters
    ----------
    matrix : DistributedMatrix
    recipe : Preconditioner
        What each rank is to make.
    """

    def __init__(self, matrix: PreconditionedMatrix, recipe: solve_tasks.Preconditioner) -> None:
        super().__init__(matrix.dtype, matrix.shape)
        self.matrix, self.recipe = matrix, recipe

    def _matvec(self, x: Host) -> Host:
        return self._applied(x.reshape(-1), adjoint=False)

    def _matmat(self, X: Host) -> Host:
        return self._applied(X, adjoint=False)

    def _rmatvec(self, x: Host) -> Host:
        return self._applied(x.reshape(-1), adjoint=True)

    def _rmatmat(self, X: Host) -> Host:
        return self._applied(X, adjoint=True)

    def _applied(self, x: Host, *, adjoint: bool) -> Host:
        gang, layout = self.matrix._gang, self.matrix._layout
        gang.check_open()
        check_numbers("a product", x)
        roster = gang.roster
        tasks = [
            gang.submit(solve_tasks.precondition, self.recipe.name, rank, roster, rank, self.recipe, part, adjoint)
            for rank, part in enumerate(layout.parts(np.asarray(x), layout.columns))
        ]
        return layout.joined(gang.wait(tasks))
