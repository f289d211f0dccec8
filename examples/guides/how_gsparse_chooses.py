"""
How gsparse chooses
===================

A sparse product does two operations for each entry that it reads, so its time is that of reading memory. gsparse
reduces the bytes that are read: it inspects the matrix once, computes how many bytes each of its formats would read,
and chooses the one with the shortest predicted time, including the conversion. This page shows the statistics that the
choice uses, the choices for three matrices, and how to override a choice. Its pictures need matplotlib:
``pip install '.[plot]'``.
"""

# %%
# .. currentmodule:: gsparse.plan.choice
#
# The plan
# --------
# The Laplacian on a grid has few distinct rows, and no two rows of a random matrix are alike. The third matrix is a
# graph in which a few vertices have most of the edges, so that its rows have very different lengths.

import matplotlib.pyplot as plt
import numpy as np
import scipy.sparse as sp
import scipy.sparse.linalg as sla

import gsparse
from gsparse import GpuSparseMatrix
from gsparse.plot import row_lengths, sparsity

rng = np.random.default_rng(1)
n = 40
grid = sp.csr_array(-sla.LaplacianNd((n, n, n), boundary_conditions="dirichlet", dtype=np.float64).tosparse())
random = sp.csr_array(sp.random_array((20_000, 20_000), density=5e-4, rng=rng))
edges = (20_000 * rng.random((2, 200_000)) ** 4).astype(np.int64)
graph = sp.csr_array((rng.random(edges.shape[1]), tuple(edges)), shape=(20_000, 20_000))

figure, axes = plt.subplots(2, 3, layout="constrained", figsize=(9, 5))
for S, name, (above, below) in zip((grid, random, graph), ("grid", "random", "graph"), axes.T, strict=True):
    sparsity(S, above).set_title(name)
    row_lengths(S, below)

# %%
# ``print(A.plan)`` shows the choice, its reason, the row statistics, and a line for each format that fits: how columns
# and values would be stored, the bytes that one product reads and writes, the number of stored positions for each
# entry, and the predicted time. The row statistics of a GPU include the lane efficiency, the share of a warp's lanes
# that work if each lane has a row. It is 1 if all rows have the same length. "27 rows" means that the matrix has only
# 27 different rows, which are stored once. "uint8 of 178" would mean that it has 178 different values, and that each
# entry stores the number of its value in one byte. The format with the fewest bytes need not be the fastest: a product
# also has to decode what it reads, which takes time where the bytes come from a cache.

A = GpuSparseMatrix(grid)
print(A.plan)
assert A.plan.format in gsparse.FORMATS
assert A.plan.stats.nnz == grid.nnz and A.plan.stats.max_length == 7

# %%
# The statistics of the three matrices differ:

plans = {"grid": A.plan, "random": GpuSparseMatrix(random).plan, "graph": GpuSparseMatrix(graph).plan}
for name, plan in plans.items():
    stats = plan.stats
    rows = f"rows of {stats.min_length} to {stats.max_length}"
    print(f"{name:7} {rows}, lane efficiency {stats.efficiency:.2f}: {plan.format}")
assert plans["grid"].stats.efficiency > plans["random"].stats.efficiency > plans["graph"].stats.efficiency

# %%
# The formats ``csr_scalar`` and ``csr_vector`` read CSR's own arrays. They are schedules of the same arrays, and differ
# in how the work is divided among threads: a thread for each row, or several threads for each row. ``ellpack`` pads all
# rows to one length, ``blocked_ellpack`` pads the rows of each slice, and ``row_pattern`` stores each distinct pattern
# of a row once. ``bsr`` stores small dense blocks with one column index each, for matrices with several unknowns a
# node. It is a candidate only if the matrix consists of full blocks, up to 8 x 8, which gsparse finds by itself.
# ``row_lanes`` is for rows of different lengths on a GPU: each row has as many threads as its length asks for. In
# large power-law graphs, the columns with the most entries get numbers of two bytes, and a product keeps the elements
# of x for the first of them in shared memory. A sample of the entries decides whether there are such columns.
#
# Compression
# -----------
# Formats compress the matrix where that is exact: columns take one or two bytes, the offsets from the diagonal are
# stored once for all rows that share them, a dictionary holds the values if few are distinct, and float32 replaces
# float64 if it represents every value exactly. ``compress=False`` turns this off.

plain = GpuSparseMatrix(grid, compress=False)
print(plain.plan)
print(f"{A.plan.chosen.nbytes / 1e6:.2f} MB per product, {plain.plan.chosen.nbytes / 1e6:.2f} without compression")
assert A.plan.chosen.nbytes < plain.plan.chosen.nbytes

# %%
# Every format multiplies exactly the given values. Only the order of additions, and so the rounding, may differ.

x = rng.standard_normal(n**3)
bound = 16 * np.finfo(float).eps * (abs(grid) @ abs(x))
assert np.all(abs(A @ x - grid @ x) <= bound)
assert np.all(abs(plain @ x - grid @ x) <= bound)

# %%
# Values that are all different cannot be compressed, but columns still can:

uneven = grid.copy()
uneven.data *= rng.uniform(0.5, 1.5, uneven.nnz)
V = GpuSparseMatrix(uneven)
print(V.plan)
least = [min(candidate.nbytes for candidate in matrix.plan.candidates) for matrix in (A, V, plain)]
assert least[0] < least[1] < least[2]

# %%
# ``A.stored`` is a frozen dataclass with the arrays of the chosen format. The CSR arrays stay on the device too, so a
# format costs memory in addition to the time of its conversion.

print(type(A.stored).__name__, f"{A.stored.nbytes} bytes, CSR's arrays {A.plan.stats.nnz * 12 + (n**3 + 1) * 4}")

# %%
# When a conversion pays
# ----------------------
# Making a format takes the time of several products (``setup_seconds`` of a `Candidate`), so the choice depends on the
# number of products. It is 1000 unless ``expected_products`` gives another number. For a single product, the CSR arrays
# are read without conversion.

single_use = GpuSparseMatrix(grid, expected_products=1)
print(single_use.plan.reason)
assert single_use.plan.format.startswith("csr_")

# %%
# A matrix of the same structure with other values (``A.with_data``, ``2 * A``) reuses everything that depends on the
# structure only, so that a simulation computes it once for all time steps.
#
# Measuring instead of predicting
# -------------------------------
# Predictions use constants that were measured on an H200 and on an Intel Xeon, and your machine may differ.
# ``tune=True`` times the two to four best candidates at the first product, and stores the result on disk
# (``GSPARSE_CACHE_DIR``) for the next matrix with the same features on the same device. ``tune="lazy"`` makes these
# formats at the first product as well, but times them during the first products, so that no product waits for a
# measurement. Each of these products may round differently, because formats add in different orders.

tuned = GpuSparseMatrix(grid, tune=True)
tuned @ x
print(tuned.plan)
timed = [candidate for candidate in tuned.plan.candidates if candidate.measured is not None]
assert 2 <= len(timed) <= 4
assert tuned.plan.chosen.measured == min(candidate.measured for candidate in timed)

# %%
# To override the choice, name the format, and for CSR its schedule. ``format="csr"`` alone chooses among the schedules.
# The names in a plan's table are accepted too: ``format="csr_vector"`` has the same effect as the next line.

requested = GpuSparseMatrix(grid, format="csr", schedule="vector")
assert requested.plan.format == "csr_vector" and requested.plan.reason == "named by the caller"
assert GpuSparseMatrix(grid, format="csr").plan.format.startswith("csr_")

# %%
# A name that does not exist is refused, as is a format that cannot store the matrix: ``row_pattern`` stores up to 4,096
# distinct rows. All formats that can store the matrix are accepted, also if their products are slow.

for S, options in ((grid, {"format": "csr", "schedule": "fast"}), (random, {"format": "row_pattern"})):
    try:
        GpuSparseMatrix(S, **options)
    except gsparse.errors.FormatError as error:
        print(error)
    else:
        raise AssertionError("a format that does not exist or does not fit was accepted")

# %%
# Several columns at once
# -----------------------
# ``A @ X`` reads the matrix once for all columns of X. Then most of the memory traffic is that of X, and the division
# of columns and entries among threads matters more than the storage format. Such products read CSR, dense blocks, which
# read each row of X once for all rows of a block, or, on a GPU, row patterns that include the values. Where products
# with a vector read another format, blocks are stored in addition if that is predicted to pay. They take about as much
# memory as the values of CSR. ``A.plan_for(k)`` describes how a row-major X of k columns is multiplied here and, on any
# machine, how a GPU does it, and why.

for name, S in (("grid", grid), ("graph", graph)):
    for k in (4, 64):
        print(f"{name}: {GpuSparseMatrix(S).plan_for(k)}\n")

X = rng.standard_normal((n**3, 4))
Y = A @ X
assert np.all(abs(Y - grid @ X) <= 16 * np.finfo(float).eps * (abs(grid) @ abs(X)))

# %%
# On the command line, ``python -m gsparse info FILE`` prints the statistics, the plan and the memory of a matrix in a
# file, also with ``--tune``, and ``python -m gsparse bench`` times every format beside other libraries.
