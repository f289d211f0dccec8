"""What all ranks of a matrix do together, as tasks on their workers: connect, and make their part of it.

Each task knows the address that it was made for, and looks first whether it is there.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from gsparse.device.gpu import GpuDevice
from gsparse.device.select import get_device
from gsparse.distributed.io.loaders import RowSources
from gsparse.distributed.ranks.communicator import Communicator, SingleCommunicator
from gsparse.distributed.ranks.nccl import NcclCommunicator
from gsparse.distributed.ranks.partition import RowPartition
from gsparse.distributed.ranks.product_connections import ProductServer
from gsparse.distributed.ranks.rank_matrix import RankMatrix
from gsparse.distributed.ranks.sockets import SocketCommunicator, listen
from gsparse.distributed.worker import registry as resident
from gsparse.distributed.worker.current_worker import check_home, own_host, this_worker, tls_of

__all__ = ["Roster", "Stay", "aborting", "is_worn_out", "open_rank", "reopen_rank", "reserve"]

Addresses = tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class Roster:
    """What all ranks of a gang are told.

    Attributes
    ----------
    key : str
        Of the matrix.
    epoch : int
        How often its ranks have been connected, this time included.
    workers : tuple of str
        Dask's addresses, by rank.
    timeout : float
        Seconds.
    """

    key: str
    epoch: int
    workers: tuple[str, ...]
    timeout: float


@dataclass(frozen=True)
class Stay:
    """What a rank's matrix is, for who holds it.

    Attributes
    ----------
    rank, nnz : int
    ghosts : array of int64
    plan : str
        Format of the diagonal block.
    nbytes : int
        That a product moves: both blocks as they are stored, and their vectors.
    dtype : str
    device : str
    products : (str, int)
        Host and port that products are asked for at.
    anchor : Anchor
        While dask keeps it, the rank keeps its matrix.
    """

    rank: int
    nnz: int
    ghosts: npt.NDArray[Any]
    plan: str
    nbytes: int
    dtype: str
    device: str
    products: tuple[str, int]
    anchor: Any = field(repr=False, default=None)


def reserve(roster: Roster, rank: int) -> tuple[str, int]:
    """Open a port for the ranks to connect at."""
    check_home(roster.workers[rank])
    listener = listen(own_host())
    resident.keep_listener(roster.key, roster.epoch, listener)
    host, port = listener.getsockname()[:2]
    return str(host), int(port)


def open_rank(
    roster: Roster,
    rank: int,
    addresses: Addresses,
    part: sp.csr_array | RowSources,
    rows: RowPartition,
    columns: RowPartition,
    device: str,
    options: dict[str, Any],
) -> Stay:
    """Make a rank's part of a matrix, all ranks together."""
    check_home(roster.workers[rank])
    place = get_device(device)
    with place.active():
        communicator = _connect(roster, rank, addresses, place)
        with aborting(communicator):
            own = rows.rows(rank)
            block = part.rows(own.start, own.stop) if isinstance(part, RowSources) else sp.csr_array(part)
            matrix = RankMatrix(block, rows, columns, communicator, place, **options)
            tls = tls_of(this_worker().security, roster.workers[rank])[0]
            server = ProductServer(matrix, own_host(), resident.secret_of(roster.key), tls)
    resident.keep(roster.key, resident.Resident(matrix, communicator, server, roster.epoch))
    return Stay(
        rank,
        int(block.nnz),
        matrix.ghosts,
        matrix.diagonal.plan.chosen.format,
        matrix.diagonal.plan.chosen.nbytes + matrix.off_diagonal.plan.chosen.nbytes,
        matrix.dtype.name,
        place.name,
        server.address,
        resident.Anchor(roster.key),
    )


def reopen_rank(roster: Roster, rank: int, addresses: Addresses) -> None:
    """Connect the ranks of a matrix again, after a gang has failed."""
    check_home(roster.workers[rank])
    found = resident.find(roster.key)
    found.communicator.close()
    with found.matrix.device.active():
        found.communicator = _connect(roster, rank, addresses, found.matrix.device)
        found.matrix.connect(found.communicator)
    found.epoch = roster.epoch


def _connect(roster: Roster, rank: int, addresses: Addresses, device: Any) -> Communicator:
    secret, listener = resident.secret_of(roster.key), resident.take_listener(roster.key, roster.epoch)
    if len(roster.workers) == 1:
        listener.close()
        return SingleCommunicator()
    tls = tls_of(this_worker().security, roster.workers[rank])
    control = SocketCommunicator(rank, addresses, listener, secret, roster.timeout, tls)
    if not isinstance(device, GpuDevice):
        return control
    with aborting(control):  # on GPUs only
        return NcclCommunicator(control, device) if _have_gpus_apart(control, device) else control


def _have_gpus_apart(control: Communicator, device: GpuDevice) -> bool:  # on GPUs only
    """Tell whether each rank has a GPU of its own: NCCL takes no two ranks on one."""
    from hashlib import sha256

    mine = sha256(f"{os.uname().nodename} {device.bus}".encode()).digest()[:8]
    known = np.zeros(control.world_size, np.int64)
    known[control.rank] = np.frombuffer(mine, np.int64)[0]
    control.allreduce(known)
    return np.unique(known).size == known.size


@contextmanager
def aborting(communicator: Communicator) -> Iterator[None]:
    """Tell the others where this rank fails."""
    try:
        yield
    except BaseException as error:
        communicator.abort(f"rank {communicator.rank}: {type(error).__name__}: {error}")
        if communicator.is_stuck:
            _worn_out.set()
        raise


# Set where NCCL has not let go of something: the GPU goes on working, but only the end of the process frees it all.
_worn_out = threading.Event()


def is_worn_out() -> bool:
    """Tell whether this process is better started again before it gets another matrix."""
    return _worn_out.is_set()
