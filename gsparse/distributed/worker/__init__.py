"""The part of `gsparse.distributed` that runs on the workers of a dask cluster, as tasks and calls of the client.

Read the files in this order: `current_worker.py` (the worker that a task runs on), `registry.py` (the objects that stay
on a worker between tasks), `computations.py` (matrices computed from others), `group_tasks.py` (connecting the ranks
and making their matrices), `calls.py` (what the client calls without dask), `solve_tasks.py` (a solve),
`solve_vectors.py` (its vectors), `channel.py` (its messages to the client), and `solution_copies.py` (copies of x from
which a solve can resume). `product_tasks.py` (products with NumPy's and dask's vectors), `entry_tasks.py` (reading
entries), `checkpoint_tasks.py` (checkpoints in files) and `task_logs.py` (logs of failed tasks) can be read separately.
"""
