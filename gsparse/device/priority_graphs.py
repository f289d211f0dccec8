"""CUDA graphs in which each kernel keeps the priority of the stream on which it was captured.

CuPy makes executable graphs whose kernels all have the priority of the stream on which the graph is launched. The small
kernels that a second stream runs beside a product (`Streams.alongside`) then wait until the last block of the product
has begun. The driver has a function that makes executable graphs of the other kind. CuPy does not call it, so it is
called here. Everything else is in CuPy's reference: a graph's handle, and the functions that launch and destroy an
executable graph.

References
----------
NVIDIA, "CUDA driver API", cuGraphInstantiateWithFlags.
"""

from __future__ import annotations

import ctypes
import sys
import weakref
from collections.abc import Callable
from functools import cache
from typing import Any

_USE_NODE_PRIORITY = 8  # CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY


@cache
def _instantiate() -> Any:
    """Return the driver's function, or None if there is none."""
    try:
        return ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1").cuGraphInstantiateWithFlags
    except (OSError, AttributeError):
        return None


class _Executable:
    """An executable graph. It is destroyed together with this object."""

    def __init__(self, runtime: Any, handle: int) -> None:
        self._runtime, self._handle = runtime, handle
        finalizer = weakref.finalize(self, runtime.graphExecDestroy, handle)
        finalizer.atexit = False  # The end of the process frees everything, perhaps before this object.

    def __call__(self, stream: Any) -> None:
        self._runtime.graphLaunch(self._handle, stream.ptr)


def launch_with_priorities(cupy: Any, graph: Any) -> Callable[[Any], None]:
    """Return a function that launches a graph on a stream, if possible with the priorities of its kernels.

    Parameters
    ----------
    cupy : module
    graph : cupy.cuda.Graph
        A graph that was captured, on the current device.

    Returns
    -------
    callable
        Takes a CuPy stream. Where the driver offers nothing else, all kernels have the priority of that stream.
    """
    runtime, instantiate, handle = cupy.cuda.runtime, _instantiate(), ctypes.c_void_p()
    if instantiate is not None and not runtime.is_hip:
        flags = ctypes.c_ulonglong(_USE_NODE_PRIORITY)
        if not instantiate(ctypes.byref(handle), ctypes.c_void_p(graph.graph), flags):  # returns 0 unless it fails
            return _Executable(runtime, handle.value or 0)
    launch: Callable[[Any], None] = graph.launch
    return launch
