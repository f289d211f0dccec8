"""
Running on many GPUs
====================

A matrix in blocks of rows, one a worker of a `dask <https://distributed.dask.org>`_ cluster; solvers run on the
workers. Without a GPU the workers are processes on the CPU, as on the machine that made this page, so the script is the
same on a laptop.
"""

# %%
# .. currentmodule:: gsparse.distributed
#
# A cluster, and a matrix on it
# -----------------------------
# `LocalGpuCluster` starts a worker for each GPU of this machine. Its processes
# import this file, so whatever starts it has to be behind ``if __name__ == "__main__"``; in a notebook that is not
# needed. Any other dask cluster serves as well, with a worker for each GPU: :ref:`cluster_across_hosts` starts one by
# hand, with TLS, and under Slurm.

import numpy as np
import scipy.sparse as sp
import scipy.sparse.linalg as sla
from distributed import Client

from gsparse.distributed import LocalGpuCluster, distribute, from_loaders
from gsparse.linalg import cg, ic0


def poisson(n):
    """Give -Δ on a cube, times h²."""
    return sp.csr_array(-sla.LaplacianNd((n,) * 3, boundary_conditions="dirichlet", dtype=np.float64).tosparse())


def tridiagonal_rows(begin, end, size=10_000):
    """Give some rows of a matrix that is nowhere as a whole."""
    return sp.diags_array([-1.0, 3.0, -1.0], offsets=[-1, 0, 1], shape=(size, size)).tocsr()[begin:end]


if __name__ == "__main__":
    cluster = LocalGpuCluster(2, device="cpu")  # two workers on the CPU; leave both out for one on each GPU
    client = Client(cluster)

    S, b = poisson(16), np.ones(16**3)
    A = distribute(S, client=client)
    print(A)
    assert len(A.workers) == 2 and sum(A.nnz_per_worker) == S.nnz

# %%
# Each worker owns consecutive rows, cut so that all have about as many entries (``partition="nnz"``), and the same part
# of every vector. Entries of a vector that it has columns for but does not own are its *ghosts*, which it gets from
# their owners, worker to worker, in every product: by NCCL or RCCL where each has a GPU to itself, else over TCP. Here
# a slab of the cube borders on the other along one face:

if __name__ == "__main__":
    assert A.row_bounds == (0, 8 * 16**2, 16**3)
    assert A.ghosts_per_worker == [16**2, 16**2]

# %%
# Ghosts are what a product sends, so a numbering in which neighbours are far apart is expensive. ``reorder="rcm"``
# brings them together, ``partition="metis"`` looks for few ghosts in the graph (extra ``metis``). Vectors need no
# permuting: that happens on the way.

if __name__ == "__main__":
    shuffled = np.random.default_rng(1).permutation(16**3)
    with distribute(S[shuffled][:, shuffled], client=client) as bad:
        print("shuffled", bad.ghosts_per_worker)
        with bad.repartition(reorder="rcm") as good:
            print("reordered", good.ghosts_per_worker)
            assert max(good.ghosts_per_worker) < max(bad.ghosts_per_worker) / 2

# %%
# The same solvers
# ----------------
# Functions of `gsparse.linalg` find out that the matrix is distributed, and run on the workers: dask starts and ends
# the solve and sees no vector in between. NumPy goes in and comes out; dask arrays do as well, and then no process has
# to hold a whole vector (:ref:`many_gpus_poisson`).

if __name__ == "__main__":
    found = cg(A, b, M=ic0(A), rtol=1e-8, full_output=True)
    print(found)
    assert found.info == 0
    assert np.linalg.norm(b - S @ found.x) <= 2e-8 * np.linalg.norm(b)
    assert np.allclose(A @ b, S @ b)

# %%
# Preconditioners are made of each worker's own block and know nothing of the others': block Jacobi over workers. More
# workers can mean more iterations, so compare whole solves, not iterations a second. The same matrix on one worker:

if __name__ == "__main__":
    with distribute(S, client=client, workers=A.workers[:1]) as alone:
        one = cg(alone, b, M=ic0(alone), rtol=1e-8, full_output=True)
    print(f"{one.iterations} iterations on one worker, {found.iterations} on two")
    assert one.iterations <= found.iterations

# %%
# SciPy's solvers take the matrix too, but their vectors are here: each product sends them out and back.

if __name__ == "__main__":
    x, info = sla.cg(A, b, rtol=1e-8)
    assert info == 0

# %%
# Rows that are never here
# ------------------------
# A matrix that fits on no single machine is read where it belongs: from files (:ref:`partitioned_files`), from a
# function, or from the chunks of a dask array (`from_dask_array`).

if __name__ == "__main__":
    with from_loaders([tridiagonal_rows], (10_000, 10_000), client=client, partition="rows") as T:
        assert T.row_bounds == (0, 5000, 10_000)
        x, info = cg(T, np.ones(10_000), rtol=1e-10)
        assert info == 0
        assert np.allclose(T @ x, 1.0)

# %%
# When something goes wrong
# -------------------------
# A worker that is gone is a `WorkerLost <gsparse.errors.WorkerLost>` with its rank and address; one that is silent for
# ``timeout=`` seconds is a `CommunicationError <gsparse.errors.CommunicationError>`. An error on one rank ends the
# solve on all, and comes here as it is. ``cg(A, b, on_failure="resume")`` makes the rows again on the workers that are
# left and goes on from what these had kept of x.
#
# Who reaches a dask scheduler can run code on its workers. On a network that you do not trust, give dask TLS
# certificates, which connections between workers then use as well.
#
# How far it scales
# -----------------
# An iteration has a fixed price for its exchange and its sums. While every GPU has millions of rows that is a small
# part of it; with a few thousand it is all there is. ``FIGURES.md`` has what was measured on one host, and
# :ref:`thousand_gpus` is a model, fitted to measurements, of what to expect beyond.

if __name__ == "__main__":
    A.close()
    client.close()
    cluster.close()
