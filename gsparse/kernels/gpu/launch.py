"""Launches with grids that cover their work, and scratch memory for each stream of a bound product."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar
from weakref import WeakKeyDictionary

import numpy as np

from gsparse.device.base import Device
from gsparse.device.dtypes import Array
from gsparse.errors import ShapeError
from gsparse.formats import LongRows
from gsparse.formats.launch import Launch
from gsparse.kernels.gpu.expressions import constant, expression

# The largest number of blocks along x that both CUDA and HIP accept.
MAX_GRID = 2**31 - 1


def launch_threads(
    device: Device, source: str, expression: str, threads: int, threads_per_block: int, args: Any, shared_bytes: int = 0
) -> None:
    """Launch a one-dimensional grid of at least `threads` threads on the caller's current stream.

    `shared_bytes` is the size of the array of shared memory that the kernel leaves to the launch (GS_DYN_SHARED).

    Raises
    ------
    ShapeError
        See `check_grid`.
    """
    blocks = -(-threads // threads_per_block)
    launch_blocks(device, source, expression, blocks, threads_per_block, args, shared_bytes)


def launch_blocks(
    device: Device, source: str, expression: str, blocks: int, threads_per_block: int, args: Any, shared_bytes: int = 0
) -> None:
    """Launch a one-dimensional grid of `blocks` blocks on the caller's current stream; see `launch_threads`.

    Raises
    ------
    ShapeError
        See `check_grid`.
    """
    if blocks == 0:
        return
    check_grid(expression, blocks)
    device.kernel(source, expression)((blocks, 1, 1), (threads_per_block, 1, 1), args, shared_mem=shared_bytes)


def bind_product(
    device: Device,
    source: str,
    expression: str,
    blocks: int,
    threads_per_block: int,
    args: Any,
    dtype: Any,
    shared_bytes: int = 0,
) -> Callable[..., None]:
    """Return ``launch(x, y, alpha, beta, conjugate)`` of a one-dimensional grid; see `Device.bind_product`.

    Raises
    ------
    ShapeError
        See `check_grid`.
    """
    if blocks == 0:
        return launch_nothing
    check_grid(expression, blocks)
    return device.bind_product(source, expression, (blocks,), (threads_per_block,), args, dtype, shared_bytes)


def launch_nothing(*_: Any) -> None:
    """Stand in for a launch whose grid is empty."""


def check_grid(expression: str, blocks: int) -> None:
    """Check that the device can number the blocks of a grid.

    Raises
    ------
    ShapeError
        If there are too many blocks.
    """
    if blocks > MAX_GRID:
        raise ShapeError(f"{expression} needs {blocks} blocks, a grid holds {MAX_GRID}: the matrix is too large")


_Result = TypeVar("_Result")

# Positions of a tile, and threads of a block that has one.
TILE, TILE_THREADS = constant("tiles.cuh", "GS_TILE"), constant("tiles.cuh", "GS_TILE_THREADS")

# The number of blocks that have arrived, for each stream of each device.
_arrivals: WeakKeyDictionary[Device, Scratch] = WeakKeyDictionary()


class PerStream(Generic[_Result]):
    """Keeps a result of `bind` for each stream, made with arrays that only this stream uses. They are 0 at first.

    Parameters
    ----------
    device : Device
    bind : callable
        Takes the arrays, and returns what `get` is to return. It must not refer to the product, because that would be a
        reference cycle.
    arrays : tuple of (int, dtype)
        The size and the dtype of each array.
    """

    def __init__(self, device: Device, bind: Callable[..., _Result], *arrays: tuple[int, Any]) -> None:
        self._device, self._bind, self._arrays = device, bind, arrays
        self._of_stream: dict[Any, _Result] = {}

    def get(self) -> _Result:
        """Return what is bound for the caller's current stream. The arrays are allocated on first use."""
        key = self._device.stream_key()
        bound = self._of_stream.get(key)
        if bound is None:
            with self._device.outside_capture():
                arrays = [self._device.xp.zeros(size, dtype) for size, dtype in self._arrays]
            bound = self._of_stream[key] = self._bind(*arrays)
        return bound


class Scratch(PerStream[tuple[Array, ...]]):
    """Arrays for each stream, which are 0 at first.

    Parameters
    ----------
    device : Device
    arrays : tuple of (int, dtype)
        The size and the dtype of each array.
    """

    def __init__(self, device: Device, *arrays: tuple[int, Any]) -> None:
        super().__init__(device, lambda *made: made, *arrays)


def call_for_stream(bound: PerStream[Any]) -> Callable[..., None]:
    """Return a function that calls what is bound for the caller's current stream."""

    def call(*args: Any) -> None:
        bound.get()(*args)

    return call


def records(device: Device, long_rows: LongRows) -> Array:
    """Return the chunks of long rows as kernels read them: records of 32 bytes (struct Chunk, long_rows.cuh)."""
    rows, chunks = long_rows, device.empty((long_rows.num_chunks, 8), np.int32)
    args = (np.int32(rows.num_chunks), rows.rows, rows.begins, rows.ends, rows.first_chunk, rows.chunk_rows, chunks)
    name, threads = expression("list_chunks", rows.rows.dtype), Launch().threads_per_block
    launch_threads(device, "setup_rows.cu", name, rows.num_chunks, threads, args)
    return chunks


def num_tiles(size: int, tile: int = TILE) -> int:
    """Return the number of tiles that hold `size` positions."""
    return -(-size // tile)


def tally(device: Device, blocks: int, place: int = 0) -> tuple[Array, Any, Array]:
    """Return the arguments of a launch whose blocks leave counts: the counts, the arrivals, and the sum.

    After the launch, the counts are those of the blocks before each block, and the sum is element `place` of what
    ``device.counts.read(place + 1)`` returns. A launch without blocks writes no sum.
    """
    arrivals = _arrivals.get(device)
    if arrivals is None:
        arrivals = _arrivals.setdefault(device, Scratch(device, (1, np.dtype(np.uint32))))
    total = device.counts.array
    return (device.empty(blocks, np.int64), *arrivals.get(), total[place:] if place else total)
