"""
When not to use it
==================

gsparse multiplies sparse matrices by dense vectors many times, and solves linear systems in this way. If your program
spends its time on other work, another library serves you better. This page lists the cases and shows most of them.
"""

# %%
# .. currentmodule:: gsparse
#
# The matrix is small
# -------------------
# A call has a fixed cost in Python. On a GPU, it also has the cost of a launch and, for NumPy vectors, of two copies.
# For a small matrix these costs dominate, and SciPy's are lower. Measure with your own matrix. These are the times on
# this machine:

import timeit

import numpy as np
import scipy.sparse as sp
import scipy.sparse.linalg as sla

import gsparse
import gsparse.linalg
from gsparse import GpuSparseMatrix


def microseconds(S, x):
    """Return the time of a product."""
    S @ x  # Compiles the kernels.
    return min(timeit.repeat(lambda: S @ x, number=20, repeat=5)) / 20 * 1e6


for n in (100, 10_000, 100_000):
    S = sp.csr_array(sp.diags_array([-1.0, 2.0, -1.0], offsets=[-1, 0, 1], shape=(n, n)))
    x = np.ones(n)
    A = GpuSparseMatrix(S)
    print(f"{n:7} rows: SciPy {microseconds(S, x):7.1f} µs, gsparse on {A.device.name} {microseconds(A, x):7.1f} µs")

# %%
# There are few products
# ----------------------
# Copying a matrix to a GPU and choosing its format take the time of tens to hundreds of products (``FIGURES.md``). With
# ``expected_products=1`` nothing is converted, but the copy to a GPU does not pay for a single product.
#
# This is the predicted time of the conversion on this machine, in products:

S = sp.csr_array(-sla.LaplacianNd((40, 40, 40), boundary_conditions="dirichlet", dtype=np.float64).tosparse())
b = np.ones(S.shape[0])
A = GpuSparseMatrix(S)
chosen = A.plan.chosen
print(f"{chosen.format}: {chosen.setup_seconds / chosen.seconds:.0f} products")
assert GpuSparseMatrix(S, expected_products=1).plan.chosen.setup_seconds < chosen.setup_seconds

# %%
# You need a direct solver, and have no cuDSS
# -------------------------------------------
# For a 2-D problem, many right-hand sides, or a system for which no preconditioner helps, factors are often the best
# choice. `gsparse.linalg.factorized` computes them on the GPU with NVIDIA's cuDSS (the extra ``direct``). Without it,
# SuperLU factorizes on the host, or CHOLMOD if scikit-sparse is installed and A is positive definite. This takes many
# times longer.

small = GpuSparseMatrix(S[:1000, :1000])
factors = gsparse.linalg.factorized(small)
x = factors.solve(b[:1000])
assert np.allclose(small @ x, b[:1000])
print(factors)

# %%
# You build a matrix entry by entry
# ---------------------------------
# Each assignment ``A[i, j] = v`` to a place without an entry makes new arrays. SciPy's formats for that, LIL and DOK,
# live on the host. Collect the entries and make the matrix of all of them at once (`gsparse.sparse.coo_array`), or
# build it with SciPy. Inside `strict`, a conversion to a format of the host raises an error.

with gsparse.strict():
    for operation in (A.tolil, A.todok):
        try:
            operation()
        except gsparse.errors.HostFallbackError as error:
            print(error)
        else:
            raise AssertionError("it ran on the device")

# %%
# The matrix is hardly sparse
# ---------------------------
# CSR takes 12 bytes for each entry of float64, and a dense array 8 bytes for each element. If more than two thirds of
# the elements are entries, CSR is larger. For products with many columns the dense array may be faster earlier: measure
# both.

full = sp.csr_array(np.where(np.random.default_rng(0).random((500, 500)) < 0.8, 1.5, 0.0))
csr_bytes = full.data.nbytes + full.indices.nbytes + full.indptr.nbytes
print(f"CSR {csr_bytes} bytes, dense {full.shape[0] * full.shape[1] * 8}")
assert csr_bytes > full.shape[0] * full.shape[1] * 8

# %%
# Column-major blocks on a GPU
# ----------------------------
# An X in Fortran order is multiplied without a copy. However, the elements of its rows are not next to each other. From
# 16 columns on, an X in C order was 1.6 to 3.4 times as fast in the geometric mean of the matrices in ``FIGURES.md``
# (``python -m gsparse bench --all --columns 16,64,256`` prints both). Use a row-major X where you can.
#

# You need gradients of more than products and solves
# ---------------------------------------------------
# `gsparse.torch` and `gsparse.jax` have products and solves with gradients of the vectors and of the values
# (:ref:`gradients`). There are none of products of two sparse matrices, of eigenvalues, or of factors. ``A @ x`` itself
# refuses a tensor that requires a gradient, because the product would lose it. Code that JAX traces, as ``jax.jit``
# does, copies each array to the host and back.
#
# You need the same bits as SciPy
# -------------------------------
# On the same device with the same format, each result has the same bits in every run, and is as accurate as SciPy's.
# But most formats add in another order than SciPy, and ``tune="lazy"`` may change the order within the first products.

A1, A2 = A @ b, A @ b
assert np.array_equal(A1, A2)

# %%
# float128, objects, more than two dimensions
# -------------------------------------------
# SciPy multiplies ``longdouble`` matrices on the host. Sparse arrays of more than two dimensions are refused.

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
# Many GPUs for a problem that fits on one
# ----------------------------------------
# In every iteration, the GPUs exchange entries of vectors and add up scalars. If a system fits on one GPU and its
# iteration takes some tens of microseconds, more GPUs make it slower. See :doc:`many_gpus`.
#
# You depend on AMD hardware
# --------------------------
# The kernels are compiled for AMD's GPUs and emulated with their 64 lanes, but they have not been run on AMD hardware.
# Do not rely on them for urgent work.
