"""Row blocks of a matrix on several ranks, and the communication between the ranks. Nothing in this folder uses dask.

Read the files in this order: `partition.py` (the rank that owns each row), `communicator.py` (the contract of a
communicator), `local.py` (its shortest implementation, for threads), `halo.py` (the two blocks of a rank's rows and the
exchange of ghosts), and `rank_matrix.py` (the operator that solvers run on). The other files can be read separately:
`rank_rows.py` and the other files `rank_*.py` (sparse algebra over ranks, and multigrid), `handshake.py` and
`sockets.py` (ranks as processes), `mpi.py` and `torchrun.py` (processes that others have started), `construction.py`
(a matrix from the rows that each of these has), `nccl.py` (ranks on GPUs), `product_connections.py` (products with a
vector that one process holds), and `ordering.py` (orders and partitions with few ghosts).
"""
