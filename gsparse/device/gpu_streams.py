"""The streams of a GPU, through CuPy: waiting, timing by events, and CUDA graphs whose kernels keep their priority."""

from __future__ import annotations

import ctypes
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

from gsparse.device.streams import NUM_TIMINGS, Streams

_USE_NODE_PRIORITY = 8  # CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY


@cache
def _instantiate() -> Any:
    """Return the driver function that instantiates graphs with flags, or None if the driver does not have it."""
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
        A captured graph on the current device.

    Returns
    -------
    callable
        It takes a CuPy stream. If the driver does not support priorities, all kernels have the priority of that stream.
    """
    runtime, instantiate, handle = cupy.cuda.runtime, _instantiate(), ctypes.c_void_p()
    if instantiate is not None and not runtime.is_hip:
        flags = ctypes.c_ulonglong(_USE_NODE_PRIORITY)
        if not instantiate(ctypes.byref(handle), ctypes.c_void_p(graph.graph), flags):  # returns 0 unless it fails
            return _Executable(runtime, handle.value or 0)
    launch: Callable[[Any], None] = graph.launch
    return launch


# Number of products in the CUDA graph that one timing launches.
_PRODUCTS_PER_GRAPH = 10
# Priority of a stream whose kernels start before those of other streams. Lower numbers start first, and 0 is the
# default. All GPUs support -1.
_HIGH_PRIORITY = -1


@contextmanager
def on_stream(cupy: Any, stream: Any) -> Iterator[None]:
    """Make a stream the current stream within the block, and restore the previous stream then.

    CuPy's own ``with stream:`` restores the stream of the enclosing ``with`` block, which may not be the stream that
    the caller chose with ``stream.use()``. It is used here nevertheless, because CuPy itself uses ``with`` blocks (to
    copy strided arrays to the host), and these must restore `stream`.
    """
    caller = cupy.cuda.get_current_stream()
    try:
        with stream:
            yield
    finally:
        caller.use()


class GpuStreams(Streams):  # on GPUs only
    """The streams of one GPU.

    Parameters
    ----------
    cupy : module
    """

    xp: Any
    has_events = True

    def __init__(self, cupy: Any) -> None:
        # The handle of a default stream is a small number (at most streamPerThread = 2). All other handles are
        # addresses. Each thread has its own per-thread default stream, but all of these have the handle
        # streamPerThread.
        self._current_stream, self._per_thread_stream = cupy.cuda.get_current_stream, cupy.cuda.runtime.streamPerThread
        self._free_events: deque[Any] = deque()
        self._free_streams: deque[Any] = deque()
        self._of_thread = threading.local()

    def synchronize(self) -> None:
        self.xp.cuda.get_current_stream().synchronize()  # synchronizes

    def timed(self, call: Callable[[], None]) -> Callable[[], float | None]:
        begin, end = self.xp.cuda.Event(), self.xp.cuda.Event()
        begin.record()
        call()
        end.record()
        return lambda: 1e-3 * self.xp.cuda.get_elapsed_time(begin, end) if end.done else None

    def timings_of(self, call: Callable[[], None]) -> list[float]:
        # The products are launched from a CUDA graph. Launched one by one, every small product would take as long as
        # its launch.
        self.synchronize()  # synchronizes
        stream = self.xp.cuda.Stream(non_blocking=True)
        with on_stream(self.xp, stream):
            call()
            stream.begin_capture()
            for _ in range(_PRODUCTS_PER_GRAPH):
                call()
            graph = stream.end_capture()
            timings = []
            for _ in range(NUM_TIMINGS):
                seconds = self.timed(lambda: graph.launch(stream))
                stream.synchronize()  # synchronizes
                timings.append((seconds() or 0.0) / _PRODUCTS_PER_GRAPH)
        return timings

    def record_event(self) -> Any:
        stream = self._current_stream()
        if stream.ptr > self._per_thread_stream and stream.is_capturing():
            return None  # an event of a graph has no time
        try:
            event = self._free_events.popleft()
        except IndexError:
            event = self.xp.cuda.Event()
        event.record(stream)
        return event

    def seconds_between(self, begin: Any, end: Any) -> float:
        end.synchronize()  # synchronizes
        return float(1e-3 * self.xp.cuda.get_elapsed_time(begin, end))

    def release_event(self, event: Any) -> None:
        self._free_events.append(event)

    def is_capturing(self) -> bool:
        stream = self.xp.cuda.get_current_stream()
        return bool(stream.ptr and stream.is_capturing())  # The default stream, 0, never captures.

    def stream_key(self) -> Hashable:
        stream = self._current_stream()
        pointer: int = stream.ptr
        if pointer <= self._per_thread_stream:
            return (threading.get_ident(), pointer) if pointer == self._per_thread_stream else pointer
        # A captured launch runs when its graph is launched, perhaps at the same time as other work. So it gets a unique
        # key, because it is ordered with no other work.
        return object() if stream.is_capturing() else pointer

    @contextmanager
    def outside_capture(self) -> Iterator[None]:
        stream = self.xp.cuda.Stream(non_blocking=True)
        with on_stream(self.xp, stream):
            yield
            stream.synchronize()  # synchronizes

    @contextmanager
    def own_stream(self) -> Iterator[None]:
        # Streams are reused, because CuPy keeps freed memory for the stream on which it was allocated.
        caller = self.xp.cuda.get_current_stream()
        try:
            stream = self._free_streams.pop()
        except IndexError:
            stream = self.xp.cuda.Stream(non_blocking=True)
        with on_stream(self.xp, stream):
            stream.wait_event(caller.record())
            try:
                yield
            finally:
                caller.wait_event(stream.record())
        self._free_streams.append(stream)  # Not after an error: then the stream's work may never end.

    def alongside(self, call: Callable[[], None]) -> Callable[[], None]:
        cuda, caller, of_thread = self.xp.cuda, self.xp.cuda.get_current_stream(), self._of_thread
        if not hasattr(of_thread, "second"):
            # Blocks of the small kernels of this stream start before the many waiting blocks of a product.
            of_thread.second = cuda.Stream(non_blocking=True, priority=_HIGH_PRIORITY)
            of_thread.begin, of_thread.end = (cuda.Event(disable_timing=True) for _ in range(2))
        second, end, of_thread.uses_second = of_thread.second, of_thread.end, True
        second.wait_event(caller.record(of_thread.begin))
        with on_stream(self.xp, second):
            call()
        second.record(end)
        return lambda: caller.wait_event(end)

    def capture(self, call: Callable[[], None]) -> Callable[[], None]:
        stream = self.xp.cuda.get_current_stream()
        self._of_thread.uses_second = False
        stream.begin_capture()
        try:
            call()
        finally:
            graph = stream.end_capture()
        launch = launch_with_priorities(self.xp, graph) if self._of_thread.uses_second else graph.launch
        return lambda: launch(stream)
