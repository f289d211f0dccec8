"""Dense blocks of a matrix: their size, where they are stored, and the values at their positions.

These functions are properties and methods of `gsparse.products.structure.Structure`.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from gsparse.device.dtypes import Array
from gsparse.formats import Columns, Csr, Slices, padding_code
from gsparse.formats.bsr import BlockRows, BlockStats, lanes_for_rows
from gsparse.formats.launch import NO_LIMIT
from gsparse.formats.row_stats import MAX_PADDING
from gsparse.kernels.backends import kernels_of
from gsparse.kernels.set_up import Survey
from gsparse.products.sliced_rows import SlicedStructure

# Several lanes share a block row only if slices of parts have at most this number of positions for each block. A matrix
# with long rows would need more. Its long rows are cut into chunks instead.
_MAX_PADDING_OF_PARTS = 2.0
# The dtypes of block columns relative to a base, and the most elements of a block that has such a column. Of larger
# blocks, columns are a small part of what is read, and adding the base takes longer. Times in µs with and without a
# base (H100, `asv_bench/measure_blocks.py --tune`): 6 x 6 in float32 53 and 45, in float64 76 and 76; 3 x 3 in float64
# 49.8 and 50.7.
_NARROW, _NARROW_ELEMENTS = (np.dtype(np.uint16),), 16


class BlockedStructure(SlicedStructure, Protocol):
    """What these functions need to know about the structure of a matrix."""

    known_blocksize: tuple[int, int] | None

    @property
    def known_survey(self) -> Survey | None: ...
    @property
    def natural_slices(self) -> Slices: ...
    @property
    def blocksize(self) -> tuple[int, int]: ...
    @property
    def block_rows(self) -> BlockRows: ...
    def of_parts(self, parts: Csr) -> BlockedStructure: ...


def blocksize(structure: BlockedStructure) -> tuple[int, int]:
    """The largest size (rows, columns) of blocks of which the matrix consists; (1, 1) if it has none. Synchronizes."""
    if not structure.csr.nnz:
        return 1, 1
    if structure.known_blocksize is not None:
        return structure.known_blocksize
    if structure.known_survey is not None and not structure.known_survey.may_consist_of_blocks:
        return 1, 1
    return kernels_of(structure.device).blocks.full_blocks(structure.device, structure.csr)


def block_stats(structure: BlockedStructure) -> BlockStats:
    """Sizes of the block rows. They remain known after these have been freed. Synchronizes."""
    blocks = structure.block_rows
    column_dtype = np.dtype(blocks.columns.codes.dtype)
    return BlockStats(blocks.blocksize, blocks.slices.num_positions, blocks.slices.nbytes, column_dtype)


def block_rows(structure: BlockedStructure) -> BlockRows:
    """The blocks and their positions. Synchronizes."""
    device = structure.device
    if not kernels_of(device).blocks.SLICES_BLOCKS:
        csr = _parts(structure, 1)
        offsets, count = csr.indptr.astype(np.int64), csr.nnz
        slices = Slices(csr.num_rows, 1, 1, offsets, None, None, NO_LIMIT, count, count)
        return BlockRows(structure.blocksize, 1, csr.indptr, slices, Columns(csr.indices.astype(np.int32)))
    lanes = lanes_for_rows(structure.rows)
    if lanes > 1:
        parts = structure.of_parts(_parts(structure, lanes))
        slices = _slices_of_parts(structure, parts, lanes)
        if slices.num_positions <= _MAX_PADDING_OF_PARTS * parts.csr.nnz:
            return _block_rows(structure, parts, slices, lanes)
    rows = structure.of_parts(_parts(structure, 1))
    return _block_rows(structure, rows, rows.slices, 1)


def _block_rows(structure: BlockedStructure, parts: BlockedStructure, slices: Slices, lanes: int) -> BlockRows:
    rows, columns_of_block = structure.blocksize
    dtypes = _NARROW if rows * columns_of_block <= _NARROW_ELEMENTS else ()
    columns = parts.narrowed(_columns_at(parts, slices), dtypes)
    return BlockRows(structure.blocksize, lanes, parts.csr.indptr, slices, columns)


def _slices_of_parts(structure: BlockedStructure, parts: BlockedStructure, lanes: int) -> Slices:
    """Return slices in which the parts of a block row follow one another.

    Block rows are sorted by length if their natural order needs much padding.
    """
    if parts.rows.blocked_stored <= MAX_PADDING * parts.csr.nnz:
        return parts.natural_slices
    device, kernels = structure.device, kernels_of(structure.device)
    rows = structure.of_parts(_parts(structure, 1))
    order, _, _ = kernels.layout.cut_slices(device, rows.csr.indptr, rows.survey, NO_LIMIT, True)  # synchronizes
    assert order is not None
    xp, indptr = device.xp, parts.csr.indptr
    places = order[:, None] * np.int32(lanes) + xp.arange(lanes, dtype=np.int32)
    places[order < 0] = -1
    places = places.reshape(-1)
    lengths = xp.where(places < 0, 0, indptr[places + 1] - indptr[places])
    offsets = xp.zeros(places.size // device.lanes + 1, np.int64)
    offsets[1:] = xp.cumsum(lengths.reshape(-1, device.lanes).max(axis=1).astype(np.int64) * device.lanes)
    positions = int(device.download(offsets[-1:])[0])  # synchronizes
    scope = kernels.layout.SORTING_SCOPE * lanes
    return Slices(parts.csr.num_rows, device.lanes, scope, offsets, places, None, NO_LIMIT, positions, positions)


def plain_block_columns(self: BlockedStructure) -> Array:
    """Return the block columns at the positions of the blocks, not encoded."""
    blocks = self.block_rows
    if blocks.columns.bases is None:
        return blocks.columns.codes
    return _columns_at(self.of_parts(_parts(self, blocks.row_lanes)), blocks.slices)


def lay_out_blocks(self: BlockedStructure, items: Array) -> Array:
    """Arrange items from CSR's order at the positions of the elements of blocks; padding receives zeros."""
    return kernels_of(self.device).blocks.lay_out_blocks(self.device, self.block_rows, items)


def _parts(structure: BlockedStructure, lanes: int) -> Csr:
    """Return CSR arrays whose rows are parts of block rows, and whose entries are blocks."""
    csr, (rows, columns) = structure.csr, structure.blocksize
    indptr, indices = kernels_of(structure.device).blocks.block_parts(structure.device, csr, structure.blocksize, lanes)
    shape = csr.num_rows // rows * lanes, csr.num_cols // columns
    return Csr(shape, indptr, indices, csr.data)


def _columns_at(inner: BlockedStructure, slices: Slices) -> Array:
    columns = inner.lay_out(inner.csr.indices, slices, padding_code(inner.csr.indices.dtype))
    return columns.astype(np.int32, copy=False)
