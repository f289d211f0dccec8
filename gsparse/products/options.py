"""The options of a matrix, which are checked when the matrix is made."""

from __future__ import annotations

from dataclasses import dataclass, replace
from numbers import Real
from typing import Any, Literal

import numpy as np

from gsparse.errors import FormatError
from gsparse.formats.launch import DEFAULT_THREADS_PER_BLOCK
from gsparse.formats.registry import Encoding
from gsparse.plan.choice import EXPECTED_PRODUCTS, check_request

# The valid values of the options that have only a few.
_CHOICES: dict[str, tuple[Any, ...]] = {
    "compress": (False, True, "columns", "values"),
    "tune": (False, True, "lazy"),
    "symmetric": (None, True, False, "hermitian"),
}


@dataclass(frozen=True)
class MatrixOptions:
    """The options that the user chose when making the matrix.

    Attributes
    ----------
    format : str
        The name of a format or of a layout, or "auto" (`gsparse.formats.registry.choices`).
    threads_per_block, expected_products, compress, tune, symmetric
        As in `gsparse.GpuSparseMatrix`.
    block_shape : (int, int) or None
        The size of the blocks of the BSR matrix from which the matrix, or an operand of the operation that made it, was
        made, in the order of the CSR arrays. It is a hint: an operation may have removed or transposed the blocks.

    Raises
    ------
    FormatError
        If an option has an invalid value. The message lists the valid ones.
    """

    format: str = "auto"
    threads_per_block: int = DEFAULT_THREADS_PER_BLOCK
    expected_products: int = EXPECTED_PRODUCTS
    compress: bool | Literal["columns", "values"] = True
    tune: bool | Literal["lazy"] = False
    symmetric: bool | Literal["hermitian"] | None = None
    block_shape: tuple[int, int] | None = None

    @property
    def encoding(self) -> Encoding:
        """What `compress` allows."""
        return Encoding(columns=self.compress in (True, "columns"), values=self.compress in (True, "values"))

    def transposed(self) -> MatrixOptions:
        """Return the options of a matrix that has the transposed CSR arrays."""
        return self if self.block_shape is None else replace(self, block_shape=self.block_shape[::-1])

    def __post_init__(self) -> None:
        check_request(self.format, self.threads_per_block)
        for name, choices in _CHOICES.items():
            option = getattr(self, name)
            if not (isinstance(option, str | bool | np.bool_ | None) and option in choices):
                raise FormatError(f"{name} must be one of {choices}, got {option!r}")
        if not (isinstance(self.expected_products, Real) and self.expected_products >= 1):
            raise FormatError(f"expected_products must be a number of at least 1, got {self.expected_products!r}")
