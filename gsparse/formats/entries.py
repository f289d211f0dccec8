"""How the columns and values of stored entries are written down: as they are, or in fewer bytes without loss.

A format puts its entries into *positions* 0, 1, 2 …: in CSR's order, column-major, slice by slice. Columns and values
are arrays over these positions, each encoded on its own, and every kernel reads them through the same two accessors
(`kernels/gpu/src/entries.cuh`, `kernels.cpu.entries`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from gsparse.device.dtypes import Array

__all__ = ["Columns", "Values", "dtype_name", "padding_code"]


def padding_code(dtype: Any) -> int:
    """Give the code that marks a position without an entry: -1, or the largest number of an unsigned type.

    Examples
    --------
    >>> padding_code("uint16"), padding_code("int32")
    (65535, -1)
    """
    dtype = np.dtype(dtype)
    return int(np.iinfo(dtype).max) if dtype.kind == "u" else -1


@cache
def dtype_name(dtype: np.dtype[Any]) -> str:
    """Return the name of a dtype. NumPy takes microseconds to write it, so it is remembered."""
    return str(dtype)


@dataclass(frozen=True, eq=False)
class Columns:
    """Column of each position.

    The column of position k is ``codes[k]``, or with bases ``bases[k // run] + codes[k]``, where a run is as many
    consecutive positions as a warp has lanes. A position that pads has `padding_code` and is skipped: no product ever
    multiplies by padding, so an inf or NaN in x cannot come through it.

    Attributes
    ----------
    codes : array of int32 or int64, or with bases of uint8 or uint16
    bases : array of int32, shape (num_runs,), optional
    """

    codes: Array
    bases: Array | None = None

    @property
    def nbytes(self) -> int:
        return int(self.codes.nbytes) + (0 if self.bases is None else int(self.bases.nbytes))


@dataclass(frozen=True, eq=False)
class Values:
    """Value of each position.

    Plain: ``codes[k]``, of a dtype that widens to the compute dtype. Dictionary: ``table[codes[k]]``. All equal:
    ``table[0]``, and nothing is stored a position.

    Attributes
    ----------
    codes : array, optional
        Values, or uint8 or uint16 places in the table; None where all values are equal.
    table : array of the compute dtype, optional
        Distinct values; None for plain values.
    """

    codes: Array | None
    table: Array | None = None

    @property
    def nbytes(self) -> int:
        return sum(int(array.nbytes) for array in (self.codes, self.table) if array is not None)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Dtype in which a value is stored, or of the table it is looked up in."""
        return np.dtype((self.codes if self.table is None else self.table).dtype)  # type: ignore[union-attr]

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
        """Return the bytes that these values would take at another number of positions."""
        table = 0 if self.table is None else int(self.table.nbytes)
        return table + (0 if self.codes is None else positions * int(self.codes.dtype.itemsize))

    def rearranged(self, arrange: Callable[[Array], Array]) -> Values:
        """Return these values at other positions: ``arrange(codes)``, with the same table."""
        return self if self.codes is None else Values(arrange(self.codes), self.table)
