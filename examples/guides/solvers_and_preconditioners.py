"""
Solvers and preconditioners
===========================

This page says which method suits which matrix, which preconditioner to try first, and how to read the result of a
solve. Its picture needs matplotlib: ``pip install '.[plot]'``.
"""

# %%
# .. currentmodule:: gsparse.linalg
#
# No choice
# ---------
# `solve` looks at the matrix, chooses the method and the preconditioner, and tries others if these fail. It says what
# it did and why, and the residual that it reports is computed with a product. The rest of this page is for those who
# want to choose.
#
# Which method
# ------------
# The functions of `gsparse.linalg` have SciPy's signatures and stopping rules. Vectors and scalars stay on the device
# of the matrix, and on a GPU the iterations run as CUDA graphs.
#
# ==========================================  ===================================================================
# The matrix                                  Method
# ==========================================  ===================================================================
# Hermitian, positive definite                `cg`; `chebyshev` if bounds of the eigenvalues are known
# Hermitian, indefinite or singular           `minres`
# any other square matrix                     `gmres` (stores ``restart`` vectors), `bicgstab` (stores no basis)
# the same, and M changes during the solve    `fgmres`
# rectangular: least squares                  `lsqr`, `lsmr`
# one with many right-hand sides, or one      `factorized`, `cholesky`, `splu`, `spsolve`: factors. Their entries are
# that no preconditioner helps                many more than A's, above all for problems in three dimensions
# triangular                                  `spsolve_triangular`
# several fields, such as a saddle point      `minres`, or `fgmres`, with `fieldsplit`
# eigenvalues, Hermitian                      `eigsh`; `lobpcg` with a good preconditioner, or several start vectors
# eigenvalues, others                         `eigs`
# eigenvalues near a number                   `eigsh` or `eigs` with ``sigma=``: each step solves with A - sigma·M
# singular values                             `svds`
# exp(t·A)·x                                  `expm_multiply`, which needs products alone
# ==========================================  ===================================================================
#
# The problem of this page is -Δ on a cube, where each unknown has its own unit: the matrix is scaled from both sides by
# random factors.

import numpy as np
import scipy.sparse as sp
import scipy.sparse.linalg as sla

from gsparse import GpuSparseMatrix
from gsparse.errors import FactorizationError
from gsparse.linalg import (
    block_jacobi,
    cg,
    chebyshev_polynomial,
    factorized,
    gauss_seidel,
    gmres,
    ic0,
    ilu0,
    isai,
    jacobi,
    lobpcg,
    lsqr,
    minres,
    solve,
)  # fmt: skip
from gsparse.plot import convergence

rng = np.random.default_rng(0)
n = 16
laplacian = sp.csr_array(-sla.LaplacianNd((n,) * 3, boundary_conditions="dirichlet", dtype=np.float64).tosparse())
scale = sp.diags_array(np.exp(0.5 * rng.standard_normal(n**3)))
S = sp.csr_array(scale @ laplacian @ scale)
A, b = GpuSparseMatrix(S), np.ones(n**3)

# %%
# `solve` chooses the method and the preconditioner, and solves. Its result also unpacks as ``x, info``:

result = solve(A, b)
print(result)
assert result.info == 0 and np.linalg.norm(b - S @ result.x) <= 1e-8 * np.linalg.norm(b)

# %%
# Reading a solve
# ---------------
# As in SciPy, a solve returns ``x, info``. ``full_output=True`` returns a `SolveResult` with the reason for stopping,
# the history of the residual and, if the solve did not converge, advice. As in SciPy, a solve that does not converge
# raises no exception: check ``info``. Unlike SciPy, it issues a ``ConvergenceWarning``, unless ``full_output=True``.

x, info = cg(A, b, M=jacobi(A), rtol=1e-8)
assert info == 0

short = cg(A, b, rtol=1e-8, maxiter=5, full_output=True)
print(short)
assert short.info == 5 and "maxiter" in short.advice

# %%
# In CG, BiCGSTAB and GMRES, ``rtol`` bounds the norm of the residual ``b - A @ x`` relative to the norm of b. The
# relative error of x may be larger by a factor as large as the condition number. To check a solve, recompute its
# residual:

assert np.linalg.norm(b - S @ x) <= 2e-8 * np.linalg.norm(b)

# %%
# Factors
# -------
# `factorized` computes factors with the fastest library that can factorize the matrix where it is: cuDSS on a GPU of
# NVIDIA (the extra ``direct``), or CHOLMOD (scikit-sparse) or SuperLU (SciPy) on the host.
#
# ==============  ====================================================================================================
# Function        What it needs of A, and what it costs
# ==============  ====================================================================================================
# `factorized`    any regular matrix; symmetry is found out, or declared with ``assume_a=``. A symmetric matrix takes
#                 half of the memory and of the operations with cuDSS
# `cholesky`      Hermitian and positive definite: no pivoting, the least operations, and a test of definiteness
# `splu`          any regular matrix: LU factors, also of a symmetric one
# ==============  ====================================================================================================
#
# The object solves with one or many right-hand sides on the host or on the device, with A or its transpose, and
# `Factorization.update` takes other values at the same entries and keeps the order of elimination, which on a GPU takes
# most of the time. It also has the logarithm of the determinant and the inertia, and it is a preconditioner (``M=``).

factors = factorized(A)
print(factors)
X = factors.solve(np.stack([b, 2 * b], axis=1))
assert np.allclose(X[:, 1], 2 * X[:, 0])
factors.update(A.with_data(4 * A.device_data))
assert np.allclose(factors.solve(b), X[:, 0] / 4)

# %%
# Which preconditioner
# --------------------
# Each of these functions takes the matrix and returns an operator, which is the argument ``M=`` of the solvers of
# gsparse, SciPy or CuPy.
#
# =========================  ==================================================================================
# `jacobi`                   one vector; costs next to nothing and corrects bad scaling
# `block_jacobi`             inverts blocks of related unknowns, such as those of one grid point
# `gauss_seidel`, `sor`      sweeps over the rows, each with the newest values. A GPU visits groups of rows at once
# `chebyshev_polynomial`     needs products only: no inner products, no factorization. For `cg`
# `isai`                     one or two sparse products; all rows are set up independently
# `ic0`, `ilu0`              incomplete factors without fill-in. A GPU solves with them by a few Jacobi sweeps, a CPU
#                            exactly, on one thread, so the numbers of iterations differ. With ``block_size=``, all
#                            unknowns of a node are treated together. `gauss_seidel` has this argument too
# `amg`                      multigrid: the number of iterations hardly grows with the problem. It is set up on the
#                            device (:doc:`/multigrid`). For elasticity, ``amg(A, block_size=3,
#                            B=rigid_body_modes(coordinates))``, see :doc:`other_libraries`
# =========================  ==================================================================================
#
# Try `jacobi` first, then `ic0` or `ilu0`, and `amg` if the problem is elliptic and large (:ref:`poisson_amg`).

preconditioners = {
    "none": None,
    "jacobi": jacobi(A),
    "block_jacobi": block_jacobi(A, 8),
    "gauss_seidel": gauss_seidel(A),
    "chebyshev_polynomial": chebyshev_polynomial(A),
    "isai": isai(A),
    "ic0": ic0(A),
}
solves = {name: cg(A, b, M=M, rtol=1e-8, full_output=True) for name, M in preconditioners.items()}
for name, result in solves.items():
    print(f"{name:21} {result.iterations:5} iterations")
    assert result.info == 0

iterations = {name: result.iterations for name, result in solves.items()}
assert iterations["jacobi"] < iterations["none"] / 3  # most of the difficulty was the scaling
assert max(iterations["ic0"], iterations["isai"]) < iterations["jacobi"]

axes = convergence(solves)

# %%
# For a sequence of matrices with the same structure, such as those of time steps, ``M.update`` computes a
# preconditioner again in place. It keeps what depends on the structure alone, which takes most of the time of a set-up.

M = ic0(A)
for factor in (1.0, 2.0, 4.0):
    step = A.with_data(factor * A.device_data)
    x, info = cg(step, b, M=M.update(step), rtol=1e-8)
    assert info == 0

# %%
# Fewer iterations are not faster if each of them costs more. Compare ``result.seconds`` on your machine; the first
# solve compiles kernels, so time the second one. If a factorization does not exist, the error says what to do. An
# example is `ic0` of a matrix that is not positive definite:

indefinite = GpuSparseMatrix(laplacian - 3 * sp.eye_array(n**3))
try:
    ic0(indefinite)
except FactorizationError as error:
    print(error)
else:
    raise AssertionError("an indefinite matrix has Cholesky factors")

# %%
# MINRES can solve it. As in SciPy, it stops when the norm of the residual is below ``rtol`` times the norm of A times
# the norm of x. The tests of ``lsqr`` and ``lsmr`` are relative to these norms, too, with ``atol`` in place of
# ``rtol``. Relative to the norm of b, the residual may then be larger than ``rtol``. Unlike SciPy's functions, these
# three take the same number of iterations whatever the units of A and b are. SciPy's ``minres`` may end after one
# iteration, and return success, if b is a million times as large as A.

result = minres(indefinite, b, rtol=1e-8, full_output=True)
print(result)
assert result.info == 0

# %%
# A matrix that is not symmetric
# ------------------------------
# :ref:`convection_diffusion` shows more of it. `gmres` stores ``restart`` vectors and reads them twice per iteration.
# ``basis_dtype="float32"`` halves this traffic. The solution is as accurate, because each cycle computes the residual
# again in full precision.

wind = sp.kron(sp.diags_array([-0.9, 0.9], offsets=[-1, 0], shape=(n, n)), sp.eye_array(n * n))
T = sp.csr_array(laplacian + wind)
N = GpuSparseMatrix(T)
for name, options in {"gmres": {}, "with ilu0": {"M": ilu0(N)}, "float32 basis": {"basis_dtype": np.float32}}.items():
    result = gmres(N, b, rtol=1e-8, restart=30, full_output=True, **options)
    print(f"{name:14} {result.iterations:4} iterations")
    assert result.info == 0
    assert np.linalg.norm(b - T @ result.x) <= 2e-8 * np.linalg.norm(b)

# %%
# Several right-hand sides, and float32 inside
# --------------------------------------------
# The columns of b are solved at the same time: the matrix is read once for all of them, and each has its own scalars.

B = rng.standard_normal((n**3, 4))
many = cg(A, B, M=ic0(A), rtol=1e-8, full_output=True)
assert many.info == 0 and many.x.shape == B.shape
assert np.all(np.linalg.norm(B - S @ many.x, axis=0) <= 2e-8 * np.linalg.norm(B, axis=0))

# %%
# ``inner_dtype="float32"`` iterates in float32 and refines the solution in float64, which halves the traffic and
# reaches the requested accuracy. If the matrix is too ill-conditioned for this, the solve continues in float64.

refined = cg(A, b, M=jacobi(A), rtol=1e-10, inner_dtype="float32", full_output=True)
print(refined)
assert refined.info == 0 and np.linalg.norm(b - S @ refined.x) <= 2e-10 * np.linalg.norm(b)

# %%
# Least squares and eigenvalues
# -----------------------------
# `lsqr` and `lsmr` accept matrices of any shape. ``damp=d`` adds d²·norm(x)² to what is minimized: with d = √alpha,
# this is the ridge regression of scikit-learn without an intercept (:ref:`ridge_regression` is a whole program).
# `solve` takes ``damp`` as well. `lobpcg` takes a block of initial vectors and a preconditioner; :ref:`eigenvalues`
# compares it with SciPy's.

tall = sp.csr_array(sp.random_array((3000, 400), density=0.01, rng=rng))
right = rng.standard_normal(3000)
least = lsqr(GpuSparseMatrix(tall), right, atol=1e-10, btol=1e-10)[0]
assert np.allclose(least, np.linalg.lstsq(tall.toarray(), right)[0], atol=1e-6)

ridge = lsqr(GpuSparseMatrix(tall), right, damp=2.0, atol=1e-10, btol=1e-10)[0]
normal = tall.T @ tall + 4 * sp.eye_array(400)
assert np.allclose(ridge, sla.spsolve(normal.tocsc(), tall.T @ right), atol=1e-6)

L = GpuSparseMatrix(laplacian)
lowest, _ = lobpcg(L, rng.standard_normal((n**3, 3)), M=ic0(L), largest=False, tol=1e-6, maxiter=60)
sines = 4 * np.sin(np.arange(1, 3) * np.pi / (2 * (n + 1))) ** 2  # eigenvalues in one dimension
print(lowest)
assert np.allclose(lowest[:2], [3 * sines[0], 2 * sines[0] + sines[1]])

# %%
# In SciPy's own solvers
# ----------------------
# The preconditioners also work as ``M`` of SciPy's solvers. `A.accelerated() <gsparse.GpuSparseMatrix.accelerated>`
# goes further: the call of SciPy's solver stays as it is, but the whole solve runs on the device.

x, info = sla.cg(A, b, M=ic0(A), rtol=1e-8)
assert info == 0
steps = []
x, info = sla.cg(A.accelerated(M=jacobi(A)), b, rtol=1e-8, callback=steps.append)
print(f"{len(steps)} of SciPy's iterations")
assert info == 0 and len(steps) <= 3
