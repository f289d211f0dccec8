"""
Running on many GPUs
====================

A distributed matrix is divided into blocks of rows, one block for each worker of a
`dask <https://distributed.dask.org>`_ cluster, and solvers run on the workers. If there is no GPU, the workers are
processes on the CPU, as on the machine that made this page. So the same script also runs on a laptop.
"""

# %%
# .. currentmodule:: gsparse.distributed
#
# A cluster, and a matrix on it
# -----------------------------
# `LocalGpuCluster` starts a worker for each GPU of this machine. Its processes import this file, so the code that
# starts the cluster must be inside of ``if __name__ == "__main__"``. A notebook does not need that. Any other dask
# cluster with a worker for each GPU can be used instead: :ref:`cluster_across_hosts` shows how to start one by hand,
# with TLS, and under Slurm.

import numpy as np
import scipy.sparse as sp
import scipy.sparse.linalg as sla
from distributed import Client

from gsparse.distributed import LocalGpuCluster, distribute, from_loaders
from gsparse.linalg import cg, ic0


def poisson(n):
    """Return the 7-point discretization of -Δ on a cube, times h²."""
    return sp.csr_array(-sla.LaplacianNd((n,) * 3, boundary_conditions="dirichlet", dtype=np.float64).tosparse())


def tridiagonal_rows(begin, end, size=10_000):
    """Return some rows of a matrix that is never assembled in one place."""
    return sp.diags_array([-1.0, 3.0, -1.0], offsets=[-1, 0, 1], shape=(size, size)).tocsr()[begin:end]


if __name__ == "__main__":
    cluster = LocalGpuCluster(2, device="cpu")  # two workers on the CPU; without arguments, one worker for each GPU
    client = Client(cluster)

    S, b = poisson(16), np.ones(16**3)
    A = distribute(S, client=client)
    print(A)
    assert len(A.workers) == 2 and sum(A.nnz_per_worker) == S.nnz

# %%
# Each worker owns consecutive rows and the same part of every vector. By default (``partition="nnz"``), all workers own
# about the same number of entries. For a product, a worker also needs entries of the vector that other workers own,
# which are called its *ghosts*. Their owners send them directly. Workers of one host write them into each other's
# memory: that of their GPUs (of NVIDIA), or a file in memory. Workers of several hosts use NCCL or RCCL if each has a
# GPU of its own, else TCP. In this example, each worker owns one half of the cube, and its ghosts are the points of the
# other half along their common face:

if __name__ == "__main__":
    assert A.row_bounds == (0, 8 * 16**2, 16**3)
    assert A.ghosts_per_worker == [16**2, 16**2]

# %%
# Every product sends the ghosts, so an order of the rows in which neighbours are far apart is expensive.
# ``reorder="rcm"`` moves neighbours together, and ``partition="metis"`` computes a partition with few ghosts (it needs
# the extra ``metis``). Vectors are permuted automatically.

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
# The solvers of `gsparse.linalg` run on the workers if the matrix is distributed. This process starts a solve through
# dask, and the workers then send each other what they need. Dask takes no part in the iterations. For a right-hand side
# in a NumPy array, the solution is a NumPy array. For a dask array it is a dask array, and then no process holds a
# whole vector (:ref:`many_gpus_poisson`).

if __name__ == "__main__":
    result = cg(A, b, M=ic0(A), rtol=1e-8, full_output=True)
    print(result)
    assert result.info == 0
    assert np.linalg.norm(b - S @ result.x) <= 2e-8 * np.linalg.norm(b)
    assert np.allclose(A @ b, S @ b)

# %%
# Each worker makes `ic0 <gsparse.linalg.ic0>` of its own diagonal block only, which is block Jacobi over the workers.
# With more workers, a solve can therefore need more iterations. The same holds for all preconditioners except `amg
# <gsparse.linalg.amg>`, which is one multigrid cycle over all workers. Compare the times of whole solves and not of
# iterations. The same matrix on one worker:

if __name__ == "__main__":
    with distribute(S, client=client, workers=A.workers[:1]) as A1:
        result1 = cg(A1, b, M=ic0(A1), rtol=1e-8, full_output=True)
    print(f"{result1.iterations} iterations on one worker, {result.iterations} on two")
    assert result1.iterations <= result.iterations

# %%
# SciPy's solvers accept the matrix too, but their vectors lie in this process. Each product sends a vector to the
# workers and back.

if __name__ == "__main__":
    x, info = sla.cg(A, b, rtol=1e-8)
    assert info == 0

# %%
# Sums over all workers
# ---------------------
# In each iteration of `cg`, all workers add up two scalars, or three with a preconditioner, one after the other, and
# each time they wait for the slowest of them. ``single_reduction=True`` adds all of them up at once. The iterates are
# the same up to rounding errors, and an iteration moves up to three vectors more in the memory of each worker. So it
# pays with many workers, or if each has few rows: measure both.

if __name__ == "__main__":
    single = cg(A, b, M=ic0(A), rtol=1e-8, single_reduction=True, full_output=True)
    assert single.info == 0 and abs(single.iterations - result.iterations) <= 1
    assert np.allclose(single.x, result.x, rtol=1e-6)

# %%
# Sparse algebra
# --------------
# Products, sums and multiples of distributed matrices are computed on the workers, and stay there as matrices of their
# own. The workers send each other the rows of their ghosts. ``A.T @ A`` computes the transpose first. Rows, diagonals
# and sums come back as arrays of SciPy and NumPy. `with_data <DistributedMatrix.with_data>` sends other values for the
# same entries: the fast way to the next matrix of a time stepping.

if __name__ == "__main__":
    with A.T @ A as normal, 2 * A + normal as total, A.with_data(3 * A.tocsr().data) as tripled:
        assert np.allclose(total[[0, 100]].toarray(), (2 * S + S.T @ S)[[0, 100]].toarray())
        assert np.allclose(total.diagonal(), (2 * S + S.T @ S).diagonal())
        assert np.allclose(tripled.sum(axis=1), 3 * S.sum(axis=1))
        print(total)

# %%
# Matrices that fit on no single machine
# --------------------------------------
# Each worker can read its own rows: from files (:ref:`partitioned_files`), from a function, or from the chunks of a
# dask array (`from_dask`).

if __name__ == "__main__":
    with from_loaders([tridiagonal_rows], (10_000, 10_000), client=client, partition="rows") as T:
        assert T.row_bounds == (0, 5000, 10_000)
        x, info = cg(T, np.ones(10_000), rtol=1e-10)
        assert info == 0
        assert np.allclose(T @ x, 1.0)

# %%
# Failures
# --------
# If a worker is lost, a `WorkerLostError <gsparse.errors.WorkerLostError>` with its rank and address is raised. If a
# worker is silent for ``timeout=`` seconds, a `CommunicationError <gsparse.errors.CommunicationError>` is raised. An
# error on one rank ends the solve on all ranks, and is raised in the client unchanged.
# ``cg(A, b, on_failure="resume")`` loads the rows again on the remaining workers, and continues from the latest
# checkpoint of x in their memory.
#
# Everyone who can reach a dask scheduler can run code on its workers. On a network that you do not trust, give dask TLS
# certificates; the connections between workers then use them as well.
#
# Scaling
# -------
# In every iteration, the exchange of ghosts and the sums over all workers take a fixed time. It is a small part of the
# iteration if every GPU has millions of rows, and nearly all of it if every GPU has a few thousand. ``FIGURES.md`` has
# measurements on one host. :ref:`thousand_gpus` is a model, fitted to measurements, for larger clusters.

if __name__ == "__main__":
    A.close()
    client.close()
    cluster.close()
