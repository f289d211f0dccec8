"""Sparse matrix-vector products (contract: `gsparse.kernels.contract`; CUDA sources: `src/spmv_*.cu`)."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property, partial
from itertools import product
from typing import Any, cast

import numpy as np

from gsparse.device.base import Device
from gsparse.device.dtypes import COMPUTE_DTYPES, INDEX_DTYPES, Array
from gsparse.formats import BlockedEllpack, Columns, CsrEntries, Ellpack, LongRows, RowBlocks, RowPattern, Tiles, Values
from gsparse.formats.launch import Launch
from gsparse.kernels.contract import BindProduct, Multiply
from gsparse.kernels.gpu.expressions import NARROW, expression, plain_types
from gsparse.kernels.gpu.launch import check_grid, launch_blocks, launch_threads
from gsparse.kernels.gpu.scratch import Scratch, records

__all__ = [
    "BLOCK_WORK",
    "CHUNK_SIZE",
    "SPMV",
    "TILE_WORK",
    "blocked_ellpack",
    "csr_adaptive",
    "csr_scalar",
    "csr_split",
    "csr_vector",
    "ellpack",
    "instantiations",
    "row_pattern",
]

# Entries plus rows of a row block; a row longer than this stands alone (GS_BLOCK_ROW, spmv_adaptive.cu).
BLOCK_WORK = 1024
# Entries of a chunk of a long row (GS_CHUNK, long_rows.cuh).
CHUNK_SIZE = 256
# csr_split: pairs of the threads of a block, and of the entries and row ends of a thread.
_SPLIT_SHAPES = ((256, 8),)
# Entries plus row ends of a tile.
TILE_WORK = _SPLIT_SHAPES[0][0] * _SPLIT_SHAPES[0][1]
_INT32 = 2**31 - 1
# row_pattern_values gives a thread several rows where these are short (7-point 200^3: 74 us with one row, 58 with two,
# three or six, 63 with four; 27-point 128^3: 42, and 54 with three), and so many that they fill the device all the
# same.
_PATTERN_ROWS = (1, 3)
_SHORT_ROW = 12
_MANY_ROWS = 1_000_000
# Tiles a split row from which on a whole warp adds up its carries.
_LONG_CARRY = 4.0


# Flags as kernels take them.
_FLAGS = (np.int32(0), np.int32(1))


def _nothing(*_: Any) -> None:
    """Do what a launch without blocks would do."""


class _Bound:
    """A kernel with all arguments that stay the same: what is left of a product is one launch.

    Parameters
    ----------
    device : Device
    source, expression : str
        As `Device.kernel` takes them.
    blocks, threads_per_block : int
    args : tuple
        What comes before the vectors.
    """

    def __init__(
        self, device: Device, source: str, expression: str, blocks: int, threads_per_block: int, args: tuple[Any, ...]
    ) -> None:
        check_grid(expression, blocks)
        self._kernel = device.kernel(source, expression) if blocks else _nothing
        self._bind_with_dots = partial(device.kernel, source.replace(".cu", "_dots.cu"), expression)
        self._shape = (blocks,), (threads_per_block,)
        self._args = args

    @cached_property
    def _kernel_with_dots(self) -> Callable[..., None]:
        return self._bind_with_dots() if self.num_dots else _nothing

    def __call__(self, x: Array, y: Array, alpha: Any, beta: Any, conjugate: bool, dots: Array | None = None) -> None:
        kernel = self._kernel if dots is None else self._kernel_with_dots
        flags = _FLAGS[bool(beta != 0)], _FLAGS[bool(conjugate)]  # (whether y is read at all)
        kernel(*self._shape, (*self._args, x, y, alpha, beta, *flags, dots))

    @property
    def num_dots(self) -> int:
        """Partial sums of conj(x)·y that a product of a square matrix leaves in `dots`, where that is given."""
        return self._shape[0][0]


class _BoundWithChunks(_Bound):
    """The same where long rows are kept apart: their scratch is the stream's."""

    def __init__(self, device: Device, long_rows: LongRows, dtype: np.dtype[Any], before: int, *rest: Any) -> None:
        super().__init__(device, *rest)
        self._first = *self._args[:before], np.int32(long_rows.num_chunks), records(device, long_rows)
        self._last = self._args[before:]
        self._scratch = Scratch(device, (long_rows.num_chunks, dtype), (long_rows.num_long, np.dtype(np.uint32)))

    def __call__(self, x: Array, y: Array, alpha: Any, beta: Any, conjugate: bool, dots: Array | None = None) -> None:
        kernel = self._kernel if dots is None else self._kernel_with_dots
        flags = _FLAGS[bool(beta != 0)], _FLAGS[bool(conjugate)]
        args = (*self._first, *self._scratch.get(), *self._last, x, y, alpha, beta, *flags, dots)
        kernel(*self._shape, args)


# The arguments for long rows where there are none.
_NO_CHUNKS = (np.int32(0), None, None, None)


def _bind_rows(
    device: Device,
    source: str,
    expression: str,
    work: tuple[int, Launch],
    parts: tuple[tuple[Any, ...], tuple[Any, ...]],
    long_rows: LongRows | None,
    dtype: np.dtype[Any],
) -> Multiply:
    """Bind a kernel whose arguments for long rows come between two parts of the others."""
    blocks, threads = work[0], work[1].threads_per_block
    first, last = parts
    if long_rows is None:
        return _Bound(device, source, expression, blocks, threads, (*first, *_NO_CHUNKS, *last))
    blocks += -(-long_rows.num_chunks * device.lanes // threads)
    rest = (source, expression, blocks, threads, (*first, *last))
    return _BoundWithChunks(device, long_rows, dtype, len(first), *rest)


def _reader(values: Values, columns: Columns | None = None) -> tuple[Any, ...]:
    """Give the arguments that kernels read entries by (GS_ENTRIES)."""
    read = (values.codes, values.table)
    return read if columns is None else (columns.codes, columns.bases, *read)


def _value_type(values: Values) -> np.dtype[Any] | str:
    return "Same" if values.codes is None else values.codes.dtype


def _blocks(threads: int, launch: Launch) -> int:
    return -(-threads // launch.threads_per_block)


def csr_scalar(device: Device, matrix: CsrEntries, dtype: np.dtype[Any], launch: Launch) -> Multiply:
    """Multiply with one thread a row, and a warp for each chunk of a long row."""
    return _csr(device, matrix, expression("csr_scalar", *_csr_types(matrix, dtype)), dtype, 1, launch)


def csr_vector(device: Device, matrix: CsrEntries, dtype: np.dtype[Any], launch: Launch) -> Multiply:
    """Multiply with `launch.threads_per_row` lanes a row, and a warp for each chunk of a long row."""
    threads = launch.threads_per_row
    return _csr(device, matrix, expression("csr_vector", *_csr_types(matrix, dtype), threads), dtype, threads, launch)


def _csr(
    device: Device, matrix: CsrEntries, name: str, dtype: np.dtype[Any], threads_per_row: int, launch: Launch
) -> Multiply:
    long_rows = matrix.schedule
    assert long_rows is None or isinstance(long_rows, LongRows)
    limit = np.int32(_INT32 if long_rows is None else long_rows.long_length)
    parts = (np.int64(matrix.num_rows), limit, matrix.indptr), _reader(matrix.values, matrix.columns)
    work = _blocks(matrix.num_rows * threads_per_row, launch), launch
    return _bind_rows(device, "spmv_csr.cu", name, work, parts, long_rows, dtype)


def csr_adaptive(device: Device, matrix: CsrEntries, dtype: np.dtype[Any], launch: Launch) -> Multiply:
    """Multiply with a block of threads for each block of rows, and a warp for each chunk of a long row."""
    schedule = matrix.schedule
    assert isinstance(schedule, RowBlocks)
    name = expression("csr_adaptive", *_csr_types(matrix, dtype))
    parts = (schedule.first_rows, matrix.indptr), _reader(matrix.values, matrix.columns)
    work = int(schedule.first_rows.size) - 1, launch
    return _bind_rows(device, "spmv_adaptive.cu", name, work, parts, schedule.long_rows, dtype)


def csr_split(device: Device, matrix: CsrEntries, dtype: np.dtype[Any], launch: Launch) -> Multiply:
    """Multiply with a block of threads for each tile, then add to split rows what tiles left unfinished."""
    tiles, shape, index = matrix.schedule, _SPLIT_SHAPES[0], matrix.indptr.dtype
    assert isinstance(tiles, Tiles)
    name = expression("csr_split", *_csr_types(matrix, dtype), *shape)
    first = (index.type(matrix.nnz), tiles.first_rows, matrix.indptr)
    last = _reader(matrix.values, matrix.columns)
    num_split = int(tiles.split_rows.size)
    lanes = device.lanes if tiles.carry_tiles.size > _LONG_CARRY * num_split else 1
    carry = expression("csr_split_carry", dtype, lanes)
    threads = launch.threads_per_block
    rows = (np.int32(num_split), tiles.split_rows, tiles.first_carry, tiles.carry_tiles)
    kept = Scratch(device, (tiles.num_tiles, dtype))

    def multiply(x: Array, y: Array, alpha: Any, beta: Any, conjugate: bool) -> None:
        (carries,) = kept.get()
        flags = _FLAGS[bool(beta != 0)], _FLAGS[bool(conjugate)]
        args = (*first, carries, *last, x, y, alpha, beta, *flags)
        launch_blocks(device, "spmv_split.cu", name, tiles.num_tiles, shape[0], args)
        launch_threads(device, "spmv_split.cu", carry, num_split * lanes, threads, (*rows, carries, y, alpha))

    product: Any = multiply
    product.num_dots = 0
    return cast(Multiply, product)


def ellpack(device: Device, matrix: Ellpack, dtype: np.dtype[Any], launch: Launch) -> Multiply:
    """Multiply with one thread a row of a column-major, padded matrix."""
    name = expression("ellpack", _value_type(matrix.values), matrix.columns.codes.dtype, dtype)
    sizes = np.int64(matrix.num_rows), np.int32(matrix.width), np.int64(matrix.pitch)
    args = (*sizes, *_reader(matrix.values, matrix.columns))
    blocks = _blocks(matrix.num_rows, launch)
    return _Bound(device, "spmv_ellpack.cu", name, blocks, launch.threads_per_block, args)


def blocked_ellpack(device: Device, matrix: BlockedEllpack, dtype: np.dtype[Any], launch: Launch) -> Multiply:
    """Multiply with one thread a row, a warp a slice, and a warp for each chunk of a long row."""
    slices = matrix.slices
    name = expression("blocked_ellpack", _value_type(matrix.values), matrix.columns.codes.dtype, dtype)
    first = (np.int64(matrix.num_rows), np.int64(slices.num_slices), slices.slice_offsets, slices.rows)
    work = _blocks(slices.num_slices * device.lanes, launch), launch
    parts = first, _reader(matrix.values, matrix.columns)
    return _bind_rows(device, "spmv_ellpack.cu", name, work, parts, slices.long_rows, dtype)


def row_pattern(device: Device, matrix: RowPattern, dtype: np.dtype[Any], launch: Launch) -> Multiply:
    """Multiply with one thread a row, or for each few rows where values are shared and rows are many."""
    rows, num_rows = 1, np.int64(matrix.num_rows)
    args: tuple[Any, ...] = (matrix.codes, matrix.pattern_indptr, matrix.offsets)
    if matrix.values is None or matrix.slices is None:
        few_entries = matrix.nnz <= _SHORT_ROW * matrix.num_rows
        rows = _PATTERN_ROWS[few_entries and matrix.num_rows >= _MANY_ROWS]
        name = expression("row_pattern_values", matrix.codes.dtype, dtype, rows)
        args = (num_rows, np.int32(matrix.common), *args, matrix.pattern_values)
    else:
        name = expression("row_pattern", matrix.codes.dtype, _value_type(matrix.values), dtype)
        args = (num_rows, *args, matrix.slices.slice_offsets, *_reader(matrix.values))
    blocks = _blocks(-(-matrix.num_rows // rows), launch)
    return _Bound(device, "spmv_pattern.cu", name, blocks, launch.threads_per_block, args)


def _csr_types(matrix: CsrEntries, dtype: np.dtype[Any]) -> tuple[Any, ...]:
    return _value_type(matrix.values), matrix.columns.codes.dtype, dtype, matrix.indptr.dtype


# The kernels by the names of the formats.
SPMV: dict[str, BindProduct] = {
    "csr_scalar": csr_scalar,
    "csr_vector": csr_vector,
    "csr_adaptive": csr_adaptive,
    "csr_split": csr_split,
    "ellpack": ellpack,
    "blocked_ellpack": blocked_ellpack,
    "row_pattern": row_pattern,
}

# Files whose kernels exist a second time, with partial sums of conj(x)·y.
_WITH_DOTS = tuple(f"spmv_{name}.cu" for name in ("csr", "adaptive", "ellpack", "pattern"))


def instantiations(lanes: int) -> list[tuple[str, str]]:
    """List (source file, name expression) of the kernels above, for a warp of `lanes` lanes."""
    coded: list[tuple[Any, np.dtype[Any]]] = list(product((*NARROW, "Same"), COMPUTE_DTYPES))
    threads_per_row = [2**power for power in range(1, lanes.bit_length())]
    found = []
    for value, compute in plain_types() + coded:
        for column, index in (*((i, i) for i in INDEX_DTYPES), *product(NARROW[1:], INDEX_DTYPES)):
            types = (value, column, compute, index)
            found.append(("spmv_csr.cu", expression("csr_scalar", *types)))
            found += [("spmv_csr.cu", expression("csr_vector", *types, n)) for n in threads_per_row]
            found.append(("spmv_adaptive.cu", expression("csr_adaptive", *types)))
            found += [("spmv_split.cu", expression("csr_split", *types, *shape)) for shape in _SPLIT_SHAPES]
        for column in (*INDEX_DTYPES, *NARROW):
            for name in ("ellpack", "blocked_ellpack"):
                found.append(("spmv_ellpack.cu", expression(name, value, column, compute)))
        found += [("spmv_pattern.cu", expression("row_pattern", code, value, compute)) for code in NARROW]
    for compute in COMPUTE_DTYPES:
        found += [("spmv_split.cu", expression("csr_split_carry", compute, n)) for n in (1, lanes)]
        for code, rows in product(NARROW, _PATTERN_ROWS):
            found.append(("spmv_pattern.cu", expression("row_pattern_values", code, compute, rows)))
    with_dots = [(file.replace(".cu", "_dots.cu"), name) for file, name in found if file in _WITH_DOTS]
    return found + with_dots
