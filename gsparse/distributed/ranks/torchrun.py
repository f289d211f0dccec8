"""Ranks that `torchrun` has started. They find each other by environment variables, and communicate over sockets.

Rank 0 listens at a port that all ranks know. The other ranks connect to rank 0 and tell it the addresses of their
listeners. Rank 0 then sends the list of all addresses to all ranks:

    rank r → rank 0    its number; proofs in both directions that the other side knows the secret; its address
    rank 0 → rank r    the addresses of all ranks

Then each rank makes its `SocketCommunicator`. PyTorch is not needed.
"""

from __future__ import annotations

import os
import socket
import struct
import warnings
from typing import Any

from gsparse.distributed.ranks.communicator import TIMEOUT, Communicator, SingleCommunicator
from gsparse.distributed.ranks.construction import matrix_from_own_rows
from gsparse.distributed.ranks.handshake import (
    Acceptor,
    Address,
    Deadline,
    closed_on_error,
    join,
    read_before,
)
from gsparse.distributed.ranks.rank_matrix import RankMatrix
from gsparse.distributed.ranks.shared_memory import share_memory
from gsparse.distributed.ranks.sockets import SocketCommunicator, listen
from gsparse.errors import CommunicationError

_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
_SECRET_VARIABLES = ("GSPARSE_SECRET", "TORCHELASTIC_RUN_ID")
# The value of TORCHELASTIC_RUN_ID if `torchrun` is started without ``--rdzv-id``.
_DEFAULT_RUN_ID = b"none"
_PURPOSE = b"rendezvous"
_ADDRESS = struct.Struct("<256sI")  # a host and a port
# If rank 0 has one of these addresses, all ranks run on one host, and no other host can connect to their ports.
_LOOPBACK = ("127.0.0.1", "::1", "localhost")
# Linux uses ports from this number on for outgoing connections. `torchrun` often chooses such a port as MASTER_PORT.
_FIRST_EPHEMERAL_PORT = 32_768


def from_torchrun(
    rows: Any,
    *,
    own_columns: int | None = None,
    device: str | None = None,
    port: int | None = None,
    timeout: float = TIMEOUT,
    **options: Any,
) -> RankMatrix:
    """Make a matrix from the rows that each process of `torchrun` has. All processes must call this together.

    The rows of rank 0 are the first rows of the matrix, the rows of rank 1 follow, and so on. Each rank passes its own
    part of every vector to the solvers of `gsparse.linalg`, and gets its own part of the solution. GPUs of one host
    communicate through their memory (on NVIDIA). Other GPUs communicate over NCCL or RCCL, which must be installed, if
    each rank has its own GPU. Otherwise messages go through memory if all processes run on one host, else over TCP.

    PyTorch is not needed. Any program can start the processes, if it sets the environment variables RANK, WORLD_SIZE,
    LOCAL_RANK, MASTER_ADDR and MASTER_PORT as `torchrun` does, and GSPARSE_SECRET (see the notes).

    Parameters
    ----------
    rows : sparse array or matrix of SciPy, or GpuSparseMatrix, shape (own rows, N)
        The rank's rows, in any format of SciPy. A rank may have no rows.
    own_columns : int, optional
        Number of columns that this rank owns. It is also this rank's number of entries of a vector that is multiplied.
        Either all ranks pass it, or no rank. By default, a rank of a square matrix owns the columns with the numbers of
        its rows. The columns of any other matrix are divided evenly.
    device : {"auto", "cpu", "gpu", "gpu:N"}, optional
        Where the rank computes. "auto" and "gpu" mean the GPU with the number LOCAL_RANK, modulo the number of GPUs. On
        a host without GPUs, "auto" means the CPU. The default is the environment variable ``GSPARSE_DEVICE`` if it is
        set, otherwise "auto".
    port : int, optional
        Port of the host MASTER_ADDR at which rank 0 waits for the other ranks. The default is MASTER_PORT + 1, because
        `torchrun` itself may listen at MASTER_PORT. If MASTER_PORT is 32767 or more, the default is
        20000 + MASTER_PORT % 10000, because systems use higher ports for connections of other programs.
    timeout : float
        Longest time, in seconds, for which a rank may be silent while another one waits for it. It is also the time
        limit for all processes to connect to rank 0, and again for all processes to connect to each other.
    **options
        Options of `GpuSparseMatrix`, for the diagonal block.

    Returns
    -------
    RankMatrix
        The rank's rows as an operator. ``with A.communicator:`` around the solves tells the other ranks if this rank
        fails, and closes the connections at the end.

    Raises
    ------
    CommunicationError
        If a variable is missing, the ranks cannot connect to each other, NCCL is needed and missing, another rank is
        silent, or the arguments of another rank are wrong.
    TypeError
        If `rows` is not sparse.
    DeviceError
        If `device` does not exist.
    ShapeError
        If the rows of the ranks differ in their number of columns, or the ranks' `own_columns` do not add up to it.

    Notes
    -----
    Each connection begins with a proof that both sides know a secret. The secret is the value of the environment
    variable GSPARSE_SECRET, which must be the same for all processes. If GSPARSE_SECRET is not set, the secret is
    TORCHELASTIC_RUN_ID, the ``--rdzv-id`` of `torchrun`, which keeps jobs apart. This id is often easy to guess, and
    visible in the list of processes. On a network that you do not trust, set GSPARSE_SECRET to random characters. A
    warning is issued if other hosts can connect and the secret is the default "none" of `torchrun`. Anyone who knows
    the secret can take part and send wrong numbers, but cannot run code, because received data are never unpickled. The
    numbers are not encrypted.

    Examples
    --------
    Start this program with ``torchrun --nproc-per-node=4 program.py``. Each process makes 1000 rows:

    >>> import os
    >>> import numpy, scipy.sparse
    >>> from gsparse.distributed import from_torchrun
    >>> from gsparse.linalg import cg
    >>> rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])  # doctest: +SKIP
    >>> offsets = [1000 * rank - 1, 1000 * rank, 1000 * rank + 1]  # doctest: +SKIP
    >>> rows = scipy.sparse.diags_array([-1, 3, -1], offsets=offsets, shape=(1000, 1000 * size))  # doctest: +SKIP
    >>> A = from_torchrun(rows)  # doctest: +SKIP
    >>> with A.communicator:  # doctest: +SKIP
    ...     x, info = cg(A, numpy.ones(1000))  # the rank's part of the solution
    """
    communicator = connect_by_environment(port, timeout)
    return matrix_from_own_rows(communicator, int(os.environ["LOCAL_RANK"]), rows, own_columns, device, options)


def connect_by_environment(port: int | None = None, timeout: float = TIMEOUT) -> Communicator:
    """Connect to the other processes of `torchrun`. The arguments and errors are those of `from_torchrun`."""
    missing = [name for name in _VARIABLES if not os.environ.get(name)]
    if missing:
        text = f"the environment variables {', '.join(_VARIABLES)} must be set; missing: {', '.join(missing)}"
        raise CommunicationError(f"{text}: start the program with torchrun --nproc-per-node=2 program.py")
    rank, world_size, _, host, master_port = (_parsed(name) for name in _VARIABLES)
    if not 0 <= rank < world_size:
        raise CommunicationError(f"RANK must be at least 0 and less than WORLD_SIZE: got {rank} of {world_size}")
    if world_size == 1:
        return SingleCommunicator()
    place, secret = (host, _default_port(master_port) if port is None else port), _secret()
    if rank == 0:
        _warn_if_everybody_knows(secret, host)
        addresses, listener = _collect_addresses(place, world_size, secret, timeout)
    else:
        addresses, listener = _exchange_addresses(place, rank, world_size, secret, timeout)
    communicator = SocketCommunicator(rank, addresses, listener, secret, timeout)
    try:
        return share_memory(communicator)
    except BaseException:
        communicator.close()
        raise


def _parsed(name: str) -> Any:
    """Return the value of an environment variable: MASTER_ADDR as a string, any other variable as an integer."""
    value = os.environ[name]
    if name == "MASTER_ADDR":
        return value
    try:
        return int(value)
    except ValueError:
        raise CommunicationError(f"the environment variable {name} must be an integer, got {value!r}") from None


def _default_port(master_port: int) -> int:
    return master_port + 1 if master_port + 1 < _FIRST_EPHEMERAL_PORT else 20_000 + master_port % 10_000


def _secret() -> bytes:
    for name in _SECRET_VARIABLES:
        if value := os.environ.get(name):
            return value.encode()
    raise CommunicationError(
        "the ranks need a common secret: set the environment variable GSPARSE_SECRET to the same random characters for "
        "all of them (torchrun sets TORCHELASTIC_RUN_ID, which is the secret otherwise)"
    )


# ------------------------------------------------------------------------------------------------------------- rank 0


def _warn_if_everybody_knows(secret: bytes, host: str) -> None:
    if secret == _DEFAULT_RUN_ID and host not in _LOOPBACK:
        warnings.warn(
            "rank 0 listens at all addresses of its host, and the ranks have torchrun's default secret, 'none': set "
            "the environment variable GSPARSE_SECRET to the same random characters for all ranks",
            RuntimeWarning,
            stacklevel=4,
        )


def _collect_addresses(
    place: Address, world_size: int, secret: bytes, timeout: float
) -> tuple[list[Address], socket.socket]:
    """Collect the addresses of all ranks, and send them to every rank. Return the addresses and rank 0's listener."""
    host, port = place
    try:
        server = _open_port(host, port)
    except OSError as error:
        text = f"rank 0 cannot listen at port {port} of {host}: {error}"
        raise CommunicationError(f"{text}. Pass another port= on all ranks, at which no program listens") from error
    acceptor, peer = Acceptor(server, 0, world_size, secret, purpose=_PURPOSE), 0
    ranks = acceptor.connections
    try:
        with acceptor:
            acceptor.wait(Deadline(timeout))
        deadline, listener = Deadline(timeout), _open_port(host, 0)
        with closed_on_error(listener):
            addresses = [(host, listener.getsockname()[1])]
            for peer in sorted(ranks):
                addresses += _unpacked(read_before(ranks[peer], _ADDRESS.size, deadline))
            for peer in ranks:
                ranks[peer].sendall(b"".join(_packed(address) for address in addresses))
        return addresses, listener
    except TimeoutError as error:
        missing = sorted(set(range(1, world_size)) - set(ranks)) or [peer]
        text = f"ranks {missing} have not reached rank 0 at {host}:{port} in {timeout:g} s"
        raise CommunicationError(text + acceptor.refused) from error
    except OSError as error:
        text = f"rank 0 cannot exchange addresses with rank {peer}: {error}"
        raise CommunicationError(f"{text}. See whether rank {peer} has ended with an error of its own") from error
    finally:
        for connection in ranks.values():
            connection.close()


def _open_port(host: str, port: int) -> socket.socket:
    """Listen at a port of this host. If `host` is a loopback address, listen only at this address.

    Otherwise, listen at all addresses of this host, because other ranks may use another address than `host`.
    """
    if host in _LOOPBACK:
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    if socket.has_dualstack_ipv6():
        return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True)
    return socket.create_server(("", port))


# ------------------------------------------------------------------------------------------------------ the other ranks


def _exchange_addresses(
    place: Address, rank: int, world_size: int, secret: bytes, timeout: float
) -> tuple[list[Address], socket.socket]:
    """Tell rank 0 the address of this rank's listener. Return the addresses of all ranks, and the listener."""
    deadline, (host, port) = Deadline(timeout), place
    try:
        with join(place, rank, 0, secret, deadline, purpose=_PURPOSE, waits=True) as connection:
            listener = listen(connection.getsockname()[0])
            with closed_on_error(listener):
                connection.sendall(_packed(listener.getsockname()))
                addresses = _unpacked(read_before(connection, world_size * _ADDRESS.size, deadline))
        return addresses, listener
    except (OSError, CommunicationError) as error:
        text = f"rank {rank} cannot join rank 0 at {host}:{port}: {error}"
        advice = "All ranks need the same port=, and the same GSPARSE_SECRET or TORCHELASTIC_RUN_ID"
        raise CommunicationError(f"{text}. {advice}") from error


def _packed(address: Any) -> bytes:
    return _ADDRESS.pack(address[0].encode(), address[1])


def _unpacked(data: bytes) -> list[Address]:
    return [(host.rstrip(b"\0").decode(), port) for host, port in _ADDRESS.iter_unpack(data)]
