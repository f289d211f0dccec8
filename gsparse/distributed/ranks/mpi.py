"""Ranks that `mpiexec` has started: a communicator over MPI, through mpi4py, and a matrix of the rows of all ranks.

Each array of an exchange is one MPI message. A sum takes several messages. The tag of a message describes the call that
sends it, in the 15 bits that every MPI implementation offers for tags:

    | number of the call, modulo 256 | exchange or sum | kind of dtype | log2 of the item size |
    | 8 bits                         | 1 bit           | 3 bits        | 3 bits                |

A rank receives messages with any tag, and compares the tag and the size of each message with the expected ones. So
ranks that make different calls notice this at the first message. Aborts use a separate communicator, on which each rank
looks for messages while it waits.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from gsparse.distributed.ranks.communicator import (
    TIMEOUT,
    Buffers,
    Communicator,
    SingleCommunicator,
    bytes_of,
    yield_cpu,
)
from gsparse.distributed.ranks.construction import matrix_from_own_rows
from gsparse.distributed.ranks.rank_matrix import RankMatrix
from gsparse.errors import CommunicationError

_EXCHANGE, _SUM = 0, 1
_CALL_NAMES = ("exchange", "allreduce")
_DTYPE_KINDS = "biufc"
# Size, in bytes, of the pieces in which an array is summed. Each rank receives a piece from all ranks at the same time,
# so large pieces would take much memory.
_PIECE_BYTES = 1 << 16
# Largest size of the reason of an abort, in bytes. MPI sends such a short message before the receiver asks for it.
_MAX_REASON_BYTES = 1024
# Time limit, in seconds, for messages to be completed or cancelled by `abort` and `close`.
_END_TIMEOUT = 1.0

# Requests that could not be completed, and their communicators. They are kept alive, because MPI may still write to the
# memory of these requests.
_unfinished: list[Any] = []


def _import_mpi(name: str) -> Any:
    try:
        from mpi4py import MPI
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "mpi4py":
            raise
        raise ImportError(f"{name} needs mpi4py: pip install mpi4py") from error
    return MPI


class MpiCommunicator(Communicator):
    """The communicator of one rank of an MPI program, through mpi4py. All ranks must make one together.

    The constructor duplicates `comm`, so the messages never mix with the caller's messages. A waiting rank polls for
    messages, and raises an error if another rank is silent or has called `abort`. If a process dies, `mpiexec` ends all
    processes.

    Parameters
    ----------
    comm : mpi4py.MPI.Intracomm
        The processes, for instance ``MPI.COMM_WORLD``. The ranks have the same numbers.
    timeout : float
        Longest time, in seconds, for which a rank may be silent while another one waits for it.

    Raises
    ------
    ImportError
        If mpi4py is not installed.
    TypeError
        If `comm` is not a communicator of mpi4py between the processes of one group.
    CommunicationError
        If not all processes make their communicator in time.

    Examples
    --------
    This program has one rank. With ``mpiexec -n 4 python program.py``, it has four ranks, and each prints ``[4.]``:

    >>> import numpy
    >>> from mpi4py import MPI  # doctest: +SKIP
    >>> from gsparse.distributed import MpiCommunicator
    >>> values = numpy.ones(1)
    >>> with MpiCommunicator(MPI.COMM_WORLD) as communicator:  # doctest: +SKIP
    ...     communicator.allreduce(values)
    >>> values
    array([1.])
    """

    def __init__(self, comm: Any, timeout: float = TIMEOUT) -> None:
        self._mpi = _import_mpi("MpiCommunicator")
        _check_comm(comm, self._mpi)
        self.rank, self.world_size, self.timeout = comm.Get_rank(), comm.Get_size(), timeout
        self._number, self._reason, self._has_failed = 0, "", False
        self._sending: list[Any] = []
        self._receiving: list[Any] = []
        self._comm: Any = None
        self._aborts: Any = None
        self._comm, aborts = self._duplicate(comm), self._duplicate(comm)
        self._aborts = aborts

    def _duplicate(self, comm: Any) -> Any:
        duplicate, request = comm.Idup()
        try:
            self.wait(request.Test)
        except BaseException:
            _unfinished.extend((duplicate, request))
            raise
        duplicate.Set_errhandler(self._mpi.ERRORS_RETURN)
        return duplicate

    def local_rank(self) -> int:
        """Return the number of this rank among the ranks of the same host. All ranks must call this together.

        Returns
        -------
        int
            The number, counted from 0.
        """
        host = self._comm.Split_type(self._mpi.COMM_TYPE_SHARED)
        rank = int(host.Get_rank())
        host.Free()
        return rank

    # -------------------------------------------------------------- the contract

    def exchange(self, sends: Buffers, receives: Buffers) -> Callable[[], None]:
        self._number += 1
        return self._transfer(_EXCHANGE, sends, receives)

    def allreduce(self, values: npt.NDArray[Any]) -> None:
        assert values.flags.c_contiguous
        self._number += 1
        flat = values.reshape(-1)
        length = max(1, _PIECE_BYTES // values.itemsize)
        for start in range(0, flat.size, length):
            self._add_up(flat[start : start + length])

    def check(self, ranks: Sequence[int] | None = None) -> None:
        if self._aborts is None:  # the constructor is still waiting
            return
        mpi, status = self._mpi, self._mpi.Status()
        if self._aborts.Iprobe(mpi.ANY_SOURCE, mpi.ANY_TAG, status):
            text = bytearray(status.Get_count(mpi.BYTE))
            self._aborts.Recv([text, mpi.BYTE], status.Get_source(), status.Get_tag())
            self._reason = self._reason or text.decode(errors="replace")
        if self._reason:
            raise CommunicationError(self._reason)

    def wait(self, is_done: Callable[[], bool], ranks: Sequence[int] | None = None) -> None:
        try:
            super().wait(is_done, ranks)
        except BaseException:
            self._has_failed = True
            raise

    def abort(self, reason: str) -> None:
        self._has_failed = True
        text = reason.encode()[:_MAX_REASON_BYTES]
        others = [peer for peer in range(self.world_size) if peer != self.rank]
        messages = [self._aborts.Isend([text, self._mpi.BYTE], peer) for peer in others]
        self._sending += _incomplete(messages)

    def close(self) -> None:
        if self._comm is None or self._mpi.Is_finalized():
            return
        for request in filter(None, self._receiving):  # a request is false once it is complete
            request.Cancel()
        left = _incomplete([*self._sending, *self._receiving])
        self.is_stuck = bool(left)
        _unfinished.extend(left)
        if not self._has_failed and self._all_close():
            self._comm.Free()
            self._aborts.Free()
        self._comm = None

    def _all_close(self) -> bool:
        """Return whether all other ranks also close without a failure within `_END_TIMEOUT`.

        Otherwise, messages may still be on their way, so this rank must not free its communicators: MPI could reuse
        their numbers for new communicators, which would receive these messages, and MPI would end all processes.
        """
        barrier = self._comm.Ibarrier()
        left = _incomplete([barrier])
        _unfinished.extend(left)
        return not left

    # ------------------------------------------------------------------ messages

    def _add_up(self, values: npt.NDArray[Any]) -> None:
        """Replace the values by their sum over all ranks.

        Each rank receives the values of all ranks, and adds them in the order of the ranks. After each step, a rank has
        the values of twice as many ranks: rank r sends all values that it has to rank r - step, and receives values
        from rank r + step.
        """
        rank, size, step = self.rank, self.world_size, 1
        parts = np.empty((size, values.size), values.dtype)  # row k has the values of rank (rank + k) % size
        parts[0] = values
        while step < size:
            count = min(step, size - step)
            received = {(rank + step) % size: parts[step : step + count]}
            self._transfer(_SUM, {(rank - step) % size: parts[:count]}, received)()
            step += count
        # `accumulate` adds row by row, whereas `sum` may choose another order.
        values[...] = np.add.accumulate(np.roll(parts, rank, axis=0), axis=0)[-1]

    def _transfer(self, call: int, sends: Buffers, receives: Buffers) -> Callable[[], None]:
        """Begin to send and receive arrays. Return a callable that waits until all transfers are complete."""
        mpi, comm, number = self._mpi, self._comm, self._number
        unfilled = {
            peer: (comm.Irecv([bytes_of(target), mpi.BYTE], peer, mpi.ANY_TAG), target)
            for peer, target in receives.items()
        }
        self._receiving += [request for request, _ in unfilled.values()]
        for peer, values in sends.items():
            message = bytes_of(np.ascontiguousarray(values))
            self._sending.append(comm.Isend([message, mpi.BYTE], peer, _tag(number, call, values.dtype)))

        def is_done() -> bool:
            for peer, (request, target) in [*unfilled.items()]:
                if self._has_arrived(request, peer, _tag(number, call, target.dtype), target.nbytes):
                    del unfilled[peer]
            return self._is_finished()

        return lambda: self.wait(is_done)

    def _has_arrived(self, request: Any, peer: int, tag: int, size: int) -> bool:
        """Return whether a message has arrived. Raise an error if its tag or size is not the expected one."""
        mpi, status = self._mpi, self._mpi.Status()
        try:
            if not request.Test(status):
                return False
            sent = _description(status.Get_tag(), status.Get_count(mpi.BYTE))
        except mpi.Exception as error:
            if error.Get_error_class() != mpi.ERR_TRUNCATE:
                raise CommunicationError(f"MPI has failed on rank {self.rank}: {error}") from error
            sent = "more bytes"
        expected = _description(tag, size)
        if sent != expected:
            raise CommunicationError(f"ranks disagree: rank {self.rank} expects {expected}, rank {peer} sent {sent}")
        return True

    def _is_finished(self) -> bool:
        """Return whether all messages are sent and received. A request becomes false once it is complete."""
        self._sending = [request for request in self._sending if not request.Test()]
        self._receiving = [request for request in self._receiving if request]
        return not self._sending and not self._receiving


def from_mpi(
    comm: Any,
    rows: Any,
    *,
    own_columns: int | None = None,
    device: str | None = None,
    timeout: float = TIMEOUT,
    **options: Any,
) -> RankMatrix:
    """Make a matrix from the rows that each process of an MPI program has. All processes must call this together.

    The rows of rank 0 are the first rows of the matrix, the rows of rank 1 follow, and so on. Each rank passes its own
    part of every vector to the solvers of `gsparse.linalg`, and gets its own part of the solution. GPUs of one host
    communicate through their memory (on NVIDIA). Other GPUs communicate over NCCL or RCCL, which must be installed, if
    each rank has its own GPU. Otherwise messages go through MPI.

    Parameters
    ----------
    comm : mpi4py.MPI.Intracomm
        The processes, for instance ``MPI.COMM_WORLD``. This function uses a duplicate of `comm`.
    rows : sparse array or matrix of SciPy, or GpuSparseMatrix, shape (own rows, N)
        The rank's rows, in any format of SciPy. A rank may have no rows.
    own_columns : int, optional
        Number of columns that this rank owns. It is also this rank's number of entries of a vector that is multiplied.
        Either all ranks pass it, or no rank. By default, a rank of a square matrix owns the columns with the numbers of
        its rows. The columns of any other matrix are divided evenly.
    device : {"auto", "cpu", "gpu", "gpu:N"}, optional
        Where the rank computes. With "auto" and "gpu", the host's GPUs are assigned to its ranks in turn. With "auto",
        the ranks of a host without GPUs use the CPU. The default is the environment variable ``GSPARSE_DEVICE`` if it
        is set, otherwise "auto".
    timeout : float
        Longest time, in seconds, for which a rank may be silent while another one waits for it.
    **options
        Options of `GpuSparseMatrix`, for the diagonal block.

    Returns
    -------
    RankMatrix
        The rank's rows as an operator. ``with A.communicator:`` around the solves tells the other ranks if this rank
        fails, and frees the duplicate of `comm` at the end.

    Raises
    ------
    ImportError
        If mpi4py is not installed.
    TypeError
        If `comm` is not a communicator of mpi4py, or `rows` is not sparse.
    ShapeError
        If the rows of the ranks differ in their number of columns, or the ranks' `own_columns` do not add up to it.
    CommunicationError
        If another rank is silent, its arguments are wrong, or NCCL is needed and missing.
    DeviceError
        If `device` does not exist.

    Examples
    --------
    Start this program with ``mpiexec -n 4 python program.py``. Each process makes 1000 rows:

    >>> from mpi4py import MPI  # doctest: +SKIP
    >>> import numpy, scipy.sparse
    >>> from gsparse.distributed import from_mpi
    >>> from gsparse.linalg import cg
    >>> rank, size = MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size  # doctest: +SKIP
    >>> offsets = [1000 * rank - 1, 1000 * rank, 1000 * rank + 1]  # doctest: +SKIP
    >>> rows = scipy.sparse.diags_array([-1, 3, -1], offsets=offsets, shape=(1000, 1000 * size))  # doctest: +SKIP
    >>> A = from_mpi(MPI.COMM_WORLD, rows)  # doctest: +SKIP
    >>> with A.communicator:  # doctest: +SKIP
    ...     x, info = cg(A, numpy.ones(1000))  # the rank's part of the solution
    """
    mpi = _import_mpi("from_mpi")
    _check_comm(comm, mpi)
    if comm.Get_size() == 1:
        return matrix_from_own_rows(SingleCommunicator(), 0, rows, own_columns, device, options)
    communicator = MpiCommunicator(comm, timeout)
    return matrix_from_own_rows(communicator, communicator.local_rank(), rows, own_columns, device, options)


def _check_comm(comm: Any, mpi: Any) -> None:
    if not isinstance(comm, mpi.Intracomm) or comm == mpi.COMM_NULL:
        raise TypeError(f"comm must be an Intracomm of mpi4py, for instance MPI.COMM_WORLD: got {comm!r}")


def _tag(number: int, call: int, dtype: np.dtype[Any]) -> int:
    """Return the tag of a message. The head of this file explains its bits."""
    return (number % 256) << 7 | call << 6 | _DTYPE_KINDS.index(dtype.kind) << 3 | (dtype.itemsize.bit_length() - 1)


def _description(tag: int, size: int) -> str:
    """Return a text for error messages: the call to which a message belongs, and the message's contents."""
    dtype = np.dtype(f"{_DTYPE_KINDS[tag >> 3 & 7]}{1 << (tag & 7)}")
    return f"{_CALL_NAMES[tag >> 6 & 1]} {tag >> 7} of {size // dtype.itemsize} numbers of {dtype}"


def _incomplete(requests: list[Any]) -> list[Any]:
    """Let MPI complete requests. Return the requests that are not complete after `_END_TIMEOUT`."""
    end = time.monotonic() + _END_TIMEOUT
    while requests and time.monotonic() < end:
        requests = [request for request in requests if not _has_ended(request)]
        yield_cpu()
    return requests


def _has_ended(request: Any) -> bool:
    try:
        return bool(request.Test())
    except RuntimeError:  # MPI.Exception: an unexpected message has arrived
        return True
