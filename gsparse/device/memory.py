"""The arrays of a device: allocation, copies to and from the host through pinned memory, and tests of operands."""

from __future__ import annotations

import weakref
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from functools import cache, cached_property, partial
from typing import Any

import numpy as np
import numpy.typing as npt

from gsparse.device.dtypes import Array
from gsparse.device.locks import make_lock
from gsparse.device.threads import run_parts

# A function that calls its argument repeatedly until it returns True.
Wait = Callable[[Callable[[], bool]], None]


class Memory(ABC):
    """The methods of a device for its arrays.

    Attributes
    ----------
    xp : module
        NumPy or CuPy.
    """

    xp: Any

    @abstractmethod
    def owns(self, array: object) -> bool:
        """Return whether `array` is an array of this device."""

    @abstractmethod
    def upload(self, host: npt.NDArray[Any]) -> Array:
        """Return a device array with the contents of a host array. May synchronize.

        If the device is the host, both share memory, unless the host array has to be copied to become contiguous. On a
        GPU, the host array may be changed after this call, and arrays of extended precision raise DtypeError.
        """

    @abstractmethod
    def download(self, array: Array) -> npt.NDArray[Any]:
        """Return a new, writable host array with the contents of a device array. Synchronizes."""

    @abstractmethod
    def download_vector(self, array: Array) -> npt.NDArray[Any]:
        """Return a contiguous result as a host array for the caller; on a CPU, the array itself. Synchronizes."""

    def empty(self, shape: int | tuple[int, ...], dtype: npt.DTypeLike) -> Array:
        """Allocate an array on this device, which must be the current device."""
        return self.xp.empty(shape, dtype)

    def no_values(self, dtype: np.dtype[Any]) -> Array:
        """Return an array without elements. Each call with the same dtype returns the same array."""
        return self._no_values(dtype)

    @cached_property
    def _no_values(self) -> Callable[[np.dtype[Any]], Array]:
        return cache(partial(self.empty, 0))

    def fill_bytes(self, array: Array, byte: int) -> None:
        """Set each byte of a contiguous array to `byte`."""
        array.view(np.uint8).fill(byte)

    def map_values(self, function: Callable[[Array], Array], values: Array) -> Array:
        """Return ``function(values)`` for a function of `xp` that maps each element of a one-dimensional array."""
        return function(values)

    @abstractmethod
    def can_read_vectors(self, x: Any, out: Any, shape: tuple[int, int], dtype: np.dtype[Any]) -> bool:
        """Return whether a product needs no conversion of `x` and `out`, and this device is current.

        For that, `x` and `out` (if it is not None) must be contiguous vectors on this device, of this dtype and of the
        sizes that a matrix of this shape requires, and must not overlap.
        """

    @abstractmethod
    def can_read_columns(self, X: Any, num_rows: int, dtype: np.dtype[Any]) -> bool:
        """Return whether X has at least one column, of `num_rows` elements, and can be read without conversion.

        X may be row-major, column-major or strided. This device must be current.
        """

    @abstractmethod
    def try_empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array | None:
        """Allocate an array on this device, which must be the current device.

        Return None if the memory of a GPU does not suffice. On a CPU, NumPy raises MemoryError.
        """

    def host_array(self, size: int, dtype: np.dtype[Any]) -> tuple[npt.NDArray[Any], Array]:
        """Allocate zeros in host memory that kernels can write. Return the host array and the device array over it."""
        array = np.zeros(size, dtype)
        return array, array

    def read_async(self, array: Array, wait: Wait | None = None) -> Callable[[], npt.NDArray[Any]]:
        """Queue a copy of a small array to the host, and return a function that waits for the copy and returns it.

        That function calls ``wait(is_done)`` if `wait` is not None. ``is_done()`` returns whether the copy has been
        made.
        """
        copy = self.download(array)
        return lambda: copy


class _MemoryOf:
    """An object that passes the memory of a host array to NumPy, which makes another array of it."""

    def __init__(self, owner: npt.NDArray[Any]) -> None:
        self.owner = owner
        self.__array_interface__ = owner.__array_interface__


def address_of(array: Array) -> int:
    """Return the address of the first element of an array, of the host or of a device."""
    pointer = getattr(array.data, "ptr", None)  # of a CuPy array
    return int(array.ctypes.data if pointer is None else pointer)


def alias_of(owner: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return another array over the memory of a host array.

    The alias and all its views together hold one reference to `owner`. So `gsparse.matrix.loans` can count the
    references to `owner` in order to find out whether a user still holds it.
    """
    return np.asarray(_MemoryOf(owner))


# Bytes of a pinned buffer: large enough for copies at the full speed of the link, and small enough that the host can
# fill one buffer while the device reads another.
CHUNK_BYTES = 4 << 20
# Largest number of free buffers that are kept for reuse. If more threads copy at the same time, they allocate buffers
# and free them.
MAX_FREE_BUFFERS = 16
# Largest number of bytes of results in pinned memory that callers may hold. Further results are ordinary arrays,
# because other processes cannot use pinned memory, and CuPy's pool rounds sizes up and keeps freed memory.
MAX_PINNED_RESULTS = 2 << 30
# Number of bytes whose copy takes as long as one entry or row of a product, which is the unit of cost of `run_parts`.
BYTES_PER_COST = 8


class _Buffer:  # on GPUs only
    """A pinned buffer, and the event after which it can be filled again."""

    def __init__(self, cupy: Any) -> None:
        memory = cupy.cuda.alloc_pinned_memory(CHUNK_BYTES)
        self.bytes = np.frombuffer(memory, np.uint8, CHUNK_BYTES)
        self.pointer = self.bytes.ctypes.data
        self.event = cupy.cuda.Event(disable_timing=True)


class Staging:  # on GPUs only
    """The pinned buffers of one device.

    Any number of threads may use this object at the same time. Each copy takes a buffer from a deque and puts it back,
    by `popleft` and `append`, which are atomic.

    Parameters
    ----------
    cupy : module
    """

    def __init__(self, cupy: Any) -> None:
        self._cupy = cupy
        self._free: deque[_Buffer] = deque()  # buffers that no call fills; the device may still read them
        self._pinned_results = 0
        self._lock = make_lock()

    def _acquire(self, min_buffers: int) -> _Buffer:
        """Return a buffer whose last copy has ended, so that it can be filled. May synchronize.

        If the next buffer is still being read, and fewer than `min_buffers` others are kept, allocate one instead of
        waiting.
        """
        try:
            buffer = self._free.popleft()
        except IndexError:
            return _Buffer(self._cupy)
        if not buffer.event.done and len(self._free) < min_buffers:
            self._release(buffer)
            return _Buffer(self._cupy)
        buffer.event.synchronize()  # synchronizes
        return buffer

    def _release(self, buffer: _Buffer) -> None:
        """Keep a buffer for reuse. If enough are kept, wait for its last copy and free it. May synchronize."""
        if len(self._free) < MAX_FREE_BUFFERS:
            self._free.append(buffer)
        else:
            buffer.event.synchronize()  # synchronizes

    def upload(self, host: npt.NDArray[Any]) -> Array:
        """Copy a contiguous host array to a new device array. After the return, `host` may be changed.

        The copy is queued on the caller's current stream. The call waits for earlier chunks if their buffers are needed
        again, but not for the last chunks. May synchronize.
        """
        runtime, stream = self._cupy.cuda.runtime, self._cupy.cuda.get_current_stream()
        result = self._cupy.empty(host.shape, host.dtype)
        source = host.reshape(-1).view(np.uint8)
        for first in range(0, source.size, CHUNK_BYTES):
            part = source[first : first + CHUNK_BYTES]
            buffer = self._acquire(min_buffers=2)
            run_parts(copy_part, part.size // BYTES_PER_COST, buffer.bytes[: part.size], part)
            runtime.memcpyAsync(
                result.data.ptr + first, buffer.pointer, part.size, runtime.memcpyHostToDevice, stream.ptr
            )
            buffer.event.record(stream)
            self._release(buffer)
        return result

    def download(self, array: Array) -> npt.NDArray[Any]:
        """Copy a contiguous device array to a new host array. Synchronizes.

        The host array is in pinned memory if callers then hold at most `MAX_PINNED_RESULTS` bytes of such results and
        the system has pinned memory left. This memory returns to CuPy's pool when the array is freed. Otherwise the
        host array is in ordinary memory.
        """
        memory = self._pinned_memory(array.nbytes)
        if memory is None:
            return self._cupy.asnumpy(array)  # type: ignore[no-any-return]  # synchronizes
        flat: npt.NDArray[Any] = np.frombuffer(memory, array.dtype, array.size)
        weakref.finalize(flat, self._count_freed, array.nbytes).atexit = False
        result = flat.reshape(array.shape)
        array.get(out=result)  # synchronizes
        return result

    def _pinned_memory(self, nbytes: int) -> Any:
        """Return pinned memory for a result; None if callers hold too much or the system has no more."""
        with self._lock:
            if self._pinned_results + nbytes > MAX_PINNED_RESULTS:
                return None
            try:
                memory = self._cupy.cuda.alloc_pinned_memory(max(nbytes, 1))
            except self._cupy.cuda.runtime.CUDARuntimeError:
                return None
            self._pinned_results += nbytes
            return memory

    def _count_freed(self, nbytes: int) -> None:
        with self._lock:
            self._pinned_results -= nbytes


def copy_part(part: int, num_parts: int, target: npt.NDArray[Any], source: npt.NDArray[Any]) -> None:
    """Copy one of `num_parts` equal parts of an array. NumPy releases the GIL during the copy."""
    share = slice(source.size * part // num_parts, source.size * (part + 1) // num_parts)
    target[share] = source[share]
