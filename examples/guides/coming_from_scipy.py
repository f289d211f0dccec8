"""
Coming from SciPy, CuPy, PyAMG, PETSc or AMGX
=============================================

This page shows what to change in code for these libraries, what stays the same, and what behaves differently.
"""

# %%
# .. currentmodule:: gsparse
#
# From SciPy: one line
# --------------------
# The matrix below is -Δ on a cube, times h², with up to seven entries per row. `GpuSparseMatrix` takes any sparse array
# or matrix of SciPy. It *is* a ``scipy.sparse.csr_array``, so every function that accepts one accepts it, with the same
# result.

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
# Products run on the device: the GPU if there is one, else the CPU. The product of a NumPy array is a NumPy array. The
# multiplied values are exactly those of ``S``. The order of additions may differ from SciPy's, so rounding may differ
# within the usual bound for the sum of a row.

y = A @ b
assert type(y) is np.ndarray
bound = 16 * np.finfo(float).eps * (abs(S) @ abs(b))
assert np.all(abs(y - S @ b) <= bound)

# %%
# The first product and the first solve of each kind compile their kernels, which takes seconds. The compiled kernels
# are cached for the next process. So time the second call.
#
# A ``csr_array`` differs from the older ``csr_matrix``: its ``*`` and ``**`` are elementwise, and its sums along an
# axis are 1-D arrays. In code written for ``csr_matrix``, replace ``A * x`` by ``A @ x``, and ``A**2`` by ``A @ A``. A
# matrix that was made from a ``csr_matrix`` warns once if the old spelling is used.

assert (A @ b).shape == b.shape and (A * b).shape == A.shape
assert (A**2).max() == S.max() ** 2 < (A @ A).max()
assert A.sum(0).shape == (n**3,) and sp.csr_matrix(S).sum(0).shape == (1, n**3)

# %%
# SciPy's solvers accept the matrix. Their vectors stay on the host, so every iteration copies a vector to the GPU and
# one back, which soon takes most of the time. There are two ways to avoid these copies. The function of the same name
# in `gsparse.linalg` keeps all vectors on the device. And with `A.accelerated() <GpuSparseMatrix.accelerated>` in place
# of ``A``, SciPy's own function needs one to three iterations, because each of them applies a whole solve on the device
# as its preconditioner.

from gsparse.linalg import cg

x, info = sla.cg(A, b, rtol=1e-8)
assert info == 0
x, info = sla.cg(A.accelerated(), b, rtol=1e-8)  # SciPy's iterations, with solves on the device
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
# device. So do products, sums and comparisons of two sparse matrices, slices, writes, reductions (``A.sum(axis=1)``),
# and scaled rows and columns. Other formats and dense arrays (``A.tocoo()``, ``A.toarray()``) are made on the device
# and downloaded. Few operations run on the host: ``A.tolil()`` and ``A.todok()``, everything with ``longdouble``
# values, and writes while you hold one of the host arrays ``A.data``, ``A.indices`` and ``A.indptr``. ``A.stats``
# counts these operations and the loans of host arrays, and inside `strict` they raise an error.

C = 2 * A
D = A + C @ C
assert isinstance(C, GpuSparseMatrix) and isinstance(D, GpuSparseMatrix)
A.tolil()
print(A.stats)
assert "tolil" in A.stats.host_operations

with gsparse.strict():
    (A + C)[10:20] @ b / A.sum()  # raises no error
    try:
        A.tolil()
    except gsparse.errors.HostFallbackError as error:
        print(error)
    else:
        raise AssertionError("a conversion on the host went unnoticed")

# %%
# You can write to the matrix, and no product ever uses stale values. ``A.data``, ``A.indices`` and ``A.indptr`` are
# host arrays on loan: while you hold one of them, every product copies it to the GPU again, and one warning says so. So
# delete it after use. If you only want to read it, `A.freeze() <GpuSparseMatrix.freeze>` makes these arrays read-only.

values = A.data
values *= 2
del values
assert np.all(abs(A @ b - 2 * (S @ b)) <= 2 * bound)

# %%
# For new values with the same structure, as in Newton's method or in time steps, use `A.with_data
# <GpuSparseMatrix.with_data>`. It does not repeat the work that depends on the structure only: the statistics, the
# positions of entries, and the compression of columns.

B = A.with_data(np.arange(1.0, A.nnz + 1))
assert np.array_equal(B.indices, A.indices)

# %%
# Transposed products need a transposed copy, which is made at the first such product. A symmetric matrix is recognized
# by a check, and needs no copy. ``symmetric=True`` saves the check.

assert np.all(abs(A.T @ b - A @ b) <= 2 * bound)

# %%
# From CuPy
# ---------
# ``GpuSparseMatrix(S)`` also takes a ``cupyx.scipy.sparse`` matrix and uses its arrays without a copy (so do not write
# to them afterwards). The product of a CuPy vector is a CuPy vector. It is computed on the current stream, and the host
# does not wait for it. NumPy vectors are accepted too. CuPy's solvers accept the matrix, and `gsparse.linalg` has
# solvers of the same names with fewer launches, because iterations run from CUDA graphs.
#
# =============================================  ==================================================================
# CuPy                                           gsparse
# =============================================  ==================================================================
# ``cupyx.scipy.sparse.csr_matrix(S)``           ``GpuSparseMatrix(S)``
# ``A @ x``                                      ``A @ x``, or ``A.matvec(x, out=y)`` without an allocation
# ``A.data`` on the device                       ``A.device_data`` (do not write: others may share it)
# ``A.get()``                                    ``A`` is a SciPy array already
# ``cupyx.scipy.sparse.linalg.cg(A, b)``         ``gsparse.linalg.cg(A, b)``
# ``spilu``                                      ``gsparse.linalg.ilu0``, whose factors are a preconditioner
# ``splu``, ``factorized``, ``spsolve``          the same in ``gsparse.linalg``, and ``cholesky``
# ``spsolve_triangular``                         ``gsparse.linalg.spsolve_triangular``
# ``A @ B``, ``A + B``, ``A[p]``                 the same, with SciPy's semantics; results stay on the GPU
# ``cupyx.scipy.sparse.csr_matrix(A)``           ``A.to_cupy()``
# =============================================  ==================================================================
#
# Arrays of PyTorch, JAX and Numba are also multiplied without a copy, and the result belongs to the same library.

out = np.full(n**3, np.nan)  # its values are overwritten and never read
assert B.matvec(b, out=out) is out and np.isfinite(out).all()

if A.device.kind == "gpu":
    import cupy

    assert isinstance(A @ cupy.asarray(b), cupy.ndarray)

# %%
# From PyAMG
# ----------
# `gsparse.linalg.amg` sets up smoothed aggregation on the device, from the matrix alone. It is an operator for ``M=``,
# and the solver is called as usual. A hierarchy of PyAMG works too: ``amg(ml)`` copies it to the device and runs its
# smoothers there, so that classical (Ruge–Stüben) coarsening can be used.
#
# ====================================================  ===========================================================
# PyAMG                                                 gsparse
# ====================================================  ===========================================================
# ``ml = smoothed_aggregation_solver(S)``               ``M = amg(A)``
# ``ml = ruge_stuben_solver(S)``                        ``M = amg(ruge_stuben_solver(S))``
# ``ml.solve(b, tol=1e-8, accel="cg")``                 ``cg(A, b, M=M, rtol=1e-8)``
# ``ml.aspreconditioner(cycle="V")``                    ``amg(A, cycle="V")``, which is one already
# ``B=``, ``BH=``, ``symmetry=``, ``max_coarse=``       the same names in ``amg``
# ``strength=("symmetric", {"theta": 0.0})``            the same; the default here is ``"classical"``
# ``presmoother=("gauss_seidel", {"sweep": ...})``      ``smoother="gauss_seidel"``; before and after alike
# ``print(ml)``, ``ml.operator_complexity()``           ``print(M)``
# set-up again for new values                           ``M.update(A.with_data(values))``
# ====================================================  ===========================================================

from gsparse.linalg import amg

M = amg(A)
result = cg(A, b, M=M, rtol=1e-8, full_output=True)
print(M)
assert result.info == 0 and result.iterations < 15

# %%
# ``ml.solve(b)`` without ``accel`` iterates with cycles alone. Here a cycle always preconditions a Krylov method.
#
# From PETSc
# ----------
# Assemble a matrix as in SciPy, from ``(data, (row, col))``. Duplicate entries are added up, as with ``ADD_VALUES``.

row, col, data = np.array([0, 0, 1, 1]), np.array([0, 0, 0, 1]), np.array([1.0, 2.0, 5.0, 7.0])
small = GpuSparseMatrix((data, (row, col)), shape=(2, 2))
assert small.toarray().tolist() == [[3.0, 0.0], [5.0, 7.0]]

# %%
# ===========================================  ====================================================================
# PETSc                                        gsparse
# ===========================================  ====================================================================
# ``-mat_type aijcusparse``                    ``device="gpu"``, or ``GSPARSE_DEVICE=gpu``
# ``MATMPIAIJ``, rows by rank                  `gsparse.distributed.from_mpi`, or `gsparse.distributed.distribute`
# ``MatSetValues`` again, same pattern         ``A.with_data(values)``
# ``MATSHELL``                                 ``scipy.sparse.linalg.LinearOperator``, in every solver
# ``-ksp_type cg``, ``gmres``, ``fgmres``      ``cg``, ``gmres``, ``fgmres`` of `gsparse.linalg`
# ``-ksp_type bcgs``, ``minres``, ``lsqr``     ``bicgstab``, ``minres``, ``lsqr``
# ``-ksp_type chebyshev``                      ``chebyshev``
# ``-pc_type jacobi``, ``pbjacobi``            ``M=jacobi(A)``, ``M=block_jacobi(A, block_size)``
# ``-pc_type icc``, ``ilu`` (no fill-in)       ``M=ic0(A)``, ``M=ilu0(A)``; ``block_size=`` for a ``MATBAIJ``
# ``-pc_type gamg``                            ``M=amg(A)``, set up on the device; ``M.update(A)`` for other values
# ``-pc_type bjacobi -sub_pc_type ilu``        ``M=ilu0(A)`` of a distributed matrix
# ``-pc_type fieldsplit``                      ``M=fieldsplit(A, fields)``
# ``-pc_type lu``, ``cholesky``                ``factorized(A)``, ``cholesky(A)``; also as ``M=``
# ``KSPSetOperators`` with new values          ``M.update(A.with_data(values))``
# ``-ksp_rtol``, ``-ksp_max_it``               ``rtol=`` (also 1e-5 by default), ``maxiter=``
# ``-ksp_monitor``                             ``progress=True``, or ``print(result.log())``
# ``KSPGetConvergedReason``                    ``result.reason``, ``result.advice`` with ``full_output=True``
# ``-ksp_view``                                ``print(A.plan)``, ``print(M)``
# ===========================================  ====================================================================
#
# Note two differences. ``cg`` stops by the norm of the residual ``b - A @ x``, as SciPy's does. PETSc's stops by the
# norm of the preconditioned residual by default, so the same ``rtol`` has another meaning. And gsparse has no
# counterpart to SNES and TS: SciPy's nonlinear and ODE solvers run on the host, with solves on the device inside.

result = cg(A, b, rtol=1e-8, full_output=True)
print(result)
assert result.info == 0 and result.reason == "converged"

# %%
# From AMGX
# ---------
# AMGX reads a configuration in JSON. Here, each of its entries is an argument.
#
# ====================================================  ===========================================================
# AMGX                                                  gsparse
# ====================================================  ===========================================================
# ``AMGX_matrix_upload_all``                            ``A = GpuSparseMatrix((data, indices, indptr), shape=...)``
# ``AMGX_matrix_replace_coefficients``                  ``A = A.with_data(values)``
# ``AMGX_solver_setup``, ``AMGX_solver_resetup``        ``M = amg(A)``, ``M.update(A)``
# ``AMGX_solver_solve``                                 ``x, info = cg(A, b, M=M)``
# ``"solver": "PCG"``, ``"FGMRES"``, ``"PBICGSTAB"``    ``cg``, ``fgmres``, ``bicgstab`` of `gsparse.linalg`
# ``"algorithm": "AGGREGATION"``, ``"SIZE_8"``          ``amg(A)``: smoothed aggregation; plain aggregation is missing
# ``"algorithm": "CLASSICAL"``                          ``amg(pyamg.ruge_stuben_solver(S))``
# ``"smoother": "JACOBI_L1"``, ``"MULTICOLOR_GS"``      ``smoother="l1_jacobi"``, ``"gauss_seidel"``
# ``"presweeps": 2``, ``"cycle": "W"``                  ``sweeps=2``, ``cycle="W"``
# ``"tolerance": 1e-8``, ``"max_iters": 100``           ``rtol=1e-8``, ``maxiter=100``
# ``"convergence": "RELATIVE_INI_CORE"``                the residual relative to the norm of b, as in SciPy
# modes ``dDDI``, ``dFFI``; ``dDFI``                    the dtype of the matrix; ``amg(A, dtype="float32")``
# ====================================================  ===========================================================
#
# Arrays of CuPy are taken from the device without a copy, so ``A`` and ``b`` may be made there.

# %%
# Read :doc:`how_gsparse_chooses` and :doc:`solvers_and_preconditioners` next. The examples :ref:`poisson_cg`,
# :ref:`pagerank` and :ref:`graph_neural_network` (a product with a gradient for PyTorch) are whole programs.
