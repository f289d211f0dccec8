"""The eigensolvers of `gsparse.linalg` for a distributed matrix, with vectors that stay on its workers."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from gsparse.device.select import device_of
from gsparse.distributed.client import solves
from gsparse.distributed.client.preconditioners import DistributedPreconditioner
from gsparse.distributed.client.task_group import TaskGroup
from gsparse.distributed.client.vector_layout import VectorLayout, is_dask
from gsparse.distributed.worker.solve_tasks import SolveSpec
from gsparse.linalg.eigen import problem
from gsparse.linalg.eigen.lobpcg import default_tolerance, is_small, unconverged
from gsparse.linalg.registry import METHODS

_HISTORIES = ("retLambdaHistory", "retResidualNormsHistory")


def eigenpairs_on_workers(
    name: str,
    task_group: TaskGroup,
    layout: VectorLayout,
    preconditioner_of: Callable[[Any], DistributedPreconditioner | None],
    options: dict[str, Any],
) -> Any:
    """Run an eigensolver on the workers.

    Return NotImplemented if the eigensolver or its arguments do not allow that. It then runs in this process, and only
    the products run on the workers.

    Parameters
    ----------
    name : str
    task_group : TaskGroup
    layout : VectorLayout
    preconditioner_of : callable
        Returns its argument if that is a preconditioner of this matrix, and None for anything else.
    options : dict
        All arguments but the matrix.
    """
    match METHODS[name].start:
        case "X":
            return _from_block(name, task_group, layout, preconditioner_of, options)
        case "v0":
            return _from_vector(name, task_group, layout, options)
    return NotImplemented


def _from_block(
    name: str,
    task_group: TaskGroup,
    layout: VectorLayout,
    preconditioner_of: Callable[[Any], DistributedPreconditioner | None],
    options: dict[str, Any],
) -> Any:
    """Run an eigensolver that begins with a block of vectors, or return NotImplemented."""
    X, B, M, Y = (options.pop(name) for name in "XBMY")
    preconditioner = preconditioner_of(M)
    if B is not None or (M is not None and preconditioner is None) or not _fits(layout, X, Y):
        return NotImplemented
    is_requested = [options[name] for name in _HISTORIES]
    options.update(dict.fromkeys(_HISTORIES, True))
    solve = SolveSpec(name, options)
    values, vectors, *histories = solves.run(task_group, layout, solve, X, {"Y": Y}, preconditioner=preconditioner)
    _warn(histories[1][-1], options["tol"], layout.shape[0], vectors.dtype)
    requested = [history for history, is_wanted in zip(histories, is_requested, strict=True) if is_wanted]
    return (values, vectors, *requested)


def _from_vector(name: str, task_group: TaskGroup, layout: VectorLayout, options: dict[str, Any]) -> Any:
    """Run an eigensolver that begins with one vector, or return NotImplemented."""
    n, v0 = layout.shape[0], options.pop("v0")
    is_refused = any(options.get(other) is not None for other in ("M", "Minv", "OPinv")) or options["full_output"]
    is_device_array = v0 is not None and device_of(v0) is not None
    if is_refused or is_device_array or layout.shape[1] != n or options["k"] <= 0:
        return NotImplemented
    if problem.is_small(n, options["k"], options["ncv"], options["maxiter"]):
        return NotImplemented
    wants_vectors = options["return_eigenvectors"]
    solve = SolveSpec(name, {**options, "return_eigenvectors": True}, start="v0")
    v0 = None if v0 is None else np.asarray(v0).reshape(-1)
    values, vectors, *errors = solves.run(task_group, layout, solve, v0, {})
    if errors:
        restarts = 10 * n if options["maxiter"] is None else options["maxiter"]
        raise problem.no_convergence(restarts, len(values), options["k"], values, vectors)
    return (values, vectors) if wants_vectors else values


def _fits(layout: VectorLayout, X: Any, Y: Any) -> bool:
    """Return whether the blocks can be split for the ranks, and are small compared with the matrix."""
    blocks = [block for block in (X, Y) if block is not None]
    if any(device_of(block) is not None or not (is_dask(block) or np.ndim(block) == 2) for block in blocks):
        return False
    widths = [np.shape(block)[1] for block in blocks]
    return layout.shape[0] == layout.shape[1] and not is_small(layout.shape[0], sum(widths[1:]), widths[0])


def _warn(norms: Any, tol: float | None, rows: int, dtype: Any) -> None:
    """Issue the warning of `lobpcg` in this process: the workers have only written it to their logs."""
    tol = default_tolerance(rows, dtype) if tol is None or tol <= 0 else tol
    if not np.max(norms) <= tol:
        warnings.warn(unconverged(norms, tol), UserWarning, stacklevel=6)
