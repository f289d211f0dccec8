"""Functions that make a distributed matrix from a matrix of this process, from files, from a function or from dask."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import distributed
import numpy as np
import scipy.sparse as sp

from gsparse.distributed.client import dask_chunks  # noqa: F401 (for chunks that are matrices on a device)
from gsparse.distributed.client.cluster import current_client
from gsparse.distributed.client.matrix import TIMEOUT, DistributedMatrix
from gsparse.distributed.client.products import is_dask
from gsparse.distributed.client.row_sources import DaskRows, HostRows, LoadedRows, Partition, RowSource
from gsparse.distributed.io.loaders import RowLoader, Source
from gsparse.errors import ShapeError
from gsparse.linalg.multigrid.options import blocks_of
from gsparse.matrix.gpu_sparse_matrix import DeviceMatrix


def distribute(
    S: Any,
    client: distributed.Client | None = None,
    *,
    partition: Partition = "nnz",
    reorder: str | None = None,
    workers: Sequence[str] | int | None = None,
    device: str | None = None,
    timeout: float = TIMEOUT,
    **options: Any,
) -> DistributedMatrix:
    """Distribute a matrix of this process over the workers of a dask cluster.

    Parameters
    ----------
    S : sparse array or GpuSparseMatrix, shape (M, N)
        The matrix. This process keeps it, to distribute it again if a worker is lost. A CSR array or matrix of SciPy is
        not copied, so do not write to its arrays; anything else is copied.
    client : distributed.Client, optional
        The client of the cluster; by default dask's current client.
    partition : {"nnz", "rows", "metis"} or sequence of int, optional
        "nnz", the default, gives each worker about the same number of entries, and "rows" the same number of rows. With
        both, the rows of a block of a block sparse matrix (BSR) stay together. "metis" calls METIS, which reduces the
        number of ghosts. It needs a square matrix and the package pymetis, and permutes rows and columns. A sequence of
        integers holds the row bounds themselves.
    reorder : {"rcm"}, optional
        "rcm" first permutes rows and columns by reverse Cuthill–McKee, which reduces ghosts without METIS.
    workers : sequence of str, or int, optional
        Dask's addresses of the workers, or their number; by default all workers of the cluster. Each worker becomes one
        rank.
    device : {"auto", "cpu", "gpu"}, optional
        Device on each worker. "auto" is the worker's GPU if it has one, else the CPU. The default is the environment
        variable ``GSPARSE_DEVICE`` of the worker, which `LocalGpuCluster` sets, otherwise "auto".
    timeout : float, optional
        Longest time, in seconds, for which a rank may be silent while another one waits for it. After that,
        all ranks end with an error.
    **options
        Options of `GpuSparseMatrix`, for the diagonal blocks.

    Returns
    -------
    DistributedMatrix
        The matrix, whose rows stay on the workers until it is closed.

    Raises
    ------
    ValueError, TypeError
        If an argument is not valid. They are raised before anything is sent to the workers.
    ShapeError
        If S does not have two dimensions, if row bounds do not fit the matrix or the number of workers, or if `reorder`
        or "metis" is used for a matrix that is not square.
    CommunicationError, WorkerLostError
        If the ranks cannot connect, are silent for longer than `timeout`, or a worker is lost.

    Examples
    --------
    One worker within this process; a cluster usually has several:

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
        raise ShapeError(f"S must be a 2-D sparse array, got {got}; files are read by from_loaders([path], (M, N))")
    # Copy a GpuSparseMatrix: otherwise its host arrays would stay on loan, and every product would upload them.
    if not isinstance(S, RowSource):
        rows, columns = blocks_of(S)
        block_size = rows if rows == columns else 1
        S = HostRows(sp.csr_array(S, copy=isinstance(S, DeviceMatrix)), block_size)
    return DistributedMatrix.create(S, client, workers, partition, reorder, device, timeout, options)


def from_loaders(
    sources: Sequence[Source], shape: tuple[int, int], client: distributed.Client | None = None, **placement: Any
) -> DistributedMatrix:
    """Make a distributed matrix whose rows each worker reads by itself, so that it is never assembled in one place.

    Parameters
    ----------
    sources : list of path, or of one callable
        Files that all workers can read, in SciPy's ``.npz`` or in the Matrix Market format, whose rows are stacked in
        this order. Alternatively, one ``callable(lo, hi)`` that returns the rows from lo up to, but not including, hi,
        with all N columns, in any form that SciPy converts to a sparse array.
    shape : (int, int)
        Shape (M, N) of the whole matrix.
    client : distributed.Client, optional
        The client of the cluster; by default dask's current client.
    **placement
        Keyword arguments of `distribute`: partition, workers, device, timeout, and options of
        `GpuSparseMatrix`. "metis" and `reorder` need the whole matrix and are refused. The partition "nnz" divides the
        rows evenly if the number of entries in each row is not known without reading all of them.

    Returns
    -------
    DistributedMatrix
        The matrix, as from `distribute`.

    Raises
    ------
    ShapeError, FileFormatError, CommunicationError, WorkerLostError

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
    return distribute(LoadedRows(RowLoader(sources, shape)), client, **placement)


def from_dask(X: Any, client: distributed.Client | None = None, **placement: Any) -> DistributedMatrix:
    """Make a distributed matrix from a dask array whose chunks are blocks of rows, sparse or dense.

    Chunks on a worker's GPU are not copied to the host.

    Parameters
    ----------
    X : dask.array.Array, shape (M, N)
        The matrix, in chunks of whole rows: matrices of gsparse, SciPy, CuPy or the package ``sparse``, or dense arrays
        of NumPy or CuPy. If the sizes of chunks are not known, X is computed on the workers first.
    client : distributed.Client, optional
        The client of the cluster; by default dask's current client.
    **placement
        Keyword arguments of `distribute`: partition, workers, device, timeout, and options of
        `GpuSparseMatrix`. "metis" and `reorder` need the whole matrix and are refused. The number of entries of each
        row is not known, so "nnz" divides the rows evenly, like "rows"; both round the row bounds to the nearest bounds
        of chunks. Row bounds that the caller passes must be bounds of chunks.

    Returns
    -------
    DistributedMatrix
        The matrix, as from `distribute`.

    Raises
    ------
    TypeError, ShapeError, CommunicationError, WorkerLostError

    Examples
    --------
    >>> import dask.array, numpy
    >>> from distributed import Client
    >>> from gsparse.distributed import from_dask
    >>> X = dask.array.from_array(numpy.eye(50), chunks=(25, 50))
    >>> with Client(n_workers=1, processes=False, dashboard_address=None) as client:
    ...     with from_dask(X, client=client, device="cpu") as A:
    ...         A.row_bounds, A.nnz
    ((0, 50), 50)
    """
    if not is_dask(X):
        raise TypeError(f"a dask array is needed, got {type(X).__name__}: distribute(S) takes a matrix of this process")
    if X.ndim != 2 or X.numblocks[1] != 1:
        raise ShapeError(
            f"a 2-D dask array in chunks of whole rows is needed, got chunks {X.chunks}: use X.rechunk({{1: -1}})"
        )
    client = current_client(client)
    if np.isnan(X.shape).any():
        with client.as_current():
            X = X.persist().compute_chunk_sizes()
    return distribute(DaskRows(X), client, **placement)
