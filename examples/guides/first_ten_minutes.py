"""
The first ten minutes
=====================

This page goes once through everything that most users need: make a matrix, multiply, solve, read why a storage format
was chosen, draw a picture, and read a system from a file. It needs no GPU. The code blocks are one program; copy them
in their order.

Install gsparse first (:doc:`/install`), with matplotlib for the pictures: ``pip install '.[plot]'``.
"""

# %%
# .. currentmodule:: gsparse
#
# A problem
# ---------
# A thin plate is heated in its middle and kept at temperature 0 along its edge. With the temperature u at the points of
# a grid, the heat equation in equilibrium is a linear system A·u = b. SciPy makes the matrix: five entries for each of
# the 40,000 points.

import matplotlib.pyplot as plt
import numpy as np
import scipy.sparse as sp
import scipy.sparse.linalg as sla

n = 200
S = sp.csr_array(-sla.LaplacianNd((n, n), boundary_conditions="dirichlet", dtype=np.float64).tosparse())
b = np.zeros((n, n))
b[80:120, 80:120] = 1e-3  # the heated square
b = b.ravel()

print(repr(S))

# %%
# The one line
# ------------
# `GpuSparseMatrix` copies the matrix to the GPU. Without a GPU, the matrix stays in the memory of the host, and
# products run on all cores. To choose the device yourself, pass ``device="cpu"`` or ``device="gpu"``.

from gsparse import GpuSparseMatrix

A = GpuSparseMatrix(S)

print(repr(A))

# %%
# A is a ``scipy.sparse.csr_array``, so code that was written for SciPy accepts it. Products, sums, slices and
# reductions run on the device. A NumPy array in gives a NumPy array out; with a CuPy array, the result is one of CuPy,
# and nothing is copied between host and GPU.

y = A @ b
assert np.allclose(y, S @ b)
assert sp.issparse(A) and isinstance(A, sp.csr_array)

# %%
# The first product of a kind compiles its kernel, which takes seconds. The compiled kernel stays in a cache of the
# user, so that the next process only loads it. Therefore time the second call.

# %%
# Why this format
# ---------------
# A product takes as long as reading the matrix. So gsparse looks at the structure and chooses the storage format whose
# predicted time is the shortest. The plan says which one and why:

print(A.plan)

# %%
# This matrix has few distinct rows: each of them is "the point itself, minus its neighbours". They are stored once, so
# that a product reads nearly nothing but x. :doc:`/guides/how_gsparse_chooses` explains the lines of the plan, and
# `gsparse.plot.sparsity` draws the matrix.

from gsparse.plot import sparsity

sparsity(A[:400, :400].tocsr())
plt.title("The first 400 rows and columns")
plt.show()

# %%
# Solve
# -----
# `gsparse.linalg` has the solvers of ``scipy.sparse.linalg`` with the same arguments and the same result: the solution,
# and 0 if it converged. Their vectors stay on the device between the iterations.

from gsparse.linalg import cg

u, info = cg(A, b, rtol=1e-8)
assert info == 0
assert np.linalg.norm(b - S @ u) <= 1.01e-8 * np.linalg.norm(b)

plt.imshow(u.reshape(n, n), cmap="inferno")
plt.colorbar(label="temperature")
plt.show()

# %%
# Precondition
# ------------
# Conjugate gradients need more iterations the finer the grid is. Algebraic multigrid, `amg <gsparse.linalg.amg>`, keeps
# their number nearly constant. It is set up on the device from the matrix alone. With ``full_output=True``, a solver
# returns the residual of each iteration, and `gsparse.plot.convergence` draws them.

from gsparse.linalg import amg, jacobi
from gsparse.plot import convergence

runs = {
    "without preconditioner": cg(A, b, rtol=1e-8, full_output=True),
    "jacobi": cg(A, b, rtol=1e-8, M=jacobi(A), full_output=True),
    "amg": cg(A, b, rtol=1e-8, M=amg(A), full_output=True),
}
convergence(runs)
plt.show()

for name, run in runs.items():
    print(f"{name:24} {run.iterations:4} iterations")
assert 10 * runs["amg"].iterations < runs["jacobi"].iterations

# %%
# The diagonal of this matrix is constant, so that ``jacobi`` changes nothing.
# :doc:`/guides/solvers_and_preconditioners` says what fits which matrix. If you do not want to choose,
# `gsparse.linalg.solve` takes a method and a preconditioner by the properties of the matrix, and says why:

from gsparse.linalg import solve

result = solve(A, b, rtol=1e-8)
print(result)
u, info = result
assert info == 0

# %%
# A system of your own
# --------------------
# Matrices travel in files. `gsparse.files.read_file` reads Matrix Market (``.mtx``, also compressed), SciPy's ``.npz``,
# MATLAB's ``.mat`` and Harwell–Boeing. Here the file is written first; put the name of your own file in its place.

import tempfile
from pathlib import Path

from gsparse.files import read_file, write_file

with tempfile.TemporaryDirectory() as folder:
    file = Path(folder) / "plate.mtx.gz"
    write_file(file, S)
    print(f"{file.name}: {file.stat().st_size / 1e6:.1f} MB")
    B = GpuSparseMatrix(read_file(file))

x, info = cg(B, b, rtol=1e-8, M=amg(B))
assert info == 0 and abs(x - u).max() < 1e-6 * abs(u).max()

# %%
# The same from the command line, without a program: ``gsparse info plate.mtx.gz`` prints the plan, and
# ``gsparse solve plate.mtx.gz --rhs b.npy -o x.npy`` solves.
#
# Values that change
# ------------------
# In a time stepping or a Newton method, the structure stays and the values change. ``A.with_data(values)`` reuses all
# that depends on the structure alone, and ``M.update`` does the same for a preconditioner.

M = amg(A)
for step in range(3):
    A = A.with_data((1 + 0.1 * step) * S.data)
    M.update(A)
    u, info = cg(A, b, rtol=1e-8, M=M)
    assert info == 0
    print(f"step {step}: {u.max():.4f} at the hottest point")

# %%
# When something is slow
# ----------------------
# ``A.stats`` counts the products, and the operations that SciPy computed on the host. Inside ``with
# gsparse.strict():``, an operation that would leave the device is an error. `gsparse.profile` shows where the time of a
# program goes, line by line (:doc:`/guides/where_the_time_goes`). ``gsparse doctor`` on the command line says whether
# your GPU is found, and what to install if it is not.

print(A.stats)

# %%
# Read on
# -------
# - :doc:`/guides/coming_from_scipy`: what stays the same, and what is different
# - :doc:`/guides/when_not_to_use_it`: when another library serves you better
# - :doc:`/examples`: whole programs from physics, graphs, and data and learning
# - :doc:`/guides/many_gpus`: the same over many GPUs
