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

__all__ = ["bind_step"]

_THREADS = 256
# Blocks of a pass at most, four for each multiprocessor of an H200; a thread then walks on. Their partial sums are
# added up by every block that needs them, so there should not be more (7-point 200**3: twice as many were 3 % slower).
_MAX_BLOCKS = 528


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


def _output(device: Device, state: Any, name: str, blocks: int) -> Array:
    """Give the array that partial sums of a name are left in, the same for all steps that sum it."""
    found = state.pending.get(name)
    if found is None or int(found[1]) != blocks:
        found = state.pending[name] = (device.empty(state.columns * blocks, state.cells.dtype), np.int32(blocks))
    return found[0]
