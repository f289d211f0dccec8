"""The order of the rows and their partition into blocks, chosen for few ghosts and for equal work on all ranks."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from operator import index
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
from scipy.sparse.csgraph import reverse_cuthill_mckee

from gsparse.distributed.ranks.partition import RowPartition
from gsparse.errors import ShapeError

Permutation = npt.NDArray[np.int64]


def order_rows(
    S: Any, reorder: str | None, partition: str | Sequence[int], world_size: int
) -> tuple[Permutation | None, RowPartition]:
    """Choose an order of the rows, and the rank that owns each row.

    Parameters
    ----------
    S : sparse array or matrix, shape (M, N)
        Only its structure is used, stored zeros included.
    reorder : {None, "rcm"}
        "rcm" is reverse Cuthill-McKee [1]_. It places neighbours close together, so that a rank's ghosts belong to the
        ranks next to it.
    partition : {"rows", "nnz", "metis"} or sequence of int
        "rows" gives every rank about the same number of rows, and "nnz" of entries and rows together. "metis" calls
        METIS [2]_ for parts with few entries between them, and moves the rows of each part together. A sequence holds
        the bounds of a `RowPartition`, which apply to the rows in their new order.
    world_size : int
        Number of ranks.

    Returns
    -------
    permutation : array of int64 or None
        Row i in the new order is row ``permutation[i]`` of S, and the same holds for the columns. The ranks own blocks
        of ``S[permutation][:, permutation]``, which maps ``x[permutation]`` to ``(S @ x)[permutation]``. None without
        "rcm" and "metis".
    RowPartition
        The partition of the rows in their new order.

    Raises
    ------
    ShapeError
        If a matrix that is to be permuted is not square, or the bounds do not divide its rows into `world_size` blocks.
    ValueError
        If `reorder` or `partition` is none of these.
    ImportError
        If `partition` is "metis" and PyMetis is not installed.

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
    >>> permutation, partition = order_rows(S, "rcm", "nnz", 2)
    >>> S[permutation][:, permutation].toarray()
    array([[2, 1, 0, 0],
           [1, 2, 1, 0],
           [0, 1, 2, 1],
           [0, 0, 1, 2]])
    """
    S = sp.csr_array(S)
    partition = parse_partition(reorder, partition)
    by_metis = partition == "metis"
    if reorder is None and not by_metis:
        return None, _row_partition(S.indptr, partition, world_size)
    if S.shape[0] != S.shape[1]:
        raise ShapeError(f"only a square matrix can be reordered or partitioned by 'metis', got shape {S.shape}")
    graph, lengths = _adjacency_graph(S), np.diff(S.indptr)
    order = _rcm(graph) if reorder == "rcm" else np.arange(S.shape[0])
    if by_metis:
        parts = _metis(graph, lengths, world_size)
        order = order[np.argsort(parts[order], kind="stable")]
        partition = np.concatenate([[0], np.cumsum(np.bincount(parts, minlength=world_size))]).tolist()
    return order, _row_partition(np.concatenate([[0], np.cumsum(lengths[order])]), partition, world_size)


def parse_partition(reorder: str | None, partition: str | Sequence[int]) -> str | tuple[int, ...]:
    """Return the name of a partition, or its bounds as integers; raise an error if an argument is not valid."""
    if reorder is not None and not (isinstance(reorder, str) and reorder == "rcm"):
        raise ValueError(f"reorder must be None or 'rcm', got {reorder!r}")
    try:
        parsed = partition if isinstance(partition, str) else tuple(map(index, partition))
    except TypeError:
        parsed = ""  # which the next check refuses
    if isinstance(parsed, str) and parsed not in ("nnz", "rows", "metis"):
        raise ValueError(f"partition must be 'nnz', 'rows', 'metis' or bounds, got {partition!r}; bounds are integers")
    return parsed


def _row_partition(indptr: npt.NDArray[Any], partition: str | Sequence[int], world_size: int) -> RowPartition:
    num_rows = len(indptr) - 1
    if isinstance(partition, str):
        by_rows = partition == "rows"
        return RowPartition.by_rows(num_rows, world_size) if by_rows else RowPartition.by_nnz(indptr, world_size)
    row_partition = RowPartition.from_bounds(partition, num_rows)
    if row_partition.world_size != world_size:
        raise ShapeError(
            f"partition must have one block per rank: got {row_partition.world_size} for {world_size} ranks"
        )
    return row_partition


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
    """Return the part of each row. The weight of a row is its number of entries plus one, as for `by_nnz`."""
    try:
        pymetis = import_module("pymetis")
    except ImportError as error:
        raise ImportError("partition='metis' needs PyMetis: pip install 'pymetis>=2025.2'") from error
    num_parts = min(world_size, graph.shape[0])  # METIS does not accept more parts than rows
    if num_parts < 2:
        return np.zeros(graph.shape[0], np.int64)
    adjacency = pymetis.CSRAdjacency(graph.indptr.astype(np.int64), graph.indices.astype(np.int64))
    return np.asarray(pymetis.part_graph(num_parts, adjacency, vweights=lengths.astype(np.int64) + 1)[1], np.int64)
