"""The part of `gsparse.distributed` that runs on the workers of a dask cluster, mostly as calls of actors.

Read the files in this order: `rank.py` (the actor, and its calls), `computations.py` (matrices computed from others),
`group_tasks.py` (connecting the ranks and making their matrices), `solve_tasks.py` (a solve), and `solution_copies.py`
(copies of x from which a solve can resume). `product_tasks.py` (products with NumPy's and dask's vectors),
`entry_tasks.py` (reading entries) and `checkpoint_tasks.py` (checkpoints in files) can be read separately.
"""
