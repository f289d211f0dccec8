"""Everything that depends on row pointers and columns alone: statistics, and arrays that storage formats derive.

Matrices that differ in their values only share a `Structure`::

    Structure --+--> SparsityPattern <--+    row pointers and columns, with statistics
                +--> Part --------------+    arrays that one storage format derives, in the file of the format

A part refers to the sparsity pattern, which refers to no part. So there is no reference cycle, and arrays on a GPU are
freed as soon as no object refers to the structure.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property
from math import sqrt
from typing import Any, TypeVar, cast

import numpy as np

from gsparse.device.base import Device
from gsparse.device.dtypes import Array
from gsparse.formats import Columns, Csr, Slices, padding_code
from gsparse.formats.row_stats import MAX_INT32, RowStats
from gsparse.kernels.backends import kernels_of
from gsparse.kernels.set_up import Survey

# The dtypes of columns that are stored relative to a base, the narrowest first.
_NARROW = (np.dtype(np.uint8), np.dtype(np.uint16))

_Value = TypeVar("_Value")
_Part = TypeVar("_Part", bound="Part")


@dataclass(eq=False)
class SparsityPattern:
    """The row pointers and columns of a matrix, with their statistics.

    Parameters
    ----------
    device : Device
    csr : Csr
        Its values are dropped, because matrices with other values have the same pattern.
    known_survey : Survey, optional
        The result of `survey`, after it has been computed.
    known_blocksize : (int, int), optional
        The size of the full dense blocks of which the matrix consists. None if it is not known, and must be searched
        for.
    """

    device: Device
    csr: Csr
    known_survey: Survey | None = None
    known_blocksize: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        self.csr = self.csr.with_data(self.device.no_values(self.csr.dtype))

    @property
    def survey(self) -> Survey:
        """The statistics of row pointers and columns, which one pass over both collects. Synchronizes."""
        if self.known_survey is None:
            device, csr, codes = self.device, self.csr, kernels_of(self.device).encode.CSR_CODES
            self.known_survey = kernels_of(device).layout.survey(device, csr.indptr, csr.indices, bool(codes))
        return self.known_survey

    @cached_property
    def rows(self) -> RowStats:
        """Statistics of the row lengths."""
        csr, survey = self.csr, self.survey
        mean = csr.nnz / csr.num_rows if csr.num_rows else 0.0
        variance = survey.sum_squares / csr.num_rows - mean * mean if csr.num_rows else 0.0
        return RowStats(
            num_rows=csr.num_rows,
            num_cols=csr.num_cols,
            nnz=csr.nnz,
            min_length=survey.min_length,
            max_length=survey.max_length,
            mean_length=mean,
            std_length=sqrt(max(variance, 0.0)),
            num_empty=survey.num_empty,
            blocked_stored=survey.blocked_stored,
            split_stored=survey.split_stored,
            num_long=survey.num_long,
            long_entries=survey.long_entries,
        )

    @property
    def longest(self) -> int:
        """The length of the longest row, or an upper bound of it if the rows have not been examined."""
        bound = self.csr.longest
        return self.rows.max_length if bound is None or self.known_survey else bound

    @property
    def typical_length(self) -> float:
        """`RowStats.typical_length`. If only an upper bound of the lengths is known, the mean length."""
        csr = self.csr
        return self.rows.typical_length if csr.longest is None or self.known_survey else csr.nnz / max(csr.num_rows, 1)

    @property
    def pitch(self) -> int:
        """The number of rows, rounded up to a multiple of a warp's lanes."""
        return -(-self.csr.num_rows // self.device.lanes) * self.device.lanes

    def lay_out(self, items: Array, slices: Slices, padding: Any) -> Array:
        """Arrange items in CSR order by their positions in the slices, with `padding` at empty positions."""
        return kernels_of(self.device).layout.lay_out(self.device, self.csr.indptr, items, slices, padding)

    def narrowest(
        self, columns: Array, candidates: tuple[np.dtype[Any], ...] = _NARROW, span: int | None = None
    ) -> np.dtype[Any]:
        """Return the narrowest dtype in which columns fit relative to the base of their run.

        Synchronizes without `span`.

        Parameters
        ----------
        columns : array
            The column at each position of a format.
        candidates : tuple of dtype
            Dtypes to try, the narrowest first. If no dtype suffices, the result is the dtype of `columns`.
        span : int, optional
            The largest distance between two columns of a run, if it is known.
        """
        plain: np.dtype[Any] = np.dtype(columns.dtype)
        if not candidates or not columns.size or self.csr.num_cols > MAX_INT32:
            return plain
        if span is None:
            span = kernels_of(self.device).encode.run_span(self.device, columns, self.csr.num_cols)
        return next((dtype for dtype in candidates if span < padding_code(dtype)), plain)

    def encoded(self, columns: Array, dtype: np.dtype[Any]) -> Columns:
        """Return the columns, one for each position of a format, in the dtype that `narrowest` returned for them."""
        if dtype == columns.dtype:
            return Columns(columns)
        return kernels_of(self.device).encode.encode_columns(self.device, columns, dtype)

    def narrowed(self, columns: Array, candidates: tuple[np.dtype[Any], ...] = _NARROW) -> Columns:
        """Return the columns, one for each position of a format, in the narrowest of some dtypes. Synchronizes."""
        return self.encoded(columns, self.narrowest(columns, candidates))


class releasable(cached_property[_Value]):  # noqa: N801  (a decorator, like `cached_property`)
    """A cached property of a `Part` that is freed when its format is not used. The next access computes it again."""


class scratch(releasable[_Value]):  # noqa: N801
    """A `releasable` property that only the choice and the building of a format use. It is freed after the building."""


class Part:
    """The arrays that one storage format derives from a sparsity pattern. Matrices with other values share them.

    Arrays are properties with the decorator `releasable` or `scratch`. Statistics are a `cached_property`, and remain
    known after the arrays have been freed. Another thread may free arrays at any time, so a method that needs an array
    several times keeps it in a variable.
    """

    def __init__(self, sparsity: SparsityPattern) -> None:
        self.sparsity = sparsity

    def release(self, kind: type[releasable[Any]] = releasable) -> None:
        """Free all arrays that can be computed again, or only those that are properties of type `kind`."""
        for name in list(vars(self)):
            if isinstance(getattr(type(self), name, None), kind):
                vars(self).pop(name, None)


class PaddedColumns(Part, ABC):
    """The columns in the order of a padded format's positions."""

    @cached_property
    def column_dtype(self) -> np.dtype[Any]:
        """The dtype of `columns`, which remains known after they have been freed. Synchronizes."""
        return self.columns.dtype

    @releasable
    def columns(self) -> Columns:
        """The columns, encoded. Synchronizes."""
        return self.sparsity.narrowed(self.plain_columns())

    @abstractmethod
    def plain_columns(self) -> Array:
        """Return the columns, not encoded."""


class Structure(Part):
    """Everything that depends on the row pointers and columns of a matrix alone: its parts, and its transpose."""

    def __init__(self, sparsity: SparsityPattern) -> None:
        super().__init__(sparsity)
        self._parts: dict[type[Part], Part] = {}

    def part(self, kind: type[_Part]) -> _Part:
        """Return the part of this class. There is only one, made by the first call."""
        part = self._parts.get(kind)
        if part is None:
            part = self._parts.setdefault(kind, kind(self.sparsity))  # All threads get the same one.
        return cast("_Part", part)

    def release_parts_except(self, used: Collection[type[Part]]) -> None:
        """Free all arrays of the parts that are not in `used`. Of those in `used`, free only the `scratch` arrays."""
        for kind, part in list(self._parts.items()):
            part.release(scratch if kind in used else releasable)

    def release(self, kind: type[releasable[Any]] = releasable) -> None:
        """Free all arrays that can be computed again."""
        super().release(kind)
        self.release_parts_except(())

    @releasable
    def transposition(self) -> tuple[Structure, Array]:
        """The structure of the transpose, and for each entry of the transpose its position here. May synchronize.

        The positions have the dtype of `indices`. They save time if several matrices of this structure are transposed.
        """
        device, csr = self.sparsity.device, self.sparsity.csr
        positions = device.xp.arange(csr.nnz, dtype=csr.indices.dtype)
        transposed = kernels_of(device).transpose.csr_transpose(device, csr.with_data(positions))
        return Structure(SparsityPattern(device, transposed)), transposed.data

    @property
    def known_transposition(self) -> tuple[Structure, Array] | None:
        """The value of `transposition` if it has been computed already, else None."""
        return vars(self).get("transposition")

    @releasable
    def row_numbers(self) -> Array:
        """The row of each entry, in CSR's order and in the dtype of `indptr`."""
        device, csr = self.sparsity.device, self.sparsity.csr
        return kernels_of(device).sparse_rows.row_numbers(device, csr.indptr, csr.nnz)
