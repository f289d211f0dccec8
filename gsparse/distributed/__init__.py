"""A matrix whose rows are divided among several ranks, which multiply and solve together.

Each rank owns consecutive rows of the matrix, and the entries of vectors that belong to these rows. For a product, a
rank also needs entries that other ranks own, its ghosts. The ranks send each other the ghosts in one exchange.
"""

from importlib import import_module
from importlib.util import find_spec
from typing import Any

from gsparse._version import install_command
from gsparse.distributed.ranks.communicator import Communicator, SingleCommunicator
from gsparse.distributed.ranks.halo import Halo
from gsparse.distributed.ranks.local import LocalCommunicator, run_ranks
from gsparse.distributed.ranks.mpi import MpiCommunicator, from_mpi
from gsparse.distributed.ranks.partition import RowPartition
from gsparse.distributed.ranks.profiles import RankProfile, profile_of_ranks
from gsparse.distributed.ranks.rank_matrix import RankMatrix
from gsparse.distributed.ranks.rank_multigrid import RankMultigrid
from gsparse.distributed.ranks.row_block import RowBlock, split_columns
from gsparse.distributed.ranks.sockets import SocketCommunicator, listen
from gsparse.distributed.ranks.torchrun import from_torchrun

__all__ = [
    "Communicator",
    "Halo",
    "LocalCommunicator",
    "MpiCommunicator",
    "RankMatrix",
    "RankMultigrid",
    "RankProfile",
    "RowBlock",
    "RowPartition",
    "SingleCommunicator",
    "SocketCommunicator",
    "from_mpi",
    "from_torchrun",
    "listen",
    "profile_of_ranks",
    "run_ranks",
    "split_columns",
]

# Names that need dask, and their modules, which are imported when a name is first used.
_NEED_DASK = {
    "DistributedMatrix": "client.matrix",
    "LocalGpuCluster": "client.cluster",
    "distribute": "client.distribute",
    "from_dask": "client.distribute",
    "from_loaders": "client.distribute",
}
if find_spec("distributed") is not None:  # without dask, ``import *`` would raise an error
    __all__ += list(_NEED_DASK)


def __getattr__(name: str) -> Any:
    if name not in _NEED_DASK:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(import_module(f"{__name__}.{_NEED_DASK[name]}"), name)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("dask", "distributed"):
            raise
        raise ImportError(f"{name} needs dask: {install_command('dask')}") from error


def __dir__() -> list[str]:
    return sorted({*__all__, *_NEED_DASK})
