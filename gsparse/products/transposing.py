"""The transpose: its arrays, the test for symmetry, and products with the transpose without its arrays."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import numpy as np

from gsparse.device.base import Device
from gsparse.formats import Csr
from gsparse.kernels.backends import kernels_of
from gsparse.products.building import Product, one_and_zero
from gsparse.products.csr import CSR_SCALAR
from gsparse.products.structure import SparsityPattern, Structure

# Number of products with the transpose before its arrays are made. On two cores, making the arrays takes as long as six
# to ten products.
MAX_BY_COLUMNS = 8


@dataclass(frozen=True)
class ByColumns:
    """The transpose of a matrix, for its first few products, which read the matrix's own arrays by columns.

    Attributes
    ----------
    device : Device
    transpose : Csr
        The arrays of the matrix, which is the transpose of this one.
    multiply : callable
        `gsparse.kernels.contract.SpmmKernels.TRANSPOSED_PRODUCT`.
    """

    device: Device
    transpose: Csr
    multiply: Callable[..., None]

    @property
    def csr(self) -> Csr:
        """The arrays of the matrix, with the shape of the transpose."""
        return replace(self.transpose, shape=self.transpose.shape[::-1])

    def product(self, storage: np.dtype[Any], compute: np.dtype[Any]) -> Product:
        """Return the product with a vector, or with several columns."""
        multiply = partial(self.multiply, self.transpose)
        return Product(multiply, CSR_SCALAR.layout, self.transpose, one_and_zero(compute))

    columns = product


def find_symmetry(device: Device, csr: Csr) -> bool | Literal["hermitian"]:
    """Return whether a square matrix with sorted columns equals its transpose or conjugate transpose. Synchronizes."""
    is_symmetric = partial(kernels_of(device).transpose.is_symmetric, device, csr)
    return bool(is_symmetric(False)) or (csr.dtype.kind == "c" and is_symmetric(True) and "hermitian")


def transpose_arrays(structure: Structure, csr: Csr, transposed: Csr | None) -> tuple[Csr, Structure]:
    """Return the arrays of the transpose, and their structure.

    `transposed` has the arrays of the transpose if they have been made; else it is None. A transposition that
    `structure` knows is used again.
    """
    device, known = structure.sparsity.device, structure.known_transposition
    if transposed is None and known is not None:
        return known[0].sparsity.csr.with_data(csr.data.take(known[1])), known[0]
    if transposed is None:
        transposed = kernels_of(device).transpose.csr_transpose(device, csr)
    return transposed, Structure(SparsityPattern(device, transposed))
