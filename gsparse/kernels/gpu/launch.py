"""Names of kernels, constants of their sources, launches, and scratch memory for each stream."""

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
# These patterns begin with plain characters, because regular expressions then search fast.
_HEADER = re.compile(r'#include "(\w+\.cuh)"')
# The body of an anonymous enumeration, a constant of a 64-bit integer, and a macro that is a number.
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
    """Return a dict from the name of each constant of a source and its headers to the expression that defines it.

    Names that do not begin with GS_ are left out, because they depend on template arguments.
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

# The dtypes of codes. A code is a column relative to a base, a position in a table of values, or a row pattern's
# number.
NARROW = (np.dtype(np.uint8), np.dtype(np.uint16))

# Maps the number of bytes of an item to the dtype that kernels copy in place of its own dtype.
ITEM_TYPES = {np.dtype(name).itemsize: np.dtype(name) for name in ("uint8", "uint16", "int32", "int64", "complex128")}

# The last template argument of a product with a vector: whether it also writes partial sums of conj(x)·y (sums.cuh).
NO_DOTS, BLOCK_DOTS = "NoDots", "BlockDots"

# csr_spmm: the largest number of bytes of neighbouring columns that one access reads.
_PACK_BYTES = 16


@cache
def expression(name: str, *arguments: np.dtype[Any] | int | str) -> str:
    """Return the C++ name expression of a kernel with template arguments.

    Examples
    --------
    >>> expression("csr_vector", np.dtype("float32"), np.dtype("int32"), np.dtype("float64"), np.dtype("int32"), 8)
    'csr_vector<float, int, double, int, 8>'
    """
    return f"{name}<{', '.join(CPP_TYPES[a] if isinstance(a, np.dtype) else str(a) for a in arguments)}>"


@dataclass(frozen=True)
class Source:
    """A file of kernels in `src/`, with the number of threads per block that `launch` uses."""

    file: str
    threads: int

    def variants(self, names: str, *axes: Iterable[Any]) -> list[tuple[str, str]]:
        """List (file, name expression) of each kernel in `names`, with each combination of template arguments.

        Each axis lists the choices of one argument. An element that is a tuple is a choice of several arguments.
        """
        combinations = [
            tuple(chain.from_iterable(part if isinstance(part, tuple) else (part,) for part in parts))
            for parts in product(*axes)
        ]
        return [(self.file, expression(name, *types)) for name in names.split() for types in combinations]

    def launch(self, device: Device, name: str, types: Iterable[Any], threads: int, args: Any) -> None:
        """Launch at least `threads` threads of kernel `name` with template arguments `types` (see `launch_threads`)."""
        launch_threads(device, self.file, expression(name, *types), int(threads), self.threads, args)

    def launch_tiles(self, device: Device, name: str, types: Iterable[Any], positions: int, args: Any) -> None:
        """Launch kernel `name` with one block for each tile of positions (tiles.cuh)."""
        launch_blocks(device, self.file, expression(name, *types), num_tiles(int(positions)), TILE_THREADS, args)


def leaves_dots(expression: str) -> bool:
    """Return whether a kernel is a product that also writes partial sums of conj(x)·y.

    Examples
    --------
    >>> leaves_dots("ellpack<float, int, float, BlockDots>")
    True
    """
    return expression.endswith(f", {BLOCK_DOTS}>")


def plain_types() -> list[tuple[Any, np.dtype[Any]]]:
    """List pairs: a dtype of stored values, and a dtype in which products with these values compute."""
    return [(s, c) for s, c in product(COMPUTE_DTYPES, COMPUTE_DTYPES) if storage_dtype(s, c) == s]


def packs(itemsize: int) -> tuple[int, ...]:
    """Return the numbers of elements of `itemsize` bytes that one access can read, in descending order, without 1.

    Examples
    --------
    >>> [packs(itemsize) for itemsize in (4, 8, 16)]
    [(4, 2), (2,), ()]
    """
    return tuple(n for n in (4, 2) if n * itemsize <= _PACK_BYTES)


def loads_choices(itemsize: int, columns_per_load: int) -> tuple[int, ...]:
    """Return how many accesses a lane may make per entry. Each access reads `columns_per_load` columns.

    Examples
    --------
    >>> loads_choices(8, 2), loads_choices(8, 1)
    ((1, 2), (1, 2, 4))
    """
    return tuple(n for n in (1, 2, 4) if n * columns_per_load * itemsize <= LANE_BYTES)


# Maximum number of blocks along x on both CUDA and HIP.
MAX_GRID = 2**31 - 1


def launch_threads(
    device: Device, source: str, expression: str, threads: int, threads_per_block: int, args: Any, shared_bytes: int = 0
) -> None:
    """Launch a one-dimensional grid of at least `threads` threads on the caller's current stream.

    `shared_bytes` is the size of the kernel's dynamic shared memory (GS_DYN_SHARED).

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
    """Return ``launch(x, y, alpha, beta, conjugate)``. It launches a kernel with a one-dimensional grid.

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
    """Do nothing: the launch of an empty grid."""


def check_grid(expression: str, blocks: int) -> None:
    """Raise an error if a grid would have too many blocks.

    Raises
    ------
    ShapeError
        If there are more than `MAX_GRID` blocks.
    """
    if blocks > MAX_GRID:
        raise ShapeError(f"{expression} needs {blocks} blocks, a grid holds {MAX_GRID}: the matrix is too large")


_Result = TypeVar("_Result")

# Maximum number of blocks along y on both CUDA and HIP.
MAX_GRID_Y = 65_535
# Number of positions of a tile, and number of threads of the block for a tile.
TILE, TILE_THREADS = constant("tiles.cuh", "GS_TILE"), constant("tiles.cuh", "GS_TILE_THREADS")

# For each device, a counter per stream, in which the blocks of a launch count how many of them have finished.
_arrivals: WeakKeyDictionary[Device, Scratch] = WeakKeyDictionary()


class PerStream(Generic[_Result]):
    """The result of `bind` for each stream. `bind` gets arrays that only this stream uses, filled with zeros at first.

    Parameters
    ----------
    device : Device
    bind : callable
        Function that takes the arrays, and returns what `get` returns. It must not refer to the object that owns this
        one, because that would be a reference cycle.
    arrays : tuple of (int, dtype)
        The size and the dtype of each array.
    """

    def __init__(self, device: Device, bind: Callable[..., _Result], *arrays: tuple[int, Any]) -> None:
        self._device, self._bind, self._arrays = device, bind, arrays
        self._of_stream: dict[Any, _Result] = {}

    def get(self) -> _Result:
        """Return the result of `bind` for the caller's current stream. The arrays are allocated on first use."""
        key = self._device.stream_key()
        bound = self._of_stream.get(key)
        if bound is None:
            with self._device.outside_capture():
                arrays = [self._device.xp.zeros(size, dtype) for size, dtype in self._arrays]
            bound = self._of_stream[key] = self._bind(*arrays)
        return bound


class Scratch(PerStream[tuple[Array, ...]]):
    """Arrays for each stream, filled with zeros when they are made.

    Parameters
    ----------
    device : Device
    arrays : tuple of (int, dtype)
        The size and the dtype of each array.
    """

    def __init__(self, device: Device, *arrays: tuple[int, Any]) -> None:
        super().__init__(device, lambda *made: made, *arrays)


def call_for_stream(bound: PerStream[Any]) -> Callable[..., None]:
    """Return a function that calls ``bound.get()(...)``, so that each call uses the caller's current stream."""

    def call(*args: Any) -> None:
        bound.get()(*args)

    return call


def records(device: Device, long_rows: LongRows) -> Array:
    """Return the chunks of long rows as kernels read them: records of 32 bytes (`struct Chunk` in long_rows.cuh)."""
    rows, chunks = long_rows, device.empty((long_rows.num_chunks, 8), np.int32)
    args = (np.int32(rows.num_chunks), rows.rows, rows.begins, rows.ends, rows.first_chunk, rows.chunk_rows, chunks)
    name, threads = expression("list_chunks", rows.rows.dtype), Launch().threads_per_block
    launch_threads(device, "setup_rows.cu", name, rows.num_chunks, threads, args)
    return chunks


def address_of(array: Array) -> int:
    """Return the address of the first element of an array."""
    try:
        pointer: int = array.data.ptr
    except AttributeError:  # a NumPy array, in the emulator
        pointer = array.ctypes.data
    return pointer


def check_columns(columns: int) -> None:
    """Raise ShapeError if there are more right-hand sides than a grid has blocks along y."""
    if columns > MAX_GRID_Y:
        raise ShapeError(f"at most {MAX_GRID_Y} right-hand sides at once, got {columns}: solve for fewer")


def num_tiles(size: int, tile: int = TILE) -> int:
    """Return the number of tiles for `size` positions."""
    return -(-size // tile)


def tally(device: Device, blocks: int, place: int = 0) -> tuple[Array, Any, Array]:
    """Return three arguments for a launch whose blocks count something: the counts, the arrivals, and the total.

    After the launch, element i of the counts is the sum over all blocks before block i. The total is element `place` of
    ``device.counts.read(place + 1)``. If no block is launched, the total is not written.
    """
    arrivals = _arrivals.get(device)
    if arrivals is None:
        arrivals = _arrivals.setdefault(device, Scratch(device, (1, np.dtype(np.uint32))))
    total = device.counts.array
    return (device.empty(blocks, np.int64), *arrivals.get(), total[place:] if place else total)
