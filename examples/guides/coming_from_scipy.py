"""
Coming from SciPy, CuPy or PETSc
================================

What to change in code that works already, what stays as it is, and what behaves differently.
"""

# %%
# .. currentmodule:: gsparse
#
# From SciPy: one line
# --------------------
# The matrix below is -Δ on a cube, times h²: seven entries a row. `GpuSparseMatrix` takes any sparse array or
# matrix of SciPy. It *is* a ``scipy.sparse.csr_array``, so whatever takes one takes it, and gives what it always gave.

import numpy as np
import scipy.sparse as sp
import scipy.sparse.linalg as sla

import gsparse
from gsparse import GpuSparseMatrix

n = 16
S = sp.csr_array(-sla.LaplacianNd((n, n, n), boundary_conditions="dirichlet", dtype=np.float64).tosparse())
b = np.ones(n**3)

A = GpuSparseMatrix(S)  # the one line

print(repr(A))
assert isinstance(A, sp.csr_array) and sp.issparse(A)

# %%
# Products run on the device: the GPU where there is one, else this machine's processors. NumPy goes in, NumPy comes
# out. The numbers multiplied are exactly those of ``S``; sums may be rounded in another order than SciPy's, within
# the usual bound for a row's sum.

y = A @ b
assert type(y) is np.ndarray
bound = 16 * np.finfo(float).eps * (abs(S) @ abs(b))
assert np.all(abs(y - S @ b) <= bound)

# %%
# On a CPU the first product and the first solve of each kind compile, which takes seconds; what comes of it is kept
# beside the package for the next process. So time the second call.
#
# A ``csr_array`` is not the older ``csr_matrix``: its ``*`` and ``**`` are elementwise, its sums along an axis 1-D
# arrays. Code written for ``csr_matrix`` says ``A @ x`` where it said ``A * x``, and ``A @ A`` where it said ``A**2``.
# A matrix that was made from a ``csr_matrix`` warns once where it meets the old spelling.

assert (A @ b).shape == b.shape and (A * b).shape == A.shape
assert (A**2).max() == S.max() ** 2 < (A @ A).max()
assert A.sum(0).shape == (n**3,) and sp.csr_matrix(S).sum(0).shape == (1, n**3)

# %%
# SciPy's solvers take it as it is. Their vectors stay on the host, so every iteration copies one to the GPU and one
# back, and that soon is all it does. There are two ways to leave the vectors where the matrix is: SciPy's own call with
# `A.accelerated() <GpuSparseMatrix.accelerated>`, and the function of the same name in `gsparse.linalg`.

from gsparse.linalg import cg

x, info = sla.cg(A, b, rtol=1e-8)
assert info == 0
x, info = sla.cg(A.accelerated(), b, rtol=1e-8)  # the whole solve is SciPy's preconditioner, so it ends at once
assert info == 0
x, info = cg(A, b, rtol=1e-8)
assert info == 0
assert np.linalg.norm(b - S @ x) <= 2e-8 * np.linalg.norm(b)

eigenvalues = sla.eigsh(A, k=3, which="LM", return_eigenvectors=False)  # ARPACK, with products on the device
assert np.allclose(eigenvalues, sla.eigsh(S, k=3, which="LM", return_eigenvectors=False))

# %%
# What leaves the device
# ----------------------
# Products, scaling, functions of single values (``abs(A)``, ``A.astype``), transposes and conjugates stay on the
# device. Sparse sums and products, slices and reductions are SciPy's, on the host: right, but not fast. What they give
# is on the device again where it is a CSR array. ``A.stats`` counts them, and inside `strict` they raise.

C = 2 * A
D = A + C
assert isinstance(C, GpuSparseMatrix) and isinstance(D, GpuSparseMatrix)
print(A.stats)
assert "__add__" in A.stats.host_operations

with gsparse.strict():
    A @ b  # all is well
    try:
        A + C
    except gsparse.errors.HostFallbackError as error:
        print(error)
    else:
        raise AssertionError("a sum on the host went unnoticed")

# %%
# Writing works, and no product ever uses values from before. ``A.data`` and its siblings are host arrays on loan: while
# you hold one, a matrix on a GPU is brought there again for every product, and says so once. So do not keep it; where
# you only want to look, `A.freeze() <GpuSparseMatrix.freeze>` makes them read-only.

values = A.data
values *= 2
del values
assert np.all(abs(A @ b - 2 * (S @ b)) <= 2 * bound)

# %%
# New values for the same structure, as in Newton's method or in time steps, are best given with `A.with_data
# <GpuSparseMatrix.with_data>`: what the structure decides (statistics, where entries go, how columns are stored) is not
# looked at again.

B = A.with_data(np.arange(1.0, A.nnz + 1))
assert np.array_equal(B.indices, A.indices)

# %%
# Transposed products need a transposed copy, which is made when first asked for; a symmetric matrix is found to be one
# and needs none. ``symmetric=True`` saves the check.

assert np.all(abs(A.T @ b - A @ b) <= 2 * bound)

# %%
# From CuPy
# ---------
# ``GpuSparseMatrix(S)`` also takes a ``cupyx.scipy.sparse`` matrix and uses its arrays where they lie (so do not write
# to them afterwards). CuPy's vectors go in and come out, on the current stream, without waiting; NumPy's are taken too.
# CuPy's solvers take the matrix, and `gsparse.linalg` has theirs with fewer launches: iterations run from CUDA graphs.
#
# =============================================  ==================================================================
# CuPy                                           gsparse
# =============================================  ==================================================================
# ``cupyx.scipy.sparse.csr_matrix(S)``           ``GpuSparseMatrix(S)``
# ``A @ x``                                      ``A @ x``, or ``A.matvec(x, out=y)`` without an allocation
# ``A.data`` on the device                       ``A.device_data`` (read it; it is not on loan)
# ``A.get()``                                    ``A`` is a SciPy array already
# ``cupyx.scipy.sparse.linalg.cg(A, b)``         ``gsparse.linalg.cg(A, b)``
# ``spilu``, ``spsolve_triangular``              ``gsparse.linalg.ilu0``, whose factors are a preconditioner
# a sparse product on the GPU, ``A @ B``         none: it is computed on the host
# =============================================  ==================================================================
#
# Arrays of PyTorch, JAX and Numba are taken where they lie as well, and answered in kind.

out = np.full(n**3, np.nan)  # never read
assert B.matvec(b, out=out) is out and np.isfinite(out).all()

if A.device.kind == "gpu":
    import cupy

    assert isinstance(A @ cupy.asarray(b), cupy.ndarray)

# %%
# From PETSc
# ----------
# Assembly is SciPy's: collect ``(data, (row, col))``; entries given twice add up, as with ``ADD_VALUES``.

row, col, data = np.array([0, 0, 1, 1]), np.array([0, 0, 0, 1]), np.array([1.0, 2.0, 5.0, 7.0])
small = GpuSparseMatrix((data, (row, col)), shape=(2, 2))
assert small.toarray().tolist() == [[3.0, 0.0], [5.0, 7.0]]

# %%
# ===========================================  ====================================================================
# PETSc                                        gsparse
# ===========================================  ====================================================================
# ``-mat_type aijcusparse``                    ``device="gpu"``, or ``GSPARSE_DEVICE=gpu``
# ``MATMPIAIJ``, rows by rank                  `gsparse.distributed.distribute`, on a dask cluster; no MPI
# ``MatSetValues`` again, same pattern         ``A.with_data(values)``
# ``MATSHELL``                                 ``scipy.sparse.linalg.LinearOperator``, in every solver
# ``-ksp_type cg``, ``gmres``, ``fgmres``      ``cg``, ``gmres``, ``fgmres`` of `gsparse.linalg`
# ``-ksp_type bcgs``, ``minres``, ``lsqr``     ``bicgstab``, ``minres``, ``lsqr``
# ``-ksp_type chebyshev``                      ``chebyshev``
# ``-pc_type jacobi``, ``pbjacobi``            ``M=jacobi(A)``, ``M=block_jacobi(A, block_size)``
# ``-pc_type icc``, ``ilu`` (no fill-in)       ``M=ic0(A)``, ``M=ilu0(A)``
# ``-pc_type gamg``                            ``M=amg(A)``: PyAMG sets it up on the host, the device cycles
# ``-pc_type bjacobi -sub_pc_type ilu``        ``M=ilu0(A)`` of a distributed matrix
# ``-ksp_rtol``, ``-ksp_max_it``               ``rtol=`` (also 1e-5 by default), ``maxiter=``
# ``-ksp_monitor``                             ``progress=True``, or ``print(found.log())``
# ``KSPGetConvergedReason``                    ``found.reason``, ``found.advice`` with ``full_output=True``
# ``-ksp_view``                                ``print(A.plan)``, ``print(M)``
# ===========================================  ====================================================================
#
# Two things to know. ``cg`` here stops by the norm of the residual ``b - A @ x``, as SciPy's, where PETSc's stops by
# the preconditioned one unless told otherwise: the same ``rtol`` is another promise. And there is no counterpart to
# SNES, TS, direct solvers or field splits; SciPy's are a call away, on the host.

found = cg(A, b, rtol=1e-8, full_output=True)
print(found)
assert found.info == 0 and found.reason == "converged"

# %%
# Next: :doc:`how_gsparse_chooses` and :doc:`solvers_and_preconditioners`. Whole programs: :ref:`poisson_cg`,
# :ref:`pagerank`, :ref:`graph_neural_network` (a product with a gradient for PyTorch).
