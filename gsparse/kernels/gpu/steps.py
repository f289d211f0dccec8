"""Launches of steps and of whole iterations of solvers (contract: `gsparse.kernels.steps`).

`gsparse.kernels.gpu.step_source` writes the kernels of steps, and `gsparse.kernels.gpu.iteration_source` the kernel of
an iteration. Pseudorandom numbers are computed by `src/steps.cu`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cache, partial
from typing import Any, NamedTuple

import numpy as np

from gsparse.device.base import Device
from gsparse.device.dtypes import Array
from gsparse.formats import Csr
from gsparse.formats.launch import Launch
from gsparse.kernels.gpu.iteration_source import iteration_name, iteration_writer
from gsparse.kernels.gpu.launch import FLOATS, Source, constant, expression
from gsparse.kernels.gpu.step_source import deferred_read, is_split, step_source
from gsparse.kernels.steps import Call, Multiplication, Program, Step, StepState, queue

_THREADS = constant("sums.cuh", "GS_PASS_THREADS")
# Maximum number of blocks of a pass: four for each multiprocessor of an H200. If vectors are longer, a thread takes
# several elements. Every block that needs a sum adds the partial sums of all blocks, so more blocks would take longer.
_MAX_BLOCKS = 528
# Maximum number of partial sums of a product that a pass adds by itself. If there are more, or if ranks exchange the
# sums, they are first reduced to _FEW_SUMS.
_MAX_DOTS = 1056
_FEW_SUMS = 32

# Possible numbers of threads per block of the kernel, and maximum number of rows of a thread.
_ITERATION_THREADS = (128, 256, 512)
_MAX_ROWS_PER_THREAD = 8
# Maximum length of a row. A thread multiplies its rows alone, a few entries at a time.
_MAX_WIDTH = 32
# Pairs (largest number of rows, rows per block), measured on an H200. Fewer blocks exchange sums faster, and one block
# needs no exchange; but more blocks have more arithmetic units.
_ROWS_PER_BLOCK = ((1024, 1024), (16384, 256), (math.inf, 512))
# Bytes of shared memory that the kernel needs in addition to the entries of its rows: for sums, and for the driver.
_RESERVED_BYTES = 6 << 10
_COLUMN_BYTES = 4

_SOURCE = Source("steps.cu", Launch().threads_per_block)


def compile_steps(device: Device, program: Program, dtype: np.dtype[Any]) -> None:
    """Begin to compile the passes of a program for vectors of dtype `dtype`, on other threads."""
    device.compile_together(step_source(program), _names(program, dtype))


@cache
def _names(program: Program, dtype: np.dtype[Any]) -> tuple[str, ...]:
    return tuple(expression(f"{program.name}_{step.name}", dtype) for step in program.steps)


def bind_step(
    device: Device,
    program: Program,
    step: Step,
    vectors: Mapping[str, Array],
    state: StepState,
) -> Call:
    """Return a call that runs a step: one launch, or more with ranks."""
    names, sums, columns = program.vectors_of(step), step.targets("sums"), state.columns
    arrays = [vectors[name] for name in names]
    size = arrays[0].size // columns if arrays else 0
    blocks = max(1, min(-(-size // _THREADS), _MAX_BLOCKS))
    is_shared = bool(sums) and state.reduce is not None
    is_two_kernels = is_shared and is_split(step)
    deferred = [part for name in deferred_read(program, step) for part in state.partial_sums[name]]
    if is_shared:
        outputs = device.empty((len(sums), columns * blocks), state.cells.dtype)
        reduce = _reduction(device, state, sums, outputs, blocks)
    else:
        outputs = [_output(device, state, name, blocks) for name in sums]
    arrivals = device.xp.zeros(columns, np.uint32)
    cells = (state.cells, np.int32(len(program.cells)), state.history, np.int32(state.capacity))
    bind = partial(_bind, device, program, step, state)
    args = (np.int64(size), *arrays, *deferred, *outputs, arrivals, *cells)
    run = bind("_leave" if is_two_kernels else "", (blocks, columns), (_THREADS,), args)
    if not is_shared:
        return run
    calls: list[Call] = [run, *reduce]
    if is_two_kernels:
        totals = [part for name in sums for part in state.partial_sums[name]]
        calls.append(bind("_after", (1, columns), (device.lanes,), (*totals, *deferred, *cells)))
    return partial(queue, calls)


def _bind(device: Device, program: Program, step: Step, state: StepState, kind: str, *launch: Any) -> Call:
    """Return a launch of a step's kernel. `kind` is its suffix; `launch` holds grid, block and arguments."""
    name = expression(f"{program.name}_{step.name}{kind}", state.dtype)
    return device.bind_kernel(step_source(program), name, *launch)


def _reduction(device: Device, state: StepState, names: Sequence[str], partials: Array, count: int) -> list[Call]:
    """Return the calls that reduce partial sums over all ranks.

    The partial sums of a rank are reduced to a few. The ranks exchange these, and the steps that read the sum add them.
    The few of several sums are adjacent, so that one exchange is enough, unless another step also computes one of the
    sums.
    """
    shape = (state.columns, _FEW_SUMS)
    if not any(name in state.partial_sums for name in names):
        side_by_side = device.xp.zeros((len(names), *shape), state.cells.dtype)
        state.partial_sums.update(
            {name: (few, np.int32(_FEW_SUMS)) for name, few in zip(names, side_by_side, strict=True)}
        )
        sets = [(partials, side_by_side)]
    else:
        for name in names:
            sums = (device.xp.zeros(shape, state.cells.dtype), np.int32(_FEW_SUMS))
            state.partial_sums.setdefault(name, sums)
        sets = [(part, state.partial_sums[name][0]) for name, part in zip(names, partials, strict=True)]
    assert state.reduce is not None
    calls: list[Call] = []
    for part, few in sets:
        calls += [_bind_sum(device, count, part, few), partial(state.reduce, few)]
    return calls


def bind_dots(device: Device, state: StepState, name: str, num_dots: int) -> tuple[Array, Call | None]:
    """Return the array for the partial sums of a product, and the call to make after the product, or None.

    Steps that are bound later read the sum under `name`.
    """
    if state.reduce is not None:
        dots = device.empty((1, num_dots), state.cells.dtype)
        return dots[0], partial(queue, _reduction(device, state, [name], dots, num_dots))
    if num_dots <= _MAX_DOTS:
        return _output(device, state, name, num_dots), None
    wide = state.cells.dtype
    dots, few = device.empty(num_dots, wide), _output(device, state, name, _FEW_SUMS)
    return dots, _bind_sum(device, num_dots, dots, few)


def _bind_sum(device: Device, count: int, partials: Array, few: Array) -> Call:
    """Return the launch that reduces `count` partial sums of each right-hand side to `_FEW_SUMS`."""
    name, grid = expression("sum_partials", few.dtype), (_FEW_SUMS, few.size // _FEW_SUMS)
    return device.bind_kernel(_SOURCE.file, name, grid, (_THREADS,), (np.int64(count), partials, few))


def _output(device: Device, state: StepState, name: str, blocks: int) -> Array:
    """Return the array for the partial sums of the sum `name`; all steps that compute this sum share it."""
    partials = state.partial_sums.get(name)
    if partials is None or int(partials[1]) != blocks:
        partials = state.partial_sums[name] = (
            device.empty(state.columns * blocks, state.cells.dtype),
            np.int32(blocks),
        )
    return partials[0]


class Layout(NamedTuple):
    """The division of a matrix's rows among blocks and threads, and the bytes of a block's entries."""

    blocks: int
    rows_per_block: int
    threads: int
    rows_per_thread: int
    entry_bytes: int


def layout_of(device: Device, num_rows: int, width: int, itemsize: int) -> Layout | None:
    """Return the layout for a matrix whose longest row has `width` entries; None if it is too large for the blocks."""
    if num_rows == 0 or width > _MAX_WIDTH:
        return None
    fewest = -(-num_rows // device.multiprocessors)
    wanted = next(rows for most, rows in _ROWS_PER_BLOCK if num_rows <= most)
    for rows_per_block in (max(wanted, fewest), fewest):
        threads = next((number for number in _ITERATION_THREADS if number >= rows_per_block), _ITERATION_THREADS[-1])
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
    """Return the call, or None if the GPU cannot run all blocks at once or they cannot hold the matrix."""
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


def fill_hashes(device: Device, out: Array, offset: int) -> None:
    """Write the hashes, with one thread per element."""
    _SOURCE.launch(device, "fill_hashes", (out.dtype,), out.size, (np.int64(out.size), np.uint32(offset % 2**32), out))


def instantiations(lanes: int) -> list[tuple[str, str]]:
    """List (source file, name expression) of every kernel, for a warp of `lanes` lanes."""
    wide = np.dtype(np.float64), np.dtype(np.complex128)
    return [*_SOURCE.variants("sum_partials", wide), *_SOURCE.variants("fill_hashes", FLOATS)]
