"""Launch kernels with grids that cover their work. Empty grids are not launched."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gsparse.device.base import Device
from gsparse.errors import ShapeError

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
