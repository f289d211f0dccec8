"""
How gsparse chooses
===================

A sparse product does two operations for each entry it reads, so its time is that of reading. gsparse reads less: it
looks at the matrix once, works out what each of its formats would have to read, and takes the one with the shortest
predicted time, the conversion included. This page shows what it looks at, what it found, and how to overrule it. Its
pictures need matplotlib: ``pip install 'gsparse[examples]'``.
"""

# %%
# .. currentmodule:: gsparse.plan.choice
#
# The plan
# --------
# A Laplacian on a grid has few distinct rows, and a random matrix none that are alike. Rows of a third one, a graph in
# which few vertices have most of the edges, are of very different length.

from importlib.util import find_spec

if find_spec("matplotlib") is None:
    raise SystemExit("needs matplotlib: pip install 'gsparse[examples]'")

import matplotlib.pyplot as plt
import numpy as np
import scipy.sparse as sp
import scipy.sparse.linalg as sla

import gsparse
from gsparse import GpuSparseMatrix
from gsparse.plot import roofline, row_lengths, sparsity

rng = np.random.default_rng(1)
n = 40
grid = sp.csr_array(-sla.LaplacianNd((n, n, n), boundary_conditions="dirichlet", dtype=np.float64).tosparse())
random = sp.csr_array(sp.random_array((20_000, 20_000), density=5e-4, rng=rng))
edges = (20_000 * rng.random((2, 200_000)) ** 4).astype(np.int64)
graph = sp.csr_array((rng.random(edges.shape[1]), tuple(edges)), shape=(20_000, 20_000))

figure, axes = plt.subplots(2, 3, layout="constrained", figsize=(9, 5))
for S, name, (above, below) in zip((grid, random, graph), ("grid", "random", "graph"), axes.T, strict=True):
    sparsity(S, above).set_title(name)
    row_lengths(S, below).set_xlim(0.5, 1e4)

# %%
# ``A.plan`` prints the choice, its reason, the row statistics it rests on, and a line for each format that fits: how
# columns and values would be stored, what one product reads and writes, stored over true entries, and the predicted
# time. η is the share of a warp's lanes at work when each lane owns a row: 1 where rows are of one length.

A = GpuSparseMatrix(grid)
print(A.plan)
assert A.plan.format in gsparse.FORMATS
assert A.plan.stats.nnz == grid.nnz and A.plan.stats.max_length == 7

# %%
# The statistics alone tell these matrices apart:

plans = {"grid": A.plan, "random": GpuSparseMatrix(random).plan, "graph": GpuSparseMatrix(graph).plan}
for name, plan in plans.items():
    stats = plan.stats
    print(f"{name:7} rows of {stats.min_length} to {stats.max_length}, η {stats.efficiency:.2f}: {plan.format}")
assert plans["grid"].stats.efficiency > plans["random"].stats.efficiency > plans["graph"].stats.efficiency

# %%
# Of the formats, ``csr_scalar``, ``csr_vector``, ``csr_adaptive`` and ``csr_split`` read CSR's own arrays. They are the
# schedules of one layout, and differ in how threads share the work: a thread for each row, several threads for each
# row, a block of threads for a block of rows, or equal shares of the entries. ``ellpack`` pads all rows to one length,
# ``blocked_ellpack`` the rows of a slice, and ``row_pattern`` stores what rows have in common once.
#
# Compression
# -----------
# Formats store less than CSR wherever that loses nothing: columns in one or two bytes, distances from the diagonal once
# for all rows that share them, a dictionary of few values, float32 where every value survives the way there and back.
# ``compress=False`` switches that off.

plain = GpuSparseMatrix(grid, compress=False)
print(plain.plan)
print(f"{A.plan.chosen.nbytes / 1e6:.2f} MB a product, {plain.plan.chosen.nbytes / 1e6:.2f} without compression")
assert A.plan.chosen.nbytes < plain.plan.chosen.nbytes

# %%
# Whatever the format, the numbers multiplied are those given; only sums may be rounded in another order.

x = rng.standard_normal(n**3)
bound = 16 * np.finfo(float).eps * (abs(grid) @ abs(x))
assert np.all(abs(A @ x - grid @ x) <= bound)
assert np.all(abs(plain @ x - grid @ x) <= bound)

# %%
# Values that are all different can be neither shared nor narrowed; columns still can:

uneven = grid.copy()
uneven.data *= rng.uniform(0.5, 1.5, uneven.nnz)
V = GpuSparseMatrix(uneven)
print(V.plan)
least = [min(candidate.nbytes for candidate in matrix.plan.candidates) for matrix in (A, V, plain)]
assert least[0] < least[1] < least[2]

# %%
# ``A.stored`` are the arrays themselves, a frozen dataclass. CSR's, which the matrix keeps beside them, are on the
# device too: a format costs memory as well as the time to make it.

print(type(A.stored).__name__, f"{A.stored.nbytes} bytes, CSR's arrays {A.plan.stats.nnz * 12 + (n**3 + 1) * 4}")

# %%
# What a conversion is worth
# --------------------------
# Making a format takes the time of some products (``setup_seconds`` of a `Candidate`), so the choice depends on how
# many there will be: 1000 unless ``expected_products`` says otherwise. For a single one CSR is read as it is.

once = GpuSparseMatrix(grid, expected_products=1)
print(once.plan.reason)
assert once.plan.format.startswith("csr_")

# %%
# A matrix of the same structure with other values (``A.with_data``, ``2 * A``) takes over what the structure decided,
# so time steps pay for it once.
#
# The clock instead of the model
# ------------------------------
# Predictions come from constants measured on an H200 and on one CPU; your machine is another. ``tune=True`` times the
# two to four best candidates when the first product is asked for, and remembers the verdict on disk
# (``GSPARSE_CACHE_DIR``) for the next matrix of the same features on the same device. ``tune="lazy"`` does it within
# the first products: nothing waits, but each of these may round differently, as formats add in different orders.

tuned = GpuSparseMatrix(grid, tune=True)
tuned @ x
print(tuned.plan)
timed = [candidate for candidate in tuned.plan.candidates if candidate.measured is not None]
assert 2 <= len(timed) <= 4
assert tuned.plan.chosen.measured == min(candidate.measured for candidate in timed)

# %%
# A roofline shows the same: each format under the roof that the memory of this machine sets, predicted and measured.
# Formats that read less stand further right; what is above the roof was read from a cache.

axes = roofline(tuned)

# %%
# To overrule the choice, name the format, and for CSR its schedule. ``format="csr"`` alone chooses among the schedules.
# The names in a plan's table are accepted too: ``format="csr_vector"`` is the same as the next line.

asked = GpuSparseMatrix(grid, format="csr", schedule="vector")
assert asked.plan.format == "csr_vector" and asked.plan.reason == "asked for"
assert GpuSparseMatrix(grid, format="csr").plan.format.startswith("csr_")

# %%
# A name that does not exist is refused, as is a format that does not fit the matrix.

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
# ``A @ X`` reads the matrix once for all columns of X. Then X is most of what moves, and the question is how threads
# share columns and entries rather than how the matrix is stored. ``A.plan_for(k)`` tells what a GPU does with a
# row-major X of k columns, and why; it can be asked on any machine.

for name, S in (("grid", grid), ("graph", graph)):
    for k in (4, 64):
        print(f"{name}: {GpuSparseMatrix(S).plan_for(k)}\n")

X = rng.standard_normal((n**3, 4))
Y = A @ X
assert np.all(abs(Y - grid @ X) <= 16 * np.finfo(float).eps * (abs(grid) @ abs(X)))

# %%
# From the command line, ``python -m gsparse info FILE`` prints statistics, plan and memory of a matrix in a file,
# ``--tune`` included, and ``python -m gsparse bench`` times every format beside other libraries.
