"""Partitions of rows among ranks, and orders of rows that need few ghosts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from itertools import pairwise
from operator import index
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
from scipy.sparse.csgraph import reverse_cuthill_mckee

from gsparse.errors import ShapeError


@dataclass(frozen=True)
class RowPartition:
    """The consecutive rows that each rank owns.

    Parameters
    ----------
    row_bounds : tuple of int
        Rank r owns the rows from ``row_bounds[r]`` up to, but not including, ``row_bounds[r + 1]``. A rank may own no
        rows.

    Raises
    ------
    ShapeError
        If there are fewer than two bounds, or they do not begin at 0, or decrease.

    Examples
    --------
    >>> RowPartition.by_rows(10, 4).row_bounds
    (0, 2, 5, 7, 10)
    """

    row_bounds: tuple[int, ...]

    def __post_init__(self) -> None:
        bounds = self.row_bounds
        if len(bounds) < 2 or bounds[0] != 0 or any(a > b for a, b in pairwise(bounds)):
            raise ShapeError(f"row bounds must begin at 0 and never decrease, one bound more than ranks: got {bounds}")

    @classmethod
    def by_rows(cls, num_rows: int, world_size: int) -> RowPartition:
        """Divide the rows so that all ranks own about the same number of them.

        Parameters
        ----------
        num_rows : int
            Number of rows of the matrix.
        world_size : int
            Number of ranks.

        Returns
        -------
        RowPartition
            The partition. The numbers of rows of two ranks differ by one at most.

        Raises
        ------
        ValueError
            If `world_size` is less than 1.
        """
        check_world_size(world_size)
        return cls(tuple(num_rows * rank // world_size for rank in range(world_size + 1)))

    @classmethod
    def by_nnz(cls, indptr: npt.NDArray[np.integer], world_size: int) -> RowPartition:
        """Divide the rows so that all ranks own about the same number of entries and rows together.

        Parameters
        ----------
        indptr : array of int, shape (num_rows + 1,)
            Row pointers of the matrix, on the host.
        world_size : int
            Number of ranks.

        Returns
        -------
        RowPartition
            The partition. The work of a row is its number of entries plus one. Rows are not split, so a rank with a
            long row may own more entries than the other ranks.

        Raises
        ------
        ValueError
            If `world_size` is less than 1.
        """
        check_world_size(world_size)
        work = np.asarray(indptr, np.int64) + np.arange(len(indptr))
        shares = int(work[-1]) * np.arange(1, world_size) // world_size
        return cls((0, *np.searchsorted(work, shares).tolist(), len(indptr) - 1))

    def between_blocks(self, size: int) -> RowPartition:
        """Move each bound to the nearest multiple of `size`, such as the number of unknowns per node.

        Parameters
        ----------
        size : int
            Number of consecutive rows that belong together. The number of all rows is a multiple of `size`.

        Returns
        -------
        RowPartition
            The partition with these bounds.

        Examples
        --------
        >>> RowPartition((0, 5, 9)).between_blocks(3).row_bounds
        (0, 6, 9)
        """
        return RowPartition(tuple(size * ((bound + size // 2) // size) for bound in self.row_bounds))

    @classmethod
    def from_bounds(cls, bounds: Sequence[int], num_rows: int) -> RowPartition:
        """Make a partition with the given bounds, and check that they fit the matrix.

        Parameters
        ----------
        bounds : sequence of int
            The `row_bounds`.
        num_rows : int
            Number of rows of the matrix.

        Returns
        -------
        RowPartition
            The partition with these bounds.

        Raises
        ------
        ShapeError
            If the last bound is not `num_rows`, the first bound is not 0, or the bounds decrease.
        TypeError
            If the bounds are not integers.
        """
        partition = cls(tuple(map(index, bounds)))
        if partition.num_rows != num_rows:
            raise ShapeError(
                f"row bounds must end at the number of rows: they end at {partition.num_rows}, not at {num_rows}"
            )
        return partition

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return len(self.row_bounds) - 1

    @property
    def num_rows(self) -> int:
        """Number of rows of all ranks together."""
        return self.row_bounds[-1]

    def rows(self, rank: int) -> slice:
        """Return the rows that a rank owns.

        Parameters
        ----------
        rank : int
            The rank, counted from 0.

        Returns
        -------
        slice
            Its rows, as row numbers of the whole matrix.
        """
        return slice(self.row_bounds[rank], self.row_bounds[rank + 1])

    def owners(self, rows: npt.NDArray[np.integer]) -> npt.NDArray[np.intp]:
        """Return the rank that owns each of the given rows.

        Parameters
        ----------
        rows : array of int
            Row numbers, on the host.

        Returns
        -------
        array of int
            The owners, in the shape of `rows`.
        """
        return np.searchsorted(self.row_bounds, rows, side="right") - 1


def check_one_block_per_rank(name: str, partition: RowPartition, world_size: int) -> None:
    """Raise an error if a partition does not have one block per rank. `name` is the argument's name in the message."""
    if partition.world_size != world_size:
        raise ShapeError(
            f"{name} must have one block for each of the {world_size} ranks, got {partition.world_size} blocks with "
            f"the bounds {partition.row_bounds}"
        )


def check_world_size(world_size: int) -> None:
    """Raise ValueError if the number of ranks is less than 1."""
    if world_size < 1:
        raise ValueError(f"world_size must be at least 1, got {world_size}")


Permutation = npt.NDArray[np.int64]


def order_rows(
    S: sp.csr_array, reorder: str | None, num_parts: int | None = None
) -> tuple[Permutation, tuple[int, ...] | None]:
    """Choose an order of the rows and columns of a square matrix.

    Parameters
    ----------
    S : csr_array, shape (N, N)
        Only its structure is used, stored zeros included.
    reorder : {None, "rcm"}
        "rcm" is reverse Cuthill-McKee [1]_. It moves rows that are neighbours in the graph close together, so that most
        ghosts belong to neighbouring ranks.
    num_parts : int, optional
        If given, METIS [2]_ divides the rows into this number of parts, with few entries between two parts. The rows of
        each part become consecutive.

    Returns
    -------
    permutation : array of int64
        Row i in the new order is row ``permutation[i]`` of S, and the same holds for the columns. The ranks own blocks
        of ``S[permutation][:, permutation]``, which maps ``x[permutation]`` to ``(S @ x)[permutation]``.
    bounds : tuple of int or None
        The row bounds of METIS's parts, in the new order; None without METIS.

    Raises
    ------
    ShapeError
        If the matrix is not square.
    ImportError
        If PyMetis is needed, but not installed.

    References
    ----------
    .. [1] E. Cuthill and J. McKee, "Reducing the bandwidth of sparse symmetric matrices", ACM 1969; the structure of
       S + Sᵀ is ordered.
    .. [2] G. Karypis and V. Kumar, "A fast and high quality multilevel scheme for partitioning irregular graphs",
       SIAM J. Sci. Comput. 20 (1998).

    Examples
    --------
    >>> import scipy.sparse
    >>> S = scipy.sparse.csr_array([[2, 0, 0, 1], [0, 2, 1, 0], [0, 1, 2, 1], [1, 0, 1, 2]])
    >>> permutation, _ = order_rows(S, "rcm")
    >>> S[permutation][:, permutation].toarray()
    array([[2, 1, 0, 0],
           [1, 2, 1, 0],
           [0, 1, 2, 1],
           [0, 0, 1, 2]])
    """
    if S.shape[0] != S.shape[1]:
        raise ShapeError(f"only a square matrix can be reordered or partitioned by 'metis', got shape {S.shape}")
    graph = _adjacency_graph(S)
    order = _rcm(graph) if reorder == "rcm" else np.arange(S.shape[0])
    if num_parts is None:
        return order, None
    parts = _metis(graph, np.diff(S.indptr), num_parts)
    bounds = np.concatenate([[0], np.cumsum(np.bincount(parts, minlength=num_parts))])
    return order[np.argsort(parts[order], kind="stable")], tuple(bounds.tolist())


def parse_partition(reorder: str | None, partition: str | Sequence[int]) -> str | tuple[int, ...]:
    """Return the name of a partition, or its bounds as integers. Raise an error for invalid arguments."""
    if reorder is not None and not (isinstance(reorder, str) and reorder == "rcm"):
        raise ValueError(f"reorder must be None or 'rcm', got {reorder!r}")
    try:
        parsed = partition if isinstance(partition, str) else tuple(map(index, partition))
    except TypeError:
        parsed = ""  # refused by the next check
    if isinstance(parsed, str) and parsed not in ("nnz", "rows", "metis"):
        raise ValueError(f"partition must be 'nnz', 'rows', 'metis' or bounds, got {partition!r}; bounds are integers")
    return parsed


def _adjacency_graph(S: sp.csr_array) -> sp.csr_array:
    """Return the structure of S + Sᵀ without its diagonal."""
    pattern = sp.csr_array((np.ones(S.nnz, np.bool_), S.indices, S.indptr), shape=S.shape)
    lower = sp.tril(pattern + pattern.T, -1, format="csr")
    return sp.csr_array(lower + lower.T)


def _rcm(graph: sp.csr_array) -> Permutation:
    if not graph.shape[0]:  # SciPy refuses an empty graph
        return np.arange(0)
    return reverse_cuthill_mckee(graph, symmetric_mode=True).astype(np.int64)  # type: ignore[no-any-return]


def _metis(graph: sp.csr_array, lengths: npt.NDArray[Any], world_size: int) -> Permutation:
    """Return the part of each row. The weight of a row is its number of entries plus one, as in `by_nnz`."""
    try:
        pymetis = import_module("pymetis")
    except ImportError as error:
        raise ImportError("partition='metis' needs PyMetis: pip install 'pymetis>=2025.2'") from error
    num_parts = min(world_size, graph.shape[0])  # METIS does not accept more parts than rows
    if num_parts < 2:
        return np.zeros(graph.shape[0], np.int64)
    adjacency = pymetis.CSRAdjacency(graph.indptr.astype(np.int64), graph.indices.astype(np.int64))
    return np.asarray(pymetis.part_graph(num_parts, adjacency, vweights=lengths.astype(np.int64) + 1)[1], np.int64)


def check_same_rows(one: RowPartition, other: RowPartition) -> None:
    """Raise a ShapeError if the rows of two matrices have different owners."""
    if one != other:
        raise ShapeError(
            f"the rows of the two matrices are distributed by {one.row_bounds} and {other.row_bounds}: distribute them "
            "in the same way; a matrix on a dask cluster by B = B.repartition(A.row_bounds, workers=A.workers)"
        )
