"""What a rank keeps on its dask worker, and the tasks that run there.

Matrices stay in a registry of this module: dask may move what tasks return, never this. A task knows the address that
it was made for and looks first whether it is there. Everything that ranks do together is a gang, one task a rank.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from socket import socket
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

import gsparse.linalg
from gsparse.device import GpuDevice, get_device
from gsparse.distributed.communicator import Communicator, SingleCommunicator
from gsparse.distributed.loaders import RowSources
from gsparse.distributed.nccl import NcclCommunicator
from gsparse.distributed.operator import RankMatrix
from gsparse.distributed.partition import RowPartition
from gsparse.distributed.products import ProductClient, ProductServer, local_product
from gsparse.distributed.sockets import Contexts, SocketCommunicator, listen
from gsparse.errors import CommunicationError
from gsparse.linalg.result import SolveResult

__all__ = ["Gang", "Preconditioner", "Solution", "Solve", "Stay"]

Host = npt.NDArray[Any]

# Seconds between two looks whether the solve is still wanted, and between two reports of how it goes.
_HEED_EVERY, _REPORT_EVERY = 0.1, 0.2
# Seconds between two looks whether the client's callback has answered.
_ANSWER_NAP = 5e-3
# Seconds that a rank may take for a product that another worker asks for.
_PRODUCT_TIMEOUT = 60.0


@dataclass(frozen=True)
class Gang:
    """What all ranks of a gang are told.

    Attributes
    ----------
    key : str
        Of the matrix.
    epoch : int
        How often its ranks have been connected.
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
    ghosts: Host
    plan: str
    nbytes: int
    dtype: str
    device: str
    products: tuple[str, int]
    anchor: Any = field(repr=False, default=None)


@dataclass(frozen=True)
class Preconditioner:
    """A preconditioner that each rank makes of its own diagonal block: block Jacobi over ranks.

    Attributes
    ----------
    name : str
        In `gsparse.linalg`.
    args, kwargs
        Its other arguments.
    """

    name: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def of(self, resident: Resident) -> Any:
        """Give it for a rank's block, made once."""
        known = repr((self.name, self.args, self.kwargs))
        if known not in resident.preconditioners:
            make = getattr(gsparse.linalg, self.name)
            resident.preconditioners[known] = make(resident.matrix.diagonal, *self.args, **self.kwargs)
        return resident.preconditioners[known]


@dataclass(frozen=True)
class Solve:
    """What a rank is to solve.

    Attributes
    ----------
    name : str
        In `gsparse.linalg`.
    kwargs : dict
    preconditioner : Preconditioner or None
    topic : str
        Of events, where residuals are to be told.
    calls : str
        Of queues to the client, where there is a callback.
    checkpoint_every : int
        Iterations; 0 for never.
    """

    name: str
    kwargs: dict[str, Any]
    preconditioner: Preconditioner | None = None
    topic: str = ""
    calls: str = ""
    checkpoint_every: int = 0


# Which of a tuple that a function gives are vectors, where it gives no SolveResult.
_VECTORS = {"lsqr": (0, 9), "lsmr": (0,)}


@dataclass(frozen=True)
class Solution:
    """What a rank has found.

    Attributes
    ----------
    vectors : list of array
        The rank's parts.
    rest : SolveResult or tuple
        What the function gives, without them.
    places : tuple of int
        Where they stand in the tuple.
    dtypes : list of dtype
    """

    vectors: list[Any]
    rest: Any
    places: tuple[int, ...]
    dtypes: list[Any]

    @classmethod
    def of(cls, name: str, found: Any) -> Solution:
        """Take apart what a function gives."""
        if isinstance(found, SolveResult):
            return cls([found.x], replace(found, x=None), (), [found.x.dtype])
        places = tuple(place for place in _VECTORS[name] if place < len(found) and np.ndim(found[place]))
        vectors = [found[place] for place in places]
        rest = tuple(None if place in places else value for place, value in enumerate(found))
        return cls(vectors, rest, places, [v.dtype for v in vectors])

    def completed(self, vectors: list[Any]) -> Any:
        """Put whole vectors in the place of parts."""
        if isinstance(self.rest, SolveResult):
            return replace(self.rest, x=vectors[0])
        found = list(self.rest)
        for place, vector in zip(self.places, vectors, strict=True):
            found[place] = vector
        return tuple(found)

    def without_vectors(self) -> Solution:
        return replace(self, vectors=[])

    def vector(self, number: int) -> Any:
        return self.vectors[number]


@dataclass(eq=False)
class Resident:
    """A rank's part of one matrix."""

    matrix: RankMatrix
    communicator: Communicator
    server: ProductServer
    epoch: int
    preconditioners: dict[str, Any] = field(default_factory=dict)
    # Iteration, own x, the x of the rank before.
    checkpoint: tuple[int, Host, Host] | None = None

    def close(self) -> None:
        self.server.close()
        self.communicator.close()


class Anchor:
    """Something for dask to keep as long as a client wants a matrix; without it, the rank lets go."""

    def __init__(self, key: str) -> None:
        self.key = key
        weakref.finalize(self, release, key)

    def __reduce__(self) -> tuple[Any, tuple[()]]:
        return _nothing, ()  # (a copy elsewhere holds nothing)


def _nothing() -> None:
    return None


_residents: dict[str, Resident] = {}
_listeners: dict[tuple[str, int], socket] = {}
_lock = threading.Lock()


def resident(key: str) -> Resident:
    """Give a rank's part of a matrix.

    Raises
    ------
    CommunicationError
        Where this process has none: it has been restarted since.
    """
    found = _residents.get(key)
    if found is None:
        raise CommunicationError(f"{_address()} has been restarted and has no rows of this matrix: A.repartition()")
    return found


def release(key: str) -> None:
    """Let go of a matrix."""
    with _lock:
        found = _residents.pop(key, None)
        waiting = [_listeners.pop(known) for known in list(_listeners) if known[0] == key]
    for listener in waiting:
        listener.close()
    if found is not None:
        found.close()


# ------------------------------------------------------------------ dask's side


def _worker() -> Any:
    from distributed import get_worker

    return get_worker()


def _address() -> str:
    return str(_worker().address)


def _check_home(address: str) -> None:
    if _address() != address:
        raise CommunicationError(f"a task of {address} came to {_address()}: workers have changed, A.repartition()")


def _own_host() -> str:
    """Give the host that this worker is known by to others."""
    from distributed.comm import get_address_host

    address = _address()
    return "127.0.0.1" if address.startswith("inproc://") else str(get_address_host(address))


def tls_of(security: Any, address: str) -> Contexts:
    """Give the contexts for connections between workers, where the cluster talks TLS."""
    if not address.startswith("tls://"):
        return None, None
    return security.get_listen_args("worker")["ssl_context"], security.get_connection_args("worker")["ssl_context"]


class _Heed:
    """Looks now and then whether the running task is still wanted."""

    def __init__(self) -> None:
        self._worker = _worker()
        self._key = self._worker.get_current_task()
        self._next = time.monotonic()

    def __call__(self) -> None:
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + _HEED_EVERY
        if not is_wanted(self._worker, self._key):
            raise CommunicationError("the solve is no longer wanted: cancelled, or its client or scheduler is gone")


def is_wanted(worker: Any, key: Any) -> bool:
    """Tell whether dask still waits for a running task.

    The only use of what dask does not document: it tells nobody that a running task has been cancelled.
    """
    if worker.status.name not in ("running", "paused"):
        return False
    task = worker.state.tasks.get(key)
    return task is not None and task.state not in ("cancelled", "resumed", "forgotten", "released")


# ------------------------------------------------------------------ tasks


def reserve(gang: Gang, rank: int) -> tuple[str, int]:
    """Open a port for the ranks to connect at."""
    _check_home(gang.workers[rank])
    listener = listen(_own_host())
    with _lock:
        _listeners[gang.key, gang.epoch] = listener
    host, port = listener.getsockname()[:2]
    return str(host), int(port)


def _connect(gang: Gang, rank: int, addresses: tuple[tuple[str, int], ...], secret: bytes, device: Any) -> Communicator:
    with _lock:
        listener = _listeners.pop((gang.key, gang.epoch), None)
    if listener is None:
        raise CommunicationError(f"{_address()} has been restarted while ranks were to be connected")
    if len(gang.workers) == 1:
        listener.close()
        return SingleCommunicator()
    tls = tls_of(_worker().security, gang.workers[rank])
    control = SocketCommunicator(rank, addresses, listener, secret, gang.timeout, tls)
    if not isinstance(device, GpuDevice):
        return control
    with _aborting(control):
        return NcclCommunicator(control, device) if _have_gpus_apart(control, device) else control


def _have_gpus_apart(control: Communicator, device: GpuDevice) -> bool:
    """Tell whether each rank has a GPU of its own: NCCL takes no two ranks on one."""
    from hashlib import sha256

    mine = sha256(f"{os.uname().nodename} {device.bus}".encode()).digest()[:8]
    known = np.zeros(control.world_size, np.int64)
    known[control.rank] = np.frombuffer(mine, np.int64)[0]
    control.allreduce(known)
    return np.unique(known).size == known.size


@contextmanager
def _aborting(communicator: Communicator) -> Iterator[None]:
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


def open_rank(
    gang: Gang,
    rank: int,
    addresses: tuple[tuple[str, int], ...],
    secret: bytes,
    part: sp.csr_array | RowSources,
    rows: RowPartition,
    columns: RowPartition,
    device: str,
    options: dict[str, Any],
) -> Stay:
    """Make a rank's part of a matrix, all ranks together."""
    _check_home(gang.workers[rank])
    place = get_device(device)
    with place.active():
        communicator = _connect(gang, rank, addresses, secret, place)
        with _aborting(communicator):
            own = rows.rows(rank)
            block = part.rows(own.start, own.stop) if isinstance(part, RowSources) else sp.csr_array(part)
            matrix = RankMatrix(block, rows, columns, communicator, place, **options)
            server = ProductServer(matrix, _own_host(), secret, tls_of(_worker().security, gang.workers[rank])[0])
    with _lock:
        _residents[gang.key] = Resident(matrix, communicator, server, gang.epoch)
    return Stay(
        rank,
        int(block.nnz),
        matrix.ghosts,
        matrix.diagonal.plan.chosen.format,
        matrix.diagonal.plan.chosen.nbytes + matrix.off_diagonal.plan.chosen.nbytes,
        matrix.dtype.name,
        place.name,
        server.address,
        Anchor(gang.key),
    )


def reopen_rank(gang: Gang, rank: int, addresses: tuple[tuple[str, int], ...], secret: bytes) -> None:
    """Connect the ranks of a matrix again, after a gang has failed."""
    _check_home(gang.workers[rank])
    found = resident(gang.key)
    found.communicator.close()
    with found.matrix.device.active():
        found.communicator = _connect(gang, rank, addresses, secret, found.matrix.device)
        found.matrix.connect(found.communicator)
    found.epoch = gang.epoch


def run_solve(gang: Gang, rank: int, solve: Solve, b: Any, vectors: dict[str, Any]) -> Solution:
    """Run one of the solvers, all ranks together."""
    _check_home(gang.workers[rank])
    found = resident(gang.key)
    if found.epoch != gang.epoch:
        raise CommunicationError(f"rank {rank} has been connected {found.epoch} times, not {gang.epoch}")
    kwargs = {**solve.kwargs, **vectors}
    if solve.preconditioner is not None:
        kwargs["M"] = solve.preconditioner.of(found)
    if solve.calls:
        kwargs["callback"] = _Calls(solve.calls, rank)
    matrix = found.matrix
    with matrix.device.active(), _aborting(found.communicator):
        matrix.observer = _Observer(found, solve)
        try:
            return Solution.of(solve.name, getattr(gsparse.linalg, solve.name)(matrix, b, **kwargs))
        finally:
            matrix.observer = None


class _Observer:
    """Sees a solve whenever its host does: reports, keeps checkpoints, ends it where nobody wants it any more."""

    def __init__(self, kept: Resident, solve: Solve) -> None:
        self._kept, self._solve, self._heed = kept, solve, _Heed()
        self._of: Any = None
        self._next_report, self._next_checkpoint = 0.0, solve.checkpoint_every

    def __call__(self, iteration: Any) -> None:
        self._heed()
        self._of = self._of or iteration  # (solves within the solve are not what is asked for)
        if iteration is not self._of:
            return
        now, solve = time.monotonic(), self._solve
        if solve.topic and self._kept.matrix.communicator.rank == 0 and now >= self._next_report:
            self._next_report = now + _REPORT_EVERY
            residual = float(np.nanmax(iteration.residuals[-1])) if len(iteration.residuals) else np.nan
            _worker().log_event(solve.topic, {"iteration": iteration.iterations, "residual": residual})
        if solve.checkpoint_every and iteration.iterations >= self._next_checkpoint:
            self._next_checkpoint = iteration.iterations + solve.checkpoint_every
            self._keep(iteration)

    def _keep(self, iteration: Any) -> None:
        """Keep the own part of x, and that of the rank before: all parts outlive any one rank.

        G. Bosilca, R. Delmas, J. Dongarra, J. Langou, "Algorithm-based fault tolerance applied to high performance
        computing", J. Parallel Distrib. Comput. 69(4), 2009, have more of such checkpoints without disks.
        """
        matrix = self._kept.matrix
        world_size, rank, control = matrix.communicator.world_size, matrix.communicator.rank, self._kept.communicator
        x = matrix.device.download(iteration.vectors["x"])
        after, before = (rank + 1) % world_size, (rank - 1) % world_size
        columns = x.size // max(matrix.shape[1], 1)
        size = matrix.column_sizes[before] * columns
        theirs = np.empty(size, x.dtype)
        if world_size > 1:
            control.exchange({after: x}, {before: theirs})()
        self._kept.checkpoint = iteration.iterations, x, theirs


class _Calls:
    """A callback that the client runs: it gets this rank's part, and says whether to go on."""

    def __init__(self, name: str, rank: int) -> None:
        from distributed import Queue, get_client

        client = get_client()
        self._rank, self._heed = rank, _Heed()
        self._parts, self._answers = Queue(name, client=client), Queue(f"{name}-{rank}", client=client)

    def __call__(self, argument: Any) -> None:
        values = np.asarray(argument)
        self._parts.put((self._rank, values.dtype.str, list(values.shape), values.tobytes()))
        while not self._answers.qsize():
            self._heed()
            time.sleep(_ANSWER_NAP)
        if not self._answers.get():
            raise CommunicationError("the callback has raised an exception")


def last_checkpoint(key: str) -> tuple[int, Host, Host] | None:
    """Give what a rank has kept of x; None where it has nothing."""
    found = _residents.get(key)
    return None if found is None else found.checkpoint


def multiply(key: str, address: str, x: Host, ghosts: Host, how: str) -> Any:
    """Multiply a rank's blocks by parts of a vector, without the other ranks."""
    _check_home(address)
    return local_product(resident(key).matrix, x, ghosts, how)


def join_and_multiply(
    key: str, address: str, server: tuple[str, int], secret: bytes, x: Host, pieces: list[Host], how: str
) -> Any:
    """Multiply by ghosts that come in pieces, by rank.

    Dask may have put this task elsewhere (what it is told about places is lost where it fuses tasks): then the rank is
    asked at its port.
    """
    ghosts = np.concatenate(pieces) if pieces else np.empty((0, *x.shape[1:]), x.dtype)
    if _address() == address:
        return multiply(key, address, x, ghosts, how)
    tls = tls_of(_worker().security, address)[1]
    with closing(ProductClient([server], secret, _PRODUCT_TIMEOUT, tls)) as rank:
        return rank.multiply(how, [(x, ghosts)])[0]


def ghost_part(product: tuple[Host, Host], first: int, last: int) -> Host:
    """Give a stretch of what a transposed product has for ghosts."""
    return product[1][first:last]


def add_contributions(product: tuple[Host, Host], places: list[Host], pieces: list[Host]) -> Host:
    """Add what other ranks have for this one's part of a transposed product."""
    y = product[0].copy()
    for place, piece in zip(places, pieces, strict=True):
        y[place] += piece
    return y


def save_rows(key: str, address: str, path: str) -> str:
    """Save a rank's rows as SciPy's .npz, which `RowSources` reads."""
    _check_home(address)
    matrix = resident(key).matrix
    sp.save_npz(path, matrix.rows_on_host(), compressed=False)
    return path


def stack_rows(blocks: list[Any], num_cols: int) -> sp.csr_array:
    """Put sparse or dense blocks on top of each other."""
    parts = [sp.csr_array(block if sp.issparse(block) else _scipy_of(block)) for block in blocks]
    return sp.csr_array(sp.vstack(parts)) if parts else sp.csr_array((0, num_cols))


def _scipy_of(block: Any) -> Any:
    to_scipy: Callable[[], Any] | None = getattr(block, "to_scipy_sparse", None)  # (the package sparse)
    return block if to_scipy is None else to_scipy()
