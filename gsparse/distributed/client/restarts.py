"""Restarts of workers in which NCCL has left resources, which are freed only when the process ends."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress

import distributed

from gsparse.distributed.client.cluster import run_on_workers
from gsparse.distributed.client.scheduler import known_workers
from gsparse.distributed.worker import group_tasks

__all__ = ["restart_stuck_workers"]

# Time limit, in seconds, for restarted workers to register with the scheduler, and seconds between two checks.
_RESTART_TIMEOUT, _RESTART_CHECK_INTERVAL = 15.0, 0.05


def restart_stuck_workers(client: distributed.Client, workers: Sequence[str], timeout: float) -> list[str]:
    """Restart the workers in which NCCL could not free its resources; return the new addresses of all workers.

    If one of the stuck workers has no nanny, dask restarts none of them, and all are used as they are. A worker that
    does not register in time is left out.
    """
    answers = run_on_workers(client, workers, timeout, group_tasks.needs_restart)
    stuck = [address for address, is_stuck in answers.items() if is_stuck]
    if not stuck:
        return list(workers)
    names = {address: info["name"] for address, info in known_workers(client).items()}
    with suppress(ValueError):  # dask raises it, and restarts none, if one of them has no nanny
        client.restart_workers(stuck, timeout=timeout, raise_for_error=False)
    expected, deadline = {names[address] for address in workers}, time.monotonic() + _RESTART_TIMEOUT
    while True:
        addresses = {info["name"]: address for address, info in known_workers(client).items()}
        if expected <= addresses.keys() or time.monotonic() > deadline:
            return [addresses[names[address]] for address in workers if names[address] in addresses]
        time.sleep(_RESTART_CHECK_INTERVAL)
