"""Launching: grids that cover their work, and nothing launched for nothing."""

from __future__ import annotations

from typing import Any

from gsparse.device.base import Device
from gsparse.errors import ShapeError

__all__ = ["MAX_GRID", "check_grid", "launch_blocks", "launch_threads"]

# Blocks along x that CUDA and HIP both take.
MAX_GRID = 2**31 - 1


def launch_threads(
    device: Device, source: str, expression: str, threads: int, threads_per_block: int, args: Any
) -> None:
    """Launch a one-dimensional grid of at least `threads` threads on the caller's current stream.

    Raises
    ------
    ShapeError
        See `check_grid`.
    """
    launch_blocks(device, source, expression, -(-threads // threads_per_block), threads_per_block, args)


def launch_blocks(device: Device, source: str, expression: str, blocks: int, threads_per_block: int, args: Any) -> None:
    """Launch a one-dimensional grid of `blocks` blocks on the caller's current stream.

    Raises
    ------
    ShapeError
        See `check_grid`.
    """
    if blocks == 0:
        return
    check_grid(expression, blocks)
    device.kernel(source, expression)((blocks,), (threads_per_block,), args)


def check_grid(expression: str, blocks: int) -> None:
    """Refuse a grid that passes what the device can number.

    Raises
    ------
    ShapeError
    """
    if blocks > MAX_GRID:
        raise ShapeError(f"{expression} needs {blocks} blocks, a grid holds {MAX_GRID}: use more threads a block")
