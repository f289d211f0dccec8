"""The contract of the kernels of sparse algebra: products, combinations and pieces of sparse matrices.

Common to all of these kernels
------------------------------
- Matrices are `Csr` on the device. "Sorted" means that the columns of each row increase, without repetition.
- Values are of a compute dtype (`gsparse.device.dtypes.COMPUTE_DTYPES`). Booleans and integers are passed as int64. If
  `unsigned`, the int64 values are the bits of uint64, which matters where values are ordered.
- All matrices of a call have one index dtype. Results have this dtype too, or int64 if they have too many entries for
  int32.
- The same input gives the same bits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from gsparse.device.base import Device
from gsparse.device.dtypes import Array
from gsparse.formats import Csr

# Operations on two values, with their numbers in kernels.
OPERATIONS = {
    name: number for number, name in enumerate(("plus", "minus", "times", "maximum", "minimum", "ne", "lt", "gt"))
}
# Operations with a boolean result.
COMPARISONS = frozenset(("ne", "lt", "gt"))
# Operations that treat a missing entry as 0, and whose result for two missing entries is 0. "times" is not one of them:
# its result has an entry where both matrices have one, and NaN where one matrix has an entry that is not finite and the
# other matrix has none.
UNION = frozenset(("plus", "minus", "maximum", "minimum", "ne", "lt", "gt"))

# What sums of entries can add up for each entry, with their numbers in kernels: the value, its magnitude, the square of
# the magnitude, or 1 if the value is not 0.
TERMS = {name: number for number, name in enumerate(("value", "absolute", "square", "nonzero"))}
# The extremes that kernels can find, with their numbers in kernels. As in NumPy, the result of "maximum" and "minimum"
# is NaN if a value is NaN, while "fmax" and "fmin" ignore NaN.
EXTREMES = {name: number for number, name in enumerate(("maximum", "minimum", "fmax", "fmin"))}
# Tests of a value, with their bits in kernels. "not positive" tests the real part. NaN passes all tests but "zero".
TESTS = {name: 1 << bit for bit, name in enumerate(("zero", "not zero", "not finite", "not positive"))}


@dataclass(frozen=True, eq=False)
class KnownProduct:
    """A product of two sparse matrices, with data that make computing it for other values faster.

    Attributes
    ----------
    result : Csr
        The product, with an entry for each element to which a product of entries contributes, even if the sum is 0.
    order : object
        Private data of the backend for computing the product with other values; None if the backend has no such data.
    """

    result: Csr
    order: Any = None


class SparseProductKernels(Protocol):
    """Products of sparse matrices. The functions return new arrays."""

    def spgemm(self, device: Device, a: Csr, b: Csr) -> Csr:
        """Return the matrix product A·B, sorted, without entries that are 0. Synchronizes.

        B is sorted. The order of summation depends only on the structures.
        """

    def spgemm_known(self, device: Device, a: Csr, b: Csr) -> KnownProduct:
        """Return A·B with all entries of its structure, as `KnownProduct.result` describes. Synchronizes."""

    def spgemm_values(self, device: Device, a: Csr, b: Csr, known: KnownProduct) -> KnownProduct:
        """Return A·B, where `known` is a product of matrices with the same structures. May synchronize.

        The values have the same bits as those of `spgemm_known`. Pass the result as `known` to the next call, which may
        then be faster.
        """


class SparsePairKernels(Protocol):
    """Operations on two sparse matrices, entry by entry."""

    def combine_rows(self, device: Device, operation: str, a: Csr, b: Csr, unsigned: bool = False) -> Csr:
        """Return the entries of ``operation(A, B)`` that are not 0, sorted; values are bool for comparisons.

        `operation` is one of `UNION`, or "times". A and B are sorted and have the same shape. If A and B also have the
        same structure and no value of the result is 0, the result shares the row pointers and columns of A.
        Synchronizes.
        """


class SparseRowKernels(Protocol):
    """Entries and rows of a sparse matrix, and operations on arrays of indices. The functions return new arrays."""

    def row_numbers(self, device: Device, indptr: Array, nnz: int) -> Array:
        """Return the row number of each of the `nnz` entries, in the dtype of `indptr`."""

    def keep_entries(self, device: Device, csr: Csr, keep: Array) -> Csr:
        """Return the entries where `keep` is true, in their order. Synchronizes.

        `keep` has a bool for each entry. Values may be of any dtype.
        """

    def drop_zeros(self, device: Device, csr: Csr) -> Csr:
        """Return the entries that are not 0, in their order; the matrix itself if no entry is 0. Synchronizes.

        Subnormal numbers do not count as 0.
        """

    def map_columns(self, device: Device, csr: Csr, places: Array, num_cols: int) -> Csr:
        """Return a matrix of `num_cols` columns in which column c of `csr` is column ``places[c]``. Synchronizes.

        Entries of columns with ``places[c] == -1`` are removed. The others keep their order within each row. Values may
        be of any dtype.
        """

    def triangle(self, device: Device, csr: Csr, offset: int, upper: bool) -> Csr:
        """Return the entries on diagonal `offset` and on one side of this diagonal, in their order. Synchronizes.

        On the diagonal, column minus row is `offset`. The side is above the diagonal if `upper`, otherwise below.
        Values may be of any dtype.
        """

    def numbers_from_start(self, device: Device, numbers: Array, size: int) -> Array | None:
        """Return indices of an axis as int64 from 0 to ``size - 1``; None if an index is out of range. Synchronizes.

        Negative indices count from the end, as in Python. `numbers` are integers of any dtype.
        """

    def are_in_range(self, device: Device, numbers: Array, size: int) -> bool:
        """Return whether all numbers, integers of any dtype, are from 0 to ``size - 1``. Synchronizes."""

    def count_numbers(self, device: Device, numbers: Array, size: int) -> Array:
        """Return an int64 array with the count of each number from 0 to ``size - 1``.

        `numbers` are contiguous, of an index dtype and in range.
        """

    def places_of(self, device: Device, numbers: Array, size: int, dtype: Any) -> Array | None:
        """Return, for each number from 0 to ``size - 1``, its position in `numbers`, or -1. Synchronizes.

        Return None if a number occurs more than once. `numbers` are int64 and in range. The result has the index dtype
        `dtype`.
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
        """Return the value of each entry times the factor of its column; the dtypes are as for `scale_rows`."""

    def sum_runs(self, device: Device, data: Array, starts: Array) -> Array:
        """Return the sum of each run of consecutive values.

        Run r begins at ``starts[r]``, and ends where run r + 1 begins, or at the end of `data`. No run is empty.
        """

    def diagonal_entries(self, device: Device, csr: Csr, offset: int, out: Array | None = None) -> Array:
        """Return the diagonal on which column minus row is `offset`. Repeated entries are summed.

        If `out` is passed, the result is written into it: a contiguous array of the same size and dtype.
        """


class TransposeKernels(Protocol):
    """The transpose, symmetry, and the order of integer keys. The functions return new arrays."""

    def csr_transpose(self, device: Device, csr: Csr) -> Csr:
        """Return the transpose; the entries of each column keep the order of their rows. May synchronize.

        The result is marked as canonical if the matrix is.
        """

    def is_symmetric(self, device: Device, csr: Csr, hermitian: bool, tolerance: float = 0.0) -> bool:
        """Return whether a square, sorted matrix equals its transpose (conjugated if `hermitian`). Synchronizes.

        With a `tolerance` above 0, an entry and its mirror image may differ by `tolerance` times the largest magnitude
        in their two rows, and entries that are not stored count as 0. Here, the magnitude of a complex number is the
        larger of the magnitudes of its two parts.
        """

    def stable_order(self, device: Device, keys: Array, bound: int, numbers: Array | None = None) -> Array:
        """Return the numbers of the keys, sorted by key. Equal keys keep their order.

        Parameters
        ----------
        keys : array of int32 or int64
            From 0 to ``bound - 1``.
        numbers : array of integers, optional
            The number of each key; 0, 1, 2, ... by default.
        """

    def order_by_row(self, device: Device, rows: Array, num_rows: int) -> tuple[Array, Array]:
        """Return the numbers of entries sorted by row, and the row pointers, which have the dtype of `rows`.

        `rows` (int32 or int64) holds the row number of each entry. Entries of one row keep their order.
        """


class ReductionKernels(Protocol):
    """Sums and extremes of runs of consecutive values, such as rows, and tests of all values."""

    def sum_entries(self, device: Device, bounds: Array | None, data: Array, terms: str, longest: int) -> Array:
        """Return, for each run of consecutive values, the sum of what `terms` takes of them; 0 for an empty run.

        Parameters
        ----------
        bounds : array or None
            Run r is ``data[bounds[r]:bounds[r + 1]]``, for instance a row of a matrix. None means one run of all
            values, of which there is at least one.
        terms : str
            One of `TERMS`: "value", "absolute" (magnitudes), "square" (squares of magnitudes; not for int64), or
            "nonzero" (the number of values that are not 0).
        longest : int
            Length of the longest run.

        Returns
        -------
        array
            int64 for int64 values and for "nonzero". Otherwise float64 or complex128, or the dtype of NumPy's sum;
            results for "absolute" and "square" are real. May synchronize.
        """

    def extreme_entries(
        self, device: Device, bounds: Array | None, data: Array, extreme: str, longest: int, full: int = 0,
        unsigned: bool = False,
    ) -> Array:  # fmt: skip
        """Return the extreme of each run of consecutive values, in the dtype of `data`; 0 for an empty run.

        `bounds` and `longest` are as for `sum_entries`, and `extreme` is one of `EXTREMES`. Runs of fewer than `full`
        values are treated as if they had one more value, 0. May synchronize.
        """

    def extreme_positions(
        self, device: Device, bounds: Array | None, data: Array, extreme: str, longest: int, unsigned: bool = False
    ) -> Array:
        """Return the position in `data` (int64) of the first extreme value of each run; -1 for an empty run.

        The arguments are those of `extreme_entries`. May synchronize.
        """

    def first_where(self, device: Device, values: Array, *tests: str) -> int | None:
        """Return the first position whose value passes at least one of the `tests`, or None. Synchronizes.

        `tests` are keys of `TESTS`. `values` may also be booleans. An array of several dimensions is read row by row.
        """

    def count_where(self, device: Device, values: Array, *tests: str) -> int:
        """Return the number of values that pass at least one of the `tests`; see `first_where`. Synchronizes."""

    def extreme_columns(
        self, device: Device, csr: Csr, positions: Array, extreme: str, unsigned: bool = False
    ) -> Array:
        """Return the column of the extreme of each row (int64). Entries that are not stored count as 0.

        `csr` is sorted, and `positions` come from `extreme_positions`. As in SciPy, an element that is not stored takes
        precedence over NaN, and the extreme of an empty row is in column 0.
        """


class EditKernels(Protocol):
    """Operations on single entries of a sparse matrix, on dense arrays of its shape, and for gradients of products.

    `rows` and `columns` are arrays of int64, with numbers in range. `is_sorted` says whether the matrix is sorted.
    Values may be of any dtype, unless the docstring says otherwise.
    """

    def find_entries(
        self, device: Device, csr: Csr, rows: Array, columns: Array, is_sorted: bool
    ) -> tuple[Array, int, bool]:
        """Return the position of the entry at each row and column (int64): -1 if there is none, -2 if several.

        Also return the number of elements without entry, and whether an element has several entries. At least one row
        and column are passed. Synchronizes.
        """

    def sample_entries(self, device: Device, csr: Csr, rows: Array, columns: Array, is_sorted: bool) -> Array:
        """Return the sum of the entries at each row and column, in an order that depends only on the matrix's row.

        Values are of a compute dtype unless rows are sorted.
        """

    def sample_entry(self, device: Device, csr: Csr, row: int, column: int) -> Any:
        """Return the entry at a row and a column of a sorted matrix as a NumPy scalar; 0 if there is none.

        Synchronizes.
        """

    def put_values(self, device: Device, data: Array, positions: Array, values: Array) -> None:
        """Write each value to its position (int64) in `data`, in place. Negative positions are skipped.

        Positions are distinct. If `values` has only one element, it is written to all positions. Both arrays
        have one dtype.
        """

    def insert_entries(
        self, device: Device, csr: Csr, rows: Array, columns: Array, values: Array, is_sorted: bool
    ) -> Csr:
        """Return the matrix with new entries, whose row numbers are in ascending order.

        There is one value for each new entry, of the dtype of the matrix. If `is_sorted`, the new entries of a row are
        sorted too, and are merged with the old entries. Otherwise they come before the old entries.
        """

    def add_entries(self, device: Device, csr: Csr, dense: Array) -> None:
        """Add each entry to its element of a dense array, in place.

        The array has the shape and the dtype of the matrix and is in C order. Repeated entries are added in their
        order, integers wrap around, and a boolean becomes true if one of its entries is.
        """

    def take_elements(self, device: Device, csr: Csr, dense: Array) -> Array:
        """Return, for each entry of the matrix, the element of a dense array there. The array may have any strides."""

    def dot_rows(self, device: Device, rows: Array, columns: Array, left: Array, right: Array) -> Array:
        """Return the inner product of ``left[rows[e]]`` and the conjugate of ``right[columns[e]]`` for each e.

        `rows` and `columns` are of one index dtype and have equal lengths. Here and in `product_gradients`, dense
        arrays have two dimensions and are contiguous row by row. All values have one floating-point or complex dtype.
        """

    def product_gradients(
        self, device: Device, transposed: Csr, values: Array, gradient: Array, x: Array
    ) -> tuple[Array, Array]:
        """Return the gradients of A·x with respect to x and to the values of A, in one pass over the entries.

        On a GPU, only a few threads visit each row of the transpose, so no row should be much longer than the others.

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
