"""Preconditioners of a distributed matrix, which are made and applied on the workers."""

from __future__ import annotations

import warnings
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from scipy.sparse.linalg import LinearOperator

from gsparse.distributed.client.products import VectorLayout, check_numbers
from gsparse.distributed.client.rank_group import RankGroup
from gsparse.distributed.worker import solve_tasks
from gsparse.errors import ShapeError
from gsparse.linalg.registry import METHODS

HostArray = npt.NDArray[Any]


class PreconditionedMatrix(Protocol):
    """The attributes of a distributed matrix that its preconditioners use.

    `_preconditioner_epochs` has the keys of the preconditioners that its ranks have made together and still have, each
    with the epoch of the connections over which they were made. Preconditioners that were made with equal arguments
    have the same key, and are one object on the ranks.
    """

    shape: tuple[int, int]
    dtype: np.dtype[Any]
    _rank_group: RankGroup
    _layout: VectorLayout
    _preconditioner_epochs: dict[str, int]


class DistributedPreconditioner(LinearOperator):  # type: ignore[misc]
    """A preconditioner that the workers make.

    They make multigrid together. For every other preconditioner, each worker uses its own diagonal block only, which
    is block Jacobi over the workers. The more workers there are, the more iterations a solve needs. ``print(M)`` shows
    the levels of multigrid.

    The solvers of `gsparse.linalg` for the same matrix apply it on the workers, as one of their steps. For everything
    else, SciPy's solvers included, it is a linear operator. Each product sends its vector to the workers and back,
    which takes milliseconds.

    Parameters
    ----------
    matrix : DistributedMatrix
    name : str
        Name of the preconditioner in `gsparse.linalg`.
    arguments : dict
        All of its arguments but the matrix.

    Raises
    ------
    ShapeError
        If an argument that has a row for each row of the matrix, such as `B`, has another number of rows.
    FactorizationError, CommunicationError, WorkerLostError
        If the set-up of multigrid fails, which runs at once. Other preconditioners are made in the first solve, which
        then raises their errors.
    """

    def __init__(self, matrix: PreconditionedMatrix, name: str, arguments: dict[str, Any]) -> None:
        super().__init__(matrix.dtype, matrix.shape)
        method, layout = METHODS[name], matrix._layout
        self.matrix, self._spans_ranks = matrix, method.spans_ranks
        self._rows = {key: arguments[key] for key in method.row_arguments if arguments[key] is not None}
        self._rows = {key: np.asarray(value) for key, value in self._rows.items()}
        for key, value in self._rows.items():
            layout.check(value, layout.rows, key)
        others = {key: value for key, value in arguments.items() if key not in method.row_arguments}
        self._spec = solve_tasks.PreconditionerSpec.of(name, others, self._rows)
        self._summary: solve_tasks.PreconditionerSummary | None = None
        if self._spans_ranks:
            group = matrix._rank_group
            with group.exclusive():
                group.reconnect()
                self._set_up()

    def __repr__(self) -> str:
        workers, summary = len(self.matrix._rank_group.workers), self._summary
        made = f"{self._spec.name} preconditioner" if summary is None else f"{summary.text}"
        return f"<DistributedPreconditioner of shape {self.shape} on {workers} workers: {made}>"

    def __str__(self) -> str:
        return repr(self) if self._summary is None else self._summary.table

    def specification(self) -> solve_tasks.PreconditionerSpec:
        """Return the description by which the ranks find the preconditioner.

        If they make it together, and have not made it for these connections yet, they make it first. The caller has
        reserved the workers (`RankGroup.exclusive`) and connected them.
        """
        matrix = self.matrix
        made_in = matrix._preconditioner_epochs.get(self._spec.key)
        if self._spans_ranks and made_in != matrix._rank_group.epoch:
            self._set_up()
        return self._spec

    def _set_up(self) -> None:
        """Let the ranks make the preconditioner together."""
        group, layout = self.matrix._rank_group, self.matrix._layout
        parts = {key: layout.split(value, layout.rows) for key, value in self._rows.items()}
        rows = [(self._spec, {key: part[rank] for key, part in parts.items()}) for rank in group.ranks]
        self._take_over(group.call_together(solve_tasks.set_up, rows))

    def update(self, A: PreconditionedMatrix) -> DistributedPreconditioner:
        """Compute the preconditioner again for other values. It then belongs to the matrix that has them.

        Parameters
        ----------
        A : DistributedMatrix
            A matrix with the same structure on the same workers, such as ``A.with_data(values)``. Close the matrix to
            which this preconditioner belongs only afterwards: if it is closed, multigrid is set up from the beginning.

        Returns
        -------
        DistributedPreconditioner
            This object, which has changed.

        Raises
        ------
        ShapeError
            If the matrix has other workers or other row bounds.
        StructureError
            If the matrix has another structure.
        FactorizationError, CommunicationError, WorkerLostError
            If the set-up of multigrid fails.
        """
        before, old, new = self.matrix, self.matrix._rank_group, A._rank_group
        if (old.workers, before._layout.rows) != (new.workers, A._layout.rows):
            raise ShapeError(
                "update needs a matrix on the same workers and with the same row bounds: use A.with_data(values), or "
                f"{self._spec.name}(A)"
            )
        self.matrix = A
        if not self._spans_ranks:
            return self
        with new.exclusive():
            new.reconnect()
            made_in = before._preconditioner_epochs.pop(self._spec.key, None)
            if old.is_open and made_in == old.epoch:
                arguments = [(self._spec, old.key)] * len(new.workers)
                self._take_over(new.call_together(solve_tasks.update, arguments))
            else:
                self._set_up()
        return self

    def _take_over(self, summaries: list[solve_tasks.PreconditionerSummary]) -> None:
        """Keep the summary of rank 0, and issue its warnings here."""
        group = self.matrix._rank_group
        self._summary = summaries[0]
        self.matrix._preconditioner_epochs[self._spec.key] = group.epoch
        for text, category in summaries[0].warnings:
            warnings.warn(text, category, stacklevel=6)

    def _matvec(self, x: HostArray) -> HostArray:
        return self._apply(x.reshape(-1), adjoint=False)

    def _matmat(self, X: HostArray) -> HostArray:
        return self._apply(X, adjoint=False)

    def _rmatvec(self, x: HostArray) -> HostArray:
        return self._apply(x.reshape(-1), adjoint=True)

    def _rmatmat(self, X: HostArray) -> HostArray:
        return self._apply(X, adjoint=True)

    def _apply(self, x: HostArray, *, adjoint: bool) -> HostArray:
        group = self.matrix._rank_group
        group.check_open()
        check_numbers("a product", x)
        if not self._spans_ranks:
            return self._product(x, adjoint)
        with group.exclusive():
            group.reconnect()
            self.specification()
            return self._product(x, adjoint)

    def _product(self, x: HostArray, adjoint: bool) -> HostArray:
        group, layout, spec = self.matrix._rank_group, self.matrix._layout, self._spec
        parts = layout.split(np.asarray(x), layout.columns)
        call = group.call_together if self._spans_ranks else group.call
        return layout.join(call(solve_tasks.precondition, [(spec, part, adjoint) for part in parts]))
