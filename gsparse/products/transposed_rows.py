"""The transpose of a structure, of which matrices with other values only rearrange the values.

The functions take the `gsparse.products.structure.Structure` as their first argument, and become its attributes.
"""

from __future__ import annotations

from typing import Any

from gsparse.device.dtypes import Array
from gsparse.kernels.backends import kernels_of


def transposition(self: Any) -> tuple[Any, Array]:
    """Return the structure of the transpose, and for each of its entries the position in `self.csr`. May synchronize.

    The positions have the dtype of `indices`. They save time if several matrices of this structure are transposed.
    """
    device, csr = self.device, self.csr
    positions = device.xp.arange(csr.nnz, dtype=csr.indices.dtype)
    transposed = kernels_of(device).transpose.csr_transpose(device, csr.with_data(positions))
    return self.of_parts(transposed.with_data(device.no_values(csr.dtype))), transposed.data


def known_transposition(self: Any) -> tuple[Any, Array] | None:
    """Return the value of `transposition` if it has been computed already, else None."""
    known: tuple[Any, Array] | None = self.__dict__.get("transposition")
    return known


def row_numbers(self: Any) -> Array:
    """Return the row of each entry, in CSR's order and in the dtype of `indptr`."""
    return kernels_of(self.device).sparse_rows.row_numbers(self.device, self.csr.indptr, self.csr.nnz)
