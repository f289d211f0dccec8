"""Functions that all ranks run together, to connect to each other and to make their parts of a matrix."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
from distributed import get_worker

from gsparse.device.gpu import GpuDevice
from gsparse.device.select import get_device
from gsparse.distributed.io.loaders import RowLoader
from gsparse.distributed.ranks.communicator import Communicator, SingleCommunicator
from gsparse.distributed.ranks.gpu_memory import connect_gpus
from gsparse.distributed.ranks.partition import RowPartition
from gsparse.distributed.ranks.rank_matrix import RankMatrix
from gsparse.distributed.ranks.shared_memory import share_memory
from gsparse.distributed.ranks.sockets import SocketCommunicator, listen
from gsparse.distributed.worker.rank import Rank, RankServer, find_rank, rank_key
from gsparse.errors import CommunicationError
from gsparse.matrix.gpu_sparse_matrix import GpuSparseMatrix

# The operations, by the name that the client sends. Each takes a list of matrices and the further arguments.
_OPERATIONS: Mapping[str, Callable[..., RankMatrix]] = {
    "product": lambda of: of[0] @ of[1],
    "element-wise": lambda of, name, options, *rest: of[0].elementwise(name, *of[1:], *rest, **options),
    "transpose": lambda of: of[0].transpose(),
    "adjoint": lambda of: of[0].adjoint(),
    "with data": lambda of, data: of[0].with_data(data),
    "rows": lambda of, *rest: of[0].take_rows(*rest),
    "columns": lambda of, *rest: of[0].take_columns(*rest),
    "stack": lambda of, *rest: of[0].stacked_with(of[1:], *rest),
}


@dataclass(frozen=True)
class Computation:
    """A matrix that is computed by an operation. All ranks compute their rows together.

    Attributes
    ----------
    operation : str
        A key of `_OPERATIONS`.
    operands : tuple of str
        The keys of the matrices on the workers.
    arguments : tuple
        Further arguments of the operation, such as a number, or this rank's part of a vector; some are `DaskResult`.
    """

    operation: str
    operands: tuple[str, ...]
    arguments: tuple[Any, ...] = ()

    def matrix(self, rank: int, communicator: Communicator, columns: RowPartition) -> RankMatrix:
        """Return this rank's rows of the result. They use `communicator`, and `columns` has the columns' owners."""
        ranks = [find_rank(rank_key(key, rank)) for key in self.operands]
        operands = [operand.require_matrix().over(communicator) for operand in ranks]
        arguments = map(DaskResult.resolved, self.arguments)
        return _OPERATIONS[self.operation](operands, *arguments).with_columns(columns)


Addresses = tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class DaskResult:
    """The key of a dask task's result on a rank's worker, which is used in place of an argument of a call."""

    key: Any

    @staticmethod
    def resolved(value: Any) -> Any:
        """Return the result for a `DaskResult`, and any other value unchanged."""
        return get_worker().data[value.key] if isinstance(value, DaskResult) else value


@dataclass(frozen=True)
class RankMetadata:
    """Metadata of one rank's part of the matrix, returned to the client.

    Attributes
    ----------
    nnz : int
        Number of the rank's entries.
    dtype : str
    device : str
    """

    nnz: int
    dtype: str
    device: str

    @staticmethod
    def of(matrix: RankMatrix) -> RankMetadata:
        """Return the metadata of a rank."""
        return RankMetadata(matrix.num_entries, matrix.dtype.name, matrix.device.name)


def open_port(rank: Rank) -> tuple[str, int]:
    """Open the port at which this rank accepts the other ranks, and return its address."""
    server = rank.server
    server.disconnect()
    server.listener = listen(server.host())
    host, port = server.listener.getsockname()[:2]
    return str(host), int(port)


def connect(rank: Rank, addresses: Addresses, secret: bytes) -> None:
    """Connect to the other ranks, all of which have opened their ports. All ranks must run this at the same time.

    All matrices of the rank's actor then use the new connections.
    """
    server, device = rank.server, get_device(rank.server.device)
    with device.active():
        server.communicator = communicator = _connect(server, addresses, secret, device)
        for one in list(server.ranks.values()):
            if one.matrix is not None:
                one.matrix.connect(communicator)
            one.preconditioners.clear()  # Preconditioners that span the ranks use the old connections.


def open_rank(
    rank: Rank,
    part: sp.csr_array | GpuSparseMatrix | RowLoader | Computation | DaskResult,
    rows: RowPartition,
    columns: RowPartition,
    options: dict[str, Any],
) -> RankMetadata:
    """Make this rank's part of a matrix. All ranks must run this at the same time, after `connect`."""
    communicator, device, part = rank.server.communicator, get_device(rank.server.device), DaskResult.resolved(part)
    assert communicator is not None
    rank.server.ranks[rank.key] = rank
    with device.active(), aborting(communicator):
        if isinstance(part, Computation):
            rank.matrix = part.matrix(rank.number, communicator, columns)
        else:
            own_rows = rows.rows(rank.number)
            block = part.rows(own_rows.start, own_rows.stop) if isinstance(part, RowLoader) else part
            rank.matrix = RankMatrix(block, rows, columns, communicator, device, **options)
    return RankMetadata.of(rank.matrix)


def split(rank: Rank) -> npt.NDArray[np.int64]:
    """Split a rank's rows into two blocks, unless they are split. Return its ghosts. All ranks must run this together.

    The ghosts are the columns of other ranks in which this rank has entries, sorted.
    """
    matrix = rank.require_matrix()
    with matrix.device.active(), aborting(rank.communicator):
        return matrix.ghosts


def close(rank: Rank) -> None:
    """Release the matrix, which is the last one of its actor, and close the connections."""
    rank.server.release(rank.key)
    rank.server.disconnect()


def eliminate_zeros(rank: Rank) -> RankMetadata:
    """Remove the stored zeros of a rank's rows. Columns without entries remain ghosts."""
    rank.matrix = rank.require_matrix().without_zeros()
    return RankMetadata.of(rank.matrix)


def _connect(server: RankServer, addresses: Addresses, secret: bytes, device: Any) -> Communicator:
    """Connect to the other ranks: through memory if all ranks are on one host, else over NCCL or sockets."""
    listener, server.listener = server.listener, None
    if listener is None:
        raise CommunicationError(f"rank {server.number} has opened no port: distribute the matrix again")
    if len(server.workers) == 1:
        listener.close()
        return SingleCommunicator()
    communicator: Communicator = SocketCommunicator(
        server.number, addresses, listener, secret, server.timeout, server.tls()
    )
    try:
        with aborting(communicator):
            communicator = share_memory(communicator)
            return connect_gpus(communicator, device) if isinstance(device, GpuDevice) else communicator
    except BaseException:
        communicator.close()
        raise


@contextmanager
def aborting(communicator: Communicator) -> Iterator[None]:
    """Abort the calls of the other ranks if the block raises an exception."""
    try:
        yield
    except BaseException as error:
        communicator.abort(f"rank {communicator.rank}: {type(error).__name__}: {error}")
        raise
