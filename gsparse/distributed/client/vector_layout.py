"""How vectors of the user, NumPy's or dask's, are cut for the ranks, and put together again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.sparse.linalg import LinearOperator

from gsparse.distributed.ranks.partition import RowPartition
from gsparse.errors import DtypeError, ShapeError

__all__ = ["Layout", "check_factor", "check_numbers", "is_dask"]

Host = npt.NDArray[Any]


def is_dask(x: Any) -> bool:
    """Tell whether something is dask's, without importing dask."""
    return type(x).__module__.startswith("dask.")


def check_factor(shape: tuple[int, int], x: Any) -> None:
    """Raise where a matrix of this shape is to be multiplied by vectors of another length, or by what is no number."""
    if isinstance(x, LinearOperator):  # (of which SciPy makes an operator, as of a number)
        return
    check_numbers("a product", x)
    if np.isscalar(x):
        return
    if np.ndim(x) not in (1, 2) or np.shape(x)[0] != shape[1]:
        raise ShapeError(f"dimension mismatch: {shape} times {np.shape(x)}")


def check_numbers(name: str, x: Any) -> None:
    """Raise where something holds what is no number, which connections do not carry."""
    dtype = x.dtype if hasattr(x, "dtype") else np.asarray(x).dtype
    if dtype.kind not in "biufc":
        raise DtypeError(f"{name} needs numbers, got {dtype}: use astype(float)")


@dataclass(frozen=True, eq=False)
class Layout:
    """Who owns what, and in which order.

    Attributes
    ----------
    rows, columns : RowPartition
        Of products, and of what is multiplied: a square matrix's columns are owned as its rows are.
    permutation : array of int64 or None
        Row i of the blocks is row ``permutation[i]`` of the matrix, and so are columns.
    """

    rows: RowPartition
    columns: RowPartition
    permutation: Host | None = None
    _inverse: Host | None = field(init=False, repr=False)

    def __post_init__(self) -> None:
        inverse = None if self.permutation is None else np.argsort(self.permutation)
        object.__setattr__(self, "_inverse", inverse)

    @classmethod
    def of(cls, rows: RowPartition, num_columns: int, permutation: Host | None = None) -> Layout:
        """Give the layout of a matrix whose rows are owned so."""
        is_square = rows.num_rows == num_columns
        return cls(rows, rows if is_square else RowPartition.by_rows(num_columns, rows.world_size), permutation)

    @property
    def shape(self) -> tuple[int, int]:
        return self.rows.num_rows, self.columns.num_rows

    def check(self, x: Any, cut: RowPartition, name: str) -> None:
        """Raise where something is not one or several vectors of numbers that can be cut so."""
        check_numbers(name, x)
        if x.ndim not in (1, 2) or x.shape[0] != cut.num_rows:
            raise ShapeError(f"{name} of shape {x.shape} does not fit a matrix of shape {self.shape}")

    def permuted(self, x: Any) -> Any:
        """Give a vector in the order of the blocks."""
        return x if self.permutation is None else x[self.permutation]

    def in_order(self, y: Any) -> Any:
        """Give a vector of the blocks in the order of the matrix."""
        return y if self._inverse is None else y[self._inverse]

    def parts(self, x: Host, cut: RowPartition) -> list[Host]:
        """Give the ranks' parts of an array."""
        x = self.permuted(x)
        return [x[cut.rows(rank)] for rank in range(cut.world_size)]

    def joined(self, parts: Sequence[Host]) -> Host:
        """Put the ranks' parts together."""
        return self.in_order(np.concatenate(parts))  # type: ignore[no-any-return]

    def chunks(self, x: Any, cut: RowPartition) -> list[Any]:
        """Give the ranks' parts of a dask array, as delayed objects."""
        x = self.permuted(x)
        sizes = tuple(np.diff(cut.row_bounds).tolist())
        x = x.rechunk((sizes, -1) if x.ndim == 2 else (sizes,))
        return list(x.to_delayed().reshape(-1))

    def dask_array(self, parts: Sequence[Any], cut: RowPartition, width: tuple[int, ...], dtype: Any) -> Any:
        """Put delayed or future parts together, where they are.

        Parameters
        ----------
        parts : sequence of delayed or Future
        cut : RowPartition
        width : tuple of int
            Shape of a row: () for vectors, (k,) for k of them.
        dtype : dtype
        """
        import dask.array as da

        sizes = np.diff(cut.row_bounds).tolist()
        blocks = [da.from_delayed(part, (n, *width), dtype=dtype) for part, n in zip(parts, sizes, strict=True)]
        return self.in_order(da.concatenate(blocks))
