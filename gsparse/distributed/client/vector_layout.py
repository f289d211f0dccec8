"""How vectors of the user, in NumPy or dask arrays, are split into the parts of the ranks and joined again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.sparse.linalg import LinearOperator

from gsparse.distributed.ranks.partition import RowPartition
from gsparse.errors import DtypeError, ShapeError

HostArray = npt.NDArray[Any]


def is_dask(x: Any) -> bool:
    """Return whether an object is a collection of dask, without importing dask."""
    return type(x).__module__.startswith("dask.")


def check_operand(shape: tuple[int, int], x: Any) -> None:
    """Raise an error if x does not hold numbers, or if its length does not match a matrix of this shape."""
    if isinstance(x, LinearOperator):  # SciPy makes the product of two operators, as it does for a number
        return
    check_numbers("a product", x)
    if np.isscalar(x):
        return
    if np.ndim(x) not in (1, 2) or np.shape(x)[0] != shape[1]:
        raise ShapeError(f"dimension mismatch: {shape} times {np.shape(x)}")


def check_numbers(name: str, x: Any) -> None:
    """Raise an error if the elements of x are not numbers: connections between ranks carry only numbers."""
    dtype = x.dtype if hasattr(x, "dtype") else np.asarray(x).dtype
    if dtype.kind not in "biufc":
        raise DtypeError(f"{name} needs numbers, got {dtype}: use astype(float)")


@dataclass(frozen=True, eq=False)
class VectorLayout:
    """The ranks that own the entries of vectors, and the order of these entries.

    Attributes
    ----------
    rows : RowPartition
        The owners of the rows of the matrix, and so of the entries of products.
    columns : RowPartition
        The owners of the columns of the matrix, and so of the entries of vectors that are multiplied. For a square
        matrix, it is `rows`.
    permutation : array of int64 or None
        Row i of the blocks is row ``permutation[i]`` of the matrix, and the same holds for the columns.
    """

    rows: RowPartition
    columns: RowPartition
    permutation: HostArray | None = None
    _inverse: HostArray | None = field(init=False, repr=False)

    def __post_init__(self) -> None:
        inverse = None if self.permutation is None else np.argsort(self.permutation)
        object.__setattr__(self, "_inverse", inverse)

    @classmethod
    def of(cls, rows: RowPartition, num_columns: int, permutation: HostArray | None = None) -> VectorLayout:
        """Return the layout for a matrix with these row owners."""
        is_square = rows.num_rows == num_columns
        return cls(rows, rows if is_square else RowPartition.by_rows(num_columns, rows.world_size), permutation)

    @property
    def shape(self) -> tuple[int, int]:
        return self.rows.num_rows, self.columns.num_rows

    def check(self, x: Any, partition: RowPartition, name: str) -> None:
        """Raise an error if x does not hold one or several vectors of numbers that this partition can split."""
        check_numbers(name, x)
        if x.ndim not in (1, 2) or x.shape[0] != partition.num_rows:
            raise ShapeError(f"{name} of shape {x.shape} does not fit a matrix of shape {self.shape}")

    def in_block_order(self, x: Any) -> Any:
        """Return a vector of the user in the order of the blocks."""
        return x if self.permutation is None else x[self.permutation]

    def in_matrix_order(self, y: Any) -> Any:
        """Return a vector in the order of the matrix. The argument is in the order of the blocks."""
        return y if self._inverse is None else y[self._inverse]

    def split(self, x: HostArray, partition: RowPartition) -> list[HostArray]:
        """Return the parts of an array that the ranks own."""
        x = self.in_block_order(x)
        return [x[partition.rows(rank)] for rank in range(partition.world_size)]

    def join(self, parts: Sequence[HostArray]) -> HostArray:
        """Join the parts of the ranks to one array, which may be that of the only part if it can be written to."""
        is_whole = len(parts) == 1 and parts[0].flags.writeable
        return self.in_matrix_order(parts[0] if is_whole else np.concatenate(parts))  # type: ignore[no-any-return]

    def chunks(self, x: Any, partition: RowPartition) -> list[Any]:
        """Return the parts of a dask array that the ranks own, as delayed objects."""
        return divided(self.in_block_order(x), partition)

    def dask_array(self, parts: Sequence[Any], partition: RowPartition, width: tuple[int, ...], dtype: Any) -> Any:
        """Join the parts of the ranks to one dask array, without moving them.

        Parameters
        ----------
        parts : sequence of delayed or Future
        partition : RowPartition
            The owners of the entries.
        width : tuple of int
            Shape of one row: () for a vector, (k,) for k vectors.
        dtype : dtype
        """
        return self.in_matrix_order(undivided(parts, partition, width, dtype))


def divided(x: Any, partition: RowPartition) -> list[Any]:
    """Return the parts of a dask array for the ranks of a partition, as delayed objects."""
    sizes = tuple(np.diff(partition.row_bounds).tolist())
    return list(x.rechunk((sizes, -1) if x.ndim == 2 else (sizes,)).to_delayed().reshape(-1))


def undivided(parts: Sequence[Any], partition: RowPartition, width: tuple[int, ...], dtype: Any) -> Any:
    """Return the dask array with these parts, see `VectorLayout.dask_array`."""
    import dask.array as da

    sizes = np.diff(partition.row_bounds).tolist()
    return da.concatenate(
        [da.from_delayed(part, (n, *width), dtype=dtype) for part, n in zip(parts, sizes, strict=True)]
    )
