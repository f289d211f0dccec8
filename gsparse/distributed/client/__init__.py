"""The part of `gsparse.distributed` that runs in the process of the user, who is a client of a dask cluster.

Read the files in this order: `distribute.py` (functions that make a distributed matrix), `row_sources.py` (where its
rows come from, and sparse algebra), `matrix.py` (the matrix as its user sees it), `rank_group.py` (its ranks, and calls
of them), `solves.py` (solves and preconditioners on the workers), and `products.py` (products with NumPy's and dask's
vectors, and how these are divided among the ranks). The other files can be read separately: `entries.py` (entries on
the host and in files, and other values), `cluster.py` (workers), `scheduler.py` (requests to the scheduler, waits, and
reservations of workers), and `operators.py` (SciPy's interface of operators).
"""
