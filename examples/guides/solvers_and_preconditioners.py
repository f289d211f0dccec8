"""
Solvers and preconditioners
===========================

Which method for which matrix, which preconditioner to try first, and how to read what a solve says of itself. Its
picture needs matplotlib: ``pip install 'gsparse[examples]'``.
"""

# %%
# .. currentmodule:: gsparse.linalg
#
# Which method
# ------------
# The functions of `gsparse.linalg` have SciPy's signatures and stopping rules. Vectors and scalars stay on the device
# where the matrix is, and on a GPU iterations run from CUDA graphs.
#
# ==========================================  ===================================================================
# The matrix                                  Method
# ==========================================  ===================================================================
# Hermitian, positive definite                `cg`; `chebyshev` where eigenvalues are known between bounds
# Hermitian, indefinite or singular           `minres`
# square, anything else                       `gmres` (a basis of ``restart`` vectors), `bicgstab` (none)
# the same, M changes on the way              `fgmres`
# rectangular: least squares                  `lsqr`, `lsmr`
# eigenvalues at the ends of the spectrum     `lobpcg`
# ==========================================  ===================================================================
#
# The problem of this page: -Δ on a cube, with unknowns in units of their own: scaled from both sides, by factors that
# scatter.

from importlib.util import find_spec

if find_spec("matplotlib") is None:
    raise SystemExit("needs matplotlib: pip install 'gsparse[examples]'")

import numpy as np
import scipy.sparse as sp
import scipy.sparse.linalg as sla

from gsparse import GpuSparseMatrix
from gsparse.errors import FactorizationError
from gsparse.linalg import block_jacobi, cg, chebyshev_polynomial, gmres, ic0, ilu0, isai, jacobi, lobpcg, lsqr, minres
from gsparse.plot import convergence

rng = np.random.default_rng(0)
n = 16
laplacian = sp.csr_array(-sla.LaplacianNd((n,) * 3, boundary_conditions="dirichlet", dtype=np.float64).tosparse())
scale = sp.diags_array(np.exp(0.5 * rng.standard_normal(n**3)))
S = sp.csr_array(scale @ laplacian @ scale)
A, b = GpuSparseMatrix(S), np.ones(n**3)

# %%
# Reading a solve
# ---------------
# A solve unpacks as ``x, info``, as SciPy's. ``full_output=True`` gives a `SolveResult` with the reason, the history
# and, where it did not converge, advice. Not converging is a value and no exception, also as in SciPy: look at
# ``info``.

x, info = cg(A, b, M=jacobi(A), rtol=1e-8)
assert info == 0

short = cg(A, b, rtol=1e-8, maxiter=5, full_output=True)
print(short)
assert short.info == 5 and "maxiter" in short.advice

# %%
# In CG, BiCGSTAB and GMRES, ``rtol`` bounds the norm of ``b - A @ x`` over that of b, which is not the error of x: that
# may be larger by the condition number. So compare the residual, recomputed, with what was asked for:

assert np.linalg.norm(b - S @ x) <= 2e-8 * np.linalg.norm(b)

# %%
# Which preconditioner
# --------------------
# Each takes the matrix and gives an operator for ``M=``, of these solvers, of SciPy's and of CuPy's.
#
# =========================  ==================================================================================
# `jacobi`                   a vector; costs next to nothing and undoes bad scaling
# `block_jacobi`             unknowns that belong together, as those of a point of the grid
# `chebyshev_polynomial`     products only: no inner products, nothing to factorize. For `cg`
# `isai`                     one or two sparse products; set up row by row, all at once
# `ic0`, `ilu0`              incomplete factors without fill-in. On a GPU solved by a few Jacobi sweeps, on a CPU
#                            exactly, on one thread: the count of iterations differs between the two
# `amg`                      multigrid: iterations hardly grow with the problem. PyAMG sets it up on the host
# =========================  ==================================================================================
#
# Try `jacobi` first, `ic0` or `ilu0` next, and `amg` where the problem is elliptic and large (:ref:`poisson_amg`).

preconditioners = {
    "none": None,
    "jacobi": jacobi(A),
    "block_jacobi": block_jacobi(A, 8),
    "chebyshev_polynomial": chebyshev_polynomial(A),
    "isai": isai(A),
    "ic0": ic0(A),
}
solves = {name: cg(A, b, M=M, rtol=1e-8, full_output=True) for name, M in preconditioners.items()}
for name, found in solves.items():
    print(f"{name:21} {found.iterations:5} iterations")
    assert found.info == 0

iterations = {name: found.iterations for name, found in solves.items()}
assert iterations["jacobi"] < iterations["none"] / 3  # most of the difficulty was the scaling
assert max(iterations["ic0"], iterations["isai"]) < iterations["jacobi"]

axes = convergence(solves)

# %%
# Fewer iterations are no faster if each costs more. ``found.seconds`` tells of this machine; a first solve compiles, so
# time a second one. Here a factorization that cannot be is an error with its remedy: `ic0` of a matrix that is not
# positive definite.

indefinite = GpuSparseMatrix(laplacian - 3 * sp.eye_array(n**3))
try:
    ic0(indefinite)
except FactorizationError as error:
    print(error)
else:
    raise AssertionError("an indefinite matrix has Cholesky factors")

# %%
# MINRES takes it. As SciPy's, it ends where the residual is below ``rtol`` times the norm of A times that of x, and so
# do ``lsqr`` and ``lsmr`` with ``atol``. Over the norm of b, the residual may then be larger than ``rtol``.

found = minres(indefinite, b, rtol=1e-8, full_output=True)
print(found)
assert found.info == 0

# %%
# A matrix that is not symmetric
# ------------------------------
# :ref:`convection_diffusion` has more of it. `gmres` keeps ``restart`` vectors and reads them twice an iteration;
# ``basis_dtype="float32"`` halves that, and the solution is as accurate, because the residual is computed afresh each
# cycle.

wind = sp.kron(sp.diags_array([-0.9, 0.9], offsets=[-1, 0], shape=(n, n)), sp.eye_array(n * n))
T = sp.csr_array(laplacian + wind)
N = GpuSparseMatrix(T)
for name, options in {"gmres": {}, "with ilu0": {"M": ilu0(N)}, "float32 basis": {"basis_dtype": np.float32}}.items():
    found = gmres(N, b, rtol=1e-8, restart=30, full_output=True, **options)
    print(f"{name:14} {found.iterations:4} iterations")
    assert found.info == 0
    assert np.linalg.norm(b - T @ found.x) <= 2e-8 * np.linalg.norm(b)

# %%
# Several right-hand sides, and float32 inside
# --------------------------------------------
# Columns of b are solved side by side: the matrix is read once for all of them, and each has scalars of its own.

B = rng.standard_normal((n**3, 4))
many = cg(A, B, M=ic0(A), rtol=1e-8, full_output=True)
assert many.info == 0 and many.x.shape == B.shape
assert np.all(np.linalg.norm(B - S @ many.x, axis=0) <= 2e-8 * np.linalg.norm(B, axis=0))

# %%
# ``inner_dtype="float32"`` iterates in float32 and refines the solution in float64: half the traffic, and the accuracy
# asked for. Where the matrix is too ill-conditioned for that, float64 finishes the solve.

refined = cg(A, b, M=jacobi(A), rtol=1e-10, inner_dtype="float32", full_output=True)
print(refined)
assert refined.info == 0 and np.linalg.norm(b - S @ refined.x) <= 2e-10 * np.linalg.norm(b)

# %%
# Least squares and eigenvalues
# -----------------------------
# `lsqr` and `lsmr` take any shape. `lobpcg` takes a block of guesses and a preconditioner; :ref:`eigenvalues` compares
# it with SciPy's.

tall = sp.csr_array(sp.random_array((3000, 400), density=0.01, rng=rng))
right = rng.standard_normal(3000)
least = lsqr(GpuSparseMatrix(tall), right, atol=1e-10, btol=1e-10)[0]
assert np.allclose(least, np.linalg.lstsq(tall.toarray(), right)[0], atol=1e-6)

L = GpuSparseMatrix(laplacian)
lowest, _ = lobpcg(L, rng.standard_normal((n**3, 3)), M=ic0(L), largest=False, tol=1e-6, maxiter=60)
sines = 4 * np.sin(np.arange(1, 3) * np.pi / (2 * (n + 1))) ** 2  # of one direction
print(lowest)
assert np.allclose(lowest[:2], [3 * sines[0], 2 * sines[0] + sines[1]])

# %%
# In SciPy's own solvers
# ----------------------
# A preconditioner goes where SciPy expects one. `A.accelerated() <gsparse.GpuSparseMatrix.accelerated>` goes further:
# SciPy's call stays as it is, and the whole solve happens on the device.

x, info = sla.cg(A, b, M=ic0(A), rtol=1e-8)
assert info == 0
steps = []
x, info = sla.cg(A.accelerated(M=jacobi(A)), b, rtol=1e-8, callback=steps.append)
print(f"{len(steps)} of SciPy's iterations")
assert info == 0 and len(steps) <= 3
