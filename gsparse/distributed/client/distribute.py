"""Distributed matrices out of what there is: a matrix here, files, dask arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import distributed
import numpy as np
import scipy.sparse as sp

from gsparse.distributed.client.matrix import TIMEOUT, DistributedMatrix
from gsparse.distributed.client.row_sources import Blocks, Here, Loaded, Partition, RowSource
from gsparse.distributed.client.vector_layout import is_dask
from gsparse.distributed.io.loaders import RowSources, Source
from gsparse.errors import ShapeError
from gsparse.matrix.gpu_sparse_matrix import GpuSparseMatrix

__all__ = ["distribute", "from_dask_array", "from_loaders"]


def distribute(
    S: Any,
    *,
    client: distributed.Client | None = None,
    partition: Partition = "nnz",
    reorder: str | None = None,
    workers: Sequence[str] | int | None = None,
    device: str = "auto",
    timeout: float = TIMEOUT,
    **options: Any,
) -> DistributedMatrix:
    """Spread a matrix of this process over the workers of a dask cluster.

    Parameters
    ----------
    S : sparse array or GpuSparseMatrix, shape (M, N)
        It is kept here too, to be spread again where a worker is lost: CSR as it is, anything else as a copy.
    client : distributed.Client, optional
        The current one by default.
    partition : {"nnz", "rows", "metis"} or sequence of int, optional
        Rows with about as many entries a worker (default), as many rows, what METIS finds to have few ghosts (square
        matrices; it needs pymetis and permutes rows and columns), or the bounds themselves.
    reorder : {"rcm"}, optional
        Reverse Cuthill–McKee first: few ghosts without METIS.
    workers : sequence of str, or int, optional
        Dask's addresses, or how many of them; all of the cluster's by default, one rank each.
    device : str, optional
        On each worker; "auto" is its GPU where it has one.
    timeout : float, optional
        Seconds that a rank may be silent, before the others give up.
    **options
        Of `GpuSparseMatrix`, for the diagonal blocks.

    Returns
    -------
    DistributedMatrix
        Which keeps its rows on the workers until it is closed.

    Raises
    ------
    ValueError, TypeError
        Where an argument is none of these, before anything is sent.
    ShapeError, CommunicationError, WorkerLost

    Examples
    --------
    A worker within this process; a cluster has more:

    >>> import numpy, scipy.sparse
    >>> from distributed import Client
    >>> from gsparse.distributed import distribute
    >>> S = scipy.sparse.diags_array([-1.0, 2.0, -1.0], offsets=[-1, 0, 1], shape=(50, 50))
    >>> with Client(n_workers=1, processes=False, dashboard_address=None) as client:
    ...     with distribute(S, client=client, device="cpu") as A:
    ...         bool(numpy.allclose(A @ numpy.ones(50), S @ numpy.ones(50)))
    True
    """
    if not isinstance(S, RowSource) and np.ndim(S) != 2:
        got = f"{type(S).__name__} of {np.ndim(S)} dimensions"
        raise ShapeError(f"S must be a sparse array of two, got {got}; files are read by from_loaders([path], (M, N))")
    # (a copy of what would be on loan, so that the device's matrix is free again)
    source = S if isinstance(S, RowSource) else Here(sp.csr_array(S, copy=isinstance(S, GpuSparseMatrix)))
    return DistributedMatrix.made(source, client, workers, partition, reorder, device, timeout, options)


def from_loaders(sources: Sequence[Source], shape: tuple[int, int], **placement: Any) -> DistributedMatrix:
    """Have each worker read its rows, so that the matrix never exists in one place.

    Parameters
    ----------
    sources : list of path, or of one callable
        Files that workers can read, one below the other: SciPy's ``.npz`` or Matrix Market. Or ``callable(lo, hi)``,
        which gives these rows as anything that SciPy makes a sparse array of, in all N columns.
    shape : (int, int)
        (M, N): of all sources together.
    **placement
        What `distribute` takes by name: client, partition, workers, device, timeout, and options of `GpuSparseMatrix`;
        neither METIS nor reorder, which need the whole matrix. By entries only where headers tell them.

    Returns
    -------
    DistributedMatrix
        As from `distribute`.

    Raises
    ------
    ShapeError, FileFormatError, CommunicationError, WorkerLost

    Examples
    --------
    >>> import scipy.sparse
    >>> from distributed import Client
    >>> from gsparse.distributed import from_loaders
    >>> def rows(lo, hi):
    ...     return scipy.sparse.eye_array(hi - lo, 50, k=lo)
    >>> with Client(n_workers=1, processes=False, dashboard_address=None) as client:
    ...     with from_loaders([rows], (50, 50), client=client, device="cpu") as A:
    ...         A.row_bounds, A.nnz
    ((0, 50), 50)
    """
    return distribute(Loaded(RowSources(sources, shape)), **placement)


def from_dask_array(X: Any, **placement: Any) -> DistributedMatrix:
    """Take over a dask array whose chunks are blocks of rows, each a sparse array (or dense).

    Parameters
    ----------
    X : dask.array.Array, shape (M, N)
        Chunked by rows only.
    **placement
        What `distribute` takes by name: client, partition, workers, device, timeout, and options of `GpuSparseMatrix`;
        neither METIS nor reorder, which need the whole matrix. By rows, since entries are not known; bounds are at ends
        of chunks.

    Returns
    -------
    DistributedMatrix
        As from `distribute`.

    Raises
    ------
    TypeError, ShapeError, CommunicationError, WorkerLost

    Examples
    --------
    >>> import dask.array, numpy
    >>> from distributed import Client
    >>> from gsparse.distributed import from_dask_array
    >>> X = dask.array.from_array(numpy.eye(50), chunks=(25, 50))
    >>> with Client(n_workers=1, processes=False, dashboard_address=None) as client:
    ...     with from_dask_array(X, client=client, device="cpu") as A:
    ...         A.row_bounds, A.nnz
    ((0, 50), 50)
    """
    if not is_dask(X):
        raise TypeError(f"a dask array is needed, got {type(X).__name__}: distribute(S) takes what is here")
    if X.ndim != 2 or X.numblocks[1] != 1:
        raise ShapeError(f"a dask array in chunks of whole rows is needed, got chunks {X.chunks}: X.rechunk((n, -1))")
    return distribute(Blocks(X), **placement)
