"""Solvers, eigensolvers and preconditioners of `gsparse.linalg` on the workers of a matrix, from the user's process."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.sparse.linalg import LinearOperator

from gsparse.device.select import device_of
from gsparse.distributed.client.products import VectorLayout, check_numbers, is_dask, parts_of_ranks, undivided
from gsparse.distributed.client.rank_group import RankGroup, argument
from gsparse.distributed.client.scheduler import new_call
from gsparse.distributed.worker import solve_tasks
from gsparse.distributed.worker.solve_tasks import SolveSpec
from gsparse.errors import ShapeError
from gsparse.linalg.eigen import problem
from gsparse.linalg.eigen.lobpcg import default_tolerance, is_small, unconverged
from gsparse.linalg.eigen.singular_triplets import is_small as is_small_matrix
from gsparse.linalg.registry import METHODS
from gsparse.linalg.result import bars

HostArray = npt.NDArray[Any]
Report = dict[str, float]


class DistributedPreconditioner(LinearOperator):  # type: ignore[misc]
    """A preconditioner on the workers of a distributed matrix.

    The workers set up multigrid together. For every other preconditioner, each worker uses only its own diagonal block,
    which is block Jacobi over the workers: with more workers, a solve needs more iterations. ``print(M)`` shows the
    levels of multigrid.

    Solvers of `gsparse.linalg` for the same matrix apply it on the workers, as one of their steps. For all other code,
    including SciPy's solvers, it is a linear operator. Each of its products sends the vector to the workers and back,
    which takes milliseconds.

    Parameters
    ----------
    matrix : DistributedMatrix
    name : str
        Name of the preconditioner in `gsparse.linalg`.
    arguments : dict
        All arguments of the preconditioner except the matrix.

    Raises
    ------
    ShapeError
        If an argument such as `B` must have as many rows as the matrix, but has not.
    FactorizationError, CommunicationError, WorkerLostError
        If the set-up of multigrid fails. Other preconditioners are set up only in the first solve, which then raises
        their errors.
    """

    def __init__(self, matrix: Any, name: str, arguments: dict[str, Any]) -> None:
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
        """Return the specification with which the ranks find the preconditioner.

        A preconditioner that spans the ranks is set up first, unless it was set up after the ranks were last connected.
        The caller must have reserved the workers (`RankGroup.exclusive`) and connected the ranks.
        """
        matrix = self.matrix
        made_in = matrix._preconditioner_epochs.get(self._spec.key)
        if self._spans_ranks and made_in != matrix._rank_group.servers.epoch:
            self._set_up()
        return self._spec

    def _set_up(self) -> None:
        """Let the ranks set up the preconditioner together."""
        group, layout = self.matrix._rank_group, self.matrix._layout
        parts = {key: layout.split(value, layout.rows) for key, value in self._rows.items()}
        rows = [(self._spec, {key: part[rank] for key, part in parts.items()}) for rank in group.ranks]
        self._take_over(group.call_together(solve_tasks.set_up, rows))

    def update(self, A: Any) -> DistributedPreconditioner:
        """Compute the preconditioner again for a matrix with other values, to which it then belongs.

        Parameters
        ----------
        A : DistributedMatrix
            A matrix with the same structure on the same workers, such as ``A.with_data(values)``. Do not close the old
            matrix before the update: otherwise, multigrid is set up from the beginning.

        Returns
        -------
        DistributedPreconditioner
            This object, updated.

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
            if old.is_open and made_in == old.servers.epoch:
                arguments = [(self._spec, old.key)] * len(new.workers)
                self._take_over(new.call_together(solve_tasks.update, arguments))
            else:
                self._set_up()
        return self

    def _take_over(self, summaries: list[solve_tasks.PreconditionerSummary]) -> None:
        """Store the summary of rank 0, and issue its warnings in this process."""
        group = self.matrix._rank_group
        self._summary = summaries[0]
        self.matrix._preconditioner_epochs[self._spec.key] = group.servers.epoch
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
        group: RankGroup = self.matrix._rank_group
        layout: VectorLayout = self.matrix._layout
        parts = layout.split(np.asarray(x), layout.columns)
        call = group.call_together if self._spans_ranks else group.call
        return layout.join(call(solve_tasks.precondition, [(self._spec, part, adjoint) for part in parts]))


def run(
    A: Any,
    solve: SolveSpec,
    b: Any,
    vectors: dict[str, Any],
    callback: Callable[[Any], Any] | None = None,
    preconditioner: DistributedPreconditioner | None = None,
) -> Any:
    """Run a solver on all ranks. Return its result, with vectors as dask arrays if b is a dask array, else as NumPy's.

    Parameters
    ----------
    A : DistributedMatrix
    solve : SolveSpec
    b : ndarray, dask.array.Array or None
        The right-hand side, with an entry for each row; for eigensolvers, the starting vectors, which the solver
        chooses if b is None. The start of `svds` has an entry for each column if there are fewer columns than rows.
    vectors : dict of str to ndarray, dask.array.Array or None
        Further vectors, with an entry for each column, by the names of the solver's parameters.
    callback : callable, optional
    preconditioner : DistributedPreconditioner, optional
    """
    rank_group, layout = A._rank_group, A._layout
    parts_of = partial(parts_of_ranks, rank_group, layout)
    of_b = layout.columns if solve.start and A.shape[1] < A.shape[0] else layout.rows
    parts = {"b": [None] * len(rank_group.ranks) if b is None else parts_of(b, of_b, solve.start or "b")}
    parts |= {name: parts_of(x, layout.columns, name) for name, x in vectors.items() if x is not None}
    name, solve, handler = new_call(solve.name), replace(solve, keeps_results=is_dask(b)), None
    with ExitStack() as stack:
        stack.enter_context(rank_group.exclusive())
        if solve.reports_progress or callback is not None:
            bar = bars()(unit="it", desc=solve.name) if solve.reports_progress else nullcontext()
            handler = _MessageHandler(rank_group, layout, name, callback, stack.enter_context(bar))
        rank_group.reconnect()
        if preconditioner is not None:
            solve = replace(solve, preconditioner=preconditioner.specification())
        arguments = [(name, solve, {key: argument(of[rank]) for key, of in parts.items()}) for rank in rank_group.ranks]
        solutions = rank_group.call_together(solve_tasks.run_solve, arguments, name=name, on_poll=handler)
        solution: solve_tasks.RankSolution = solutions[0]
        if handler is not None and solve.reports_progress:  # Earlier reports do not have the last iteration.
            handler.show(solution.report())
    parts_of_all = [list(parts) for parts in zip(*(one.vectors for one in solutions), strict=True)]
    if not solve.keeps_results:
        return solution.with_vectors([layout.join(parts) for parts in parts_of_all])
    lazy = [
        undivided(rank_group.futures_of_vector(names), layout.columns, b.shape[1:], b._meta.astype(dtype))
        for names, dtype in zip(parts_of_all, solution.dtypes, strict=True)
    ]
    return solution.with_vectors([layout.in_matrix_order(vector) for vector in lazy])


class _MessageHandler:
    """Handles the messages of the ranks of a solve. The object is called repeatedly during the solve.

    It shows reports in the progress bar. When all ranks have sent their parts of a vector, it calls the user's
    callback, and tells the ranks whether to continue.
    """

    def __init__(
        self, rank_group: RankGroup, layout: VectorLayout, name: str, callback: Callable[[Any], Any] | None, bar: Any
    ) -> None:
        self._group, self._layout, self._name, self._callback, self._bar = rank_group, layout, name, callback, bar
        self._ranks = rank_group.ranks if callback is not None else rank_group.ranks[:1]
        self._requests: dict[int, Future[Any]] = {}
        self._parts: dict[int, HostArray] = {}
        self._next_poll = 0.0

    def __call__(self) -> None:
        for rank in [rank for rank, request in self._requests.items() if request.done()]:
            request = self._requests.pop(rank)
            for kind, *content in () if request.exception() else request.result():
                if kind == solve_tasks.REPORT:
                    self.show(*content)
                else:
                    self._parts[rank] = content[0]
        if len(self._parts) == len(self._group.ranks):
            self._run_callback([self._parts.pop(rank) for rank in self._ranks])
        now = time.monotonic()
        if not self._requests and now >= self._next_poll:
            # Reports are rare, and no rank waits for their answers.
            self._next_poll = now if self._callback is not None else now + solve_tasks.REPORT_INTERVAL
            self._requests = {rank: self._group.servers.request(rank, "messages", self._name) for rank in self._ranks}

    def show(self, report: Report) -> None:
        self._bar.set_postfix_str(f"residual {report['residual']:.2e}", refresh=False)
        self._bar.update(int(report["iteration"]) - self._bar.n)

    def _run_callback(self, parts: list[HostArray]) -> None:
        assert self._callback is not None
        is_continued = False
        try:
            self._callback(self._layout.join(parts) if parts[0].ndim else float(parts[0]))
            is_continued = True
        finally:
            for rank in self._ranks:
                self._group.servers.request(rank, "answer", self._name, is_continued)


_HISTORIES = ("retLambdaHistory", "retResidualNormsHistory")


def eigenpairs_on_workers(A: Any, name: str, options: dict[str, Any]) -> Any:
    """Run an eigensolver on the workers of a distributed matrix.

    Parameters
    ----------
    A : DistributedMatrix
    name : str
        Name of the eigensolver in `gsparse.linalg`.
    options : dict
        All arguments of the eigensolver except the matrix.

    Returns
    -------
    tuple, array or NotImplemented
        The result of the eigensolver; NotImplemented if it has to run in this process, because the ranks do not support
        the arguments.
    """
    if name == "svds":
        return _triplets(A, options)
    match METHODS[name].start:
        case "X":
            return _from_block(A, name, options)
        case "v0":
            return _from_vector(A, name, options)
    return NotImplemented


def _from_block(A: Any, name: str, options: dict[str, Any]) -> Any:
    """Run an eigensolver that starts from a block of vectors, or return NotImplemented."""
    X, B, M, Y = (options.pop(name) for name in "XBMY")
    preconditioner = A._own_preconditioner(M)
    if B is not None or (M is not None and preconditioner is None) or not _fits(A.shape, X, Y):
        return NotImplemented
    is_requested = [options[name] for name in _HISTORIES]
    options.update(dict.fromkeys(_HISTORIES, True))
    solve = SolveSpec(name, options)
    values, vectors, *histories = run(A, solve, X, {"Y": Y}, preconditioner=preconditioner)
    _warn(histories[1][-1], options["tol"], A.shape[0], vectors.dtype)
    requested = [history for history, is_wanted in zip(histories, is_requested, strict=True) if is_wanted]
    return (values, vectors, *requested)


def _from_vector(A: Any, name: str, options: dict[str, Any]) -> Any:
    """Run an eigensolver that starts from one vector, or return NotImplemented."""
    n, v0 = A.shape[0], options.pop("v0")
    is_refused = any(options.get(other) is not None for other in ("M", "Minv", "OPinv")) or options["full_output"]
    is_device_array = v0 is not None and device_of(v0) is not None
    if is_refused or is_device_array or A.shape[1] != n or options["k"] <= 0:
        return NotImplemented
    if problem.is_small(n, options["k"], options["ncv"], options["maxiter"]):
        return NotImplemented
    wants_vectors = options["return_eigenvectors"]
    solve = SolveSpec(name, {**options, "return_eigenvectors": True}, start="v0")
    v0 = None if v0 is None else np.asarray(v0).reshape(-1)
    values, vectors, *errors = run(A, solve, v0, {})
    if errors:
        restarts = 10 * n if options["maxiter"] is None else options["maxiter"]
        raise problem.no_convergence(restarts, len(values), options["k"], values, vectors)
    return (values, vectors) if wants_vectors else values


def _triplets(A: Any, options: dict[str, Any]) -> Any:
    """Run `svds` on the workers. A matrix that is solved as a dense one comes to this process first."""
    v0, center, k, ncv = (options[name] for name in ("v0", "center", "k", "ncv"))
    if any(x is not None and device_of(x) is not None for x in (v0, center)):
        return NotImplemented
    if is_small_matrix(*A.shape) and ncv is None and options["maxiter"] is None:
        return METHODS["svds"].function(
            A.tocsr(), **{**options, "center": None if center is None else np.asarray(center)}
        )
    v0 = None if v0 is None else np.asarray(v0)
    solve = SolveSpec("svds", {name: options[name] for name in options if name not in ("v0", "center")}, start="v0")
    u, s, v, *errors = run(A, solve, v0, {"center": center})
    if errors:
        restarts = 10 * min(A.shape) if options["maxiter"] is None else options["maxiter"]
        raise problem.no_convergence(restarts, len(s), k, s, u)
    return (u, s, None if v is None else v.T) if options["return_singular_vectors"] else s


def _fits(shape: tuple[int, int], X: Any, Y: Any) -> bool:
    """Return whether the blocks X and Y can be split among the ranks, and are narrow compared with the matrix."""
    blocks = [block for block in (X, Y) if block is not None]
    if any(device_of(block) is not None or not (is_dask(block) or np.ndim(block) == 2) for block in blocks):
        return False
    widths = [np.shape(block)[1] for block in blocks]
    return shape[0] == shape[1] and not is_small(shape[0], sum(widths[1:]), widths[0])


def _warn(norms: Any, tol: float | None, rows: int, dtype: Any) -> None:
    """Warn in this process if `lobpcg` did not converge. Its warnings on the workers only reach their logs."""
    tol = default_tolerance(rows, dtype) if tol is None or tol <= 0 else tol
    if not np.max(norms) <= tol:
        warnings.warn(unconverged(norms, tol), UserWarning, stacklevel=6)
