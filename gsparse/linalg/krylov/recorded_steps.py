"""The CUDA graph of a solve's calls, and their record in an open profile (`gsparse.profile`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gsparse.device.base import Device
from gsparse.device.dtypes import Array, storage_dtype
from gsparse.kernels.steps import Call, Program, Step, queue
from gsparse.linalg.krylov.linear_system import LinearSystem
from gsparse.linalg.operators import MatrixOperator, Operator
from gsparse.products.multiply import label_of
from gsparse.profiling import recording
from gsparse.profiling.recording import Span


def recorded_pass(device: Device, program: Program, step: Step, vectors: dict[str, Array], call: Call) -> Call:
    """Return a pass as a call that the profile records, with the bytes of all vectors that are read and written."""
    moved = (*step.reads("before", "each", "sums"), *step.targets("each"))
    nbytes = sum(int(vectors[name].nbytes) for name in moved if name in vectors)
    return recording.timed(call, "step", f"{program.name}: {step.name}", device, None, nbytes)


def recorded_product(system: LinearSystem, program: Program, operator: Operator, call: Call, vector_bytes: int) -> Call:
    """Return a product with the matrix or the preconditioner as a call that the profile records."""
    label, nbytes = None, 0
    if isinstance(operator, MatrixOperator):
        label, nbytes = _matrix_of(operator, system.dtype, system.columns)
        nbytes += vector_bytes
    title = getattr(operator, "_kind", type(operator).__name__)
    if operator is system.M:
        return recording.timed(call, "preconditioner", title, system.device, label, nbytes)
    name = "A @ x in a solve" if label is not None else f"{title} in a solve"
    return recording.timed(call, "product", name, system.device, label, nbytes)


def _matrix_of(operator: MatrixOperator, dtype: np.dtype[Any], columns: int) -> tuple[tuple[Any, ...], int]:
    """Return the label of the matrix in a profile, and the bytes of the arrays that its products read."""
    prepared, storage = operator.matrix._prepared()[0], storage_dtype(operator.dtype, dtype)
    product = prepared.product(storage, dtype) if columns == 1 else prepared.columns(storage, dtype)
    return label_of(prepared, operator.matrix.stats, product), product.nbytes


def timed_alone(device: Device, program: Program, body: Sequence[Call]) -> tuple[Span, Callable[[], float | None]]:
    """Run one iteration without a graph and record its steps. Return its span, and a function that returns its seconds.

    Steps cannot be timed within a CUDA graph, so a profile divides a graph's time in the proportions of this iteration.
    """
    with Span("solver", f"{program.name}: iterations", device) as iteration:
        iteration.children = []
        read_time = device.timed(lambda: queue(body))
    return iteration, read_time


def captured(device: Device, body: Sequence[Call], count: int, iteration: Span | None) -> Call:
    """Return the launch of a CUDA graph of several iterations.

    Parameters
    ----------
    iteration : Span or None
        The iteration that `timed_alone` ran; None if no profile is open.
    """
    if iteration is None:
        return device.capture(lambda: queue(body, count))
    with recording.paused():
        launch = device.capture(lambda: queue(body, count))
    return recording.timed_graph(launch, iteration, count)
