"""Tasks that all ranks of a matrix run at the same time: they connect to each other and make their parts of the matrix.

Each task first checks that it runs on the worker for which it was submitted.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy.typing as npt
import scipy.sparse as sp

from gsparse.device.gpu import GpuDevice
from gsparse.device.select import get_device
from gsparse.distributed.io.loaders import RowLoader
from gsparse.distributed.ranks.communicator import Communicator, SingleCommunicator
from gsparse.distributed.ranks.gpu_memory import connect_gpus
from gsparse.distributed.ranks.partition import RowPartition
from gsparse.distributed.ranks.product_connections import ProductServer
from gsparse.distributed.ranks.rank_matrix import RankMatrix
from gsparse.distributed.ranks.shared_memory import share_memory
from gsparse.distributed.ranks.sockets import SocketCommunicator, listen
from gsparse.distributed.worker import registry
from gsparse.distributed.worker.calls import served_calls
from gsparse.distributed.worker.computations import Computation
from gsparse.distributed.worker.current_worker import check_worker, this_worker, tls_contexts, worker_host
from gsparse.distributed.worker.task_logs import shorten_task_logs

Addresses = tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class GroupSettings:
    """The settings of a task group, the same for all of its ranks.

    Attributes
    ----------
    key : str
        Identifies the matrix on the workers.
    epoch : int
        How many times the ranks have been connected, this time included. Matrices that share connections have the same
        epoch.
    workers : tuple of str
        Dask's addresses of the workers, in the order of the ranks.
    timeout : float
        Longest time, in seconds, for which a rank may be silent while another one waits for it.
    """

    key: str
    epoch: int
    workers: tuple[str, ...]
    timeout: float


@dataclass(frozen=True)
class RankMetadata:
    """Metadata of one rank's part of the matrix, returned to the client.

    Attributes
    ----------
    rank, nnz : int
        The rank, and the number of its entries.
    ghosts : array of int64
        Columns of other ranks in which this rank has entries, sorted.
    plan : str
        Storage format of the diagonal block.
    nbytes : int
        Bytes that a product moves: both blocks as they are stored, and their vectors.
    dtype : str
    device : str
    product_address : (str, int)
        Host and port of the rank's `ProductServer`.
    reference : MatrixReference
        The worker keeps the matrix as long as dask keeps this object.
    """

    rank: int
    nnz: int
    ghosts: npt.NDArray[Any]
    plan: str
    nbytes: int
    dtype: str
    device: str
    product_address: tuple[str, int]
    reference: Any = field(repr=False, default=None)


def open_port(settings: GroupSettings, rank: int) -> tuple[str, int]:
    """Open the port at which this rank accepts the other ranks, and return its address."""
    check_worker(settings.workers[rank])
    listener = listen(worker_host())
    registry.store_listener(settings.key, settings.epoch, listener)
    host, port = listener.getsockname()[:2]
    return str(host), int(port)


def open_rank(
    settings: GroupSettings,
    rank: int,
    addresses: Addresses,
    part: sp.csr_array | RowLoader | Computation,
    rows: RowPartition,
    columns: RowPartition,
    device: str | None,
    options: dict[str, Any],
) -> RankMetadata:
    """Connect to the other ranks and make this rank's part of a matrix. All ranks run this task at the same time."""
    check_worker(settings.workers[rank])
    shorten_task_logs()
    rank_device = get_device(device)
    with rank_device.active(), _connections(settings, rank, addresses, rank_device, part) as connections:
        communicator = connections.communicator
        with aborting(communicator):
            if isinstance(part, Computation):
                matrix = part.matrix(communicator, columns)
            else:
                own_rows = rows.rows(rank)
                block = part.rows(own_rows.start, own_rows.stop) if isinstance(part, RowLoader) else sp.csr_array(part)
                matrix = RankMatrix(block, rows, columns, communicator, rank_device, **options)
            tls = tls_contexts(this_worker().security, settings.workers[rank])[0]
            secret = registry.require_secret(settings.key)
            server = ProductServer(matrix, worker_host(), secret, tls, served_calls())
    state = registry.RankState(matrix, connections, server)
    registry.store_state(settings.key, state)
    return RankMetadata(
        rank,
        int(matrix.diagonal.nnz + matrix.off_diagonal.nnz),
        matrix.ghosts,
        matrix.diagonal.plan.chosen.format,
        matrix.diagonal.plan.chosen.nbytes + matrix.off_diagonal.plan.chosen.nbytes,
        matrix.dtype.name,
        rank_device.name,
        server.address,
        registry.MatrixReference(settings.key, state.results),
    )


def reopen_rank(settings: GroupSettings, rank: int, addresses: Addresses) -> None:
    """Connect the ranks of a matrix again after their tasks have failed. All ranks run this task at the same time.

    The matrices that shared the old connections share the new ones.
    """
    check_worker(settings.workers[rank])
    state = registry.require_state(settings.key)
    connections = state.connections
    connections.communicator.close()
    with state.matrix.device.active():
        connections.communicator = _connect(settings, rank, addresses, state.matrix.device)
        for sharing in registry.states_over(connections):
            sharing.matrix.connect(connections.communicator)
            sharing.preconditioners.clear()  # those that ranks have made together use the connections that failed
    connections.epoch = settings.epoch


@contextmanager
def _connections(
    settings: GroupSettings, rank: int, addresses: Addresses, device: Any, part: Any
) -> Iterator[registry.RankConnections]:
    """Connect to the other ranks, or join the connections of the first operand of a computation."""
    if isinstance(part, Computation):
        connections = registry.require_state(part.operands[0]).connections
    else:
        communicator = _connect(settings, rank, addresses, device)
        connections = registry.RankConnections(communicator, settings.epoch, set())
    registry.join_connections(connections, settings.key)
    try:
        yield connections
    except BaseException:
        registry.leave_connections(connections, settings.key)
        raise


def _connect(settings: GroupSettings, rank: int, addresses: Addresses, device: Any) -> Communicator:
    """Connect to the other ranks: through memory if they are on one host, else over NCCL or sockets."""
    secret, listener = registry.require_secret(settings.key), registry.take_listener(settings.key, settings.epoch)
    if len(settings.workers) == 1:
        listener.close()
        return SingleCommunicator()
    tls = tls_contexts(this_worker().security, settings.workers[rank])
    communicator: Communicator = SocketCommunicator(rank, addresses, listener, secret, settings.timeout, tls)
    try:
        with aborting(communicator):
            communicator = share_memory(communicator)
            return connect_gpus(communicator, device) if isinstance(device, GpuDevice) else communicator
    except BaseException:
        communicator.close()
        raise


@contextmanager
def aborting(communicator: Communicator) -> Iterator[None]:
    """Abort the other ranks if the block raises an exception."""
    try:
        yield
    except BaseException as error:
        communicator.abort(f"rank {communicator.rank}: {type(error).__name__}: {error}")
        if communicator.is_stuck:
            _restart_needed.set()
        raise


# Set if NCCL has not freed its resources. The GPU continues to work, but they are freed only when the process ends.
_restart_needed = threading.Event()


def needs_restart() -> bool:
    """Return whether this process should be restarted before it gets another matrix, to free the resources of NCCL."""
    return _restart_needed.is_set()
