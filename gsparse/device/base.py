"""The device on which arrays live and kernels run: arrays (`memory`), streams (`streams`), and kernels."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import cached_property
from typing import Any

import numpy.typing as npt

from gsparse.device.bandwidth import measure_copy_bandwidth
from gsparse.device.host_counts import HostCounts
from gsparse.device.launching import bind_call
from gsparse.device.memory import Memory
from gsparse.device.streams import NO_CONTEXT, Streams
from gsparse.errors import DeviceError
from gsparse.profiling import recording


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
        Whether a GPU can promise that all blocks of a launch run at the same time, so that they may wait for each
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
        """Begin to compile the kernels that a routine will launch, on other threads (`gsparse.device.ahead`).

        Only GPUs do so, and only where it is known which kernels these are. Further calls with the same arguments do
        nothing.
        """

    def compile_together(self, source: str, expressions: Sequence[str]) -> None:
        """Begin to compile several kernels of a source, on other threads. Only GPUs do so."""

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
        shared_bytes: int = 0,
    ) -> Callable[..., None]:
        """Compile a GPU kernel, and return ``launch(x, y, alpha, beta, conjugate)``, as `bind_kernel` does.

        Each `gsparse.device.launching.Passed` in `args` stands for the argument that the call passes. `alpha` and
        `beta` are scalars of the compute dtype `dtype`. They and `conjugate` can be left out if the kernel does not
        take them. `shared_bytes` is the size of the array of shared memory that the kernel leaves to the launch.
        """
        return bind_call(self.kernel(source, expression), grid, block, args, shared_bytes)

    def active(self) -> AbstractContextManager[Any]:
        """Make this the current device within the block."""
        return NO_CONTEXT

    def memory_guard(self) -> AbstractContextManager[Any]:
        """Turn CuPy's out-of-memory error into `DeviceMemoryError`, and free what its pool keeps.

        On a CPU, NumPy's MemoryError is not changed.
        While a profile is open (`gsparse.profile`), the block is recorded under the name of the function around it.
        """
        return NO_CONTEXT if recording.recorder is None else recording.block(self, NO_CONTEXT)

    @cached_property
    def copy_bandwidth(self) -> float:
        """Bytes that a large copy reads and writes in a second, measured when it is first asked for. Synchronizes."""
        return measure_copy_bandwidth(self)

    @cached_property
    def counts(self) -> HostCounts:
        """Integers that kernels write for the host to read."""
        return HostCounts(self.host_array, self.synchronize)

    def identity(self) -> str:
        """Return the names of the hardware and its driver, as a part of the key of times that are stored on disk."""
        return f"{platform.machine()} {platform.processor()} {os.cpu_count()}"

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}>"
