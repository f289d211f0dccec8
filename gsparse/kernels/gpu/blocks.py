"""Dense blocks: their size, and where they are stored (contract: `gsparse.kernels.set_up`; `src/setup_blocks.cu`)."""

from __future__ import annotations

from itertools import product

import numpy as np

from gsparse.device.base import Device
from gsparse.device.dtypes import INDEX_DTYPES, Array
from gsparse.formats import BlockRows, Csr
from gsparse.formats.bsr import MAX_BLOCK
from gsparse.kernels.gpu.expressions import ITEM_TYPES, expression
from gsparse.kernels.gpu.launch import launch_blocks, launch_threads
from gsparse.kernels.gpu.scratch import records
from gsparse.kernels.gpu.survey import THREADS

SOURCE = "setup_blocks.cu"
# The largest number of blocks of a launch that examines rows: enough to fill any GPU, and few enough that a matrix
# without blocks is recognized from a few thousand rows.
_MAX_GRID = 1056


def full_blocks(device: Device, csr: Csr) -> tuple[int, int]:
    """Examine all rows, or the first ones if these show that there are no blocks. Synchronizes."""
    contradicted = device.xp.zeros(1, np.uint32)
    blocks = min(-(-csr.num_rows * device.lanes // THREADS), _MAX_GRID)
    args = (np.int64(csr.num_rows), csr.indptr, csr.indices, contradicted)
    launch_blocks(device, SOURCE, expression("full_blocks", csr.indptr.dtype), blocks, THREADS, args)
    bits = int(device.download(contradicted)[0])  # synchronizes
    rows, columns = (_largest(bits >> shift, size) for shift, size in zip((0, 16), csr.shape, strict=True))
    return rows, columns


def _largest(contradicted: int, size: int) -> int:
    """Return the largest number that divides `size` and whose bit is not set."""
    return next(n for n in range(MAX_BLOCK, 0, -1) if size % n == 0 and not contradicted >> n & 1)


def block_parts(device: Device, csr: Csr, blocksize: tuple[int, int], row_lanes: int) -> tuple[Array, Array]:
    """Write the row pointers of the parts of block rows, and the columns of their blocks."""
    rows, columns = blocksize
    num_block_rows = csr.num_rows // rows
    allocate = device.empty if num_block_rows else device.xp.zeros
    indptr = allocate(num_block_rows * row_lanes + 1, csr.indptr.dtype)
    indices = device.empty(csr.nnz // (rows * columns), csr.indices.dtype)
    args = (np.int64(num_block_rows), *map(np.int32, (rows, columns, row_lanes)), csr.indptr, csr.indices)
    name = expression("block_parts", csr.indptr.dtype)
    launch_threads(device, SOURCE, name, num_block_rows * device.lanes, THREADS, (*args, indptr, indices))
    return indptr, indices


def lay_out_blocks(device: Device, blocks: BlockRows, items: Array) -> Array:
    """Copy items, one for each entry of CSR, to the positions of the elements of blocks."""
    (rows, columns), slices, indptr = blocks.blocksize, blocks.slices, blocks.part_indptr
    out = device.empty(slices.num_positions * rows * columns, items.dtype)
    item = ITEM_TYPES[items.dtype.itemsize]
    size = np.int32(rows), np.int32(columns)
    copied = indptr, items.view(item), np.zeros(1, item)[0], out.view(item)
    limits = np.int64(blocks.num_parts), np.int64(slices.num_slices), np.int64(slices.long_length)
    args = (*limits, *size, np.int32(blocks.row_lanes), slices.rows, slices.slice_offsets, *copied)
    threads = slices.num_slices * device.lanes * rows
    launch_threads(device, SOURCE, expression("lay_out_blocks", item, indptr.dtype), threads, THREADS, args)
    if slices.long_rows is not None:
        chunks = np.int32(slices.long_rows.num_chunks), records(device, slices.long_rows)
        name, threads = (
            expression("lay_out_long_blocks", item, indptr.dtype),
            slices.long_rows.num_chunks * device.lanes,
        )
        launch_threads(device, SOURCE, name, threads, THREADS, (*chunks, *size, *copied))
    return out


def instantiations() -> list[tuple[str, str]]:
    """List (source file, name expression) of the kernels above."""
    kernels = [expression(name, index) for name in ("full_blocks", "block_parts") for index in INDEX_DTYPES]
    for item, index in product(ITEM_TYPES.values(), INDEX_DTYPES):
        kernels += [expression(name, item, index) for name in ("lay_out_blocks", "lay_out_long_blocks")]
    return [(SOURCE, kernel) for kernel in kernels]
