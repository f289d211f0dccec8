"""Preconditioners of a distributed matrix, which are made and applied on the workers."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from scipy.sparse.linalg import LinearOperator

from gsparse.distributed.client.task_group import TaskGroup
from gsparse.distributed.client.vector_layout import VectorLayout, check_numbers
from gsparse.distributed.worker import solve_tasks

__all__ = ["DistributedPreconditioner"]

HostArray = npt.NDArray[Any]


class PreconditionedMatrix(Protocol):
    """The attributes of a distributed matrix that its preconditioner uses."""

    shape: tuple[int, int]
    dtype: np.dtype[Any]
    _task_group: TaskGroup
    _layout: VectorLayout


class DistributedPreconditioner(LinearOperator):  # type: ignore[misc]
    """A preconditioner that each worker makes from its own diagonal block, which is block Jacobi over the workers.

    The solvers of `gsparse.linalg` for the same matrix apply it on the workers, as one of their steps. For everything
    else, SciPy's solvers included, it is a linear operator whose products run as tasks of dask. Each of these sends its
    vector to the workers and back, which takes milliseconds.

    Parameters
    ----------
    matrix : DistributedMatrix
    spec : PreconditionerSpec
        The preconditioner that each rank makes.
    """

    def __init__(self, matrix: PreconditionedMatrix, spec: solve_tasks.PreconditionerSpec) -> None:
        super().__init__(matrix.dtype, matrix.shape)
        self.matrix, self.spec = matrix, spec

    def _matvec(self, x: HostArray) -> HostArray:
        return self._apply(x.reshape(-1), adjoint=False)

    def _matmat(self, X: HostArray) -> HostArray:
        return self._apply(X, adjoint=False)

    def _rmatvec(self, x: HostArray) -> HostArray:
        return self._apply(x.reshape(-1), adjoint=True)

    def _rmatmat(self, X: HostArray) -> HostArray:
        return self._apply(X, adjoint=True)

    def _apply(self, x: HostArray, *, adjoint: bool) -> HostArray:
        task_group, layout = self.matrix._task_group, self.matrix._layout
        task_group.check_open()
        check_numbers("a product", x)
        settings = task_group.settings
        tasks = [
            task_group.submit(solve_tasks.precondition, self.spec.name, rank, settings, rank, self.spec, part, adjoint)
            for rank, part in enumerate(layout.split(np.asarray(x), layout.columns))
        ]
        return layout.join(task_group.wait(tasks))
