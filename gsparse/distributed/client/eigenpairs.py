"""`gsparse.linalg.lobpcg` of a distributed matrix, with blocks that stay on its workers."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from gsparse.device.select import device_of
from gsparse.distributed.client import solves
from gsparse.distributed.client.task_group import Gang
from gsparse.distributed.client.vector_layout import Layout, is_dask
from gsparse.distributed.worker.solve_tasks import Preconditioner, Solve
from gsparse.linalg.eigen.lobpcg import default_tolerance, is_small

__all__ = ["lobpcg_on_workers"]

_HISTORIES = ("retLambdaHistory", "retResidualNormsHistory")


def lobpcg_on_workers(gang: Gang, layout: Layout, recipe: Preconditioner | None, options: dict[str, Any]) -> Any:
    """Run `lobpcg` with these arguments; NotImplemented where it has to run here, with products on the workers only."""
    X, B, M, Y = (options.pop(name) for name in "XBMY")
    if B is not None or (M is not None and recipe is None) or not _fits(layout, X, Y):
        return NotImplemented
    shown = [options[name] for name in _HISTORIES]
    options.update(dict.fromkeys(_HISTORIES, True))
    solve = Solve("lobpcg", options, recipe)
    tasks = solves.run(gang, layout, solve, X, {"Y": Y})
    values, vectors, *histories = solves.delivered(gang, layout, tasks, X)
    _warn(histories[1][-1], options["tol"], layout.shape[0], vectors.dtype)
    return (values, vectors, *(history for history, is_shown in zip(histories, shown, strict=True) if is_shown))


def _fits(layout: Layout, X: Any, Y: Any) -> bool:
    """Tell whether blocks can be cut for the ranks, and are small beside the matrix."""
    blocks = [block for block in (X, Y) if block is not None]
    if any(device_of(block) is not None or not (is_dask(block) or np.ndim(block) == 2) for block in blocks):
        return False
    widths = [np.shape(block)[1] for block in blocks]
    return layout.shape[0] == layout.shape[1] and not is_small(layout.shape[0], sum(widths[1:]), widths[0])


def _warn(norms: Any, tol: float | None, rows: int, dtype: Any) -> None:
    """Warn as `lobpcg` does: workers have warned in their logs only."""
    tol = default_tolerance(rows, dtype) if tol is None or tol <= 0 else tol
    if not np.max(norms) <= tol:
        text = f"Exited with accuracies {norms}, not reaching the requested tolerance {tol}."
        warnings.warn(text, UserWarning, stacklevel=6)
