"""BSR as a storage format: find the size of a matrix's dense blocks, and store the blocks.

`gsparse.formats.bsr` describes the arrays.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from gsparse.device.dtypes import Array
from gsparse.formats import BlockRows, Bsr, Columns, Csr, Slices, padding_code
from gsparse.formats.bsr import MAX_BLOCK
from gsparse.formats.costs import MICROSECOND, KernelModel
from gsparse.formats.launch import NO_LIMIT, Launch
from gsparse.formats.registry import AnalysisLevel, Storage, StorageFormat, describe_positions
from gsparse.formats.row_stats import MAX_PADDING, NUMBERED_IN_INT32, RowStats
from gsparse.kernels.backends import kernels_of
from gsparse.products.blocked_ellpack import SlicedRows, cut_slices, slice_terms
from gsparse.products.storage import MatrixPreparation
from gsparse.products.structure import Part, SparsityPattern, releasable

# On a GPU, several lanes share a row if a matrix has so few rows that one lane per row would leave threads idle. There
# are at most _DEVICE_THREADS lanes in all and _MAX_ROW_LANES per row, and each lane has at least _ENTRIES_PER_LANE
# entries on average.
_DEVICE_THREADS = 2**18
_ENTRIES_PER_LANE = 6.0
_MAX_ROW_LANES = 8
# Several lanes share a block row only if the number of positions divided by the number of blocks is at most this. In
# matrices with long rows, which would need more positions, long rows are cut into chunks instead.
_MAX_PADDING_OF_PARTS = 2.0
# Block columns are stored in one of the dtypes _NARROW, relative to a base, if a block has at most _NARROW_ELEMENTS
# elements. For larger blocks, adding the base takes longer than reading fewer bytes saves. For 6 x 6 blocks in float32,
# a product takes 53 µs with a base and 45 µs without (H100, `asv_bench/measure_blocks.py --tune`).
_NARROW, _NARROW_ELEMENTS = (np.dtype(np.uint16),), 16


def lanes_for_rows(stats: RowStats) -> int:
    """Return the number of GPU lanes that share a row: more than one only if a matrix has few rows.

    Examples
    --------
    >>> [lanes_for_rows(RowStats(n, n, 30 * n, 30, 30, 30.0, 0.0, 0, 30 * n)) for n in (1000, 40_000, 100_000, 10**6)]
    [4, 4, 2, 1]
    """
    lanes = 1
    while (
        2 * lanes <= _MAX_ROW_LANES
        and 2 * lanes * stats.num_rows <= _DEVICE_THREADS
        and stats.mean_length >= 2 * lanes * _ENTRIES_PER_LANE
    ):
        lanes *= 2
    return lanes


class BlockStats(NamedTuple):
    """Sizes of the arrays of `BlockRows`, which remain known after the arrays have been freed.

    Attributes
    ----------
    blocksize : (int, int)
    num_positions : int
        Number of positions of blocks, padding included.
    nbytes : int
        Bytes of the slices, without block columns and values.
    column_dtype : dtype
        The dtype of the block columns.
    """

    blocksize: tuple[int, int]
    num_positions: int
    nbytes: int
    column_dtype: np.dtype[Any]


class DenseBlocks(Part):
    """The size of the dense blocks of which a matrix consists, and the arrays that say where each block is stored."""

    @cached_property
    def blocksize(self) -> tuple[int, int]:
        """The largest size (rows, columns) of blocks that the matrix consists of; (1, 1) if none. Synchronizes."""
        sparsity = self.sparsity
        if not sparsity.csr.nnz:
            return 1, 1
        if sparsity.known_blocksize is not None:
            return sparsity.known_blocksize
        if sparsity.known_survey is not None and not sparsity.known_survey.may_consist_of_blocks:
            return 1, 1
        return kernels_of(sparsity.device).blocks.full_blocks(sparsity.device, sparsity.csr)

    @cached_property
    def stats(self) -> BlockStats:
        """Sizes of `block_rows`, which remain known after its arrays have been freed. Synchronizes."""
        blocks = self.block_rows
        slices = blocks.slices
        return BlockStats(blocks.blocksize, slices.num_positions, slices.nbytes, blocks.columns.dtype)

    @releasable
    def block_rows(self) -> BlockRows:
        """The blocks and their positions. Synchronizes."""
        if not kernels_of(self.sparsity.device).blocks.SLICES_BLOCKS:
            csr = self._divided(1).csr
            offsets, count = csr.indptr.astype(np.int64), csr.nnz
            slices = Slices(csr.num_rows, 1, 1, offsets, None, None, NO_LIMIT, count, count)
            return BlockRows(self.blocksize, 1, csr.indptr, slices, Columns(csr.indices.astype(np.int32)))
        lanes = lanes_for_rows(self.sparsity.rows)
        if lanes > 1:
            parts = self._divided(lanes)
            slices = self._slices_of_parts(parts, lanes)
            if slices.num_positions <= _MAX_PADDING_OF_PARTS * parts.csr.nnz:
                return self._block_rows(parts, slices, lanes)
        rows = self._divided(1)
        return self._block_rows(rows, SlicedRows(rows).slices, 1)

    def _block_rows(self, parts: SparsityPattern, slices: Slices, lanes: int) -> BlockRows:
        rows, columns_of_block = self.blocksize
        dtypes = _NARROW if rows * columns_of_block <= _NARROW_ELEMENTS else ()
        columns = parts.narrowed(_columns_at(parts, slices), dtypes)
        return BlockRows(self.blocksize, lanes, parts.csr.indptr, slices, columns)

    def _slices_of_parts(self, parts: SparsityPattern, lanes: int) -> Slices:
        """Return slices in which the parts of a block row are consecutive.

        Block rows are sorted by length if their natural order needs much padding.
        """
        if parts.rows.blocked_stored <= MAX_PADDING * parts.csr.nnz:
            return cut_slices(parts)
        device, layout, rows = self.sparsity.device, kernels_of(self.sparsity.device).layout, self._divided(1)
        order, _, _ = layout.cut_slices(device, rows.csr.indptr, rows.survey, NO_LIMIT, True)  # synchronizes
        assert order is not None
        xp, indptr = device.xp, parts.csr.indptr
        places = order[:, None] * np.int32(lanes) + xp.arange(lanes, dtype=np.int32)
        places[order < 0] = -1
        places = places.reshape(-1)
        lengths = xp.where(places < 0, 0, indptr[places + 1] - indptr[places])
        offsets = xp.zeros(places.size // device.lanes + 1, np.int64)
        offsets[1:] = xp.cumsum(lengths.reshape(-1, device.lanes).max(axis=1).astype(np.int64) * device.lanes)
        positions = int(device.download(offsets[-1:])[0])  # synchronizes
        scope = layout.SORTING_SCOPE * lanes
        return Slices(parts.csr.num_rows, device.lanes, scope, offsets, places, None, NO_LIMIT, positions, positions)

    def _divided(self, lanes: int) -> SparsityPattern:
        """Return a pattern whose rows are the parts of block rows (`lanes` for each), and whose entries are blocks."""
        device, csr, (rows, columns) = self.sparsity.device, self.sparsity.csr, self.blocksize
        indptr, indices = kernels_of(device).blocks.block_parts(device, csr, self.blocksize, lanes)
        shape = csr.num_rows // rows * lanes, csr.num_cols // columns
        return SparsityPattern(device, Csr(shape, indptr, indices, csr.data))

    def plain_columns(self) -> Array:
        """Return the block columns in the order of the blocks' positions, not encoded."""
        blocks = self.block_rows
        if blocks.columns.bases is None:
            return blocks.columns.codes
        return _columns_at(self._divided(blocks.row_lanes), blocks.slices)

    def lay_out(self, items: Array) -> Array:
        """Arrange items from CSR's order in the order of the blocks' elements; padding receives zeros."""
        return kernels_of(self.sparsity.device).blocks.lay_out_blocks(self.sparsity.device, self.block_rows, items)


def _columns_at(parts: SparsityPattern, slices: Slices) -> Array:
    columns = parts.lay_out(parts.csr.indices, slices, padding_code(parts.csr.indices.dtype))
    return columns.astype(np.int32, copy=False)


def _describe(matrix: MatrixPreparation, level: AnalysisLevel) -> Storage | None:
    """Describe how BSR would store the matrix, or return None if BSR is not a candidate.

    BSR is a candidate if a block has more than one entry, or if the user wants only this format. For a matrix that is
    not analyzed, it is a candidate only if the block size is known already.
    """
    sparsity, dense = matrix.sparsity, matrix.structure.part(DenseBlocks)
    may_look = level is not AnalysisLevel.NONE or sparsity.known_blocksize is not None
    is_candidate = level is AnalysisLevel.FULL or (may_look and dense.blocksize != (1, 1))
    if not is_candidate:
        return None
    stats = dense.stats
    rows, columns = stats.blocksize
    column_dtype = stats.column_dtype if matrix.encoding.columns else np.dtype(np.int32)
    num_values, lanes = stats.num_positions * rows * columns, sparsity.device.lanes
    storage = describe_positions(column_dtype, matrix.values, num_values, stats.nbytes, lanes, rows * columns)
    return replace(storage, columns=f"{storage.columns} {rows}x{columns}")


def _build(matrix: MatrixPreparation) -> Bsr:
    csr, dense = matrix.sparsity.csr, matrix.structure.part(DenseBlocks)
    blocks = dense.block_rows
    columns = blocks.columns if matrix.encoding.columns else Columns(dense.plain_columns())
    values = matrix.values.rearranged(dense.lay_out)
    return Bsr(csr.shape, csr.nnz, blocks.blocksize, blocks.row_lanes, blocks.slices, columns, values)


def _terms(stats: RowStats, storage: Storage, launch: Launch, long_length: int) -> dict[str, float]:
    """Return the counts of the terms of a product with blocks.

    Rows of more than `long_length` blocks are long. `slice_terms` counts entries, of which a block has up to
    `MAX_BLOCK` in each row.
    """
    return slice_terms(stats, long_length * MAX_BLOCK, lanes_for_rows(stats))


BSR = StorageFormat(
    name="bsr",
    layout="bsr",
    fits=lambda stats: stats.is_numbered_in_int32,
    requirement=NUMBERED_IN_INT32,
    describe=_describe,
    build=_build,
    parts=(DenseBlocks,),
    terms=_terms,
    # The constants of dense blocks on a GPU were fitted on an H100 and an H200 (``asv_bench/fit_costs.py blocks``):
    # 27-point cubes with 2 to 8 unknowns a node, elasticity on tetrahedra and hexahedra, and armadillo13k_elast_P1, 39
    # matrices in float64 and float32. Of 77 choices, 64 are within 5 % of the best format. The set-up is that of
    # matrices of 5 million entries and more (21 to 37 products); those of 300 000 take 100 to 350, because the
    # conversion is a dozen launches. On a CPU, the constants were chosen for the 25 matrices of these kinds with up to
    # 4 million entries: 16 of the choices are within 5 % of the best format.
    costs={
        "gpu": KernelModel(
            fixed=3.9 * MICROSECOND,
            byte=1.14e-13,
            stream=1.25e-13,
            position=1.18e-13,
            row=2.51e-11,
            coded=4.18e-13,
            narrow=5.48e-13,
            table=1.5e-12,
            setup=30.0,
        ),
        "cpu": KernelModel(
            fixed=7 * MICROSECOND, byte=2.2e-11, stream=2.93e-11, position=1e-10, row=9e-09, coded=1e-09, setup=30.0
        ),
    },
)
