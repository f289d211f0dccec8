"""
With other libraries
====================

Most libraries that make or take a sparse matrix use SciPy's classes. They accept a `gsparse.GpuSparseMatrix` wherever
they accept a ``csr_array``, and any sparse matrix that they return can be made into one. This page shows the few lines
for each library. Where a section says that its code is not tested, the library cannot be installed with pip on the
machine that makes these pages.

``pip install '.[examples]'`` installs the libraries. Every section also needs the lines

.. code-block:: python

   import numpy as np
   import scipy.sparse as sp

   import gsparse
   import gsparse.linalg
   from gsparse import GpuSparseMatrix
"""

# %%
# .. currentmodule:: gsparse
#
# scikit-fem
# ----------
# ``skfem.solve`` takes any function that solves a system as its ``solver``. `gsparse.linalg.solve` chooses a method and
# a preconditioner by the properties of the matrix. It returns a pair of the solution and a code, as SciPy's iterative
# solvers do, and scikit-fem expects the solution alone. So do not pass the function itself, but
# ``solver=lambda A, b: gsparse.linalg.solve(A, b)[0]``, or a function that also checks the code. The problem is a
# membrane under a constant load.

import numpy as np
import skfem
from skfem.models.poisson import laplace, unit_load

import gsparse
import gsparse.linalg
from gsparse import GpuSparseMatrix

mesh = skfem.MeshTri().refined(6)
basis = skfem.Basis(mesh, skfem.ElementTriP2())
K, f = laplace.assemble(basis), unit_load.assemble(basis)


def solve_on_device(A, b):
    x, info = gsparse.linalg.solve(GpuSparseMatrix(A), b, rtol=1e-10)
    assert info == 0
    return x


u = skfem.solve(*skfem.condense(K, f, D=basis.get_dofs()), solver=solve_on_device)
print(f"{u.size} unknowns, deflection {u.max():.6f} in the middle")
assert abs(u.max() - 0.0736713) < 1e-5  # a series for the square

# %%
# scikit-fem assembles objects of ``scipy.sparse.csr_matrix``. The sum of one and a ``GpuSparseMatrix`` is computed by
# SciPy, on the host. Make one operand a `gsparse.sparse.csr_matrix`, and sums and products stay on the device. Here is
# the matrix of a step of the backward Euler method:

from skfem.models.poisson import mass

import gsparse.sparse

step = mass.assemble(basis) + 1e-3 * gsparse.sparse.csr_matrix(K)
assert isinstance(step, gsparse.sparse.csr_matrix)

# %%
# For a nonlinear problem, keep the structure and send the values alone: see :ref:`soap_film`.
#
# A mesh of solid mechanics has three unknowns at each point, its displacements. Multigrid should know that, and the
# motions that do not deform the body, `gsparse.linalg.rigid_body_modes`: the solve then needs far fewer iterations than
# with ``amg(A)``. Here a beam is clamped at one end and bends under its weight. The points of that end have no rows in
# the matrix, so they are left out of the coordinates.

from skfem.models.elasticity import lame_parameters, linear_elasticity

beam = skfem.MeshTet.init_tensor(np.linspace(0, 5, 41), np.linspace(0, 1, 9), np.linspace(0, 1, 9))
basis = skfem.Basis(beam, skfem.ElementVector(skfem.ElementTetP1()))
K = linear_elasticity(*lame_parameters(1e3, 0.3)).assemble(basis)
weight = skfem.LinearForm(lambda v, w: -v[2]).assemble(basis)
K, weight, _, free = skfem.condense(K, weight, D=basis.get_dofs(lambda x: x[0] == 0))
points = basis.doflocs[:, free[::3]].T  # scikit-fem numbers the displacements of a point one after the other

A = GpuSparseMatrix(K)
M = gsparse.linalg.amg(A, block_size=3, B=gsparse.linalg.rigid_body_modes(points))
iterations = [
    gsparse.linalg.cg(A, weight, M=m, rtol=1e-8, full_output=True).iterations for m in (gsparse.linalg.amg(A), M)
]
print(f"{A.shape[0]} unknowns: {iterations[0]} iterations with amg(A), {iterations[1]} with rigid body modes")
assert 3 * iterations[1] < iterations[0]

# %%
#
# FiPy
# ----
# FiPy's solvers for SciPy call the function ``solveFnc`` with SciPy's arguments. A subclass can replace this function.
# *This was run by hand with FiPy 4.0.3.*
#
# .. code-block:: python
#
#    import fipy
#    from fipy.solvers.scipy.linearCGSolver import LinearCGSolver
#
#    def cg_on_device(A, b, x, **options):
#        A = GpuSparseMatrix(A)
#        return gsparse.linalg.cg(A, b, x0=x, **{**options, "M": gsparse.linalg.amg(A)})
#
#    class DeviceCGSolver(LinearCGSolver):
#        solveFnc = staticmethod(cg_on_device)
#
#    grid = fipy.Grid2D(nx=60, ny=60, dx=1 / 60, dy=1 / 60)
#    heat = fipy.CellVariable(mesh=grid, value=0.0)
#    heat.constrain(0.0, grid.facesLeft)
#    heat.constrain(1.0, grid.facesRight)
#    solver = DeviceCGSolver(tolerance=1e-10)
#    fipy.DiffusionTerm(coeff=1.0).solve(var=heat, solver=solver)
#    print(f"FiPy: {solver.convergence.iterations} iterations")
#    assert np.allclose(heat.value, grid.x.value, atol=1e-8)  # the exact solution is linear

# %%
# PyAMG
# -----
# `gsparse.linalg.amg` copies a hierarchy of PyAMG to the device. Here PyAMG coarsens classically, and its own problem
# is solved on the device.

import pyamg

S = pyamg.gallery.poisson((100, 100), format="csr")
M = gsparse.linalg.amg(pyamg.ruge_stuben_solver(S))
x, info = gsparse.linalg.cg(GpuSparseMatrix(S), np.ones(S.shape[0]), M=M, rtol=1e-10)
print(repr(M))
assert info == 0

# %%
# NetworkX
# --------
# ``networkx.to_scipy_sparse_array`` returns the adjacency matrix of a graph. Its Laplacian's second eigenvector divides
# the graph in two along a bottleneck.

import networkx
import scipy.sparse as sp

graph = networkx.barbell_graph(20, 4)  # two complete graphs of 20 nodes, with a path of 4 nodes between them
adjacency = networkx.to_scipy_sparse_array(graph, dtype=float)
laplacian = GpuSparseMatrix(sp.csgraph.laplacian(adjacency))
values, vectors = gsparse.linalg.eigsh(laplacian, k=2, which="SA")
left = {node for node, entry in zip(graph, vectors[:, 1], strict=True) if entry < 0}
print(f"{len(left)} of {len(graph)} nodes on one side, {networkx.cut_size(graph, left)} edge between the sides")
assert len(left) == 22 and networkx.cut_size(graph, left) == 1

# %%
# scikit-learn
# ------------
# Estimators that take a sparse matrix multiply by it, on the device if it is a `GpuSparseMatrix`. Those whose work is
# in products, such as ``TruncatedSVD``, gain from that. Estimators that read single rows convert it on the host, and do
# not. All of them check their input first, which reads ``A.data``, ``A.indices`` and ``A.indptr`` on the host, so that
# they are refused inside `strict`. :ref:`latent_semantics` has a whole pipeline.

from sklearn.decomposition import TruncatedSVD

samples = sp.random_array((3000, 500), density=0.02, rng=np.random.default_rng(0), format="csr")
A = GpuSparseMatrix(samples)
reduced = TruncatedSVD(5, algorithm="arpack", random_state=0).fit_transform(A)
assert np.allclose(reduced, TruncatedSVD(5, algorithm="arpack", random_state=0).fit_transform(samples))
print(f"scikit-learn: {reduced.shape}, {A.stats.products} products on the device")

# %%
# Single cells
# ------------
# The counts of an ``AnnData`` object are a sparse matrix, ``adata.X``, which may be a `gsparse.sparse.csr_matrix`:
# AnnData takes subclasses of SciPy's ``csr_matrix``. :ref:`single_cell` normalizes counts, selects genes and projects
# the cells, with all operations of the matrix on the device.
#
# PyTorch and JAX
# ---------------
# ``A @ x`` takes a tensor of PyTorch or an array of JAX on the same device without a copy, and returns one.
# `gsparse.torch.matmul`, `gsparse.torch.solve`, `gsparse.jax.matmul` and `gsparse.jax.solve` have gradients
# (:ref:`gradients`).
#
# DOLFINx
# -------
# The matrix of DOLFINx, assembled without PETSc, has a method ``to_scipy``. *This code is not tested.*
#
# .. code-block:: python
#
#    import dolfinx.fem
#
#    A = dolfinx.fem.assemble_matrix(dolfinx.fem.form(a), bcs=bcs)  # MatrixCSR
#    A.scatter_reverse()
#    b = dolfinx.fem.assemble_vector(dolfinx.fem.form(L))
#    dolfinx.fem.apply_lifting(b.array, [dolfinx.fem.form(a)], bcs=[bcs])
#    dolfinx.fem.set_bc(b.array, bcs)
#    uh.x.array[:], info = gsparse.linalg.solve(GpuSparseMatrix(A.to_scipy()), b.array)
#
# This is for one process. With several, give each process's rows to `gsparse.distributed.from_mpi`.
#
# dask on Slurm and Kubernetes
# ----------------------------
# `gsparse.distributed.distribute` takes any client of dask. Each worker process needs a GPU of its own, which the batch
# system or ``CUDA_VISIBLE_DEVICES`` assigns. *These configurations are not tested.*
#
# .. code-block:: python
#
#    from dask_jobqueue import SLURMCluster  # one worker for each GPU
#    from distributed import Client
#
#    cluster = SLURMCluster(
#        processes=1, cores=8, memory="64GB", walltime="01:00:00",
#        job_extra_directives=["--gres=gpu:1"],
#        job_script_prologue=["export GSPARSE_CACHE_DIR=$HOME/.cache/gsparse"],
#    )
#    cluster.scale(jobs=8)
#    client = Client(cluster)
#
# .. code-block:: python
#
#    from dask_kubernetes.operator import KubeCluster  # the image contains gsparse, also for the scheduler
#
#    cluster = KubeCluster(name="gsparse", image="registry.example/gsparse:0.1.0", n_workers=8,
#                          resources={"limits": {"nvidia.com/gpu": "1"}})
#
# :ref:`cluster_across_hosts` starts workers on several hosts by hand and under Slurm, with TLS.
