"""Row blocks of one matrix on several ranks: partition → halo → communicator.

A rank owns consecutive rows, and the entries of vectors that belong to them. What it needs of others' entries, its
ghosts, comes in one exchange a product.
"""

from importlib import import_module
from typing import Any

from gsparse.distributed.ranks.communicator import Communicator, SingleCommunicator
from gsparse.distributed.ranks.halo import Halo, RowBlock, split_columns
from gsparse.distributed.ranks.local import LocalCommunicator, run_ranks
from gsparse.distributed.ranks.partition import RowPartition
from gsparse.distributed.ranks.rank_matrix import RankMatrix
from gsparse.distributed.ranks.sockets import SocketCommunicator, listen

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

# Those that need dask, imported when they are asked for.
_OF_DASK = {
    "DistributedMatrix": "client.matrix",
    "LocalGpuCluster": "client.cluster",
    "distribute": "client.distribute",
    "from_dask_array": "client.distribute",
    "from_loaders": "client.distribute",
}


def __getattr__(name: str) -> Any:
    if name not in _OF_DASK:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(import_module(f"{__name__}.{_OF_DASK[name]}"), name)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("dask", "distributed"):
            raise
        raise ImportError(f"{name} needs dask: pip install 'gsparse[dask]'") from error


def __dir__() -> list[str]:
    return sorted([*__all__, *_OF_DASK])
