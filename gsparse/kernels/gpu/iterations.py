"""Whole iterations of a solver as one kernel, bound and launched.

The contract is in `gsparse.kernels.contract`, and `gsparse.kernels.gpu.iteration_source` writes the kernel.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from gsparse.device.base import Device
from gsparse.device.dtypes import Array
from gsparse.formats import Csr
from gsparse.kernels.calls import Call
from gsparse.kernels.gpu.iteration_source import iteration_name, iteration_writer
from gsparse.kernels.steps import Multiplication, Program, Step, StepState

# Threads of a block that the kernel is compiled for, and the most rows of a thread.
_THREADS = (128, 256, 512)
_MAX_ROWS_PER_THREAD = 8
# The longest row. A thread multiplies its rows alone, a few entries at a time.
_MAX_WIDTH = 32
# (largest number of rows, rows of a block), fitted on an H200. Few blocks exchange sums sooner, and one block needs no
# exchange at all, but many blocks have more arithmetic units.
_ROWS_PER_BLOCK = ((1024, 1024), (16384, 256), (math.inf, 512))
# Bytes of shared memory that the kernel has besides the entries of its rows: sums, and what the driver reserves.
_RESERVED_BYTES = 6 << 10
_COLUMN_BYTES = 4


class Layout(NamedTuple):
    """How the rows of a matrix are divided among blocks and threads, and the bytes of a block's entries."""

    blocks: int
    rows_per_block: int
    threads: int
    rows_per_thread: int
    entry_bytes: int


def layout_of(device: Device, num_rows: int, width: int, itemsize: int) -> Layout | None:
    """Return the layout for a matrix whose longest row has `width` entries, or None if the blocks cannot hold it."""
    if num_rows == 0 or width > _MAX_WIDTH:
        return None
    fewest = -(-num_rows // device.multiprocessors)
    wanted = next(rows for most, rows in _ROWS_PER_BLOCK if num_rows <= most)
    for rows_per_block in (max(wanted, fewest), fewest):
        threads = next((number for number in _THREADS if number >= rows_per_block), _THREADS[-1])
        rows_per_thread = 1 << (-(-rows_per_block // threads) - 1).bit_length()
        entry_bytes = rows_per_block * (width * (itemsize + _COLUMN_BYTES) + itemsize)
        if rows_per_thread <= _MAX_ROWS_PER_THREAD and entry_bytes <= device.shared_memory - _RESERVED_BYTES:
            return Layout(-(-num_rows // rows_per_block), rows_per_block, threads, rows_per_thread, entry_bytes)
    return None


def bind_iterations(
    device: Device,
    program: Program,
    operations: tuple[Step | Multiplication, ...],
    csr: Csr,
    width: int,
    vectors: Mapping[str, Array],
    state: StepState,
    turns: int,
) -> Call | None:
    """Bind the kernel if the GPU can run all of its blocks at the same time, and they can hold the matrix."""
    dtype = state.dtype
    layout = layout_of(device, csr.num_rows, width, dtype.itemsize) if device.runs_blocks_together else None
    if layout is None:
        return None
    writer, size = iteration_writer(program, operations), csr.num_rows
    num_words = writer.num_words * (state.cells.dtype.itemsize // 8)
    copies = device.xp.zeros(max(2 * len(writer.copied) * size * dtype.itemsize // 4, 1), np.uint64)
    words = device.xp.zeros(2 * layout.blocks * num_words, np.uint64)
    carried = [part for name in writer.carried for part in state.partial_sums[name]]
    args = (
        *(np.int32(number) for number in (size, layout.rows_per_block, width)),
        *(csr.indptr, csr.indices, csr.data),
        *(vectors[name] for name in writer.vectors),
        *(copies, words, device.xp.zeros(1, np.uint32), *carried),
        *(state.cells, state.history, np.int32(state.capacity), np.int32(turns)),
    )
    name = iteration_name(program, dtype, csr.indices.dtype, layout.threads, layout.rows_per_thread)
    return device.bind_product(
        writer.source, name, (layout.blocks,), (layout.threads,), args, shared_bytes=layout.entry_bytes
    )
