"""Iterations of a small system as one kernel, instead of a CUDA graph of several kernels each.

Between two kernels of a graph a GPU is idle for 1 to 2 µs, and each kernel reads its vectors from memory and writes
them back. With 8000 rows, an iteration of conjugate gradients in a graph takes 9 µs on an H200, and the GPU is idle
most of the time. If the matrix fits into the shared memory of all multiprocessors, one kernel runs whole iterations,
and keeps the matrix and the vectors in shared memory and registers (`gsparse.kernels.gpu.iteration_source`).

A method describes its iteration once, as a list of calls. Each call knows the operations that it performs, from which
the kernel's source is written. If a call cannot be a part of the kernel, such as a preconditioner with triangular
solves, the calls are recorded in a CUDA graph, or made one after the other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache

from gsparse.device.counters import recorded_products
from gsparse.device.dtypes import Array
from gsparse.kernels.backends import kernels_of
from gsparse.kernels.steps import Call, Multiplication, Program, Step, StepState
from gsparse.linalg.krylov.linear_system import LinearSystem
from gsparse.linalg.krylov.solve_state import IterationPart
from gsparse.linalg.operators import MatrixOperator
from gsparse.profiling import recording

# The name, in the kernel, of the vector that holds a diagonal preconditioner.
_SCALING = "scaling"


def bind_one_kernel(
    system: LinearSystem, body: Sequence[Call], vectors: Mapping[str, Array], state: StepState
) -> tuple[Call, Call] | None:
    """Return a call that runs several iterations as one kernel, and a call that counts their products.

    Parameters
    ----------
    system : LinearSystem
        The system that is solved.
    body : sequence of Call
        The calls of one iteration.
    vectors : mapping
        From the name of each vector in the program to its array.
    state : StepState
        The scalars, with the program and the capacity of the ring buffer of residuals.

    Returns
    -------
    tuple of callable, or None
        None unless all of this holds: There is one right-hand side, and the matrix is not distributed. Every call is an
        `IterationPart`, no operation occurs twice, and the program exports no sums. There is a product with a matrix.
        The products, except with a diagonal, are all with the same matrix, which has the system's dtype and is not
        conjugated. The device can run such a kernel.
    """
    if not system.device.runs_blocks_together or system.columns != 1 or system.A.ranks is not None:
        return None
    program, name = state.program, state.program.name
    parts = [part for part in body if isinstance(part, IterationPart)]
    # Exported sums are read by other kernels between the steps. Those kernels cannot be a part of this kernel.
    if len(parts) < len(body) or program.exported:
        return None
    program, operations, scaling = _operations(program, parts)
    products = [part.operator for part in parts if part.operator is not None and part.operator.scaling is None]
    operator = next(iter(products), None)
    if not isinstance(operator, MatrixOperator) or any(other is not operator for other in products):
        return None
    prepared, is_conjugated = operator.matrix._prepared()
    # The kernel has local variables that are named after its steps, so each step may occur only once.
    if is_conjugated or prepared.csr.dtype != system.dtype or len({*operations}) < len(operations):
        return None
    if scaling is not None:
        vectors = {**vectors, _SCALING: scaling.astype(system.dtype, copy=False)}
    # A launch may record as many residuals as the ring buffer of `state` holds. Each iteration (`turn` in the kernel)
    # records one residual.
    turns, width = state.capacity, prepared.stats.max_length
    bind = kernels_of(system.device).steps.bind_iterations
    launch = bind(system.device, program, operations, prepared.csr, width, vectors, state, turns)
    if launch is None:
        return None
    with recorded_products() as count_products:
        for _ in range(turns * sum(isinstance(operation, Multiplication) for operation in operations)):
            operator.matrix.stats.count_product()
    if recording.recorder is not None:
        launch = recording.timed(launch, "step", f"{name}: iterations in one kernel", system.device, None, 0)
    return launch, count_products


def _operations(
    program: Program, parts: Sequence[IterationPart]
) -> tuple[Program, tuple[Step | Multiplication, ...], Array | None]:
    """Return (program, operations of an iteration, diagonal of a diagonal preconditioner or None).

    In `program` and in the operations, each product with the diagonal is replaced by a step.
    """
    operations = [operation for part in parts for operation in part.operations]
    scaled = [part for part in parts if part.operator is not None and part.operator.scaling is not None]
    if not scaled:
        return program, tuple(operations), None
    products = {operation for part in scaled for operation in part.operations if isinstance(operation, Multiplication)}
    program, steps = _with_scaling(program, tuple(sorted(products, key=lambda product: product.target)))
    replaced = tuple(steps[op] if isinstance(op, Multiplication) and op in steps else op for op in operations)
    return program, replaced, scaled[0].operator.scaling  # type: ignore[union-attr]


@cache
def _with_scaling(program: Program, products: tuple[Multiplication, ...]) -> tuple[Program, dict[Multiplication, Step]]:
    """Return a program that has the diagonal as a vector, and a dict from each product to the step in its place."""
    steps = {
        product: Step(f"scale_{product.source}", each=f"{product.target} = {_SCALING} * {product.source}")
        for product in products
    }
    return Program(f"{program.name}_scaled", f"{program.vectors} {_SCALING}", (*program.steps, *steps.values())), steps
