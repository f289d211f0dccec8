"""Dask clusters and their workers: a cluster on this machine, the current client, and the choice of workers."""

from __future__ import annotations

import logging
import math
import os
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from numbers import Integral
from typing import Any

import distributed
from distributed.system import MEMORY_LIMIT

from gsparse.device.select import get_device
from gsparse.device.threads import available_cpus
from gsparse.distributed.client.scheduler import answers_of_workers, known_workers, release
from gsparse.errors import CommunicationError, DeviceError, WorkerLostError

_HOST = "127.0.0.1"
# Time limit, in seconds, for a worker's process to end. Python needs 0.3 to 0.5 s of processor time to free compiled
# code, which can take longer than dask's limit of 4 s on a busy machine.
_CLOSE_TIMEOUT = 20.0
# Largest number of CPU workers per CPU. A worker is a process, which takes a second of processor time to start.
_MOST_PER_CPU = 8


class _WorkerEnvironment:
    """Sets environment variables of this process only while worker processes, which inherit the variables, are started.

    Dask's nanny sets variables such as ``OMP_NUM_THREADS=1`` in its own process and leaves them there. Without this
    class, every program that a user starts after a cluster would run on one thread.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()  # Each cluster has its own thread.
        self._num_starting = 0
        self._previous: dict[str, str | None] = {}

    @contextmanager
    def restored(self, names: Iterable[str]) -> Iterator[None]:
        """Restore these variables when the block ends, or when the last of several overlapping blocks ends."""
        with self._lock:
            self._num_starting += 1
            for name in names:
                self._previous.setdefault(name, os.environ.get(name))
        try:
            yield
        finally:
            with self._lock:
                self._num_starting -= 1
                while self._previous and not self._num_starting:
                    name, value = self._previous.popitem()
                    if value is None:
                        os.environ.pop(name, None)
                    else:
                        os.environ[name] = value


_worker_environment = _WorkerEnvironment()


class _Nanny(distributed.Nanny):  # type: ignore[misc]
    """A nanny of dask that restores its process's environment, and waits longer for its worker to end."""

    async def instantiate(self) -> Any:
        with _worker_environment.restored(self.pre_spawn_env):
            return await super().instantiate()

    async def close(self, timeout: float = _CLOSE_TIMEOUT, reason: str = "nanny-close") -> Any:
        return await super().close(timeout=timeout, reason=reason)


class GpuCluster(distributed.SpecCluster):  # type: ignore[misc]
    """A cluster in which each new worker, also of a cluster that is scaled up, gets the options for its own number.

    Parameters
    ----------
    n_workers : int
    describe : callable
        ``describe(number)`` returns dask's description of the worker with this number.
    max_workers : int
        Largest number of workers that `scale` and `adapt` allow.
    **options
        Options of `distributed.SpecCluster`.
    """

    def __init__(
        self, n_workers: int, describe: Callable[[int], dict[str, Any]], max_workers: int, **options: Any
    ) -> None:
        self._describe, self._max_workers = describe, max_workers
        super().__init__({number: describe(number) for number in range(n_workers)}, worker=describe(0), **options)

    def new_worker_spec(self) -> dict[int, dict[str, Any]]:
        number = next(number for number in count() if number not in self.worker_spec)
        return {number: self._describe(number)}

    def adapt(self, *args: Any, maximum: float = math.inf, **options: Any) -> Any:
        return super().adapt(*args, maximum=min(maximum, self._max_workers), **options)

    def scale(self, n: int = 0, memory: Any = None, cores: Any = None) -> Any:
        if n > self._max_workers:
            raise DeviceError(f"{n} workers on this machine: scale to at most {self._max_workers}")
        return super().scale(n, memory, cores)


def LocalGpuCluster(
    n_workers: int | None = None, *, device: str = "auto", security: Any = None, **options: Any
) -> distributed.SpecCluster:
    """Start a dask cluster on this machine with one worker for each GPU, or with workers on the CPU if there is no GPU.

    Any other dask cluster can be used instead: `dask_cuda.LocalCUDACluster`, a cluster of dask-jobqueue, or workers
    that are started by hand. Each worker then uses the current GPU of CuPy in its process.

    Parameters
    ----------
    n_workers : int, optional
        Number of workers. By default one for each GPU, or 2 if there is no GPU.
    device : {"auto", "cpu", "gpu"}, optional
        Device of the workers. "auto", the default, uses the GPUs if there are any, else the CPU.
    security : distributed.Security, optional
        Settings of TLS, which the connections between ranks use as well. Without TLS, the cluster can be reached only
        from this machine, but by all of its users.
    **options
        Options of `distributed.SpecCluster`.

    Returns
    -------
    distributed.SpecCluster
        The cluster, which is a context manager. Each worker is a process with a nanny, which restarts it if it dies.
        `scale` and `adapt` start and end workers, at most one for each GPU, or eight for each CPU. The first
        `n_workers` workers together use as many threads as this process may use CPUs.

    Raises
    ------
    DeviceError
        If more workers are requested than there are GPUs, or than eight for each CPU.

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
    most = num_gpus or _MOST_PER_CPU * available_cpus()
    if n_workers > most:
        limit = f"{num_gpus} GPUs: use device='cpu', or" if num_gpus else f"{available_cpus()} CPUs:"
        raise DeviceError(f"{n_workers} workers for {limit} ask for at most {most}")
    common: dict[str, Any] = {"host": _HOST, "security": security}
    if security is not None and security.require_encryption:
        common["protocol"] = "tls://"
    threads = str(max(1, available_cpus() // n_workers))

    def describe(number: int) -> dict[str, Any]:
        env = {"GSPARSE_NUM_THREADS": threads, "GSPARSE_DEVICE": "gpu" if num_gpus else "cpu"}
        # Each worker sees all GPUs, its own GPU first, because direct copies between two GPUs need a process that sees
        # both GPUs.
        for name, gpus in _visible_gpus(num_gpus).items():
            env[name] = ",".join(gpus[number:] + gpus[:number])
        limits = {"nthreads": 1, "memory_limit": MEMORY_LIMIT // n_workers}
        options_of_worker = {**common, **limits, "env": env, "silence_logs": logging.WARNING}
        return {"cls": _Nanny, "options": options_of_worker}

    scheduler = {**common, "port": 0, "dashboard_address": f"{_HOST}:0"}
    return GpuCluster(
        n_workers,
        describe,
        most,
        scheduler={"cls": distributed.Scheduler, "options": scheduler},
        **{"silence_logs": logging.WARNING, "security": security, **options},
    )


def current_client(client: distributed.Client | None) -> distributed.Client:
    """Return `client`, or dask's current client if `client` is None. Raise an error if the result is not a client."""
    if client is None:
        try:
            client = distributed.get_client()
        except ValueError as error:
            raise ValueError(
                "there is no dask client; start one: Client(LocalGpuCluster()), or pass client="
            ) from error
    if not isinstance(client, distributed.Client):
        raise TypeError(f"client must be a distributed.Client, got {type(client).__name__}: Client(cluster) makes one")
    return client


def chosen_workers(client: distributed.Client, workers: Sequence[str] | int | None) -> list[str]:
    """Return the addresses of workers. `workers` lists addresses, or is a number of workers, or is None for all."""
    known = sorted(known_workers(client))
    if isinstance(workers, Integral):
        if not 0 < int(workers) <= len(known):
            raise CommunicationError(f"{workers} workers are asked for, the cluster has {len(known)}: {known}")
        return known[: int(workers)]
    if isinstance(workers, str) or not isinstance(workers, Collection | None):
        raise TypeError(f"workers must be a list of dask's addresses, or how many of them, got {workers!r}")
    chosen = known if workers is None else list(workers)
    repeated = sorted({address for address in chosen if chosen.count(address) > 1})
    if repeated:
        raise ValueError(f"each worker becomes one rank, so it may be listed once only, got {repeated} more than once")
    missing = [address for address in chosen if address not in known]
    if missing or not chosen:
        raise CommunicationError(f"the cluster has no workers {missing or 'at all'}: it has {known}")
    return chosen


def _visible_gpus(num_gpus: int) -> dict[str, list[str]]:
    """Return the GPUs that this process sees, by the environment variables that choose them.

    HIP reads CUDA's variable too, unless its own is set.
    """
    chosen = {name: os.environ.get(name) for name in ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")}
    chosen["CUDA_VISIBLE_DEVICES"] = chosen["CUDA_VISIBLE_DEVICES"] or ",".join(map(str, range(num_gpus)))
    return {name: value.split(",")[:num_gpus] for name, value in chosen.items() if value and num_gpus}


def _num_gpus(device: str) -> int:
    if device == "cpu":
        return 0
    try:
        return int(get_device("gpu:0").xp.cuda.runtime.getDeviceCount())
    except DeviceError:
        if device != "auto":
            raise
        return 0


def living_workers(client: distributed.Client, choose: Callable[[], list[str]], timeout: float) -> list[str]:
    """Return the addresses of workers that have answered.

    If a chosen worker does not run any more, `choose` is called again, because the scheduler notices a loss late.

    Parameters
    ----------
    client : distributed.Client
    choose : callable
        ``choose()`` returns the addresses of workers that the scheduler knows.
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
        placement: dict[str, Any] = {"allow_other_workers": False, "pure": False}
        answers = {worker: client.submit(os.getpid, workers=[worker], **placement) for worker in chosen}
        try:
            answers_of_workers(answers, timeout)
            return chosen
        except WorkerLostError:
            if time.monotonic() > deadline:
                raise
        finally:
            release(list(answers.values()))
