"""A few integers in host memory that kernels write and the host reads: the sizes of results that are being made.

To read a number from the memory of a GPU, a copy would have to be queued after the kernel, which takes longer than many
a kernel. So kernels write such numbers to pinned memory of the host.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from gsparse.device.dtypes import Array

# Number of integers.
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
        The integers as an argument of kernels. What a kernel wrote must be read before the same thread queues the next
        kernel that writes here.
    flag : array of int64, shape (1,)
        The last one of them, to which kernels write 1 if something is the case (`lower_flag`, `read_flag`).
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
        """Return the memory of the integers as an array of another dtype, to which a kernel writes one value."""
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
