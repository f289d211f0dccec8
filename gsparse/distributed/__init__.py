"""Row blocks of one matrix on several ranks: partition → halo → communicator.

A rank owns consecutive rows, and the entries of vectors that belong to them. What it needs of others' entries, its
ghosts, comes in one exchange a product.
"""

from gsparse.distributed.communicator import Communicator, SingleCommunicator
from gsparse.distributed.halo import Halo, RowBlock, split_columns
from gsparse.distributed.local import LocalCommunicator, run_ranks
from gsparse.distributed.operator import RankMatrix
from gsparse.distributed.partition import RowPartition
from gsparse.distributed.sockets import SocketCommunicator, listen

__all__ = [
    "Communicator",
    "Halo",
    "LocalCommunicator",
    "RankMatrix",
    "RowBlock",
    "RowPartition",
    "SingleCommunicator",
    "SocketCommunicator",
    "listen",
    "run_ranks",
    "split_columns",
]
