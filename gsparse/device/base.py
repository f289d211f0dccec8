"""Where arrays live: array module, lanes of a warp, stream, kernels, and copies to and from the host."""

from __future__ import annotations

import os
import platform
import statistics
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import numpy.typing as npt

from gsparse.device.dtypes import Array
from gsparse.errors import DeviceError

__all__ = ["NOTHING", "TIMINGS", "Device", "Wait", "alias_of"]

# Timings of which `Device.seconds_of` takes the median.
TIMINGS = 5

NOTHING = nullcontext()

# Returns once what it is given says that something is done.
Wait = Callable[[Callable[[], bool]], None]


class Device(ABC):
    """What every layer above asks of the place where arrays live.

    Attributes
    ----------
    kind : {"cpu", "gpu"}
    is_host : bool
        Whether this device is the host itself: its arrays are NumPy's, and its work is done when a call returns. On any
        other device copies move data, and calls only queue work.
    name : str
        As `get_device` takes it: "cpu", "gpu:0".
    lanes : int
        Threads of a warp: 32 on NVIDIA, 64 on AMD's CDNA; the rows of a slice of blocked ELLPACK.
    multiprocessors : int
        What blocks of a GPU run on; 1 elsewhere.
    xp : module
        NumPy or CuPy.
    """

    kind: str
    is_host: bool = False
    name: str
    lanes: int
    multiprocessors: int = 1
    xp: Any

    @abstractmethod
    def owns(self, array: object) -> bool:
        """Tell whether `array` is an array of this device."""

    @abstractmethod
    def upload(self, host: npt.NDArray[Any]) -> Array:
        """Give a device array with the contents of a host array; the same memory where the host is the device."""

    @abstractmethod
    def download(self, array: Array) -> npt.NDArray[Any]:
        """Give a new, writable host array with the contents of a device array. Synchronizes."""

    @abstractmethod
    def download_vector(self, array: Array) -> npt.NDArray[Any]:
        """Give a product's result to a caller on the host. Synchronizes."""

    def empty(self, shape: int | tuple[int, ...], dtype: npt.DTypeLike) -> Array:
        """Allocate on this device, which has to be active."""
        return self.xp.empty(shape, dtype)

    def takes(self, x: Any, out: Any, shape: tuple[int, int], dtype: np.dtype[Any]) -> bool:
        """Tell whether a product can be computed as it is, and this device is active.

        That is, `x` and `out` (if it is not None) are contiguous vectors of this device, of the sizes that a matrix of
        this shape takes and gives and of this dtype, and do not overlap.
        """
        if not self._is_vector(x, shape[1], dtype):
            return False
        return out is None or (self._is_vector(out, shape[0], dtype) and not np.may_share_memory(x, out))

    def takes_columns(self, X: Any, num_rows: int, dtype: np.dtype[Any]) -> bool:
        """Tell the same of several columns of so many elements, which lie in any order and are more than one."""
        is_array = type(X) is np.ndarray and X.ndim == 2 and X.dtype == dtype
        return is_array and X.shape[0] == num_rows and X.shape[1] > 1

    @staticmethod
    def _is_vector(array: Any, size: int, dtype: np.dtype[Any]) -> bool:
        return type(array) is np.ndarray and array.shape == (size,) and array.dtype == dtype and array.flags.carray

    def try_empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array | None:
        """Allocate on this device, which is active; None where that fails."""
        return np.empty(shape, dtype)

    def kernel(self, source: str, expression: str) -> Callable[..., None]:
        """Give a compiled GPU kernel; only GPUs have any."""
        raise DeviceError(f"{self.name} has no GPU kernels (asked for {expression} of {source})")

    def active(self) -> AbstractContextManager[Any]:
        """Make this the current device within the block."""
        return NOTHING

    def memory_guard(self) -> AbstractContextManager[Any]:
        """Turn the array module's out-of-memory error into `DeviceMemoryError` and leave its pool usable."""
        return NOTHING

    def synchronize(self) -> None:
        """Wait for the work on the caller's current stream; the host's own work has no queue."""
        return

    def identity(self) -> str:
        """Name the hardware and what drives it, for verdicts that are kept on disk."""
        return f"{platform.machine()} {platform.processor()} {os.cpu_count()}"

    def timed(self, call: Callable[[], None]) -> Callable[[], float | None]:
        """Run a call and give a function that tells the seconds it took; None while they are not known yet."""
        begin = time.perf_counter()
        call()
        seconds = time.perf_counter() - begin
        return lambda: seconds

    def seconds_of(self, call: Callable[[], None]) -> float:
        """Give the time one call keeps the device busy: the median of several. Synchronizes."""
        call()
        return statistics.median(self.timed(call)() or 0.0 for _ in range(TIMINGS))

    def is_capturing(self) -> bool:
        """Tell whether what is launched now goes into a CUDA graph instead of being run."""
        return False

    def stream_key(self) -> Hashable:
        """Tell streams apart: what runs under one key runs one after the other."""
        return threading.get_ident()

    def aside(self) -> AbstractContextManager[Any]:
        """Do what is within the block at once, also while the caller's stream is being captured. Synchronizes."""
        return NOTHING

    def apart(self) -> AbstractContextManager[Any]:
        """Queue what is within the block on a stream of its own, after what the caller's stream has and before more."""
        return NOTHING

    def recorded(self, call: Callable[[], None]) -> Callable[[], None]:
        """Give a function that queues again all that `call` queues: on a GPU a CUDA graph, launched at once.

        Within `apart`; `call` must neither wait nor allocate.
        """
        return call

    def peek(self, array: Array, wait: Wait | None = None) -> Callable[[], npt.NDArray[Any]]:
        """Queue a copy of a small array to the host, and give a function that waits for it and gives the copy.

        Where `wait` is given, it is called to do the waiting, with what tells whether the copy has been made.
        """
        copy = self.download(array)
        return lambda: copy

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}>"


class _Memory:
    """The memory of a host array, for NumPy to make another array of."""

    def __init__(self, owner: npt.NDArray[Any]) -> None:
        self.owner = owner
        self.__array_interface__ = owner.__array_interface__


def alias_of(owner: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Give the memory of a host array under another name.

    The alias and all its views hold one reference to the owner between them, so whoever counts the owner's references
    (`gsparse.matrix.loans`) sees the users', not ours.
    """
    return np.asarray(_Memory(owner))
