"""The part of `gsparse.distributed` that runs in the user's process, which is a client of a dask cluster.

Read the files in this order: `distribute.py` (functions that make a distributed matrix), `row_sources.py` (sources of
its rows, and sparse algebra), `matrix.py` (the user's matrix), `rank_group.py` (the ranks of a matrix, and calls of
functions on them), `rank_servers.py` (the actors of the ranks, and reservations of workers), `solves.py` (solves and
preconditioners on the workers), and `products.py` (products with NumPy's and dask's vectors, which are split among the
ranks). The other files can be read separately: `entries.py` (entries on the host and in files, and other values),
`cluster.py` (workers), `scheduler.py` (requests to the scheduler, and waits), and `operators.py` (SciPy's interface of
operators).
"""
