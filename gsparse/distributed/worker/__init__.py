"""The part of `gsparse.distributed` that runs on the workers of a dask cluster, mostly as calls of actors.

Read the files in this order: `rank.py` (the actor, and its calls), `group_tasks.py` (connecting the ranks and making
their matrices) and `solve_tasks.py` (a solve, and copies of x from which it can resume). `entry_tasks.py`
(reading entries, checkpoints in files, and products with NumPy's and dask's vectors) can be read separately.
"""
