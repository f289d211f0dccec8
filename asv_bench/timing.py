"""Timing on a GPU: launches captured in a CUDA graph, so that the figure is the kernel's and not the call's."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

import cupy

__all__ = ["seconds_of"]

REPLAYS = 15


def seconds_of(launch: Callable[[], Any], launches: int) -> float:
    """Give the median time of one launch, in seconds, out of replays of a graph of `launches`."""
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        launch()
        stream.synchronize()
        stream.begin_capture()
        for _ in range(launches):
            launch()
        graph = stream.end_capture()
        times = []
        for _ in range(REPLAYS + 3):
            begin, end = cupy.cuda.Event(), cupy.cuda.Event()
            begin.record(stream)
            graph.launch(stream)
            end.record(stream)
            end.synchronize()
            times.append(cupy.cuda.get_elapsed_time(begin, end) / launches / 1e3)
    return statistics.median(times[3:])
