"""Sums, extremes and counts of the entries of a distributed matrix, which its workers compute row by row."""

from __future__ import annotations

from collections.abc import Callable
from operator import index
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from gsparse.distributed.client.entries import DistributedEntries
from gsparse.distributed.worker import entry_tasks
from gsparse.linalg.eigen.svds import svds

HostArray = npt.NDArray[Any]


_EXTREME_DOC = """Return {}.

        Parameters
        ----------
        axis : {{None, 0, 1, -1, -2}}, optional

        Returns
        -------
        coo_array of shape (N,) or (M,), or scalar
            Of the dtype of the matrix.

        Raises
        ------
        ValueError
            If the matrix has no such axis, or no elements along it.
        CommunicationError, WorkerLostError
        """
_PLACE_DOC = """Return the place of the first of {} elements, or of the first NaN.

        Parameters
        ----------
        axis : {{None, 0, 1, -1, -2}}, optional

        Returns
        -------
        ndarray of int64 of shape (N,) or (M,), or int
            For None, ``row * N + column``.

        Raises
        ------
        ValueError
            If the matrix has no such axis, or no elements along it.
        CommunicationError, WorkerLostError
        """


def _extreme(name: str, join: Callable[[HostArray], Any], what: str) -> Any:
    """Return a method that finds an extreme of the elements. `join` combines the extremes of all ranks into one."""

    def method(self: DistributedReductions, axis: int | None = None) -> Any:
        parts = self._reduced(name, _parsed(axis))
        return join(parts) if axis is None else sp.coo_array(parts)

    method.__name__, method.__doc__ = name, _EXTREME_DOC.format(what)
    return method


def _place(name: str, join: Callable[[HostArray], Any], what: str) -> Any:
    """Return a method that finds where an extreme is. `join` returns the first rank that has the extreme."""

    def method(self: DistributedReductions, axis: int | None = None) -> Any:
        matrix, axis = self._in_matrix_order(), _parsed(axis)
        if axis is not None:
            return matrix._reduced(name, axis)
        extremes, places = (matrix._reduced(each, None) for each in (name.removeprefix("arg"), name))
        first, bounds = int(join(extremes)), matrix._layout.rows.row_bounds
        owner = np.flatnonzero(np.diff(bounds))[first]
        return bounds[owner] * self.shape[1] + int(places[first])

    method.__name__, method.__doc__ = name, _PLACE_DOC.format(what)
    return method


class DistributedReductions(DistributedEntries):
    """The reductions of a distributed matrix. Reductions of columns, except sums, first compute the transpose.

    All results are on this host. As in SciPy, `axis` is None to reduce all elements together, 0 to reduce each column,
    and 1 to reduce each row. Elements that are not stored count as zeros.
    """

    def sum(self, axis: int | None = None) -> Any:
        """Add up the elements.

        Parameters
        ----------
        axis : {None, 0, 1, -1, -2}, optional

        Returns
        -------
        ndarray of shape (N,) or (M,), or scalar
            The sums, in the dtype of NumPy's sums: integers and booleans become 64-bit integers.

        Raises
        ------
        ValueError
            If the matrix has no such axis.
        CommunicationError, WorkerLostError
        """
        axis = _parsed(axis)
        if axis == 0:
            return self._column_sums()
        parts = self._rank_group.call(entry_tasks.reduce_rows, [("sum", axis)] * len(self._rank_group.ranks))
        if axis == 1:
            return self._layout.join(parts)
        of_ranks = [part for part in parts if part is not None]
        return np.sum(of_ranks, dtype=np.sum(np.empty(0, self.dtype)).dtype)

    def mean(self, axis: int | None = None) -> Any:
        """Return the mean of the elements.

        Parameters
        ----------
        axis : {None, 0, 1, -1, -2}, optional

        Returns
        -------
        ndarray of shape (N,) or (M,), or scalar
            The means, in float64 if the matrix has integers or booleans, else in the matrix's dtype.

        Raises
        ------
        ValueError
            If the matrix has no such axis.
        CommunicationError, WorkerLostError
        """
        axis = _parsed(axis)
        count = self.shape[0] * self.shape[1] if axis is None else self.shape[axis]
        dtype = np.dtype(np.float64) if self.dtype.kind in "biu" else self.dtype
        return np.divide(self.sum(axis), count).astype(dtype, copy=False)

    def count_nonzero(self, axis: int | None = None) -> Any:
        """Count the elements that are not 0.

        Parameters
        ----------
        axis : {None, 0, 1, -1, -2}, optional

        Returns
        -------
        ndarray of int64 of shape (N,) or (M,), or int
            The counts.

        Raises
        ------
        ValueError
            If the matrix has no such axis.
        CommunicationError, WorkerLostError
        """
        parts = self._reduced("count_nonzero", _parsed(axis))
        return int(np.sum(parts)) if axis is None else parts.astype(np.int64)

    def trace(self, offset: int = 0) -> Any:
        """Add up the elements of a diagonal.

        Parameters
        ----------
        offset : int, optional
            Column minus row of the elements.

        Returns
        -------
        scalar
            The sum, of the dtype of NumPy's sums.

        Raises
        ------
        CommunicationError, WorkerLostError
        """
        return self.diagonal(offset).sum()

    max = _extreme("max", np.max, "the largest elements; NaN where one is NaN")
    min = _extreme("min", np.min, "the smallest elements; NaN where one is NaN")
    nanmax = _extreme("nanmax", np.nanmax, "the largest elements that are not NaN")
    nanmin = _extreme("nanmin", np.nanmin, "the smallest elements that are not NaN")
    argmax = _place("argmax", np.argmax, "the largest")
    argmin = _place("argmin", np.argmin, "the smallest")

    def norm(self, ord: Any = None, axis: int | None = None) -> Any:
        """Return a norm of the matrix, or of each of its columns or rows, as `gsparse.linalg.norm` does.

        Parameters
        ----------
        ord : {None, "fro", inf, -inf, 1, -1, 2, 0}, optional
            As in `scipy.sparse.linalg.norm`; 2 for the matrix is its largest singular value.
        axis : {None, 0, 1}, optional

        Returns
        -------
        float, or ndarray of shape (N,) or (M,)
            The norms, in the precision of the matrix.

        Raises
        ------
        ValueError
            If there is no such norm.
        CommunicationError, WorkerLostError
        """
        axis = _parsed(axis)
        if axis == 0:
            return self._norms_of_columns(ord)
        if axis is None and ord == 2:
            return svds(self, 1, return_singular_vectors=False)[0]
        if axis is None and ord in (1, -1, np.inf, -np.inf):
            sums = self._column_sums(1) if abs(ord) == 1 else self.norm(1, axis=1)
            return (np.max if ord > 0 else np.min)(sums)
        norms = self._rank_group.call(entry_tasks.row_norms, [(ord, axis)] * len(self._rank_group.ranks))
        return np.linalg.norm(norms) if axis is None else self._layout.join(norms)

    def _norms_of_columns(self, ord: Any) -> HostArray:
        if ord == 1:
            return self._column_sums(1)
        if ord in (None, 2):
            return np.sqrt(self._column_sums(2))
        if ord not in (0, np.inf, -np.inf):
            raise ValueError(f"there is no norm {ord!r} of columns")
        with abs(self) as magnitudes:
            of_columns = {0: magnitudes.count_nonzero, np.inf: magnitudes.max, -np.inf: magnitudes.min}[ord](0)
            norms: HostArray = of_columns if ord == 0 else of_columns.toarray()
            return norms

    def _column_sums(self, power: int = 0) -> HostArray:
        """Return the sums of the columns. `power` is as in `entry_tasks.column_sums`."""
        parts = self._rank_group.call(entry_tasks.column_sums, [(power,)] * len(self._rank_group.ranks))
        sums = np.concatenate([own for own, _, _ in parts])
        for _, numbers, values in parts:  # in the order of the ranks, so that the bits are the same in every run
            sums[numbers] += values
        result: HostArray = self._layout.in_matrix_order(sums)
        return result

    def _reduced(self, name: str, axis: int | None) -> HostArray:
        """Return one result for each row or column; without an axis, one result for each rank that has rows."""
        if 0 in self.shape and (axis is None or not self.shape[axis]) and name != "count_nonzero":
            raise ValueError("zero-size array to reduction operation")
        if axis == 0:
            with self.T.tomatrix() as transposed:
                of_columns: HostArray = transposed._reduced(name, 1)
                return of_columns
        parts = self._rank_group.call(entry_tasks.reduce_rows, [(name, axis)] * len(self._rank_group.ranks))
        return self._layout.join(parts) if axis == 1 else np.array([part for part in parts if part is not None])


def _parsed(axis: int | None) -> int | None:
    """Return an axis as None, 0 or 1."""
    if axis is not None and index(axis) not in (-2, -1, 0, 1):
        raise ValueError(f"axis must be None, 0 or 1, got {axis}")
    return None if axis is None else index(axis) % 2
