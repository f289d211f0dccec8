"""Groups of ranks: threads, threads over sockets or through memory, processes over sockets, and processes of MPI."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gsparse.distributed import Communicator, MpiCommunicator, SocketCommunicator, listen, run_ranks
from gsparse.distributed.ranks.shared_memory import share_memory
from gsparse.errors import CommunicationError

SECRET = b"known to this group only"
# Time limits in seconds. A test that shows that nobody waits for a time limit uses LONG, and asserts that it took no
# longer than SOON, which is enough on a busy machine.
TIMEOUT, SOON, LONG = 30.0, 60.0, 240.0


def wait_until(condition: Callable[[], bool], seconds: float = 90.0) -> None:
    """Ask for a condition again and again until it is true."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "the condition did not become true in time"
        time.sleep(0.05)


def run_sockets(
    work: Callable[..., Any], world_size: int, *args: Any, timeout: float = TIMEOUT, **options: Any
) -> list[Any]:
    """Run ranks as threads that communicate over sockets; raise the error of the first rank that failed."""
    listeners = [listen("127.0.0.1") for _ in range(world_size)]
    addresses = [listener.getsockname() for listener in listeners]
    results: list[Any] = [None] * world_size

    def run(rank: int) -> None:
        try:
            with SocketCommunicator(rank, addresses, listeners[rank], SECRET, timeout, **options) as communicator:
                results[rank] = work(communicator, *args)
        except Exception as error:
            results[rank] = error

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(world_size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(4 * timeout, SOON))
        assert not thread.is_alive(), "a rank hangs"
    errors = [result for result in results if isinstance(result, Exception)]
    for error in sorted(errors, key=lambda error: isinstance(error, CommunicationError)):
        raise error
    return results


def run_memory(
    work: Callable[..., Any], world_size: int, *args: Any, timeout: float = TIMEOUT, **options: Any
) -> list[Any]:
    """Run ranks as threads that communicate through memory, as processes of one host do."""

    def through_memory(control: Communicator, *args: Any) -> Any:
        communicator = share_memory(control)
        assert (communicator is control) == (world_size == 1)
        return work(communicator, *args)

    return run_sockets(through_memory, world_size, *args, timeout=timeout, **options)


def _process(work: Any, rank: int, pipe: Any, args: tuple[Any, ...]) -> None:
    listener = listen("127.0.0.1")
    pipe.send(listener.getsockname())
    addresses = pipe.recv()
    try:
        with SocketCommunicator(rank, addresses, listener, SECRET, LONG) as communicator:
            pipe.send("connected")
            found = work(communicator, *args)
    except Exception as error:
        found = error
    pipe.send(found)


class Processes:
    """Ranks as connected processes; `result` waits for one of them."""

    def __init__(self, work: Callable[..., Any], world_size: int, *args: Any) -> None:
        context = multiprocessing.get_context("spawn")
        ends = [context.Pipe() for _ in range(world_size)]
        self.pipes = [own for own, _ in ends]
        self.processes = [
            context.Process(target=_process, args=(work, rank, theirs, args), daemon=True)
            for rank, (_, theirs) in enumerate(ends)
        ]
        for process in self.processes:
            process.start()
        for _, theirs in ends:
            theirs.close()
        addresses = [pipe.recv() for pipe in self.pipes]
        for pipe in self.pipes:
            pipe.send(addresses)
        assert [pipe.recv() for pipe in self.pipes] == ["connected"] * world_size

    def result(self, rank: int) -> Any:
        """Return what a rank has returned or raised, or None if it was killed."""
        try:
            assert self.pipes[rank].poll(2 * LONG), "a rank hangs"
            return self.pipes[rank].recv()
        except EOFError:
            return None


def make_certificate(folder: Path) -> dict[str, str]:
    """Make a self-signed certificate, and return its files."""
    if shutil.which("openssl") is None:
        pytest.skip("no openssl to make a certificate with")
    command = "openssl req -x509 -newkey rsa:2048 -nodes -keyout key.pem -out cert.pem -days 1 -subj /CN=gsparse"
    subprocess.run(command.split(), cwd=folder, check=True, capture_output=True)
    return {kind: str(folder / f"{kind}.pem") for kind in ("cert", "key")}


def run_mpi(work: Callable[..., Any], world_size: int, *args: Any, timeout: float = TIMEOUT) -> list[Any]:
    """Run ranks in the processes of `mpiexec`, which all call this function, and return the same results in each."""
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    if world_size > world.size:
        pytest.skip(f"mpiexec has started {world.size} processes, {world_size} are needed")
    group = world.Split(0 if world.rank < world_size else MPI.UNDEFINED, world.rank)
    result: Any = None
    if group != MPI.COMM_NULL:
        try:
            with MpiCommunicator(group, timeout) as communicator:
                result = work(communicator, *args)
        except Exception as error:
            result = error
        group.Free()
    results = world.allgather(result)[:world_size]
    errors = [result for result in results if isinstance(result, Exception)]
    for error in sorted(errors, key=lambda error: isinstance(error, CommunicationError)):
        raise error
    return results


# `tests/ranks/test_mpi.py` sets this variable for the processes of `mpiexec`, which all run the same tests.
IN_MPIEXEC = "GSPARSE_TEST_IN_MPIEXEC"
GROUPS: dict[str, Callable[..., list[Any]]] = (
    {"mpiexec": run_mpi}
    if os.environ.get(IN_MPIEXEC)
    else {"threads": run_ranks, "sockets": run_sockets, "memory": run_memory}
)
