"""Arrays of other libraries, whose memory stays allocated until the GPU has read it.

A kernel that was launched may still wait while the caller drops the array that it will read. CuPy's memory pool gives
such memory only to later work of the same stream. Another library gives it to work on a stream of its own, which may
write to it at once. So a reference to the array is held until the kernels on our stream are done:

    caller         x = library's array    y = A @ x    x = None
    our stream        ... earlier work ...    read x |
    thread                                     waits | drop x
"""

from __future__ import annotations

import threading
import weakref
from contextlib import suppress
from functools import cache
from queue import SimpleQueue
from typing import Any

from gsparse.device.cupy import import_cupy
from gsparse.device.dtypes import Array


class ReleaseQueue:
    """A thread that drops objects, each after an event.

    Examples
    --------
    >>> import threading
    >>> class Event(threading.Event):
    ...     synchronize = threading.Event.wait
    >>> class Dropped(threading.Event):
    ...     __del__ = lambda self: print("dropped")
    >>> event, queue = Event(), ReleaseQueue()
    >>> queue.put(event, Dropped())
    >>> event.set(); queue.join()
    dropped
    """

    def __init__(self) -> None:
        self._items: SimpleQueue[tuple[Any, Any] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="gsparse-release", daemon=True)
        self._thread.start()

    def put(self, event: Any, held: Any) -> None:
        """Hold an object until ``event.synchronize()`` returns."""
        self._items.put((event, held))

    def join(self) -> None:
        """End the thread after what is in the queue."""
        self._items.put(None)
        self._thread.join()

    def _run(self) -> None:
        while True:
            item = self._items.get()
            if item is None:
                return
            with suppress(Exception):  # after an error on the GPU nothing is read any more
                item[0].synchronize()
            del item  # not only when the next one arrives


class _Owner:
    """The owner of the memory of CuPy arrays, as CuPy sees it. It lives as long as the last of these arrays."""


@cache
def _release_queue() -> ReleaseQueue:  # on GPUs only
    return ReleaseQueue()


def kept_until_read(view: Array) -> Array:  # on GPUs only
    """Return a CuPy array over the memory of `view`, a CuPy array whose memory belongs to another library.

    The array that is returned, and slices of it, keep `view`. When the last of them has been dropped, `view` is kept
    until the stream that is current in this call has done what was launched on it by then.
    """
    if not view.size:
        return view
    cuda, owner = import_cupy().cuda, _Owner()
    weakref.finalize(owner, _release, view, cuda.get_current_stream()).atexit = False
    memory = cuda.UnownedMemory(view.data.ptr, view.nbytes, owner, view.device.id)
    return type(view)(view.shape, view.dtype, cuda.MemoryPointer(memory, 0), view.strides)


def _release(view: Array, stream: Any) -> None:  # on GPUs only
    with view.device:
        event = import_cupy().cuda.Event(block=True, disable_timing=True)
        event.record(stream)
    _release_queue().put(event, view)
