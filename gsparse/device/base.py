"""The device on which arrays live: array module, lanes of a warp, streams, kernels, and copies to and from the host."""

from __future__ import annotations

import os
import platform
import statistics
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cache, cached_property, partial
from typing import Any

import numpy as np
import numpy.typing as npt

from gsparse.device.dtypes import Array
from gsparse.device.host_counts import HostCounts
from gsparse.device.launching import bind_call
from gsparse.errors import DeviceError

__all__ = ["NO_CONTEXT", "NUM_TIMINGS", "Device", "Wait", "alias_of"]

# Number of timings that `Device.timings_of` returns.
NUM_TIMINGS = 5

# A context manager that does nothing.
NO_CONTEXT = nullcontext()

# A function that calls its argument until that returns True, and then returns.
Wait = Callable[[Callable[[], bool]], None]


class Device(ABC):
    """A device on which arrays live and kernels run: the host's CPU, or a GPU.

    Attributes
    ----------
    kind : {"cpu", "gpu"}
    is_host : bool
        Whether this device is the host itself. Its arrays are NumPy arrays, and its work is done when a call returns.
        On any other device, copies move data, and calls only queue work.
    name : str
        The name by which `get_device` finds the device: "cpu", "gpu:0".
    lanes : int
        Number of threads in a warp (32 on NVIDIA, 64 on AMD's CDNA), and of rows in a slice of blocked ELLPACK.
    multiprocessors : int
        Number of multiprocessors of a GPU, which run its blocks; 1 for a CPU.
    xp : module
        NumPy or CuPy.
    """

    kind: str
    is_host: bool = False
    name: str
    lanes: int
    multiprocessors: int = 1
    xp: Any

    @property
    def num_threads(self) -> int:
        """Number of threads of the host that share a product; 1 for a GPU."""
        return 1

    @abstractmethod
    def owns(self, array: object) -> bool:
        """Return whether `array` is an array of this device."""

    @abstractmethod
    def upload(self, host: npt.NDArray[Any]) -> Array:
        """Return a device array with the contents of a host array. If the device is the host, both share memory."""

    @abstractmethod
    def download(self, array: Array) -> npt.NDArray[Any]:
        """Return a new, writable host array with the contents of a device array. Synchronizes."""

    @abstractmethod
    def download_vector(self, array: Array) -> npt.NDArray[Any]:
        """Return the result of a product as a host array for the caller. Synchronizes."""

    def empty(self, shape: int | tuple[int, ...], dtype: npt.DTypeLike) -> Array:
        """Allocate an array on this device, which must be the current device."""
        return self.xp.empty(shape, dtype)

    def no_values(self, dtype: np.dtype[Any]) -> Array:
        """Return an array without elements, the same each time for one dtype."""
        return self._no_values(dtype)

    @cached_property
    def _no_values(self) -> Callable[[np.dtype[Any]], Array]:
        return cache(partial(self.empty, 0))

    def fill_bytes(self, array: Array, byte: int) -> None:
        """Set each byte of a contiguous array."""
        array.view(np.uint8).fill(byte)

    def map_values(self, function: Callable[[Array], Array], values: Array) -> Array:
        """Return ``function(values)`` for a function of `xp` that maps each element of a one-dimensional array."""
        return function(values)

    def can_read_vectors(self, x: Any, out: Any, shape: tuple[int, int], dtype: np.dtype[Any]) -> bool:
        """Return whether a product can be computed without converting `x` or `out`, and this device is current.

        For that, `x` and `out` (if it is not None) have to be contiguous vectors on this device, of this dtype and of
        the sizes that a matrix of this shape requires, and must not overlap.
        """
        if not self._is_vector(x, shape[1], dtype):
            return False
        return out is None or (self._is_vector(out, shape[0], dtype) and not np.may_share_memory(x, out))

    def can_read_columns(self, X: Any, num_rows: int, dtype: np.dtype[Any]) -> bool:
        """Return whether X has columns, of `num_rows` elements, and can be read without conversion.

        X may be row-major, column-major or strided. This device must be current.
        """
        is_array = type(X) is np.ndarray and X.ndim == 2 and X.dtype == dtype
        return is_array and X.shape[0] == num_rows and X.shape[1] > 0

    @staticmethod
    def _is_vector(array: Any, size: int, dtype: np.dtype[Any]) -> bool:
        return type(array) is np.ndarray and array.shape == (size,) and array.dtype == dtype and array.flags.carray

    def try_empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array | None:
        """Allocate an array on this device, which must be the current device. Return None if memory is too small."""
        return np.empty(shape, dtype)

    def kernel(self, source: str, expression: str) -> Callable[..., None]:
        """Return a compiled GPU kernel. A device that is no GPU raises DeviceError."""
        raise DeviceError(f"{self.name} has no GPU kernels: {expression} of {source} needs a GPU")

    def bind_kernel(
        self, source: str, expression: str, grid: tuple[int, ...], block: tuple[int, ...], args: Sequence[Any]
    ) -> Callable[..., None]:
        """Compile a GPU kernel, and return its launch with these arguments.

        The launch runs on the current stream of each call. Like a kernel, it is called while this device is current.
        """
        return bind_call(self.kernel(source, expression), grid, block, args)

    def bind_product(
        self,
        source: str,
        expression: str,
        grid: tuple[int, ...],
        block: tuple[int, ...],
        args: Sequence[Any],
        dtype: npt.DTypeLike = float,
    ) -> Callable[..., None]:
        """Compile a GPU kernel, and return ``launch(x, y, alpha, beta, conjugate)``, as `bind_kernel` does.

        Each `gsparse.device.launching.Slot` in `args` stands for the argument that the call passes. `alpha` and `beta`
        are scalars of the compute dtype `dtype`. They and `conjugate` can be left out if the kernel does not take them.
        """
        return bind_call(self.kernel(source, expression), grid, block, args)

    def active(self) -> AbstractContextManager[Any]:
        """Make this the current device within the block."""
        return NO_CONTEXT

    def memory_guard(self) -> AbstractContextManager[Any]:
        """Turn the array module's out-of-memory error into `DeviceMemoryError` and leave its pool usable."""
        return NO_CONTEXT

    def host_array(self, size: int, dtype: np.dtype[Any]) -> tuple[npt.NDArray[Any], Array]:
        """Allocate an array in host memory that kernels can write. Return it as an array of the host and of the device.

        It is made of zeros.
        """
        array = np.zeros(size, dtype)
        return array, array

    @cached_property
    def counts(self) -> HostCounts:
        """Integers that kernels write for the host to read."""
        return HostCounts(self.host_array, self.synchronize)

    def synchronize(self) -> None:
        """Wait for the work on the caller's current stream. On the host there is nothing to wait for."""
        return

    def identity(self) -> str:
        """Return the names of the hardware and its driver, as a part of the key of times that are stored on disk."""
        return f"{platform.machine()} {platform.processor()} {os.cpu_count()}"

    def timed(self, call: Callable[[], None]) -> Callable[[], float | None]:
        """Make a call, and return a function that returns the seconds it took, or None while they are not known."""
        begin = time.perf_counter()
        call()
        seconds = time.perf_counter() - begin
        return lambda: seconds

    def timings_of(self, call: Callable[[], None]) -> list[float]:
        """Return several timings of how long one call keeps the device busy, in seconds. Synchronizes."""
        call()
        return [self.timed(call)() or 0.0 for _ in range(NUM_TIMINGS)]

    def seconds_of(self, call: Callable[[], None]) -> float:
        """Return the time for which one call keeps the device busy, as the median of several. Synchronizes."""
        return statistics.median(self.timings_of(call))

    def is_capturing(self) -> bool:
        """Return whether the current stream captures launches in a CUDA graph instead of running them."""
        return False

    def stream_key(self) -> Hashable:
        """Return a key of the current stream. Work under the same key runs in the order in which it was launched."""
        return threading.get_ident()

    def outside_capture(self) -> AbstractContextManager[Any]:
        """Run the work of the block at once, even while the caller's stream captures a graph. Synchronizes."""
        return NO_CONTEXT

    def own_stream(self) -> AbstractContextManager[Any]:
        """Queue the work of the block on a new stream, after earlier and before later work of the caller's stream."""
        return NO_CONTEXT

    def capture(self, call: Callable[[], None]) -> Callable[[], None]:
        """Return a function that repeats the launches of `call`; on a GPU, it launches a CUDA graph of them.

        Use it within `own_stream`. `call` must neither wait nor allocate.
        """
        return call

    def read_async(self, array: Array, wait: Wait | None = None) -> Callable[[], npt.NDArray[Any]]:
        """Queue a copy of a small array to the host, and return a function that waits for the copy and returns it.

        The optional `wait` does the waiting. Its argument is a function that returns whether the copy has been made.
        """
        copy = self.download(array)
        return lambda: copy

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}>"


class _Memory:
    """The memory of a host array, from which NumPy makes another array."""

    def __init__(self, owner: npt.NDArray[Any]) -> None:
        self.owner = owner
        self.__array_interface__ = owner.__array_interface__


def alias_of(owner: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return another array over the memory of a host array.

    The alias and all its views together hold one reference to `owner`. So `gsparse.matrix.loans` can count the
    references to `owner` in order to find out whether a user still holds it.
    """
    return np.asarray(_Memory(owner))
