"""
Where the time goes
===================

A program is slow, and you do not know why. `gsparse.profile` says which operations take the time, with which matrix and
on which line. This page profiles a slow program, and changes it until it is several times as fast.
"""

# %%
# .. currentmodule:: gsparse
#
# A slow program
# --------------
# A plate with heat sources cools down. Each implicit Euler step solves (M + Δt·K)·u_new = M·u, where the heat capacity
# M changes a little from step to step. The program makes the matrix with SciPy in each step, looks at ``A.data`` on the
# host in order to check it, and solves without a preconditioner.

import numpy as np
import scipy.sparse as sp

import gsparse
from gsparse import GpuSparseMatrix
from gsparse.linalg import amg, cg

N, STEPS, DT = 300, 10, 5000.0

second = sp.diags_array([-1.0, 2.0, -1.0], offsets=[-1, 0, 1], shape=(N, N))
K = sp.csr_array(sp.kronsum(second, second, format="csr"))
IDENTITY = sp.csr_array(sp.eye_array(N * N, format="csr"))
u_begin = np.random.default_rng(0).random(N * N)


def capacity(step):
    """Return the heat capacity in a step."""
    return 1.0 + 0.01 * step


def slow(steps):
    """Return the temperature after some steps."""
    u = u_begin
    for step in range(steps):
        A = GpuSparseMatrix(capacity(step) * IDENTITY + DT * K)
        values = A.data
        assert np.isfinite(values).all()
        u, info = cg(A, capacity(step) * u, rtol=1e-8)
        assert info == 0
    return u


slow(STEPS)  # Compiles or loads the kernels, so that the profile shows what each run needs.
with gsparse.profile() as p:
    u_slow = slow(STEPS)
print(p.table("line"))

# %%
# How to read the table
# ---------------------
# Each row is an operation on one line of the program.
#
# - *waiting s* are the seconds for which the program waited, excluding inner operations that have rows of their own.
#   With the row *outside gsparse*, the time in which no operation of gsparse was recorded, they add up to the
#   wall-clock time.
# - *with inner* also contains the operations inside: the row of the solver contains those of its steps.
# - *device s* are the seconds from the first to the last work of the operation on the device. On a GPU, the program
#   does not wait for most operations, so this column can be large where the first one is small: the program then waits
#   later, for the scalars of a solve or for a copy to the host. On the CPU, both are the same.
# - *copy %* compares the bytes per second with those of a large copy on this device. A product near 100 % cannot be
#   much faster, and one above 100 % reads from a cache. With a small matrix, most of the time is the cost of the call.
#
# ``p.table("matrix")`` has a row for each operation with each matrix. A matrix is named by ``A.name = "..."``, or by
# its shape. Here, the steps of CG take most of the time, and the next rows prepare matrices and copy ``A.data`` to the
# host.

names = {row.name for row in p.rows("line")}
assert any(name.startswith("A.data") for name in names)

# %%
# A fast program
# --------------
# All matrices have the same structure. So the matrix is made once, and `GpuSparseMatrix.with_data` replaces its values
# by those that are computed on the device. The preconditioner is made once too: as M changes little, the preconditioner
# of the first step serves all of them. The check reads the values on the device, where ``A.device_data`` is.


def fast(steps):
    """Return the temperature after some steps, as `slow` does."""
    S = IDENTITY + DT * K
    A = GpuSparseMatrix(S)
    A.name, preconditioner = "M + dt K", amg(A)
    rows, columns = S.nonzero()
    is_diagonal = A.device.upload((rows == columns).astype(float))
    u = A.device.upload(u_begin)
    for step in range(steps):
        B = A.with_data(A.device_data + (capacity(step) - 1) * is_diagonal)
        assert A.device.xp.isfinite(B.device_data).all()
        u, info = cg(B, capacity(step) * u, rtol=1e-8, M=preconditioner)
        assert info == 0
    return A.device.download(u)


fast(STEPS)
with gsparse.profile() as q:
    u_fast = fast(STEPS)
print(q)
print(f"{p.seconds:.3f} s before, {q.seconds:.3f} s after: {p.seconds / q.seconds:.1f} times as fast")
assert abs(u_slow - u_fast).max() < 1e-6 * abs(u_slow).max()
assert sum(row.iterations for row in p.rows()) > 20 * sum(row.iterations for row in q.rows())

# %%
# Profile a program without changing it
# -------------------------------------
# ``gsparse profile program.py arguments`` runs a program and prints the table, also if the program ends with an error
# or with Ctrl-C. ``--json`` and ``p.to_json`` write the figures to a file.
#
# If the package ``nvtx`` is installed, the operations are also ranges in NVIDIA's tools.
#
# What it costs
# -------------
# While no profile is open, an operation tests one variable, which takes some nanoseconds. While one is open, an
# operation takes a few microseconds more, and no device is waited for: a GPU records events, which are read when you
# ask for the table. Steps of a solver that run in CUDA graphs cannot be timed there. So one iteration is timed alone,
# and the time of the graphs is divided in its proportions; these rows have an asterisk.
#
# Profiles can be nested, and each records what begins and ends while it is open. All threads are recorded. The rows of
# the thread that opened the profile add up to its wall-clock time, and those of other threads stand below.

with gsparse.profile() as outer:
    A = GpuSparseMatrix(K)
    with gsparse.profile() as inner:
        A @ u_begin
assert [row.calls for row in inner.rows() if row.name == "A @ x"] == [1]
assert sum(row.seconds for row in outer.rows()) <= 1.001 * outer.seconds

# %%
# On several ranks
# ----------------
# Each rank of a program opens a profile of its own, and `gsparse.distributed.profile_of_ranks` puts them together. Each
# operation has one row with the slowest rank and the mean. Halo exchanges and sums over the ranks are waits for other
# ranks. Their rows stand apart, and the imbalance says how much longer the busiest rank works than the mean:

from gsparse.distributed import RankMatrix, RowPartition, profile_of_ranks, run_ranks

S = IDENTITY + K
partition = RowPartition.by_rows(S.shape[0], 2)


def solve_on_rank(communicator):
    """Solve on one rank, and return the profile of all."""
    own = partition.rows(communicator.rank)
    A = RankMatrix(S[own], partition, partition, communicator, device="cpu")
    with gsparse.profile() as of_rank:
        cg(A, u_begin[own])
    return profile_of_ranks(of_rank, communicator)


of_ranks = run_ranks(solve_on_rank, 2)[0]
print(of_ranks)
assert any(row.name == "halo exchange" for row in of_ranks.rows)
