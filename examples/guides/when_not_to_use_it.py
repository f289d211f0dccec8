"""
When not to use it
==================

gsparse multiplies sparse matrices by dense vectors, many times, and solves with that. Where that is not what takes your
time, something else serves you better. This page lists the cases, and shows each where this machine can.
"""

# %%
# .. currentmodule:: gsparse
#
# The matrix is small
# -------------------
# A call has a fixed price in Python, and on a GPU that of a launch and, for NumPy's vectors, of two copies, whatever
# the matrix. For a small one that is all you pay, and SciPy's price is lower. Measure with your own matrix; this is
# what it took here:

import timeit

import numpy as np
import scipy.sparse as sp
import scipy.sparse.linalg as sla

import gsparse
from gsparse import GpuSparseMatrix


def microseconds(S, x):
    """Give the time of a product."""
    S @ x  # (compiles)
    return min(timeit.repeat(lambda: S @ x, number=20, repeat=5)) / 20 * 1e6


for n in (100, 10_000, 100_000):
    S = sp.csr_array(sp.diags_array([-1.0, 2.0, -1.0], offsets=[-1, 0, 1], shape=(n, n)))
    x = np.ones(n)
    A = GpuSparseMatrix(S)
    print(f"{n:7} rows: SciPy {microseconds(S, x):7.1f} µs, gsparse on {A.device.name} {microseconds(A, x):7.1f} µs")

# %%
# There are few products
# ----------------------
# Copying to a GPU and choosing a format take the time of tens to hundreds of products (``FIGURES.md``). With
# ``expected_products=1`` nothing is converted, but what is copied there once and read once was not worth the way.
#
# On this machine, the prediction of what the conversion costs, in products:

S = sp.csr_array(-sla.LaplacianNd((40, 40, 40), boundary_conditions="dirichlet", dtype=np.float64).tosparse())
b = np.ones(S.shape[0])
A = GpuSparseMatrix(S)
chosen = A.plan.chosen
print(f"{chosen.format}: {chosen.setup_seconds / chosen.seconds:.0f} products")
assert GpuSparseMatrix(S, expected_products=1).plan.chosen.setup_seconds < chosen.setup_seconds

# %%
# You need a direct solver
# ------------------------
# There is no LU or Cholesky factorization with fill-in. ``scipy.sparse.linalg.spsolve`` and ``splu`` take the matrix,
# and run on the host as they always do. For a 2-D problem, many right-hand sides, or a system that no preconditioner
# helps, a good direct solver (SuiteSparse, MUMPS, PARDISO, cuDSS) is often the answer.

small = GpuSparseMatrix(S[:1000, :1000])
x = sla.spsolve(small.tocsc(), b[:1000])
assert np.allclose(small @ x, b[:1000])
print(small.stats)
assert small.stats.host_operations["tocsc"] == 1

# %%
# You multiply sparse by sparse, slice, or edit
# ---------------------------------------------
# Sparse products and sums, slices, reductions and assignments are SciPy's, on the host; on a GPU each brings the matrix
# there and the result back. Build matrices with SciPy, and make a `GpuSparseMatrix` of
# the last one. Inside `strict` none of this passes unnoticed.

with gsparse.strict():
    for what in (lambda: A @ A, lambda: A[:10], lambda: A.sum(axis=1)):
        try:
            what()
        except gsparse.errors.HostFallbackError as error:
            print(error)
        else:
            raise AssertionError("it ran on the device")

# %%
# The matrix is hardly sparse
# ---------------------------
# CSR takes 12 bytes for an entry of float64, a dense array 8 for every place: from two thirds full, CSR is the larger
# of the two. With many columns to multiply by, the dense array may win earlier: measure both.

full = sp.csr_array(np.where(np.random.default_rng(0).random((500, 500)) < 0.8, 1.5, 0.0))
csr_bytes = full.data.nbytes + full.indices.nbytes + full.indptr.nbytes
print(f"CSR {csr_bytes} bytes, dense {full.shape[0] * full.shape[1] * 8}")
assert csr_bytes > full.shape[0] * full.shape[1] * 8

# %%
# Column-major blocks on a GPU
# ----------------------------
# An X in Fortran order is multiplied as it lies, without a copy. Its rows are scattered, though: from 16 columns on,
# one in C order was 1.6 to 3.4 times as fast in the geometric mean of the matrices in ``FIGURES.md``
# (``python -m gsparse bench --all --columns 16,64,256`` prints both). Lay X out by rows where you can.
#
# You need gradients
# ------------------
# A tensor that asks for a gradient is refused, because the product would lose it. :ref:`graph_neural_network` shows the
# few lines of a ``torch.autograd.Function`` around two products. Gradients by the matrix's own values are not there.
#
# You need SciPy's last bit
# -------------------------
# Each result is the same bits every time, on the same device with the same format, and as accurate as SciPy's; but
# sums are added in another order than SciPy's, and ``tune="lazy"`` may change it within the first products.

A1, A2 = A @ b, A @ b
assert np.array_equal(A1, A2)

# %%
# float128, objects, more than two dimensions
# -------------------------------------------
# ``longdouble`` is multiplied by SciPy on the host; 1-D sparse arrays too; N-dimensional ones are refused.

if np.finfo(np.longdouble).eps < np.finfo(np.float64).eps:
    wide = GpuSparseMatrix(S.astype(np.longdouble))
    wide @ b
    print(wide.stats)
    assert wide.stats.products == 0

try:
    GpuSparseMatrix(sp.coo_array(np.ones((2, 2, 2))))
except gsparse.GsparseError as error:
    print(error)
else:
    raise AssertionError("a 3-D array was taken")

# %%
# Many GPUs for what one can do
# -----------------------------
# Every iteration exchanges vectors' entries and adds up scalars across GPUs. If a system fits on one GPU and its
# iteration takes some tens of microseconds, more GPUs make it slower. See :doc:`many_gpus`.
#
# AMD, so far
# -----------
# Kernels are compiled for AMD's GPUs and emulated with their 64 lanes, but have not been run on AMD hardware. Be the
# first, not the one with the deadline.
