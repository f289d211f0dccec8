"""A cluster of this machine: one dask worker a GPU, or several for its processors."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from numbers import Integral
from typing import Any

import distributed
from distributed.system import MEMORY_LIMIT

from gsparse.device.select import get_device
from gsparse.device.threads import available_cpus
from gsparse.errors import CommunicationError, DeviceError

__all__ = ["LocalGpuCluster", "check_running", "chosen_workers", "current_client", "has_scheduler", "known_workers"]

_HOST = "127.0.0.1"
# Seconds that a worker's process has to end. Python takes 0.3 to 0.5 s of a processor to take down what is compiled in
# it; on 2 processors with a load of 7 that was more than the 4 s that dask gives, in 2 of 6 runs.
_ENDING = 20.0


class _Nanny(distributed.Nanny):  # type: ignore[misc]
    """Dask's, which waits longer for its worker to end."""

    async def close(self, timeout: float = _ENDING, reason: str = "nanny-close") -> Any:
        return await super().close(timeout=timeout, reason=reason)


def LocalGpuCluster(
    n_workers: int | None = None, *, device: str = "auto", security: Any = None, **options: Any
) -> distributed.SpecCluster:
    """Start a dask cluster on this machine with a worker for each GPU; where there is none, for its processors.

    Any other cluster serves as well: `dask_cuda.LocalCUDACluster`, dask-jobqueue's, workers started by hand. Each
    worker then takes the GPU that CuPy finds there.

    Parameters
    ----------
    n_workers : int, optional
        All GPUs by default; 2 without any.
    device : {"auto", "cpu", "gpu"}, optional
        "auto", the default, is GPUs where there are any.
    security : distributed.Security, optional
        TLS, which the connections between ranks use too. Without it nobody but this machine can reach the cluster, but
        all who have an account on it.
    **options
        Of `distributed.SpecCluster`.

    Returns
    -------
    distributed.SpecCluster
        A context manager. Each worker is a process with a nanny, which starts it again where it dies.

    Raises
    ------
    DeviceError
        Where GPUs are asked for that are not there.

    Examples
    --------
    >>> from distributed import Client
    >>> from gsparse.distributed import LocalGpuCluster
    >>> with LocalGpuCluster(1, device="cpu") as cluster, Client(cluster) as client:
    ...     client.submit(sum, [1, 2, 3]).result()
    6
    """
    num_gpus = _num_gpus(device)
    n_workers = n_workers or num_gpus or 2
    if num_gpus and n_workers > num_gpus:  # on GPUs only
        raise DeviceError(f"{n_workers} workers for {num_gpus} GPUs: ask for fewer, or for device='cpu'")
    common: dict[str, Any] = {"host": _HOST, "security": security}
    if security is not None and security.require_encryption:
        common["protocol"] = "tls://"
    threads = str(max(1, available_cpus() // n_workers))
    workers = {}
    for number in range(n_workers):
        env = {"GSPARSE_NUM_THREADS": threads, "GSPARSE_DEVICE": "gpu" if num_gpus else "cpu"}
        if num_gpus:  # on GPUs only
            # All of them, the own one first: GPUs reach each other only where processes see both. (HIP reads this too,
            # where its own variable is not set.)
            env["CUDA_VISIBLE_DEVICES"] = ",".join(str((number + k) % num_gpus) for k in range(num_gpus))
        own = {"nthreads": 1, "env": env, "memory_limit": MEMORY_LIMIT // n_workers, "silence_logs": logging.WARNING}
        workers[number] = {"cls": _Nanny, "options": {**common, **own}}
    scheduler = {**common, "port": 0, "dashboard_address": f"{_HOST}:0"}
    return distributed.SpecCluster(
        workers,
        {"cls": distributed.Scheduler, "options": scheduler},
        **{"silence_logs": logging.WARNING, "security": security, **options},
    )


def current_client(client: distributed.Client | None) -> distributed.Client:
    """Give the client itself, or the one that dask knows of here; raise where it is none."""
    if client is None:
        try:
            client = distributed.get_client()
        except ValueError as error:
            raise ValueError(
                "there is no dask client; start one: Client(LocalGpuCluster()), or give client="
            ) from error
    if not isinstance(client, distributed.Client):
        raise TypeError(f"client must be a distributed.Client, got {type(client).__name__}: Client(cluster) makes one")
    return client


def has_scheduler(client: distributed.Client) -> bool:
    """Tell whether the scheduler answers: what asks one that is gone waits half a minute, or fails in other words."""
    return bool(client.status == "running")


def check_running(client: distributed.Client) -> None:
    """Raise where the scheduler does not answer."""
    if not has_scheduler(client):
        raise CommunicationError(f"the scheduler is gone: the client is {client.status}")


def chosen_workers(client: distributed.Client, workers: Sequence[str] | int | None) -> list[str]:
    """Give the addresses of these workers, of so many, or of all that there are."""
    known = sorted(known_workers(client))
    if isinstance(workers, Integral):
        if not 0 < int(workers) <= len(known):
            raise CommunicationError(f"{workers} workers are asked for, the cluster has {len(known)}: {known}")
        return known[: int(workers)]
    if isinstance(workers, str) or not isinstance(workers, Iterable | None):
        raise TypeError(f"workers must be a list of dask's addresses, or how many of them, got {workers!r}")
    wanted = known if workers is None else list(workers)
    missing = [address for address in wanted if address not in known]
    if missing or not wanted:
        raise CommunicationError(f"the cluster has no workers {missing or 'at all'}: it has {known}")
    return wanted


def known_workers(client: distributed.Client) -> dict[str, dict[str, Any]]:
    """Give the workers that the scheduler knows, by address; raise where there is no scheduler.

    (`Client.scheduler_info` gives what a periodic callback replaces meanwhile by an answer without workers.)
    """
    check_running(client)
    found: dict[str, dict[str, Any]] = client.sync(client.scheduler.identity, n_workers=-1)["workers"]
    return found


def _num_gpus(device: str) -> int:
    if device == "cpu":
        return 0
    try:
        return int(get_device("gpu:0").xp.cuda.runtime.getDeviceCount())
    except DeviceError:
        if device != "auto":
            raise
        return 0
