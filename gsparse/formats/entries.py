"""How the columns and values of stored entries are encoded: plain, or in fewer bytes without loss.

A format arranges its entries in *positions* 0, 1, 2 …: in CSR's order, column-major, or slice by slice. Columns and
values are arrays over these positions, and each of the two is encoded independently. Every kernel reads them through
the same two accessors (`kernels/gpu/src/entries.cuh`, `kernels.cpu.entries`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from gsparse.device.dtypes import Array


def padding_code(dtype: Any) -> int:
    """Return the code that marks a position without an entry: -1, or the largest number of an unsigned dtype.

    Examples
    --------
    >>> padding_code("uint16"), padding_code("int32")
    (65535, -1)
    """
    dtype = np.dtype(dtype)
    return int(np.iinfo(dtype).max) if dtype.kind == "u" else -1


@cache
def dtype_name(dtype: np.dtype[Any]) -> str:
    """Return the name of a dtype. It is cached because NumPy takes microseconds to make it."""
    return str(dtype)


@dataclass(frozen=True, eq=False)
class Columns:
    """The column of each position.

    The column of position k is ``codes[k]``, or with bases ``bases[k // run] + codes[k]``. A run has as many
    consecutive positions as a warp has lanes. A position without an entry has the `padding_code`, and kernels skip it:
    no product multiplies x by padding, so an inf or NaN in x does not spread through padding.

    Attributes
    ----------
    codes : array of int32 or int64, or (with bases) of uint8 or uint16
    bases : array of int32, shape (num_runs,), optional
    """

    codes: Array
    bases: Array | None = None

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of the codes."""
        dtype: np.dtype[Any] = np.dtype(self.codes.dtype)
        return dtype

    @property
    def nbytes(self) -> int:
        return int(self.codes.nbytes) + (0 if self.bases is None else int(self.bases.nbytes))


@dataclass(frozen=True, eq=False)
class Values:
    """The value of each position, in one of three encodings.

    - Plain: the value of position k is ``codes[k]``, whose dtype is widened to the compute dtype.
    - Dictionary: the value is ``table[codes[k]]``.
    - All equal: every value is ``table[0]``, and `codes` is None.

    Attributes
    ----------
    codes : array, optional
        The values themselves, or indices into the table, of uint8 or uint16.
    table : array of the compute dtype, optional
        The distinct values; None for plain values.
    """

    codes: Array | None
    table: Array | None = None

    @property
    def nbytes(self) -> int:
        return sum(int(array.nbytes) for array in (self.codes, self.table) if array is not None)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Dtype of the plain values or of the table."""
        return np.dtype((self.codes if self.table is None else self.table).dtype)  # type: ignore[union-attr]

    @property
    def has_codes(self) -> bool:
        """Whether each position looks its value up in a table of several values."""
        return self.table is not None and self.codes is not None

    @property
    def table_bytes(self) -> int:
        """Bytes of the table, 0 without one."""
        return 0 if self.table is None else int(self.table.nbytes)

    def describe(self) -> str:
        """Return how the values are stored, for the table of a plan.

        Examples
        --------
        >>> Values(None, np.ones(1)).describe(), Values(np.zeros(9, np.uint8), np.ones(3)).describe()
        ('all equal', 'uint8 of 3')
        """
        if self.table is None:
            return dtype_name(self.dtype)
        return "all equal" if self.codes is None else f"{dtype_name(self.codes.dtype)} of {self.table.size}"

    def nbytes_at(self, positions: int) -> int:
        """Return the bytes of the values if there were `positions` positions."""
        return self.table_bytes + (0 if self.codes is None else positions * int(self.codes.dtype.itemsize))

    def rearranged(self, arrange: Callable[[Array], Array]) -> Values:
        """Return the values at other positions: the codes become ``arrange(codes)``, and the table stays."""
        return self if self.codes is None else Values(arrange(self.codes), self.table)


@dataclass(frozen=True, eq=False)
class StoredMatrix(ABC):
    """The attributes that the arrays of all storage formats have in common.

    Attributes
    ----------
    shape : (int, int)
    nnz : int
        Entries without padding.
    """

    shape: tuple[int, int]
    nnz: int

    @property
    def num_rows(self) -> int:
        return self.shape[0]

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """Bytes that one product reads of the matrix itself."""

    @property
    def dtype(self) -> Any:
        """The dtype of the values."""
        return self.values.dtype  # type: ignore[attr-defined]

    @property
    def num_stored(self) -> int:
        """Number of positions of values, padding included."""
        return self.nnz

    @property
    def padding_ratio(self) -> float:
        return self.num_stored / self.nnz if self.nnz else 1.0
