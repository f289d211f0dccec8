"""`WaitingDevice`: an emulated GPU that counts how often the host would wait for it."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt

from gsparse.device.dtypes import Array

from .emulated_device import EmulatedDevice

__all__ = ["WaitingDevice"]

# Functions of arrays that return what they contain to the host, and functions of the array module whose results have a
# size that only the device knows. CuPy waits in all of them, except for `array_equal`, whose result it returns without
# waiting; NumPy's result is a bool of Python's, and our code always reads it.
_READS = ("__bool__", "__int__", "__float__", "__complex__", "__index__", "item", "tolist")
_SIZED = ("nonzero", "flatnonzero", "argwhere", "unique", "array_equal")

# Methods of arrays whose results NumPy returns as scalars, but which stay on a GPU.
_SCALARS = ("argmax", "argmin", "dot", "mean")


class _Waits:
    """How often the host has waited for any `WaitingDevice`."""

    count = 0


class WatchedArray(np.ndarray):
    """A NumPy array in the place of an array of a GPU: it counts how often the host reads what it contains."""

    def __array_wrap__(self, array: Any, context: Any = None, return_scalar: bool = False) -> Any:
        """Return sums and other scalars as arrays, because they stay on a GPU until the host reads them."""
        return np.asarray(array).view(WatchedArray)

    def __getitem__(self, key: Any) -> Any:
        keys = key if isinstance(key, tuple) else (key,)
        _Waits.count += any(getattr(part, "dtype", None) == np.bool_ and np.ndim(part) for part in keys)
        part = super().__getitem__(key)
        return part if isinstance(part, np.ndarray) else np.asarray(part).view(WatchedArray)


def _counted(name: str) -> Callable[..., Any]:
    def read(self: Any, *args: Any) -> Any:
        _Waits.count += 1
        return getattr(self.view(np.ndarray), name)(*args)

    return read


def _kept(name: str) -> Callable[..., Any]:
    return lambda self, *args, **options: _watched(getattr(self.view(np.ndarray), name)(*args, **options))


for _name in _READS:
    setattr(WatchedArray, _name, _counted(_name))
for _name in _SCALARS:
    setattr(WatchedArray, _name, _kept(_name))


class _WatchedModule:
    """NumPy, whose functions return watched arrays. All functions of ``linalg`` wait, as most of CuPy's do."""

    def __init__(self, module: ModuleType, waits: bool = False) -> None:
        self._module, self._waits = module, waits

    def __getattr__(self, name: str) -> Any:
        member = getattr(self._module, name)
        if isinstance(member, ModuleType):
            return _WatchedModule(member, waits=name == "linalg")
        if isinstance(member, type) or not callable(member):
            return member

        def function(*args: Any, **options: Any) -> Any:
            _Waits.count += self._waits or name in _SIZED
            result = member(*args, **options)
            if isinstance(result, tuple):
                return tuple(map(_watched, result))
            return _watched(result)

        return function


def _watched(result: Any) -> Any:
    return np.asarray(result).view(WatchedArray) if isinstance(result, np.ndarray | np.generic) else result


class WaitingDevice(EmulatedDevice):
    """Counts how often the host waits for the device: by calls that wait, and by reading what arrays contain."""

    xp: Any = _WatchedModule(np)

    def waits_of(self, call: Callable[[], object]) -> int:
        """Return how often the host waits in a call."""
        before = _Waits.count
        call()
        return _Waits.count - before

    @staticmethod
    def _is_vector(array: Any, size: int, dtype: np.dtype[Any]) -> bool:
        is_array = isinstance(array, np.ndarray) and array.flags.carray
        return is_array and array.shape == (size,) and array.dtype == dtype

    def synchronize(self) -> None:
        _Waits.count += 1

    def upload(self, host: npt.NDArray[Any]) -> Array:
        return _watched(super().upload(host))

    def empty(self, shape: int | tuple[int, ...], dtype: npt.DTypeLike) -> Array:
        return _watched(super().empty(shape, dtype))

    def download(self, array: Array) -> npt.NDArray[Any]:
        _Waits.count += 1
        return super().download(array)

    def download_vector(self, array: Array) -> npt.NDArray[Any]:
        _Waits.count += 1
        return super().download_vector(array)
