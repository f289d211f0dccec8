"""One contract an operation, implemented twice under the same name: `kernels.cpu` and `kernels.gpu`.

Products
--------
``SPMV[format](device, matrix, dtype, launch)`` gives ``multiply(x, y, alpha, beta, conjugate)``, which computes, in
place, row by row,

    y = alpha * A @ x + beta * y          (A conjugated first where `conjugate` is true)

`device`
    The `gsparse.device.Device` all arrays live on, active.
`matrix`
    `CsrEntries` for `csr_scalar` and `csr_vector` (schedule: `LongRows` or None), `csr_adaptive` (`RowBlocks`) and
    `csr_split` (`Tiles`), `Ellpack` for `ellpack`, `BlockedEllpack` for `blocked_ellpack`, `RowPattern` for
    `row_pattern`. Columns and values are encoded as `gsparse.formats.entries` says, in any combination. Plain values
    are of `dtype` or of one that widens to it (float32 read by a float64 or complex128 product, for instance); tables
    are of `dtype`.
`dtype`
    The compute dtype (`gsparse._typing.COMPUTE_DTYPES`).
`launch`
    `Launch`: how many threads a block, and for `csr_vector` how many threads (on the CPU: partial sums) a row.
`x`, `y`
    Contiguous vectors of `num_cols` and `num_rows` elements, of `dtype`; they do not overlap.
`alpha`, `beta`
    NumPy scalars of `dtype`. Where ``beta == 0``, y is never read: NaN there does not survive.

``csr_spmm(device, csr, dtype, choose, survey)`` gives the same for `x` of shape (num_cols, k) and `y` of shape
(num_rows, k), both of any strides, neither copied (but an x whose rows are 2 GiB apart), and a `Csr` with values of
`dtype` or of one of its kind that widens to it, or on a GPU a `RowPattern` that shares values. ``choose(panel)`` gives
the `PanelLaunch` for an x like that `Panel`, `survey` is of this matrix (the CPU has no use for either). Bytes moved:
``csr.nbytes`` once a tile of columns, x and y once; nnz · k elements of x are gathered, most from the cache.

Where ``multiply.num_dots`` is not 0, ``multiply(x, y, alpha, beta, conjugate, dots)`` for a square matrix also leaves
so many partial sums of conj(x)·y in `dots`, in double precision.

Rows are summed in a fixed order, so the same input gives the same bits. Nothing waits for the device, and nothing is
allocated but, once a stream, the scratch of formats that add up parts of rows. Bytes moved: ``matrix.nbytes`` + x once
(more where gathers miss the cache) + y once (twice where beta != 0).

Set-up
------
What `gsparse.build` makes formats of; each gives new arrays, written by kernels on the device. A *run* is
``device.lanes`` consecutive positions, C = ``device.lanes`` the rows of a slice.

``survey(device, indptr, indices, spans)`` → `Survey`: one look at row pointers and columns, whatever they hold.
    `spans`: whether the columns' span within runs is asked for. Synchronizes.
``long_rows(device, indptr, survey, limit, first=None)`` → `LongRows`, end: rows longer than `limit`, at their positions
    in CSR, or to be copied one after the other from position `first` on, each from a whole run on; `end` is where the
    last run ends. `limit` is one that the backend's constants give (with `first`, `LONG_LENGTH`).
``row_blocks(device, indptr, survey)`` → `RowBlocks`, ``tiles(device, indptr, survey)`` → `Tiles`: the work shared out.
``cut_slices(device, indptr, survey, long_length, sort)`` → rows, slice_offsets, number of places: as in `Slices`. Long
    rows have no place; `sort` orders the others within each `SORTING_SCOPE` consecutive rows by falling length (equal
    lengths in order), what has no place as -1 at the end. `rows` is None for all rows in their order.
    Synchronizes where it sorts.
``lay_out(device, indptr, items, slices, padding)`` → the items of CSR's order at the positions of `slices` (a `Slices`,
    long rows included), `padding` elsewhere. Items of any dtype of 1, 2, 4, 8 or 16 bytes.
``lay_out_ellpack(device, indptr, items, width, pitch, padding)`` → the same for `Ellpack`.
``run_span(device, columns, num_cols)`` → int: over all runs of positions, the largest distance between the columns of
    one run (padding, negative, aside). Synchronizes.
``encode_columns(device, columns, dtype)`` → `Columns` with bases, for a span below the dtype's padding code.
``row_keys(device, csr, values)`` → uint64 (num_rows,): a hash of each row's length and offsets (column minus row),
    and where `values` is true of its values' bits too.
``distinct_keys(device, keys, limit)`` → host arrays (keys, places), keys rising: the distinct keys and a place where
    each stands; None where there are more than `limit`, at most 4096. Keys of uint32 or uint64. Synchronizes.
``encode_keys(device, keys, table, dtype)`` → codes: the place of each key in the sorted `table`, which has them all.
``rows_follow(device, csr, codes, representatives, values)`` → host array of int32, the lengths of the representatives;
    None unless each row i has exactly the offsets (and values) of row ``representatives[codes[i]]``. Synchronizes.
``gather_rows(device, csr, representatives, indptr, num_entries, values)`` → int32 offsets of these rows one after the
    other, row r's at ``indptr[r]``, and where `values` is true their values, else None.
``survives_halving(device, data)`` → bool: whether every float64 or complex128 value comes back from half the precision
    with the same bits, however it is cast. Synchronizes.
``is_symmetric(device, csr, hermitian, tolerance)`` → bool: whether a square matrix with strictly rising columns equals
    its transpose, or its conjugate transpose. With a `tolerance` above 0, two values that mirror each other may differ
    by this fraction of the largest magnitude in either of their rows, and what is not stored counts as 0. (The
    magnitude of a complex number is the larger of its parts.) Synchronizes.
``csr_transpose(device, csr)`` → `Csr` of the transpose. Synchronizes.

Triangular factors
------------------
``factorize_ilu0(device, csr, diagonal, levels)`` → in place, for a square matrix whose columns rise within each row:
    incomplete factors on its own pattern, L (without its diagonal of ones) below the diagonal, U from there on.
    `diagonal` has the position of each row's diagonal entry, `levels` are the `Levels` of the entries below it (the CPU
    needs none). Zero pivots leave inf and NaN in the rows that follow.
``triangular_solver(device, csr, levels, columns, upper)`` → ``solve(x, y)``: y = (I + N)⁻¹ x for a strictly triangular
    N in CSR (lower, or upper where `upper` is true), for `columns` vectors, one after the other, apart from each other.
``order_levels(indptr, indices, upper)`` → `Levels` of such an N: on the CPU only, for it goes from row to row.

Halos
-----
``gather(device, x, numbers, out)``: out = x[numbers].
``scatter_add(device, values, numbers, y)``: y[numbers] += values, all numbers distinct. A GPU's takes ``x, dots`` too:
    then it also leaves ``num_scatter_dots(values.size)`` partial sums of conj(x[numbers])·values in `dots`.

Constants of a backend: `SORTING_SCOPE` (rows), `CHUNK_SIZE` (entries of a chunk of a long row), `LONG_LENGTH` (entries
above which a row is better kept apart from slices), `SCALAR_LENGTH` and `VECTOR_LENGTH` (the same for `csr_scalar`,
and for each thread a row of `csr_vector`; `NO_LIMIT` where no row ever is), `BLOCK_WORK` (entries plus rows of a row
block), `TILE_WORK` (entries plus row ends of a tile), `CSR_CODES` (dtypes that columns in CSR order may be
narrowed to), `LOOKS_UP` (whether a value looked up by a byte beats one stored in half the precision).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

__all__ = [
    "DEFAULT_THREADS_PER_BLOCK",
    "FEW_PLACES",
    "LANE_BYTES",
    "NO_LIMIT",
    "THREADS_PER_BLOCK",
    "Launch",
    "Panel",
    "PanelLaunch",
    "Survey",
]

# Launch shapes that may be asked for.
THREADS_PER_BLOCK = (128, 256, 512)
# The default. An H200 runs 128 up to 3 % faster on stencils and 14 % slower on banded matrices, and 512 1 to 3 % slower
# (python -m gsparse bench --threads-per-block 128,256,512); AMD's lab notes advise 256 too.
DEFAULT_THREADS_PER_BLOCK = 256

# Bytes of X that a GPU thread reads for an entry at most, in products with dense columns.
LANE_BYTES = 32

# A chunk of a long row has a whole block where a warp would have no more threads a column than these, else a warp.
FEW_PLACES = 2

# As `long_length`: no row is long.
NO_LIMIT = 2**62


@dataclass(frozen=True)
class Launch:
    """How a kernel is launched.

    Attributes
    ----------
    threads_per_block : {128, 256, 512}
        GPU threads a block; the CPU backend has no use for it.
    threads_per_row : int
        For `csr_vector`: threads (CPU: independent partial sums) that share a row, a power of two from 2 to the
        device's lanes per warp.
    """

    threads_per_block: int = DEFAULT_THREADS_PER_BLOCK
    threads_per_row: int = 1


@dataclass(frozen=True)
class Panel:
    """What a product with k dense columns can make of X's memory.

    Attributes
    ----------
    num_columns : int
        k.
    pack : int
        Elements of a row that one load reads together: 1, or 2 or 4 where they are side by side and aligned.
    by_columns : bool
        Whether neighbours in memory belong to one column (column-major) instead of one row.
    """

    num_columns: int
    pack: int = 1
    by_columns: bool = False


@dataclass(frozen=True)
class PanelLaunch:
    """How a product with k dense columns is shared out on a GPU; lanes are powers of two.

    Attributes
    ----------
    columns_per_load : int
        Neighbouring columns that one access takes: `Panel.pack`.
    loads : {1, 2, 4}
        Accesses of a lane for an entry, `LANE_BYTES` at most.
    column_lanes : int
        Lanes that own neighbouring columns.
    entry_lanes : int
        Lanes that take turns at the entries of a row; times `column_lanes` a warp at most.
    long_length : {16, 32, 64, 128, 256, 512, 1024}
        Longer rows are cut into chunks, which warps or blocks take.
    """

    columns_per_load: int
    loads: int
    column_lanes: int
    entry_lanes: int = 1
    long_length: int = 1024

    @property
    def tile(self) -> int:
        """Columns that a group of lanes owns."""
        return self.column_lanes * self.loads * self.columns_per_load


@dataclass(frozen=True, eq=False)
class Survey:
    """What one look at the row pointers and columns of a matrix tells; 0 where there is nothing to tell of.

    Attributes
    ----------
    min_length, max_length, num_empty, sum_squares : int
        Of the rows' lengths.
    blocked_stored, split_stored : int
        Positions of slices in natural order; the same without rows longer than `LONG_LENGTH`.
    num_long, long_entries : int
        Rows longer than that, and their entries.
    first, last, num_falls : int
        First and last row pointer, and how many are less than the one before.
    min_column, max_column : int
        Of the entries up to the last row pointer, or as many as there are.
    num_unsorted : int
        Entries whose column is not above that of the entry before in the same row.
    run_span : int
        The largest distance between two columns of one run, in CSR's order, where asked for.
    counts : object
        What the backend keeps for itself.
    """

    min_length: int
    max_length: int
    num_empty: int
    sum_squares: int
    blocked_stored: int
    split_stored: int
    num_long: int
    long_entries: int
    first: int
    last: int
    num_falls: int
    min_column: int
    max_column: int
    num_unsorted: int
    run_span: int
    counts: Any = None

    def describes(self, num_cols: int, room: int) -> bool:
        """Tell whether these are the row pointers and columns of a matrix with so many columns and room for entries."""
        columns_fit = not self.last or (self.min_column >= 0 and self.max_column < num_cols)
        return self.first == 0 and not self.num_falls and 0 <= self.last <= room and columns_fit
