"""Kernel launches on a GPU through the driver's own function, with arguments that are packed here.

CuPy makes an object for each argument of each launch, which takes 0.4 µs. Here, the arguments are packed into memory
that is reused (``python asv_bench/measure_calls.py`` prints the difference):

    pointers   | * | * | * | * |         what the driver gets: the address of each argument, in the kernel's order
                 |   |   |   |
    values     | x | y | alpha | n |     the arguments, in any order

The driver knows the size of each argument, and copies all arguments before it returns. During the call the global
interpreter lock (GIL) is released, so another thread may launch the same kernel. Therefore only one launch at a time
uses a block of memory: it takes the block from a list, or allocates one if the list is empty, and puts it back
afterwards. (Both steps are atomic.) Launches whose arguments never change share one block.

`launchKernel` is private to CuPy, and only this file knows it. On HIP it calls hipModuleLaunchKernel with the same
arguments (cupy_backends/hip/cupy_hip.h), as CuPy's own launches do. If CuPy does not have it, CuPy launches the
kernels, which takes longer. CuPy also repeats a launch that the driver has refused: it creates a missing context,
compiles the kernel for another device, or raises its own error.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from ctypes import addressof, c_char
from enum import Enum
from functools import lru_cache, partial
from typing import Any, NamedTuple

import numpy as np


class Passed(Enum):
    """An argument of a kernel that each call of a bound product supplies (`Device.bind_product`).

    `READ_Y` is 1 if beta is not 0, and `CONJUGATE` is 1 if the values are to be conjugated; kernels take both as int32.
    """

    X = 0
    Y = 1
    ALPHA = 2
    BETA = 3
    READ_Y = 4
    CONJUGATE = 5


# The formats of values in memory, in the notation of `struct`: an address, a boolean that kernels take as an int32, and
# NumPy's scalars. `struct` has no complex numbers, which are written as bytes.
_ADDRESS, _FLAG = "P", "?3x"
_FORMATS = {np.dtype(char).type: char for char in "?bBhHiIlLqQefd"} | {np.complex64: "8s", np.complex128: "16s"}

# Bytes of shared memory that a launch of any kernel may use. For more, an attribute of the kernel must be set.
_ALLOWED_SHARED_BYTES = 48 * 1024


def driver_launch(cupy: Any) -> Callable[..., None] | None:
    """Return the driver's launch function as CuPy wraps it, or None if this CuPy has none."""
    launch: Callable[..., None] | None = getattr(getattr(cupy.cuda, "driver", None), "launchKernel", None)
    return launch


class DriverKernel:
    """A compiled kernel, called like a `cupy.RawKernel`: ``kernel(grid, block, args)``.

    Parameters
    ----------
    cupy : module
    kernel : cupy.RawKernel
        A kernel that is compiled for the device, which must be current.
    index : int
        CuPy's number of the device.
    launch : callable
        The result of `driver_launch`.
    """

    def __init__(self, cupy: Any, kernel: Any, index: int, launch: Callable[..., None]) -> None:
        self._kernel, self._launch, self._function = kernel, launch, kernel.kernel.ptr
        self._current_stream = partial(cupy.cuda.get_current_stream, index)
        self._formats = {**_FORMATS, cupy.ndarray: _ADDRESS, type(None): _ADDRESS}
        # The packing of the arguments of calls, and memory for them. The first call chooses the packing: all calls pass
        # the same types.
        self._of_calls: tuple[_Packing, _Pool] | None = None
        self._of_products: _ProductPacking | None = None
        # The errors that are raised if the driver refuses a launch, or if arguments cannot be packed here.
        self._refusals = (cupy.cuda.driver.CUDADriverError, struct.error, AttributeError, KeyError, TypeError)

    def __call__(self, grid: tuple[int, ...], block: tuple[int, ...], args: Sequence[Any], shared_mem: int = 0) -> None:
        """Launch on the caller's current stream. CuPy packs arguments of types other than `_formats` lists."""
        try:
            if self._of_calls is None:
                packing = self._packing_of(args)
                self._of_calls = packing, _Pool(bytes(packing.layout.size), packing.offsets)
            packing, pool = self._of_calls
            memory = pool.take()
            packing.layout.pack_into(memory.values, 0, *packing.values_of(args))
            sizes, stream = _sizes(grid, block), self._current_stream().ptr
            self._launch(self._function, *sizes, shared_mem, stream, memory.pointers, 0)
            pool.free.append(memory)
        except self._refusals:
            self._kernel(grid, block, args, shared_mem=shared_mem)

    def bind(self, grid: tuple[int, ...], block: tuple[int, ...], args: Sequence[Any]) -> Callable[..., None]:
        """Return a function without parameters that launches the kernel with these arguments."""
        through_cupy = bind_call(self._kernel, grid, block, args)
        try:
            packing = self._packing_of(args)
        except KeyError:
            return through_cupy
        # This memory is never written again, so all calls use it.
        memory = _Arguments(packing.layout.pack(*packing.values_of(args)), packing.offsets)
        start, current_stream, refusals = self._start(grid, block), self._current_stream, self._refusals

        def launch() -> None:
            try:
                start(current_stream().ptr, memory.pointers, 0)
            except refusals:
                through_cupy()

        return launch

    def bind_product(
        self,
        grid: tuple[int, ...],
        block: tuple[int, ...],
        args: Sequence[Any],
        dtype: np.dtype[Any],
        shared_bytes: int = 0,
    ) -> Callable[..., None]:
        """Return ``launch(x, y, alpha, beta, conjugate)``; see `Device.bind_product`."""
        through_cupy = bind_call(self._kernel, grid, block, args, shared_bytes)
        try:
            known = self._of_products = self._of_products or self._product_packing_of(args, dtype)
        except KeyError:
            return through_cupy
        packing, is_complex, pack = known.packing, dtype.kind == "c", known.pack
        nothing: Any = b"" if is_complex else 0
        bound = packing.values_of([args[place] for place in known.places])
        pool = _Pool(packing.layout.pack(0, 0, nothing, nothing, 0, 0, *bound), known.offsets)
        free, new_memory = pool.free, pool.new_memory
        start, current_stream, refusals = self._start(grid, block, shared_bytes), self._current_stream, self._refusals

        # Every small product waits for this function, so it makes few calls.
        def launch(x: Any, y: Any, alpha: Any = nothing, beta: Any = nothing, conjugate: bool = False) -> None:
            try:
                memory = free.pop()
            except IndexError:
                memory = new_memory()
            try:
                if is_complex:
                    factors = bytes(alpha), bytes(beta)
                    pack(memory.values, 0, x.data.ptr, y.data.ptr, *factors, beta, conjugate)
                else:
                    pack(memory.values, 0, x.data.ptr, y.data.ptr, alpha, beta, beta, conjugate)
                start(current_stream().ptr, memory.pointers, 0)
            except refusals:
                through_cupy(x, y, alpha, beta, conjugate)
            free.append(memory)

        return launch

    def _product_packing_of(self, args: Sequence[Any], dtype: np.dtype[Any]) -> _ProductPacking:
        """Return how the arguments of a product are packed. Raise KeyError if CuPy has to pack an argument."""
        slots = _ADDRESS, _ADDRESS, *(2 * (_FORMATS[dtype.type],)), _FLAG, _FLAG  # in the order of `Passed`
        places = [place for place, arg in enumerate(args) if not isinstance(arg, Passed)]
        packing = self._packing_of([args[place] for place in places], slots)
        rest = iter(packing.offsets[len(slots) :])
        offsets = [packing.offsets[arg.value] if isinstance(arg, Passed) else next(rest) for arg in args]
        return _ProductPacking(packing, _Packing.of(slots).layout.pack_into, places, offsets)

    def _start(self, grid: tuple[int, ...], block: tuple[int, ...], shared_bytes: int = 0) -> Callable[..., None]:
        return partial(self._launch, self._function, *_sizes(grid, block), shared_bytes)

    def _packing_of(self, args: Sequence[Any], slots: tuple[str, ...] = ()) -> _Packing:
        """Return how arguments are packed behind the values `slots`. Raise KeyError if CuPy has to pack an argument."""
        return _Packing.of(slots, tuple([self._formats[type(arg)] for arg in args]))


def bind_call(
    kernel: Any,
    grid: tuple[int, ...],
    block: tuple[int, ...],
    args: Sequence[Any],
    shared_bytes: int = 0,
) -> Callable[..., None]:
    """Bind arguments to a kernel. Return ``launch(x, y, alpha, beta, conjugate)``; all of these are optional."""
    if shared_bytes > _ALLOWED_SHARED_BYTES:
        kernel.max_dynamic_shared_size_bytes = shared_bytes  # an attribute of CuPy's kernels
    options = {"shared_mem": shared_bytes} if shared_bytes else {}

    def launch(x: Any = None, y: Any = None, alpha: Any = 0, beta: Any = 0, conjugate: bool = False) -> None:
        passed = x, y, alpha, beta, np.int32(bool(beta)), np.int32(bool(conjugate))  # in the order of `Passed`
        bound = tuple(passed[arg.value] if isinstance(arg, Passed) else arg for arg in args)
        kernel(grid, block, bound, **options)

    return launch


class _Packing:
    """The layout of values in memory: one after the other, each at a multiple of 8 bytes.

    Parameters
    ----------
    slots : tuple of str
        The formats of the values that each call of a bound product passes.
    formats : tuple of str
        The formats of the arguments that follow them.

    Attributes
    ----------
    layout : struct.Struct
        The layout of all values.
    offsets : list of int
        The offset of each value, in bytes.
    """

    def __init__(self, slots: tuple[str, ...], formats: tuple[str, ...]) -> None:
        layout, self.offsets = "", []
        for format in (*slots, *formats):
            self.offsets.append(struct.calcsize(layout))
            layout += f"{format}0P"  # "0P" packs nothing, but adds the padding that an address after it needs.
        self.layout = struct.Struct(layout)
        self._addresses = [position for position, format in enumerate(formats) if format == _ADDRESS]
        self._complex_numbers = [position for position, format in enumerate(formats) if format.endswith("s")]

    @staticmethod
    @lru_cache(maxsize=1024)
    def of(slots: tuple[str, ...], formats: tuple[str, ...] = ()) -> _Packing:
        """Return the packing for these formats. It is cached, because making it takes as long as many launches."""
        return _Packing(slots, formats)

    def values_of(self, args: Sequence[Any]) -> list[Any]:
        """Return the values that `layout` packs for the arguments after the slots."""
        values = list(args)
        for position in self._addresses:
            array = values[position]
            values[position] = 0 if array is None else array.data.ptr
        for position in self._complex_numbers:
            values[position] = bytes(values[position])
        return values


class _ProductPacking(NamedTuple):
    """How the arguments of a product's kernel are packed. The first bound product chooses it for all.

    Attributes
    ----------
    packing : _Packing
        The packing of all arguments: the six that each call passes, then the fixed ones.
    pack : callable
        The function that writes the six arguments to memory.
    places : list of int
        The places of the fixed arguments among the kernel's arguments.
    offsets : list of int
        The offset of each argument, in the kernel's order.
    """

    packing: _Packing
    pack: Callable[..., None]
    places: list[int]
    offsets: list[int]


class _Arguments:
    """The memory for the arguments of one launch: the values, then the pointers to them.

    Parameters
    ----------
    contents : bytes
        The initial values.
    offsets : sequence of int
        The offset of each argument's value in bytes, in the kernel's order.

    Attributes
    ----------
    values : bytearray
        The memory: the values, and behind them the pointers.
    pointers : int
        The address of the pointers.
    """

    __slots__ = ("_first_byte", "pointers", "values")

    def __init__(self, contents: bytes, offsets: Sequence[int]) -> None:
        pointers = struct.Struct(f"{len(offsets)}P")
        self.values = bytearray(contents) + bytes(max(pointers.size, 1))
        self._first_byte = c_char.from_buffer(self.values)  # While this object exists, the memory is not moved.
        start = addressof(self._first_byte)
        pointers.pack_into(self.values, len(contents), *[start + offset for offset in offsets])
        self.pointers = start + len(contents)


class _Pool:
    """Blocks of memory for the launches of a kernel. Each launch uses one block.

    Parameters
    ----------
    contents : bytes
    offsets : sequence of int
        As for `_Arguments`.

    Attributes
    ----------
    free : list of _Arguments
        Blocks that no launch uses at the moment.
    new_memory : callable
        ``new_memory()`` allocates memory for one more launch.
    """

    def __init__(self, contents: bytes, offsets: Sequence[int]) -> None:
        self.new_memory = partial(_Arguments, contents, offsets)
        self.free: list[_Arguments] = []

    def take(self) -> _Arguments:
        """Return a block of memory for one launch, which must append it to `free` afterwards."""
        try:
            return self.free.pop()
        except IndexError:
            return self.new_memory()


def _sizes(grid: tuple[int, ...], block: tuple[int, ...]) -> tuple[int, ...]:
    """Return three sizes of a grid and three of a block. Missing sizes are 1."""
    if len(grid) == len(block) == 3:
        return grid + block
    return (*grid, 1, 1)[:3] + (*block, 1, 1)[:3]
