"""The device on which arrays live and kernels run: arrays (`memory`), streams (`streams`), kernels, bandwidth."""

from __future__ import annotations

import os
import platform
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from gsparse.device.dtypes import Array
from gsparse.device.launching import bind_call
from gsparse.device.memory import Memory, copy_part
from gsparse.device.streams import NO_CONTEXT, Streams
from gsparse.device.threads import run_parts
from gsparse.errors import DeviceError
from gsparse.profiling import recording

# Number of integers of `HostCounts`.
_SIZE = 16


class HostCounts(threading.local):
    """Integers (int64) in host memory that kernels of a device can write. Each thread has its own.

    Parameters
    ----------
    allocate : callable
        ``allocate(size, dtype)`` returns an array of the host and one of the device over the same memory.
    synchronize : callable
        Waits for all work on the caller's current stream.

    Attributes
    ----------
    array : array of int64, shape (16,)
        The integers, as an argument of kernels. Read what a kernel wrote before the same thread queues the next kernel
        that writes here.
    flag : array of int64, shape (1,)
        The last integer, which kernels set to 1 to report a condition (`lower_flag`, `read_flag`).
    """

    def __init__(
        self,
        allocate: Callable[[int, np.dtype[np.int64]], tuple[npt.NDArray[np.int64], Array]],
        synchronize: Callable[[], None],
    ) -> None:
        self._synchronize = synchronize
        self._values, self.array = allocate(_SIZE, np.dtype(np.int64))
        self.flag = self.array[-1:]
        self._arrays_of: dict[np.dtype[Any], Array] = {}

    def array_of(self, dtype: np.dtype[Any]) -> Array:
        """Return the same memory as an array of another dtype, to which a kernel writes one value."""
        array = self._arrays_of.get(dtype)
        if array is None:
            array = self._arrays_of[dtype] = self.array.view(dtype)
        return array

    def read_value(self, dtype: np.dtype[Any]) -> Any:
        """Return the value that a kernel wrote, after all work on the caller's current stream. Synchronizes."""
        self._synchronize()  # synchronizes
        return self._values[:2].view(dtype)[0]

    def read(self, count: int = 1) -> list[int]:
        """Return the first `count` integers after all work on the caller's current stream. Synchronizes."""
        self._synchronize()  # synchronizes
        values: list[int] = self._values[:count].tolist()
        return values

    def lower_flag(self) -> None:
        """Set the flag to 0. No kernel that writes to it may be queued."""
        self._values[-1] = 0

    def read_flag(self) -> bool:
        """Return whether a kernel has raised the flag, after all work on the caller's current stream. Synchronizes."""
        self._synchronize()  # synchronizes
        return bool(self._values[-1])


# Number of bytes that are copied to measure the bandwidth: more than the last cache of most devices holds.
_COPIED_BYTES = 1 << 27


def measure_copy_bandwidth(device: Any) -> float:
    """Return the bandwidth of a copy too large for caches, in bytes read and written per second. Synchronizes.

    On a CPU, all threads copy.
    """
    with device.active(), device.memory_guard():
        source, target = device.xp.zeros(_COPIED_BYTES, np.uint8), device.xp.ones(_COPIED_BYTES, np.uint8)
        if device.xp is np:
            seconds = device.seconds_of(lambda: run_parts(copy_part, _COPIED_BYTES, target, source))
        else:
            seconds = device.seconds_of(lambda: device.xp.copyto(target, source))
    return 2 * _COPIED_BYTES / float(seconds)


class Device(Memory, Streams):
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
    shared_memory : int
        Bytes of shared memory of a multiprocessor; 0 for a CPU.
    runs_blocks_together : bool
        Whether the device supports launches whose blocks all run at the same time, so that they may wait for each
        other.
    """

    kind: str
    is_host: bool = False
    name: str
    lanes: int
    multiprocessors: int = 1
    shared_memory: int = 0
    runs_blocks_together: bool = False

    @property
    def num_threads(self) -> int:
        """Number of threads of the host that share a product; 1 for a GPU."""
        return 1

    def kernel(self, source: str, expression: str) -> Callable[..., None]:
        """Return a compiled GPU kernel. A device that is no GPU raises DeviceError.

        `source` is the name of a CUDA file, or the text of a source. `expression` is the C++ name of the kernel in it,
        with its template arguments.
        """
        raise DeviceError(f"{self.name} has no GPU kernels: {expression} of {source} needs a GPU")

    def compile_ahead(self, routine: str, dtype: npt.DTypeLike, index_dtype: npt.DTypeLike) -> None:
        """Begin to compile the kernels that a routine will launch, on other threads (`gsparse.device.compilation`).

        Only GPUs do so, for routines whose kernels have been recorded. Further calls with the same arguments do
        nothing.
        """

    def compile_together(self, source: str, expressions: Sequence[str]) -> None:
        """Begin to compile several kernels of one source, on other threads. Only GPUs do so."""

    def bind_kernel(
        self, source: str, expression: str, grid: tuple[int, ...], block: tuple[int, ...], args: Sequence[Any]
    ) -> Callable[..., None]:
        """Compile a GPU kernel, and return a function without parameters that launches it with these arguments.

        The function launches on the stream that is current when it is called. This device must be current then.
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
        shared_bytes: int = 0,
    ) -> Callable[..., None]:
        """Compile a GPU kernel, and return ``launch(x, y, alpha, beta, conjugate)``. All other arguments are fixed.

        Each `gsparse.device.launching.Passed` in `args` is replaced by an argument of the call. `alpha` and `beta` are
        scalars of the compute dtype `dtype`. They and `conjugate` can be left out if the kernel does not take them.
        `shared_bytes` is the size of the kernel's dynamic shared memory.
        """
        return bind_call(self.kernel(source, expression), grid, block, args, shared_bytes)

    def active(self) -> AbstractContextManager[Any]:
        """Make this the current device within the block."""
        return NO_CONTEXT

    def memory_guard(self) -> AbstractContextManager[Any]:
        """Turn CuPy's out-of-memory error into `DeviceMemoryError`, and free the memory that CuPy's pool keeps.

        On a CPU, NumPy's MemoryError is not changed. While a profile is open (`gsparse.profile`), the block is recorded
        under the name of the function that contains it.
        """
        return NO_CONTEXT if recording.recorder is None else recording.block(self, NO_CONTEXT)

    @cached_property
    def copy_bandwidth(self) -> float:
        """Bytes that a large copy reads and writes per second, measured at the first use. Synchronizes."""
        return measure_copy_bandwidth(self)

    @cached_property
    def counts(self) -> HostCounts:
        """Integers in host memory to which kernels write."""
        return HostCounts(self.host_array, self.synchronize)

    def identity(self) -> str:
        """Return the names of the hardware and its driver, which are part of the key of stored times."""
        return f"{platform.machine()} {platform.processor()} {os.cpu_count()}"

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}>"
