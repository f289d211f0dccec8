"""Copies between host and GPU through pinned buffers that are kept for reuse."""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np
import numpy.typing as npt

from gsparse._typing import Array

__all__ = ["Staging"]

# Bytes of one pinned buffer: large enough that a copy of one runs at the link's full speed, small enough that the
# host fills one while the device drains the other.
CHUNK_BYTES = 4 << 20
# Buffers that wait for reuse; more than this many threads copying at once make their own and drop them.
KEPT_BUFFERS = 16


class _Buffer:
    """A pinned buffer and the event after which it is free."""

    def __init__(self, cupy: Any) -> None:
        memory = cupy.cuda.alloc_pinned_memory(CHUNK_BYTES)
        self.bytes = np.frombuffer(memory, np.uint8, CHUNK_BYTES)
        self.pointer = self.bytes.ctypes.data
        self.event = cupy.cuda.Event(disable_timing=True)


class Staging:
    """Pinned buffers of one device.

    Safe for any number of threads: a buffer is owned by one copy at a time, taken from and returned to a deque, whose
    `popleft` and `append` are atomic.

    Parameters
    ----------
    cupy : module
    """

    def __init__(self, cupy: Any) -> None:
        self._cupy = cupy
        self._free: deque[_Buffer] = deque(maxlen=KEPT_BUFFERS)

    def _take(self, fresh: int) -> _Buffer:
        """Take a buffer; a new one while fewer than `fresh` wait, so that a copy can run ahead by one."""
        try:
            buffer = self._free.popleft()
        except IndexError:
            return _Buffer(self._cupy)
        if not buffer.event.done and len(self._free) < fresh:
            self._free.append(buffer)
            return _Buffer(self._cupy)
        buffer.event.synchronize()  # synchronizes
        return buffer

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
            buffer.bytes[: part.size] = part
            runtime.memcpyAsync(
                result.data.ptr + first, buffer.pointer, part.size, runtime.memcpyHostToDevice, stream.ptr
            )
            buffer.event.record(stream)
            self._free.append(buffer)
        return result

    def download(self, array: Array) -> npt.NDArray[Any]:
        """Copy a contiguous device array to a new host array. Synchronizes."""
        result = np.empty(array.shape, array.dtype)
        self.download_into(array, result)
        return result

    def download_into(self, array: Array, result: npt.NDArray[Any]) -> None:
        """Copy a contiguous device array into a contiguous host array. Synchronizes."""
        runtime, stream = self._cupy.cuda.runtime, self._cupy.cuda.get_current_stream()
        target = result.reshape(-1).view(np.uint8)
        pending: deque[tuple[_Buffer, npt.NDArray[Any]]] = deque()
        for first in range(0, target.size, CHUNK_BYTES):
            part = target[first : first + CHUNK_BYTES]
            buffer = self._take(fresh=2)
            runtime.memcpyAsync(
                buffer.pointer, array.data.ptr + first, part.size, runtime.memcpyDeviceToHost, stream.ptr
            )
            buffer.event.record(stream)
            pending.append((buffer, part))
            if len(pending) == 2:  # one chunk ahead: the device fills one buffer while the host empties the other
                self._empty(*pending.popleft())
        while pending:
            self._empty(*pending.popleft())

    def _empty(self, buffer: _Buffer, part: npt.NDArray[Any]) -> None:
        buffer.event.synchronize()  # synchronizes
        part[:] = buffer.bytes[: part.size]
        self._free.append(buffer)
