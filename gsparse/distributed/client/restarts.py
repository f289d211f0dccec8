"""The workers on which a matrix is made: they answer, and NCCL has left no resources in them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress

import distributed

from gsparse.distributed.client.calls import run_on_workers
from gsparse.distributed.client.scheduler import known_workers
from gsparse.distributed.worker import group_tasks
from gsparse.errors import CommunicationError, WorkerLostError

# Time limit, in seconds, for restarted workers to register with the scheduler, and seconds between two checks.
_RESTART_TIMEOUT, _RESTART_CHECK_INTERVAL = 15.0, 0.05


def usable_workers(client: distributed.Client, choose: Callable[[], list[str]], timeout: float) -> list[str]:
    """Return chosen workers that answer and that NCCL can use.

    If one of them is lost, they are chosen again, because the scheduler learns of a loss a moment later.

    Parameters
    ----------
    client : distributed.Client
    choose : callable
        Returns dask's addresses of workers that the scheduler knows.
    timeout : float
        Seconds within which all workers must answer.

    Raises
    ------
    CommunicationError, WorkerLostError
        If a worker is silent, none is left, or workers are lost again and again for longer than `timeout`.
    """
    deadline = time.monotonic() + timeout
    while True:
        chosen = choose()
        if not chosen:
            raise CommunicationError("no worker of this matrix is left to go on with")
        try:
            return _restart_stuck_workers(client, chosen, timeout)
        except WorkerLostError:
            if time.monotonic() > deadline:
                raise


def _restart_stuck_workers(client: distributed.Client, workers: Sequence[str], timeout: float) -> list[str]:
    """Restart the workers in which NCCL could not free its resources, which needs the end of the process.

    Return the new addresses of all workers.

    If one of the stuck workers has no nanny, dask restarts none of them, and all are used as they are. A worker that
    does not register in time is left out.
    """
    answers = run_on_workers(client, workers, timeout, group_tasks.needs_restart)
    stuck = [address for address, is_stuck in answers.items() if is_stuck]
    if not stuck:
        return list(workers)
    names = {address: info["name"] for address, info in known_workers(client).items() if address in answers}
    with suppress(ValueError):  # dask raises it, and restarts none, if one of them has no nanny
        client.restart_workers(stuck, timeout=timeout, raise_for_error=False)
    expected, deadline = set(names.values()), time.monotonic() + _RESTART_TIMEOUT
    while True:
        addresses = {info["name"]: address for address, info in known_workers(client).items()}
        if expected <= addresses.keys() or time.monotonic() > deadline:
            return [addresses[name] for address in workers if (name := names.get(address)) in addresses]
        time.sleep(_RESTART_CHECK_INTERVAL)
