"""Kernels by name, constants of their sources, launches, and scratch memory for each stream of a bound product."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from itertools import chain, product
from typing import Any, Generic, TypeVar
from weakref import WeakKeyDictionary

import numpy as np

from gsparse.device.base import Device
from gsparse.device.compilation import SOURCE_FOLDER
from gsparse.device.dtypes import COMPUTE_DTYPES, Array, storage_dtype
from gsparse.errors import ShapeError
from gsparse.formats import LongRows
from gsparse.formats.launch import LANE_BYTES, Launch

_COMMENT = re.compile(r"//[^\n]*")
# What is looked for begins with plain characters, for which regular expressions search fast.
_HEADER = re.compile(r'#include "(\w+\.cuh)"')
# The body of an enumeration without a name, a constant of a 64-bit integer, and a macro of a number.
_ENUMERATION = re.compile(r"enum \{([^}]*)\}")
_CONSTANT = re.compile(r"\nconst long long (GS_\w+) = ([^;]+);")
_MACRO = re.compile(r"\n#define (GS_\w+) (\d+)(?=\n)")
_LONG_SUFFIX = re.compile(r"(?<=\d)ll\b")
_OPERATORS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.floordiv,
    ast.LShift: operator.lshift,
}


def constant(source: str, name: str) -> int:
    """Return the value of a constant that a source, or a header that it includes, defines.

    Parameters
    ----------
    source : str
        A file of the folder `src`.
    name : str
        The name of an enumerator, of a ``const long long``, or of a macro.

    Raises
    ------
    KeyError
        If no such constant is defined, or if it depends on the number of lanes of a warp (GS_WARP).
    """
    return _value(defined_constants(source), name)


@cache
def defined_constants(source: str) -> dict[str, str]:
    """Return the expressions of all constants of a source and its headers, by name.

    The constants of templates, which depend on a type, have names that do not begin with GS_, and are left out.
    """
    text = (SOURCE_FOLDER / source).read_text("utf-8")
    found: dict[str, str] = {}
    for header in _HEADER.findall(text):
        found.update(defined_constants(header))
    found.update(_CONSTANT.findall(text))
    found.update(_MACRO.findall(text))
    for body in _ENUMERATION.findall(text):
        before = "-1"
        for enumerator in filter(None, map(str.strip, _COMMENT.sub("", body).split(","))):
            name, _, expression = map(str.strip, enumerator.partition("="))
            before = expression or f"{before} + 1"
            found[name] = before
            before = name
    return {name: expression for name, expression in found.items() if name.startswith("GS_")}


def _value(expressions: dict[str, str], name: str) -> int:
    def of(node: ast.expr) -> int:
        match node:
            case ast.Constant(value=int(value)):
                return value
            case ast.Name(id=other):
                return _value(expressions, other)
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return -of(operand)
            case ast.BinOp(left=left, op=sign, right=right):
                return _OPERATORS[type(sign)](of(left), of(right))
        raise KeyError(f"{name} = {expressions[name]}: only sums, products and shifts of integers can be read")

    return of(ast.parse(_LONG_SUFFIX.sub("", expressions[name]), mode="eval").body)


FLOATS = tuple(dtype for dtype in COMPUTE_DTYPES if dtype.kind in "fc")
CPP_TYPES: dict[np.dtype[Any], str] = {
    np.dtype(np.uint8): "unsigned char",
    np.dtype(np.uint16): "unsigned short",
    np.dtype(np.int32): "int",
    np.dtype(np.uint32): "unsigned int",
    np.dtype(np.int64): "long long",
    np.dtype(np.uint64): "unsigned long long",
    np.dtype(np.float32): "float",
    np.dtype(np.float64): "double",
    np.dtype(np.complex64): "Complex<float>",
    np.dtype(np.complex128): "Complex<double>",
}

# The dtypes of codes: columns relative to a base, places in a table of values, numbers of row patterns.
NARROW = (np.dtype(np.uint8), np.dtype(np.uint16))

# The type that items of each size are copied as, by the number of bytes.
ITEM_TYPES = {np.dtype(name).itemsize: np.dtype(name) for name in ("uint8", "uint16", "int32", "int64", "complex128")}

# The last template argument of a product with a vector: whether it also leaves partial sums of conj(x)·y (sums.cuh).
NO_DOTS, BLOCK_DOTS = "NoDots", "BlockDots"

# csr_spmm: bytes of neighbouring columns that one access takes.
_PACK_BYTES = 16


@cache
def expression(name: str, *arguments: np.dtype[Any] | int | str) -> str:
    """Write the C++ name expression of one instantiation.

    Examples
    --------
    >>> expression("csr_vector", np.dtype("float32"), np.dtype("int32"), np.dtype("float64"), np.dtype("int32"), 8)
    'csr_vector<float, int, double, int, 8>'
    """
    return f"{name}<{', '.join(CPP_TYPES[a] if isinstance(a, np.dtype) else str(a) for a in arguments)}>"


@dataclass(frozen=True)
class Source:
    """A file of kernels in `src/`, with the threads of a block of the launches that `launch` makes."""

    file: str
    threads: int

    def variants(self, names: str, *axes: Iterable[Any]) -> list[tuple[str, str]]:
        """List (file, name expression) of these kernels with each combination of template arguments.

        An element of an axis may be a tuple of several arguments.
        """
        combinations = [
            tuple(chain.from_iterable(part if isinstance(part, tuple) else (part,) for part in parts))
            for parts in product(*axes)
        ]
        return [(self.file, expression(name, *types)) for name in names.split() for types in combinations]

    def launch(self, device: Device, name: str, types: Iterable[Any], threads: int, args: Any) -> None:
        """Launch at least `threads` threads of a kernel with these template arguments; see `launch_threads`."""
        launch_threads(device, self.file, expression(name, *types), int(threads), self.threads, args)

    def launch_tiles(self, device: Device, name: str, types: Iterable[Any], positions: int, args: Any) -> None:
        """Launch a block for each tile of positions (tiles.cuh)."""
        launch_blocks(device, self.file, expression(name, *types), num_tiles(int(positions)), TILE_THREADS, args)


def leaves_dots(expression: str) -> bool:
    """Return whether a kernel is a product that leaves partial sums of conj(x)·y.

    Examples
    --------
    >>> leaves_dots("ellpack<float, int, float, BlockDots>")
    True
    """
    return expression.endswith(f", {BLOCK_DOTS}>")


def plain_types() -> list[tuple[Any, np.dtype[Any]]]:
    """List each dtype that values may be stored in with each dtype that products of them compute in."""
    return [(s, c) for s, c in product(COMPUTE_DTYPES, COMPUTE_DTYPES) if storage_dtype(s, c) == s]


def packs(itemsize: int) -> tuple[int, ...]:
    """Return the numbers of elements of this size that one access can take, from the largest on, without 1.

    Examples
    --------
    >>> [packs(itemsize) for itemsize in (4, 8, 16)]
    [(4, 2), (2,), ()]
    """
    return tuple(n for n in (4, 2) if n * itemsize <= _PACK_BYTES)


def loads_choices(itemsize: int, columns_per_load: int) -> tuple[int, ...]:
    """Return the numbers of accesses, of `columns_per_load` columns each, that a lane may make for one entry.

    Examples
    --------
    >>> loads_choices(8, 2), loads_choices(8, 1)
    ((1, 2), (1, 2, 4))
    """
    return tuple(n for n in (1, 2, 4) if n * columns_per_load * itemsize <= LANE_BYTES)


# The largest number of blocks along x that both CUDA and HIP accept.
MAX_GRID = 2**31 - 1


def launch_threads(
    device: Device, source: str, expression: str, threads: int, threads_per_block: int, args: Any, shared_bytes: int = 0
) -> None:
    """Launch a one-dimensional grid of at least `threads` threads on the caller's current stream.

    `shared_bytes` is the size of the array of shared memory that the kernel leaves to the launch (GS_DYN_SHARED).

    Raises
    ------
    ShapeError
        See `check_grid`.
    """
    blocks = -(-threads // threads_per_block)
    launch_blocks(device, source, expression, blocks, threads_per_block, args, shared_bytes)


def launch_blocks(
    device: Device, source: str, expression: str, blocks: int, threads_per_block: int, args: Any, shared_bytes: int = 0
) -> None:
    """Launch a one-dimensional grid of `blocks` blocks on the caller's current stream; see `launch_threads`.

    Raises
    ------
    ShapeError
        See `check_grid`.
    """
    if blocks == 0:
        return
    check_grid(expression, blocks)
    device.kernel(source, expression)((blocks, 1, 1), (threads_per_block, 1, 1), args, shared_mem=shared_bytes)


def bind_product(
    device: Device,
    source: str,
    expression: str,
    blocks: int,
    threads_per_block: int,
    args: Any,
    dtype: Any,
    shared_bytes: int = 0,
) -> Callable[..., None]:
    """Return ``launch(x, y, alpha, beta, conjugate)`` of a one-dimensional grid; see `Device.bind_product`.

    Raises
    ------
    ShapeError
        See `check_grid`.
    """
    if blocks == 0:
        return launch_nothing
    check_grid(expression, blocks)
    return device.bind_product(source, expression, (blocks,), (threads_per_block,), args, dtype, shared_bytes)


def launch_nothing(*_: Any) -> None:
    """Stand in for a launch whose grid is empty."""


def check_grid(expression: str, blocks: int) -> None:
    """Check that the device can number the blocks of a grid.

    Raises
    ------
    ShapeError
        If there are too many blocks.
    """
    if blocks > MAX_GRID:
        raise ShapeError(f"{expression} needs {blocks} blocks, a grid holds {MAX_GRID}: the matrix is too large")


_Result = TypeVar("_Result")

# The largest number of blocks along y that both CUDA and HIP accept.
MAX_GRID_Y = 65_535
# Positions of a tile, and threads of a block that has one.
TILE, TILE_THREADS = constant("tiles.cuh", "GS_TILE"), constant("tiles.cuh", "GS_TILE_THREADS")

# The number of blocks that have arrived, for each stream of each device.
_arrivals: WeakKeyDictionary[Device, Scratch] = WeakKeyDictionary()


class PerStream(Generic[_Result]):
    """Keeps a result of `bind` for each stream, made with arrays that only this stream uses. They are 0 at first.

    Parameters
    ----------
    device : Device
    bind : callable
        Takes the arrays, and returns what `get` is to return. It must not refer to the product, because that would be a
        reference cycle.
    arrays : tuple of (int, dtype)
        The size and the dtype of each array.
    """

    def __init__(self, device: Device, bind: Callable[..., _Result], *arrays: tuple[int, Any]) -> None:
        self._device, self._bind, self._arrays = device, bind, arrays
        self._of_stream: dict[Any, _Result] = {}

    def get(self) -> _Result:
        """Return what is bound for the caller's current stream. The arrays are allocated on first use."""
        key = self._device.stream_key()
        bound = self._of_stream.get(key)
        if bound is None:
            with self._device.outside_capture():
                arrays = [self._device.xp.zeros(size, dtype) for size, dtype in self._arrays]
            bound = self._of_stream[key] = self._bind(*arrays)
        return bound


class Scratch(PerStream[tuple[Array, ...]]):
    """Arrays for each stream, which are 0 at first.

    Parameters
    ----------
    device : Device
    arrays : tuple of (int, dtype)
        The size and the dtype of each array.
    """

    def __init__(self, device: Device, *arrays: tuple[int, Any]) -> None:
        super().__init__(device, lambda *made: made, *arrays)


def call_for_stream(bound: PerStream[Any]) -> Callable[..., None]:
    """Return a function that calls what is bound for the caller's current stream."""

    def call(*args: Any) -> None:
        bound.get()(*args)

    return call


def records(device: Device, long_rows: LongRows) -> Array:
    """Return the chunks of long rows as kernels read them: records of 32 bytes (struct Chunk, long_rows.cuh)."""
    rows, chunks = long_rows, device.empty((long_rows.num_chunks, 8), np.int32)
    args = (np.int32(rows.num_chunks), rows.rows, rows.begins, rows.ends, rows.first_chunk, rows.chunk_rows, chunks)
    name, threads = expression("list_chunks", rows.rows.dtype), Launch().threads_per_block
    launch_threads(device, "setup_rows.cu", name, rows.num_chunks, threads, args)
    return chunks


def address_of(array: Array) -> int:
    """Return where the first element of an array lies."""
    try:
        pointer: int = array.data.ptr
    except AttributeError:  # an array of NumPy, in the emulator
        pointer = array.ctypes.data
    return pointer


def check_columns(columns: int) -> None:
    """Raise ShapeError if there are more right-hand sides than a grid has blocks along y."""
    if columns > MAX_GRID_Y:
        raise ShapeError(f"at most {MAX_GRID_Y} right-hand sides at once, got {columns}: solve for fewer")


def num_tiles(size: int, tile: int = TILE) -> int:
    """Return the number of tiles that hold `size` positions."""
    return -(-size // tile)


def tally(device: Device, blocks: int, place: int = 0) -> tuple[Array, Any, Array]:
    """Return the arguments of a launch whose blocks leave counts: the counts, the arrivals, and the sum.

    After the launch, the counts are those of the blocks before each block, and the sum is element `place` of what
    ``device.counts.read(place + 1)`` returns. A launch without blocks writes no sum.
    """
    arrivals = _arrivals.get(device)
    if arrivals is None:
        arrivals = _arrivals.setdefault(device, Scratch(device, (1, np.dtype(np.uint32))))
    total = device.counts.array
    return (device.empty(blocks, np.int64), *arrivals.get(), total[place:] if place else total)
