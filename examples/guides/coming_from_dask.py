"""
Coming from dask.array, rapids-singlecell and legate-sparse
===========================================================

All three divide a large sparse matrix by rows. This page shows which lines change, what stays on the workers, and how
clusters are started.
"""

# %%
# .. currentmodule:: gsparse
#
# What each of them does
# ----------------------
# * ``dask.array`` computes with chunks of any kind, block by block. It has no solvers for sparse matrices, and tasks of
#   different chunks exchange data through dask.
# * rapids-singlecell works on AnnData, whose ``X`` may be a dask array with a sparse matrix of CuPy in each chunk.
# * legate-sparse is a copy of ``scipy.sparse`` over GPUs, started by the command ``legate``. Its project is archived.
#
# A `gsparse.distributed.DistributedMatrix` has its rows on dask workers. It computes sparse algebra as SciPy's arrays
# do, and workers send each other directly what a product or a solve needs.
#
# The workers of this page are threads of one process, so that it needs no ``if __name__ == "__main__"``. The last
# section starts real clusters.

import dask.array as da
import numpy as np
import scipy.sparse as sp
from distributed import Client

import gsparse
from gsparse import GpuSparseMatrix
from gsparse.linalg import cg, svds

client = Client(n_workers=2, threads_per_worker=1, processes=False, dashboard_address="127.0.0.1:0")

# %%
# From a dask array, and back
# ---------------------------
# Chunks may be matrices of gsparse, CuPy or SciPy, or dense. They become rows on the workers where they are. Each must
# have whole rows: ``X.rechunk({1: -1})`` sees to that.

S = sp.random_array((400, 60), density=0.2, format="csr", rng=0)
X = da.from_array(S.toarray(), chunks=(100, 60)).map_blocks(sp.csr_array)

with gsparse.from_dask(X) as A:
    print(A)
    normal = np.log1p(A.multiply(1e4 / A.sum(axis=1)[:, None]))  # a matrix on the workers
    mean = normal.mean(axis=0)  # an array of NumPy, in this process
    U, s, Vt = svds(normal, 3, center=mean)
    array = normal.to_dask()  # a dask array again: one chunk for each worker, on its device
    normal.close()

N = np.log1p((S * (1e4 / S.sum(axis=1)[:, None])).toarray())
assert np.allclose(mean, N.mean(axis=0))
assert np.allclose(np.sort(s), np.sort(np.linalg.svd(N - N.mean(axis=0), compute_uv=False)[:3]))
assert isinstance(array._meta, GpuSparseMatrix) and np.allclose(array.compute().toarray(), N)

# %%
# The lines that change
# ---------------------
# ==============================================  =================================================================
# dask.array                                      gsparse
# ==============================================  =================================================================
# ``X.map_blocks(cupyx...csr_matrix)``            ``A = gsparse.from_dask(X)``, or ``X.map_blocks(GpuSparseMatrix)``
# ``X.dot(x)``, ``X.T.dot(y)``                    ``A @ x``, ``A.T @ y``
# ``X.map_blocks(np.log1p)``                      ``np.log1p(A)``, ``A.log1p()``
# ``X.sum(axis=0).compute()``                     ``A.sum(axis=0)``, which is computed at once
# ``da.linalg.svd_compressed(X - X.mean(0), k)``  ``svds(A, k, center=A.mean(axis=0))``; the difference is never formed
# a loop with ``X.dot``                           ``cg(A, b)``, ``gmres(A, b)``: iterations without dask
# ==============================================  =================================================================
#
# ==============================================  =================================================================
# rapids-singlecell                               gsparse
# ==============================================  =================================================================
# ``adata.X``, a dask array                       ``A = gsparse.from_dask(adata.X)``
# ``rsc.pp.normalize_total(adata, 1e4)``          ``A = A.multiply(1e4 / A.sum(axis=1)[:, None])``
# ``rsc.pp.log1p(adata)``                         ``A = np.log1p(A)``
# ``adata[:, genes]``                             ``A[:, genes]``
# ``rsc.pp.pca(adata, k)``                        ``U, s, Vt = svds(A, k, center=A.mean(axis=0))``, and ``U * s``
# the result                                      ``adata.X = A.to_dask()``
# ==============================================  =================================================================
#
# ==============================================  =================================================================
# legate-sparse                                   gsparse
# ==============================================  =================================================================
# ``legate --gpus 4 program.py``                  ``client = Client(LocalGpuCluster(4))``, and ``python program.py``
# ``csr_array(...)``                              ``distribute(S)``, or `gsparse.distributed.from_loaders`
# ``A @ x``, ``A @ B``, ``A.T``                   the same
# ``linalg.cg(A, b)``                             `gsparse.linalg.cg`, with SciPy's arguments and results
# arrays of cuPyNumeric                           arrays of NumPy, or of dask: ``A.vector(b)``
# ==============================================  =================================================================
#
# :ref:`cells_on_workers` is a whole analysis of single cells.

# %%
# Chunks that stay on their device
# --------------------------------
# Dask's own operations also keep chunks of `GpuSparseMatrix` on their device: slices, ``concatenate``, ``dot``,
# functions of entries, and reductions. Import ``dask.array`` before gsparse, or use `gsparse.distributed`. Only then
# does dask know the class.

chunks = X.map_blocks(GpuSparseMatrix)
for result, expected in (
    (chunks[50:250, 3:9], S[50:250, 3:9]),
    (da.concatenate([chunks, chunks]), sp.vstack([S, S])),
    (chunks.T.dot(chunks), S.T @ S),
):
    assert np.allclose(result.compute().toarray(), expected.toarray())
assert np.allclose(chunks.sum(axis=1, keepdims=True).compute(), S.sum(axis=1)[:, None])

# %%
# Some operations need a distributed matrix, or dense chunks. Dask takes a chunk without entries for one without
# elements, so ``max`` and ``min`` fail if there is one. ``X + 1`` is refused, because the result would be dense, and
# ``X - X.mean(axis=0)`` is a dense array.

empty = da.zeros((100, 60), chunks=(100, 60)).map_blocks(GpuSparseMatrix)
gap = da.concatenate([chunks, empty])
try:
    gap.max(axis=0).compute(scheduler="synchronous")
except ValueError as error:
    print(error)
else:
    raise AssertionError
with gsparse.from_dask(gap) as A:
    assert A.shape == (500, 60) and A.max(axis=1).toarray().shape == (500,)

# %%
# What comes back where
# ---------------------
# Element-wise operations, selections and products of matrices return matrices on the workers. Sums, means, extremes
# and norms return arrays of this process. A product or a solve returns what the vector was: an array of NumPy in this
# process, or a dask array on the workers, whose chunks stay arrays of NumPy or CuPy. ``A.vector(b)`` makes such an
# array from b.

L = sp.diags_array([-1.0, 3.0, -1.0], offsets=[-1, 0, 1], shape=(400, 400)).tocsr()
with GpuSparseMatrix(L).distribute(client=client) as A:
    b = A.vector(np.ones(400))
    x, info = cg(A, b, rtol=1e-10)
    assert info == 0 and isinstance(x, da.Array)
    assert np.allclose((A @ x).compute(), 1.0)
    assert type(A @ np.ones(400)) is np.ndarray

client.close()

# %%
# Clusters
# --------
# Every dask cluster with one worker for each GPU works. gsparse starts one itself
# (`gsparse.distributed.LocalGpuCluster`). With dask-cuda, over UCXX and with RMM:
#
# .. code-block:: python
#
#    from dask_cuda import LocalCUDACluster
#
#    cluster = LocalCUDACluster(protocol="ucxx", rmm_pool_size=0.8, rmm_allocator_external_lib_list="cupy")
#
# Each worker of both clusters sees all GPUs, its own first. gsparse takes all arrays from CuPy's current allocator,
# which the last option sets to RMM's. Leave some memory outside of RMM's pool: for kernels, for the factors of cuDSS,
# and for the 8 MiB per worker through which workers of one host send messages. Workers that start otherwise set the
# allocator themselves: ``client.run(cupy.cuda.set_allocator, rmm_cupy_allocator)``.
#
# Addresses may begin with ``tcp://``, ``tls://`` or ``ucxx://``. They concern the messages of dask: workers open
# connections of their own for products and solves, over the GPUs' memory, NCCL or TCP. After ``tls://``, TCP is
# encrypted, too; after ``ucxx://`` it is not. ``LocalGpuCluster(security=security)`` and dask's other clusters take
# dask's ``Security``.
#
# dask-jobqueue starts workers as jobs, of Slurm for instance. :ref:`cluster_across_hosts` shows the arguments, and how
# to start workers by hand.
