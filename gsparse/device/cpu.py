"""The host as a device: NumPy arrays, and multithreaded kernels that numba compiles."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from gsparse.device.base import Device
from gsparse.device.dtypes import Array, in_native_order
from gsparse.device.memory import Memory
from gsparse.device.threads import available_cpus, get_num_threads, map_elements

# Number of rows in a slice of blocked ELLPACK on the CPU, such that the sums of a slice stay in registers and in the
# cache. 32 is 10 % faster than 8 on 7-point problems.
CPU_LANES = 32


class NumpyArrays(Memory):
    """The methods of a device whose arrays are NumPy arrays."""

    xp = np

    def owns(self, array: object) -> bool:
        return isinstance(array, np.ndarray)

    def download(self, array: Array) -> npt.NDArray[Any]:
        return np.array(array)

    def can_read_vectors(self, x: Any, out: Any, shape: tuple[int, int], dtype: np.dtype[Any]) -> bool:
        if not self._is_vector(x, shape[1], dtype):
            return False
        return out is None or (self._is_vector(out, shape[0], dtype) and not np.may_share_memory(x, out))

    def can_read_columns(self, X: Any, num_rows: int, dtype: np.dtype[Any]) -> bool:
        is_array = type(X) is np.ndarray and X.ndim == 2 and X.dtype == dtype
        return is_array and X.shape[0] == num_rows and X.shape[1] > 0

    @staticmethod
    def _is_vector(array: Any, size: int, dtype: np.dtype[Any]) -> bool:
        return type(array) is np.ndarray and array.shape == (size,) and array.dtype == dtype and array.flags.carray

    def try_empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array | None:
        return np.empty(shape, dtype)


class CpuDevice(NumpyArrays, Device):
    """The host's CPU."""

    kind = "cpu"
    is_host = True
    name = "cpu"
    lanes = CPU_LANES

    @property
    def num_threads(self) -> int:
        return min(get_num_threads(), available_cpus())

    def upload(self, host: npt.NDArray[Any]) -> Array:
        return np.ascontiguousarray(in_native_order(host))

    def download_vector(self, array: Array) -> npt.NDArray[Any]:
        return np.asarray(array)

    def map_values(self, function: Callable[[Array], Array], values: Array) -> Array:
        return map_elements(function, values)

    def __reduce__(self) -> tuple[Callable[[], Device], tuple[()]]:
        return cpu_device, ()


@cache
def cpu_device() -> CpuDevice:
    """Return the only instance of `CpuDevice`."""
    return CpuDevice()
