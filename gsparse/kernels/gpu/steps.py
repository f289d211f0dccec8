"""Steps of solvers, bound and launched (contract: `gsparse.kernels.contract`; source: `kernels.gpu.step_source`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from gsparse.device.base import Device
from gsparse.device.dtypes import Array
from gsparse.kernels.calls import Call, queue
from gsparse.kernels.gpu.expressions import expression
from gsparse.kernels.gpu.step_source import is_split, pending_read, step_source
from gsparse.kernels.steps import Program, Step, StepState

__all__ = ["bind_dots", "bind_step"]

_THREADS = 256
# Blocks of a pass at most, four for each multiprocessor of an H200; a thread then walks on. Their partial sums are
# added up by every block that needs them, so there should not be more (7-point 200**3: twice as many were 3 % slower).
_MAX_BLOCKS = 528
# Partial sums of a product that a pass still adds up itself, and what more of them are brought to first; ranks exchange
# so many.
_MAX_DOTS = 1056
_FEW_SUMS = 32


def bind_step(
    device: Device,
    program: Program,
    step: Step,
    vectors: Mapping[str, Array],
    state: StepState,
) -> Call:
    """Bind a pass to its arrays: what is left is one launch."""
    names, sums, columns = program.vectors_of(step), step.targets("sums"), state.columns
    arrays = [vectors[name] for name in names]
    size = arrays[0].size // columns if arrays else 0
    blocks = max(1, min(-(-size // _THREADS), _MAX_BLOCKS))
    is_shared = bool(sums) and state.reduce is not None
    is_halved = is_shared and is_split(step)
    pending = [part for name in pending_read(program, step) for part in state.pending[name]]
    if is_shared:
        outputs = device.empty((len(sums), columns * blocks), state.cells.dtype)
        reduce = _reduction(device, state, sums, outputs, blocks)
    else:
        outputs = [_output(device, state, name, blocks) for name in sums]
    arrivals = device.xp.zeros(columns, np.uint32)
    cells = (state.cells, np.int32(len(program.cells)), state.history, np.int32(state.capacity))
    kernel = _kernel(device, program, step, state, "_leave" if is_halved else "")
    args = (np.int64(size), *arrays, *pending, *outputs, arrivals, *cells)
    run = partial(kernel, (blocks, columns), (_THREADS,), args)
    if not is_shared:
        return run
    calls: list[Call] = [run, *reduce]
    if is_halved:
        totals = [part for name in sums for part in state.pending[name]]
        after = _kernel(device, program, step, state, "_after")
        calls.append(partial(after, (1, columns), (device.lanes,), (*totals, *pending, *cells)))
    return partial(queue, calls)


def _kernel(device: Device, program: Program, step: Step, state: StepState, kind: str) -> Any:
    return device.kernel(step_source(program), expression(f"{program.name}_{step.name}{kind}", state.dtype))


def _reduction(device: Device, state: StepState, names: Sequence[str], partials: Array, count: int) -> list[Call]:
    """Bind what adds up partial sums over all ranks: first to few, which ranks exchange and readers add up.

    The few of several names lie side by side, so that one exchange does, unless another step has some of them too.
    """
    shape = (state.columns, _FEW_SUMS)
    if not any(name in state.pending for name in names):
        together = device.xp.zeros((len(names), *shape), state.cells.dtype)
        state.pending.update({name: (few, np.int32(_FEW_SUMS)) for name, few in zip(names, together, strict=True)})
        sets = [(partials, together)]
    else:
        for name in names:
            fresh = (device.xp.zeros(shape, state.cells.dtype), np.int32(_FEW_SUMS))
            state.pending.setdefault(name, fresh)
        sets = [(part, state.pending[name][0]) for name, part in zip(names, partials, strict=True)]
    assert state.reduce is not None
    kernel = device.kernel("sums.cu", expression("sum_partials", state.cells.dtype))
    calls: list[Call] = []
    for part, few in sets:
        grid = (_FEW_SUMS, few.size // _FEW_SUMS)
        calls += [partial(kernel, grid, (_THREADS,), (np.int64(count), part, few)), partial(state.reduce, few)]
    return calls


def bind_dots(device: Device, state: StepState, name: str, num_dots: int) -> tuple[Array, Call | None]:
    """Give the array that a product leaves its partial sums in, and what has to be called after it.

    Passes bound from now on take their sum by its name.
    """
    if state.reduce is not None:
        dots = device.empty((1, num_dots), state.cells.dtype)
        return dots[0], partial(queue, _reduction(device, state, [name], dots, num_dots))
    if num_dots <= _MAX_DOTS:
        return _output(device, state, name, num_dots), None
    wide = state.cells.dtype
    dots, few = device.empty(num_dots, wide), _output(device, state, name, _FEW_SUMS)
    kernel = device.kernel("sums.cu", expression("sum_partials", wide))
    args = (np.int64(num_dots), dots, few)
    return dots, lambda: kernel((_FEW_SUMS,), (_THREADS,), args)


def _output(device: Device, state: StepState, name: str, blocks: int) -> Array:
    """Give the array that partial sums of a name are left in, the same for all steps that sum it."""
    found = state.pending.get(name)
    if found is None or int(found[1]) != blocks:
        found = state.pending[name] = (device.empty(state.columns * blocks, state.cells.dtype), np.int32(blocks))
    return found[0]
