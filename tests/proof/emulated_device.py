"""`EmulatedDevice`: a GPU whose arrays are NumPy's and whose kernels are emulated, for all code above `gsparse.device`.

The launch code of `gsparse.kernels.gpu` runs unchanged, but `device.kernel` returns kernels compiled with `emulator.h`.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from functools import cache
from shutil import which
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from gsparse.device.base import Device
from gsparse.device.compilation import runs_together
from gsparse.device.cpu import NumpyArrays
from gsparse.device.dtypes import Array, in_native_order
from gsparse.device.streams import TO_DEVICE, TO_HOST
from gsparse.kernels.gpu import instantiations
from gsparse.kernels.gpu.launch import leaves_dots
from gsparse.profiling.recording import recorded_copy

from .emulator import SANITIZER, SOURCE_FOLDER, EmulatedModule, kept_source

__all__ = ["LANES", "DeviceWithBlocksTogether", "EmulatedDevice", "emulated_module"]

LANES = (32, 64)  # the sizes of NVIDIA's and AMD's warps
OS_THREADS = 2


@cache
def emulated_module(source: str, lanes: int, sanitizer: str = SANITIZER, only: str = "") -> EmulatedModule:
    """Return a module of one source file with all its instantiations in the catalogue, or with one of them.

    Without `only`, the products that also compute partial sums of conj(x)·y are left out, because few of them are used.
    """
    listed = [name for file, name in instantiations(lanes) if file == source]
    names = [name for name in listed if (name == only if only else not leaves_dots(name))]
    return EmulatedModule(SOURCE_FOLDER / source, names, lanes, sanitizer, os_threads=OS_THREADS)


# The head of a kernel in a generated source (gsparse.kernels.gpu.steps).
_GENERATED = re.compile(r"GS_KERNEL_OF\(\w+\) (?P<name>\w+)\(")


@cache
def generated_module(text: str, dtype: str, lanes: int, only: str = "") -> EmulatedModule:
    """Return the module with the kernels of a generated source for vectors of one type, or with `only` one of them."""
    names = [f"{kernel['name']}<{dtype}>" for kernel in _GENERATED.finditer(text)]
    path, os_threads = kept_source(text), 0 if runs_together(text) else OS_THREADS
    return EmulatedModule(path, [only] if only else names, lanes, SANITIZER, os_threads=os_threads)


class EmulatedDevice(NumpyArrays, Device):
    """A GPU that is emulated on the CPU.

    Parameters
    ----------
    lanes : {32, 64}
        Number of lanes of a warp.
    seed : int
        The order in which the threads of a block run, as in `EmulatedModule`.
    """

    kind = "gpu"
    multiprocessors = 1
    shared_memory = 8192

    def __init__(self, lanes: int = 32, seed: int = 0) -> None:
        if not sys.platform.startswith("linux"):
            pytest.skip("the emulator of GPU kernels runs on Linux")
        compiler = os.environ.get("CXX", "g++")
        if not which(compiler):
            pytest.skip(f"the emulator of GPU kernels needs a C++ compiler, and {compiler} is not installed")
        self.lanes = lanes
        self.seed = seed
        self.name = f"emulated:{lanes}"
        self.description = f"emulated GPU, {lanes} lanes a warp"

    @recorded_copy(TO_DEVICE)
    def upload(self, host: npt.NDArray[Any]) -> Array:
        return np.array(in_native_order(host), order="C")

    @recorded_copy(TO_HOST)
    def download(self, array: Array) -> npt.NDArray[Any]:
        return super().download(array)

    @recorded_copy(TO_HOST)
    def download_vector(self, array: Array) -> npt.NDArray[Any]:
        return np.array(array)

    def empty(self, shape: int | tuple[int, ...], dtype: npt.DTypeLike) -> Array:
        """Allocate an array that is full of NaN or -1, so that tests notice elements that no kernel writes."""
        made = np.empty(shape, dtype)
        made.reshape(-1).view(np.uint8).fill(0xFF)
        return made

    def try_empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array | None:
        return self.empty(shape, dtype)

    def kernel(self, source: str, expression: str) -> Callable[..., None]:
        # With a sanitizer, compiling a whole file of products takes minutes, so only the kernel in use is compiled.
        is_alone = leaves_dots(expression) or runs_together(source) or (SANITIZER and not source.startswith("setup_"))
        only = expression if is_alone else ""
        if source.endswith(".cu"):
            module = emulated_module(source, self.lanes, only=only)
        else:
            dtype = expression.partition("<")[2].removesuffix(">").partition(", ")[0]
            module = generated_module(source, dtype, self.lanes, only)
        function = module.get_function(expression)

        def launch(grid: tuple[int, ...], block: tuple[int, ...], args: tuple[Any, ...], shared_mem: int = 0) -> None:
            function(grid, block, args, shared_mem, seed=self.seed)

        return launch

    def __reduce__(self) -> tuple[Callable[..., Device], tuple[Any, ...]]:
        return EmulatedDevice, (self.lanes, self.seed)


class DeviceWithBlocksTogether(EmulatedDevice):
    """An emulated GPU with two multiprocessors, both of which run a block at the same time."""

    multiprocessors = 2
    shared_memory = 48 << 10
    runs_blocks_together = True
