"""Passes of solvers bound and launched (contract: `gsparse.kernels`; written by `gsparse.kernels.gpu.step_source`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from gsparse._typing import Array
from gsparse.device import Device
from gsparse.kernels.gpu.catalogue import expression
from gsparse.kernels.gpu.step_source import pending_read, step_source
from gsparse.kernels.steps import Program, Step

__all__ = ["bind_dots", "bind_step"]

_THREADS = 256
# Blocks of a pass at most, four for each multiprocessor of an H200; a thread then walks on. Their partial sums are
# added up by every block that needs them, so there should not be more (7-point 200**3: twice as many were 3 % slower).
_MAX_BLOCKS = 528
# Partial sums of a product that a pass still adds up itself, and what more of them are brought to first.
_MAX_DOTS = 1056
_FEW_DOTS = 32


def bind_step(
    device: Device,
    program: Program,
    step: Step,
    vectors: Mapping[str, Array],
    state: Any,
) -> Callable[[], None]:
    """Bind a pass to its arrays: what is left is one launch."""
    names, sums, columns = program.vectors_of(step), step.targets("sums"), state.columns
    arrays = [vectors[name] for name in names]
    size = arrays[0].size // columns if arrays else 0
    blocks = max(1, min(-(-size // _THREADS), _MAX_BLOCKS))
    pending = [part for name in pending_read(program, step) for part in state.pending[name]]
    outputs = [_output(device, state, name, blocks) for name in sums]
    arrivals = device.xp.zeros(columns, np.uint32)
    cells = (state.cells, np.int32(len(program.cells)), state.history, np.int32(state.capacity))
    kernel = device.kernel(step_source(program), expression(f"{program.name}_{step.name}", state.dtype))
    args = (np.int64(size), *arrays, *pending, *outputs, arrivals, *cells)
    return lambda: kernel((blocks, columns), (_THREADS,), args)


def bind_dots(device: Device, state: Any, name: str, num_dots: int) -> tuple[Array, Callable[[], None] | None]:
    """Give the array that a product leaves its partial sums in, and what has to be called after it.

    Passes bound from now on take their sum by its name.
    """
    if num_dots <= _MAX_DOTS:
        return _output(device, state, name, num_dots), None
    wide = state.cells.dtype
    dots, few = device.empty(num_dots, wide), _output(device, state, name, _FEW_DOTS)
    kernel = device.kernel("sums.cu", expression("sum_partials", wide))
    args = (np.int64(num_dots), dots, few)
    return dots, lambda: kernel((_FEW_DOTS,), (_THREADS,), args)


def _output(device: Device, state: Any, name: str, blocks: int) -> Array:
    """Give the array that partial sums of a name are left in, the same for all steps that sum it."""
    found = state.pending.get(name)
    if found is None or int(found[1]) != blocks:
        found = state.pending[name] = (device.empty(state.columns * blocks, state.cells.dtype), np.int32(blocks))
    return found[0]
