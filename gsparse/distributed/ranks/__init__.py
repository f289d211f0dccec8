"""Row blocks of a matrix on several ranks, and the communication between the ranks. Nothing in this folder uses dask.

Read the files in this order: `partition.py` (the rank that owns each row, and orders with few ghosts),
`communicator.py` (the contract of a communicator), `local.py` (its shortest implementation, for threads), `halo.py`
(the two blocks of a rank's rows and the exchange of ghosts), `rank_operator.py` (the operator that solvers run on),
`rank_rows.py` (the sparse algebra of rows) and `rank_matrix.py` (the user's matrix: operator and algebra). The other
files can be read separately: `rank_multigrid.py` and what it imports (multigrid over ranks), `row_exchange.py` (on
which the sparse algebra is built), `handshake.py` and `sockets.py` (ranks as processes), `shared_memory.py` (processes
of one host), `gpu_memory.py` (ranks on GPUs), `mpi.py` and `torchrun.py` (processes that another program has started),
`construction.py` (a matrix from the rows that each of these processes has), and `profiles.py` (the profiles of all
ranks).
"""
