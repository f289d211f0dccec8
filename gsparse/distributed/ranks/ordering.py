"""Which rows stand next to each other, and where they are cut into blocks: fewer ghosts, even work."""

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

__all__ = ["order_rows", "parsed_partition"]

Permutation = npt.NDArray[np.int64]


def order_rows(
    S: Any, reorder: str | None, partition: str | Sequence[int], world_size: int
) -> tuple[Permutation | None, RowPartition]:
    """Choose an order of the rows, and who owns which.

    Parameters
    ----------
    S : sparse array or matrix, shape (M, N)
        Only its structure is looked at; stored zeros belong to it.
    reorder : {None, "rcm"}
        "rcm" is reverse Cuthill-McKee [1]_: neighbours come close together, so that ghosts are of the next ranks only.
    partition : {"rows", "nnz", "metis"} or sequence of int
        About as many rows, or entries, for every rank; parts with few entries between them, by METIS [2]_, whose rows
        are then moved together; or bounds as in `RowPartition`, of the rows in their new order.
    world_size : int

    Returns
    -------
    permutation : array of int64 or None
        The row of S that stands at each place, for rows and columns alike: ranks own blocks of
        ``S[permutation][:, permutation]``, which takes ``x[permutation]`` to ``(S @ x)[permutation]``. None where all
        stay where they are.
    RowPartition
        Of the rows in their new order.

    Raises
    ------
    ShapeError
        Where a matrix that is to be permuted is not square, or bounds are not `world_size` blocks of its rows.
    ImportError
        "metis" without PyMetis.

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
    partition = parsed_partition(reorder, partition)
    by_metis = partition == "metis"
    if reorder is None and not by_metis:
        return None, _partition(S.indptr, partition, world_size)
    if S.shape[0] != S.shape[1]:
        raise ShapeError(f"only a square matrix can be reordered or cut by 'metis', got shape {S.shape}")
    graph, lengths = _graph(S), np.diff(S.indptr)
    order = _rcm(graph) if reorder == "rcm" else np.arange(S.shape[0])
    if by_metis:
        parts = _metis(graph, lengths, world_size)
        order = order[np.argsort(parts[order], kind="stable")]
        partition = np.concatenate([[0], np.cumsum(np.bincount(parts, minlength=world_size))]).tolist()
    return order, _partition(np.concatenate([[0], np.cumsum(lengths[order])]), partition, world_size)


def parsed_partition(reorder: str | None, partition: str | Sequence[int]) -> str | tuple[int, ...]:
    """Give the name of a partition, or its bounds; raise where rows can be neither ordered nor cut so."""
    if reorder is not None and not (isinstance(reorder, str) and reorder == "rcm"):
        raise ValueError(f"reorder must be None or 'rcm', got {reorder!r}")
    try:
        found = partition if isinstance(partition, str) else tuple(map(index, partition))
    except TypeError:
        found = ""
    if isinstance(found, str) and found not in ("nnz", "rows", "metis"):
        raise ValueError(f"partition must be 'nnz', 'rows', 'metis' or bounds, got {partition!r}; bounds are integers")
    return found


def _partition(indptr: npt.NDArray[Any], partition: str | Sequence[int], world_size: int) -> RowPartition:
    num_rows = len(indptr) - 1
    if isinstance(partition, str):
        by_rows = partition == "rows"
        return RowPartition.by_rows(num_rows, world_size) if by_rows else RowPartition.by_nnz(indptr, world_size)
    found = RowPartition.from_bounds(partition, num_rows)
    if found.world_size != world_size:
        raise ShapeError(f"the bounds are those of {found.world_size} blocks, for {world_size} ranks")
    return found


def _graph(S: sp.csr_array) -> sp.csr_array:
    """Give the structure of S + Sᵀ without its diagonal."""
    pattern = sp.csr_array((np.ones(S.nnz, np.bool_), S.indices, S.indptr), shape=S.shape)
    lower = sp.tril(pattern + pattern.T, -1, format="csr")
    return sp.csr_array(lower + lower.T)


def _rcm(graph: sp.csr_array) -> Permutation:
    if not graph.shape[0]:  # which SciPy refuses
        return np.arange(0)
    return reverse_cuthill_mckee(graph, symmetric_mode=True).astype(np.int64)  # type: ignore[no-any-return]


def _metis(graph: sp.csr_array, lengths: npt.NDArray[Any], world_size: int) -> Permutation:
    """Give the part of each row; rows weigh what `RowPartition.by_nnz` counts for them."""
    try:
        pymetis = import_module("pymetis")
    except ImportError as error:
        raise ImportError("partition='metis' needs PyMetis: pip install 'pymetis>=2025.2'") from error
    num_parts = min(world_size, graph.shape[0])  # METIS takes no more
    if num_parts < 2:
        return np.zeros(graph.shape[0], np.int64)
    adjacency = pymetis.CSRAdjacency(graph.indptr.astype(np.int64), graph.indices.astype(np.int64))
    return np.asarray(pymetis.part_graph(num_parts, adjacency, vweights=lengths.astype(np.int64) + 1)[1], np.int64)
