"""Copies between host and GPU through pinned memory that is kept for reuse.

What comes from a caller is copied into pinned buffers, a chunk at a time, by all threads; the device reads them at the
link's speed meanwhile. Results are made in pinned memory of CuPy's pool and handed out as they are.
"""

from __future__ import annotations

import weakref
from collections import deque
from typing import Any

import numpy as np
import numpy.typing as npt

from gsparse.device.dtypes import Array
from gsparse.device.locks import make_lock
from gsparse.device.threads import run_parts

__all__ = ["Staging"]

# Bytes of one pinned buffer: large enough that a copy of one runs at the link's full speed, small enough that the
# host fills one while the device drains the other.
CHUNK_BYTES = 4 << 20
# Buffers that wait for reuse; more than this many threads copying at once make their own and drop them.
KEPT_BUFFERS = 16
# Bytes of results in pinned memory that callers may hold at one time; further ones are ordinary arrays. Page-locked
# memory is taken from the whole machine (CuPy's pool rounds sizes up and keeps what comes back).
MAX_PINNED_RESULTS = 2 << 30
# Bytes copied in the time that one entry or row of a product takes: what `run_parts` counts in.
BYTES_PER_COST = 8


class _Buffer:  # on GPUs only
    """A pinned buffer and the event after which it is free."""

    def __init__(self, cupy: Any) -> None:
        memory = cupy.cuda.alloc_pinned_memory(CHUNK_BYTES)
        self.bytes = np.frombuffer(memory, np.uint8, CHUNK_BYTES)
        self.pointer = self.bytes.ctypes.data
        self.event = cupy.cuda.Event(disable_timing=True)


class Staging:  # on GPUs only
    """Pinned buffers of one device.

    Safe for any number of threads: a buffer is owned by one copy at a time, taken from and returned to a deque, whose
    `popleft` and `append` are atomic.

    Parameters
    ----------
    cupy : module
    """

    def __init__(self, cupy: Any) -> None:
        self._cupy = cupy
        self._free: deque[_Buffer] = deque()
        self._pinned_results = 0
        self._lock = make_lock()

    def _take(self, fresh: int) -> _Buffer:
        """Take a buffer; a new one while fewer than `fresh` wait, so that a copy can run ahead by one."""
        try:
            buffer = self._free.popleft()
        except IndexError:
            return _Buffer(self._cupy)
        if not buffer.event.done and len(self._free) < fresh:
            self._put(buffer)
            return _Buffer(self._cupy)
        buffer.event.synchronize()  # synchronizes
        return buffer

    def _put(self, buffer: _Buffer) -> None:
        """Keep a buffer, or let go of it once nothing is copied from or to it any more."""
        if len(self._free) < KEPT_BUFFERS:
            self._free.append(buffer)
        else:
            buffer.event.synchronize()  # synchronizes

    def upload(self, host: npt.NDArray[Any]) -> Array:
        """Copy a contiguous host array to a new device array; returns when `host` may be changed again.

        The copy itself is ordered on the caller's current stream and not waited for.
        """
        runtime, stream = self._cupy.cuda.runtime, self._cupy.cuda.get_current_stream()
        result = self._cupy.empty(host.shape, host.dtype)
        source = host.reshape(-1).view(np.uint8)
        for first in range(0, source.size, CHUNK_BYTES):
            part = source[first : first + CHUNK_BYTES]
            buffer = self._take(fresh=2)
            run_parts(_copy_part, part.size // BYTES_PER_COST, buffer.bytes[: part.size], part)
            runtime.memcpyAsync(
                result.data.ptr + first, buffer.pointer, part.size, runtime.memcpyHostToDevice, stream.ptr
            )
            buffer.event.record(stream)
            self._put(buffer)
        return result

    def download(self, array: Array) -> npt.NDArray[Any]:
        """Copy a contiguous device array to a new host array. Synchronizes.

        The array is pinned, and its memory goes back to CuPy's pool with it, while callers hold less than
        `MAX_PINNED_RESULTS`.
        """
        memory = self._pinned_memory(array.nbytes)
        if memory is None:
            return self._cupy.asnumpy(array)  # type: ignore[no-any-return]  # synchronizes
        flat: npt.NDArray[Any] = np.frombuffer(memory, array.dtype, array.size)
        weakref.finalize(flat, self._returned, array.nbytes).atexit = False
        result = flat.reshape(array.shape)
        array.get(out=result)  # synchronizes
        return result

    def _pinned_memory(self, nbytes: int) -> Any:
        """Take pinned memory for a result, or nothing where callers hold too much or the system has no more."""
        with self._lock:
            if self._pinned_results + nbytes > MAX_PINNED_RESULTS:
                return None
            try:
                memory = self._cupy.cuda.alloc_pinned_memory(max(nbytes, 1))
            except self._cupy.cuda.runtime.CUDARuntimeError:
                return None
            self._pinned_results += nbytes
            return memory

    def _returned(self, nbytes: int) -> None:
        with self._lock:
            self._pinned_results -= nbytes


def _copy_part(part: int, num_parts: int, target: npt.NDArray[Any], source: npt.NDArray[Any]) -> None:
    """Copy one part of as many bytes; NumPy lets go of the GIL meanwhile."""
    share = slice(source.size * part // num_parts, source.size * (part + 1) // num_parts)
    target[share] = source[share]
