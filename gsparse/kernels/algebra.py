"""The contract of the kernels of sparse algebra: products, combinations and pieces of sparse matrices.

Common to all of them
---------------------
- Matrices are `Csr` on the device. "Sorted" says that columns rise within each row, so that none is there twice.
- Values are of a compute dtype (`gsparse.device.dtypes.COMPUTE_DTYPES`). Booleans and integers come as int64; where the
  order of unsigned integers matters, `unsigned` says that the int64 values are the bits of uint64.
- All matrices of a call have one index dtype. Results have it too, or int64 where they have more entries than int32
  can number.
- The same input gives the same bits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from gsparse.device.base import Device
from gsparse.device.dtypes import Array
from gsparse.formats import Csr

# Operations on two values, with the numbers that kernels know them by.
OPERATIONS = {
    name: number for number, name in enumerate(("plus", "minus", "times", "maximum", "minimum", "ne", "lt", "gt"))
}
# Those whose result is boolean.
COMPARISONS = frozenset(("ne", "lt", "gt"))
# Those that take a missing entry for 0, and whose result for two missing ones is 0. The result of "times" has entries
# only where both matrices have one, and NaN where one has an entry that is not finite and the other has none.
UNION = frozenset(("plus", "minus", "maximum", "minimum", "ne", "lt", "gt"))

# What `sum_entries` adds up, with the numbers that kernels know them by.
TERMS = {name: number for number, name in enumerate(("value", "absolute", "square", "nonzero"))}
# What extremes are looked for. NaN wins "maximum" and "minimum", and loses "fmax" and "fmin", as in NumPy.
EXTREMES = {name: number for number, name in enumerate(("maximum", "minimum", "fmax", "fmin"))}
# Tests of a value, with the bits that kernels know them by. "not positive" looks at the real part. NaN passes all but
# "zero".
TESTS = {name: 1 << bit for bit, name in enumerate(("zero", "not zero", "not finite", "not positive"))}


@dataclass(frozen=True, eq=False)
class KnownProduct:
    """A product of two sparse matrices, and what is known about its structure.

    Attributes
    ----------
    result : Csr
        The product, with an entry wherever a product of entries contributes.
    order : object
        Private data of the backend, with which it makes the product faster for other values. None if there is none.
    """

    result: Csr
    order: Any = None


class SparseProductKernels(Protocol):
    """Products of sparse matrices. The functions return new arrays."""

    def spgemm(self, device: Device, a: Csr, b: Csr) -> Csr:
        """Return the matrix product A·B, sorted, without entries whose products add up to 0. Synchronizes.

        B is sorted. Each sum is made in an order that depends on the structures alone.
        """

    def spgemm_known(self, device: Device, a: Csr, b: Csr) -> KnownProduct:
        """Return the matrix product with an entry wherever a product contributes, zeros included. Synchronizes."""

    def spgemm_values(self, device: Device, a: Csr, b: Csr, known: KnownProduct) -> KnownProduct:
        """Return A·B with new values, where `known` is the product of matrices of the same structures.

        The values have the same bits as those of `spgemm_known`. The `order` of the result may hold arrays that this
        call has found, with which the next call is faster. May synchronize.
        """


class SparsePairKernels(Protocol):
    """Two sparse matrices combined entry by entry."""

    def combine_rows(self, device: Device, operation: str, a: Csr, b: Csr, unsigned: bool = False) -> Csr:
        """Return the entries of ``operation(A, B)`` that are not 0; values are bool for comparisons.

        `operation` is one of `UNION`, or "times". A and B are sorted and have one shape; so has the result. If A and B
        have the same structure and no value of the result is 0, the result shares the row pointers and columns of A.
        Synchronizes.
        """


class SparseRowKernels(Protocol):
    """Entries and rows of a sparse matrix, and lists of their numbers. The functions return new arrays."""

    def row_numbers(self, device: Device, indptr: Array, nnz: int) -> Array:
        """Return the row of each of the `nnz` entries, in indptr's dtype."""

    def keep_entries(self, device: Device, csr: Csr, keep: Array) -> Csr:
        """Return the entries where `keep` is true, in their order. Synchronizes.

        `keep` has a bool for each entry. Values may be of any dtype.
        """

    def drop_zeros(self, device: Device, csr: Csr) -> Csr:
        """Return the entries that are not 0, in their order: the matrix itself if none is 0. Synchronizes.

        Subnormal numbers are not 0.
        """

    def map_columns(self, device: Device, csr: Csr, places: Array, num_cols: int) -> Csr:
        """Return a matrix of `num_cols` columns in which column c of `csr` is column ``places[c]``. Synchronizes.

        Entries of columns whose place is -1 are left out. The others keep their order within each row. Values may be of
        any dtype.
        """

    def triangle(self, device: Device, csr: Csr, offset: int, upper: bool) -> Csr:
        """Return the entries on one side of the diagonal `offset`, and on it, in their order. Synchronizes.

        `offset` is column minus row on the diagonal. Entries above it are returned if `upper`, else those below it.
        Values may be of any dtype.
        """

    def numbers_from_start(self, device: Device, numbers: Array, size: int) -> Array | None:
        """Return indices of an axis as int64 from 0 to ``size - 1``; None if one is out of range. Synchronizes.

        Negative ones are counted from the end, as Python does. `numbers` are integers of any dtype.
        """

    def are_in_range(self, device: Device, numbers: Array, size: int) -> bool:
        """Return whether all numbers, integers of any dtype, are from 0 to ``size - 1``. Synchronizes."""

    def count_numbers(self, device: Device, numbers: Array, size: int) -> Array:
        """Return how often each number from 0 to ``size - 1`` occurs, as int64.

        `numbers` are contiguous, of an index dtype and in range.
        """

    def places_of(self, device: Device, numbers: Array, size: int, dtype: Any) -> Array | None:
        """Return, for each number from 0 to ``size - 1``, its place in `numbers`, or -1. Synchronizes.

        Returns None if a number is there more than once. `numbers` are int64 and in range, and `dtype` is an index
        dtype.
        """

    def slice_rows(self, device: Device, csr: Csr, start: int, count: int) -> Csr:
        """Return `count` consecutive rows, from row `start` on. Values may be of any dtype. Synchronizes."""

    def take_rows(self, device: Device, csr: Csr, rows: Array) -> Csr:
        """Return the matrix of the given rows, in the given order. Values may be of any dtype. Synchronizes.

        `rows` are integers from 0 to ``num_rows - 1``, in any order, with repetitions.
        """

    def scale_rows(self, device: Device, csr: Csr, factors: Array) -> Array:
        """Return the value of each entry times the factor of its row; factors and values have one compute dtype."""

    def scale_columns(self, device: Device, csr: Csr, factors: Array) -> Array:
        """Return the value of each entry times the factor of its column."""

    def sum_runs(self, device: Device, data: Array, starts: Array) -> Array:
        """Return the sum of each run of consecutive values.

        Run r begins at ``starts[r]`` and ends where the next one begins, the last one at the end of `data`. No run is
        empty.
        """

    def diagonal_entries(self, device: Device, csr: Csr, offset: int, out: Array | None = None) -> Array:
        """Return the diagonal on which column minus row is `offset`; entries that are there twice are added up.

        `out` is a contiguous array of the result's size and dtype, to which it is written.
        """


class TransposeKernels(Protocol):
    """The transpose, symmetry, and the order of integer keys. The functions return new arrays."""

    def csr_transpose(self, device: Device, csr: Csr) -> Csr:
        """Return the transpose, in which entries of one column keep the order of their rows. May synchronize.

        It is known to be in canonical form if the matrix is.
        """

    def is_symmetric(self, device: Device, csr: Csr, hermitian: bool, tolerance: float = 0.0) -> bool:
        """Return whether a square matrix with rising columns equals its (conjugate) transpose. Synchronizes.

        With a `tolerance` above 0, two values that mirror each other may differ by this fraction of the largest
        magnitude in either of their rows, and entries that are not stored count as 0. The magnitude of a complex number
        is the larger of its parts.
        """

    def stable_order(self, device: Device, keys: Array, bound: int, numbers: Array | None = None) -> Array:
        """Return the numbers of the keys in the order of the keys, in which equal keys stay as they are.

        Parameters
        ----------
        keys : array of int32 or int64
            From 0 to ``bound - 1``.
        numbers : array of integers, optional
            The number of each key; 0, 1, 2, ... by default.
        """

    def order_by_row(self, device: Device, rows: Array, num_rows: int) -> tuple[Array, Array]:
        """Return the numbers of entries in the order of their rows, and row pointers of the dtype of `rows`.

        `rows` (int32 or int64) has the row of each entry. Entries of one row keep their order.
        """


class ReductionKernels(Protocol):
    """One value from each run of consecutive values, for instance from each row, and tests of all values."""

    def sum_entries(self, device: Device, bounds: Array | None, data: Array, terms: str, longest: int) -> Array:
        """Return the sum of the terms of each run of consecutive values; 0 for an empty run.

        Parameters
        ----------
        bounds : array or None
            Run r is ``data[bounds[r]:bounds[r + 1]]``, for instance a row of a matrix. None stands for one run of all
            values, of which there is at least one.
        terms : str
            One of `TERMS`: the values, their absolute values or the squares of those (not for int64), or 1 for each
            value that is not 0.
        longest : int
            Length of the longest run.

        Returns
        -------
        array
            int64 for int64 and for "nonzero". Otherwise float64 or complex128, or what NumPy's sum of these terms is;
            "absolute" and "square" are real. May synchronize.
        """

    def extreme_entries(
        self, device: Device, bounds: Array | None, data: Array, extreme: str, longest: int, full: int = 0,
        unsigned: bool = False,
    ) -> Array:  # fmt: skip
        """Return the extreme of each run of consecutive values, of data's dtype; 0 for an empty run.

        `bounds` and `longest` are as for `sum_entries`, `extreme` is one of `EXTREMES`. In runs of fewer than `full`
        values a 0 takes part. May synchronize.
        """

    def extreme_positions(
        self, device: Device, bounds: Array | None, data: Array, extreme: str, longest: int, unsigned: bool = False
    ) -> Array:
        """Return the position in `data` of the first value that is the extreme of its run (int64); -1 for an empty run.

        The arguments are those of `extreme_entries`. May synchronize.
        """

    def first_where(self, device: Device, values: Array, *tests: str) -> int | None:
        """Return the first position whose value passes one of these `TESTS`, or None. Synchronizes.

        `values` may also be booleans. An array of more dimensions is read row by row.
        """

    def count_where(self, device: Device, values: Array, *tests: str) -> int:
        """Return how many values pass one of these tests; see `first_where`. Synchronizes."""

    def extreme_columns(
        self, device: Device, csr: Csr, positions: Array, extreme: str, unsigned: bool = False
    ) -> Array:
        """Return the column of the extreme of each row (int64), where entries that are not stored are 0.

        `csr` is sorted and `positions` come from `extreme_positions`. As in SciPy, an entry that is NaN yields to an
        entry that is not stored, and a row without entries has its extreme in column 0.
        """


class EditKernels(Protocol):
    """Single entries of a sparse matrix, dense arrays of its shape, and gradients of products with it.

    Rows and columns are arrays of int64, each number in range. `is_sorted` says whether columns rise within each row of
    the matrix. Except where the text says otherwise, values may be of any dtype.
    """

    def find_entries(
        self, device: Device, csr: Csr, rows: Array, columns: Array, is_sorted: bool
    ) -> tuple[Array, int, bool]:
        """Return the position of the entry at each row and column (int64): -1 if there is none, -2 if several.

        Also return how many of these places have none, and whether one has several. There is at least one place.
        Synchronizes.
        """

    def sample_entries(self, device: Device, csr: Csr, rows: Array, columns: Array, is_sorted: bool) -> Array:
        """Return the sum of the entries at each row and column, in an order that depends on their row alone.

        Values are of a compute dtype unless rows are sorted.
        """

    def sample_entry(self, device: Device, csr: Csr, row: int, column: int) -> Any:
        """Return the entry at a row and a column of a sorted matrix as a NumPy scalar; 0 if there is none.

        Synchronizes.
        """

    def put_values(self, device: Device, data: Array, positions: Array, values: Array) -> None:
        """Write each value to its position (int64), in place. Negative positions are left out.

        No position is there twice, unless `values` has one element, which is then written to all positions. Both arrays
        have one dtype.
        """

    def insert_entries(
        self, device: Device, csr: Csr, rows: Array, columns: Array, values: Array, is_sorted: bool
    ) -> Csr:
        """Return the matrix with new entries, which are in the order of their rows.

        There is one value for each new entry, of the dtype of the matrix. If rows are sorted, the new entries of a row
        are sorted too, and are merged with the others. Otherwise they come before the others.
        """

    def add_entries(self, device: Device, csr: Csr, dense: Array) -> None:
        """Add each entry to its place in a dense array, in place.

        The array has the shape and the dtype of the matrix and is in C order. Entries that are there several times are
        added in their order, numbers of an integer dtype wrap, and booleans are true if one of them is.
        """

    def take_elements(self, device: Device, csr: Csr, dense: Array) -> Array:
        """Return the element of a dense array at the place of each entry. The array may have any strides."""

    def dot_rows(self, device: Device, rows: Array, columns: Array, left: Array, right: Array) -> Array:
        """Return the inner product of ``left[rows[e]]`` and the conjugate of ``right[columns[e]]`` for each e.

        `rows` and `columns` are of one index dtype and have equal lengths. Here and in `product_gradients`, dense
        arrays have two dimensions and are contiguous row by row. All values have one floating-point or complex dtype.
        """

    def product_gradients(
        self, device: Device, transposed: Csr, values: Array, gradient: Array, x: Array
    ) -> tuple[Array, Array]:
        """Return the gradients of A·x with respect to x and to the values of A, in one pass over the entries.

        It reads each row of `gradient` once for both of them. On a GPU, a few threads visit a row of the transpose, so
        no row should be much longer than the others.

        Parameters
        ----------
        transposed : Csr
            The transpose of A, with the position of each entry in `values` as its value (of the index dtype).
        values : array, shape (nnz,)
            The values of A.
        gradient : array, shape (num_rows of A, k)
        x : array, shape (num_cols of A, k)

        Returns
        -------
        array, shape (num_cols of A, k)
            Aᴴ·gradient.
        array, shape (nnz,)
            In the order of `values`.
        """
