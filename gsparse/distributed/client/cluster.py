"""Dask clusters and their workers: a cluster on this machine, the current client, and the choice of workers."""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import math
import os
import threading
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from numbers import Integral
from typing import Any, TypeVar

import distributed
from distributed.system import MEMORY_LIMIT

from gsparse.device.select import get_device
from gsparse.device.threads import available_cpus
from gsparse.distributed.client.scheduler import known_workers
from gsparse.errors import CommunicationError, DeviceError, WorkerLostError

__all__ = [
    "GpuCluster",
    "LocalGpuCluster",
    "SignsOfLife",
    "chosen_workers",
    "current_client",
    "naming_lost_workers",
    "run_on_workers",
    "wait_while_answering",
]

T = TypeVar("T")

_HOST = "127.0.0.1"
# Time limit, in seconds, for a worker's process to end. Python needs 0.3 to 0.5 s of processor time to free compiled
# code. On 2 processors with a load of 7, that took longer than dask's limit of 4 s in 2 of 6 runs.
_CLOSE_TIMEOUT = 20.0
# Seconds between two checks that workers are alive, while a call of dask waits for them.
_CHECK_INTERVAL = 0.5


class _WorkerEnvironment:
    """Environment variables that this process has only while worker processes start, because these inherit them.

    Dask's nanny sets variables such as ``OMP_NUM_THREADS=1`` in its own process and leaves them there. Without this
    class, every program that a user starts after a cluster would run on one thread.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()  # Each cluster has its own thread.
        self._num_starting = 0
        self._previous: dict[str, str | None] = {}

    @contextmanager
    def restored(self, names: Iterable[str]) -> Iterator[None]:
        """Restore these variables when this block, and all others that overlap with it, have ended."""
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
    """Dask's nanny, which restores the environment of its process and waits longer for its worker to end."""

    async def instantiate(self) -> Any:
        with _worker_environment.restored(self.pre_spawn_env):
            return await super().instantiate()

    async def close(self, timeout: float = _CLOSE_TIMEOUT, reason: str = "nanny-close") -> Any:
        return await super().close(timeout=timeout, reason=reason)


class GpuCluster(distributed.SpecCluster):  # type: ignore[misc]
    """A cluster that makes each new worker with the options of its number, also when it is scaled up later.

    Parameters
    ----------
    n_workers : int
    describe : callable
        Takes the number of a worker, and returns dask's description of it.
    max_workers : int or None
        Largest number of workers to which `scale` and `adapt` may go; None for no limit.
    **options
        Options of `distributed.SpecCluster`.
    """

    def __init__(
        self, n_workers: int, describe: Callable[[int], dict[str, Any]], max_workers: int | None, **options: Any
    ) -> None:
        self._describe, self._max_workers = describe, max_workers
        super().__init__({number: describe(number) for number in range(n_workers)}, worker=describe(0), **options)

    def new_worker_spec(self) -> dict[int, dict[str, Any]]:
        number = next(number for number in count() if number not in self.worker_spec)
        return {number: self._describe(number)}

    def adapt(self, *args: Any, maximum: float = math.inf, **options: Any) -> Any:
        limit = math.inf if self._max_workers is None else self._max_workers
        return super().adapt(*args, maximum=min(maximum, limit), **options)

    def scale(self, n: int = 0, memory: Any = None, cores: Any = None) -> Any:
        if self._max_workers is not None and n > self._max_workers:  # on GPUs only
            raise DeviceError(f"{n} workers for {self._max_workers} GPUs: scale to at most {self._max_workers}")
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
        Settings of TLS, which the connections between ranks use as well. Without TLS, the cluster can be reached from
        this machine only, but by everyone who has an account on it.
    **options
        Options of `distributed.SpecCluster`.

    Returns
    -------
    distributed.SpecCluster
        The cluster, which is a context manager. Each worker is a process with a nanny, which restarts it if it dies.
        `scale` and `adapt` start and end workers; on GPUs, at most one for each GPU. The first `n_workers` workers
        together use as many threads as this process may use CPUs.

    Raises
    ------
    DeviceError
        If more GPUs are requested than there are.

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

    def describe(number: int) -> dict[str, Any]:
        env = {"GSPARSE_NUM_THREADS": threads, "GSPARSE_DEVICE": "gpu" if num_gpus else "cpu"}
        if num_gpus:  # on GPUs only
            # Each worker sees all GPUs, its own one first: two GPUs can copy to each other directly only in a process
            # that sees both. HIP also reads this variable, unless its own one is set.
            env["CUDA_VISIBLE_DEVICES"] = ",".join(str((number + k) % num_gpus) for k in range(num_gpus))
        limits = {"nthreads": 1, "memory_limit": MEMORY_LIMIT // n_workers}
        options_of_worker = {**common, **limits, "env": env, "silence_logs": logging.WARNING}
        return {"cls": _Nanny, "options": options_of_worker}

    scheduler = {**common, "port": 0, "dashboard_address": f"{_HOST}:0"}
    return GpuCluster(
        n_workers,
        describe,
        num_gpus or None,
        scheduler={"cls": distributed.Scheduler, "options": scheduler},
        **{"silence_logs": logging.WARNING, "security": security, **options},
    )


def current_client(client: distributed.Client | None) -> distributed.Client:
    """Return the given client, or dask's current one if it is None; raise an error if it is not a client."""
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
    """Return the addresses of workers: of those in the list, of this number of them, or of all if `workers` is None."""
    known = sorted(known_workers(client))
    if isinstance(workers, Integral):
        if not 0 < int(workers) <= len(known):
            raise CommunicationError(f"{workers} workers are asked for, the cluster has {len(known)}: {known}")
        return known[: int(workers)]
    if isinstance(workers, str) or not isinstance(workers, Iterable | None):
        raise TypeError(f"workers must be a list of dask's addresses, or how many of them, got {workers!r}")
    chosen = known if workers is None else list(workers)
    repeated = sorted({address for address in chosen if chosen.count(address) > 1})
    if repeated:
        raise ValueError(f"each worker becomes one rank, so it may be listed once only, got {repeated} more than once")
    missing = [address for address in chosen if address not in known]
    if missing or not chosen:
        raise CommunicationError(f"the cluster has no workers {missing or 'at all'}: it has {known}")
    return chosen


def run_on_workers(
    client: distributed.Client,
    workers: Sequence[str],
    timeout: float,
    function: Callable[..., Any],
    *args: Any,
    **options: Any,
) -> dict[str, Any]:
    """Run a function on workers with dask's `Client.run`, which has no time limit of its own.

    Parameters
    ----------
    client : distributed.Client
    workers : sequence of str
        Dask's addresses.
    timeout : float
        Seconds within which all workers must answer.
    function : callable
    *args
        Its arguments.
    **options
        Options of `Client.run`.

    Returns
    -------
    dict
        The results by address.

    Raises
    ------
    CommunicationError, WorkerLostError
        If a worker is silent, or gone.
    """
    with naming_lost_workers(client, workers):
        answers: dict[str, Any] = client.sync(_answers, client, workers, timeout, function, *args, **options)
        return answers


def wait_while_answering(
    client: distributed.Client, workers: Sequence[str], timeout: float, call: Callable[[], Awaitable[T]]
) -> T:
    """Return the result of a call of dask that has no time limit of its own, such as `Client.scatter`.

    The call may move so much data that no limit suits it. Instead, the workers are asked for a sign of life until it
    returns.

    Parameters
    ----------
    client : distributed.Client
    workers : sequence of str
        Dask's addresses of the workers for which the call waits.
    timeout : float
        Seconds within which each of them must answer.
    call : callable
        Begins the call, in the thread of the client's event loop.

    Raises
    ------
    CommunicationError
        If a worker is silent.
    OSError
        If a worker is gone (`naming_lost_workers`).
    """

    async def called() -> T:
        return await call()

    with SignsOfLife(client, timeout) as signs:
        waiting = asyncio.run_coroutine_threadsafe(called(), client.loop.asyncio_loop)
        try:
            while not concurrent.futures.wait([waiting], timeout=_CHECK_INTERVAL).done:
                signs.check(workers)
            return waiting.result()
        finally:
            waiting.cancel()


class SignsOfLife:
    """Ask workers for signs of life while the caller waits for something else.

    Parameters
    ----------
    client : distributed.Client
    timeout : float
        Seconds within which each worker must answer.
    **options
        Options of dask's `Client.run`, with which the workers are asked. ``on_error="ignore"`` leaves out workers that
        are gone, for a caller that looks for these itself.
    """

    def __init__(self, client: distributed.Client, timeout: float, **options: Any) -> None:
        self._client, self._timeout, self._options = client, timeout, options
        self._question: concurrent.futures.Future[dict[str, Any]] | None = None
        self._next_question = time.monotonic() + _CHECK_INTERVAL

    def __enter__(self) -> SignsOfLife:
        return self

    def __exit__(self, *_: object) -> None:
        if self._question is not None:
            self._question.cancel()

    def check(self, workers: Sequence[str]) -> None:
        """Raise an error if a worker has not answered in time. Otherwise, ask these workers if it is time to do so.

        This method does not wait for answers.

        Raises
        ------
        CommunicationError
            If a worker is silent.
        OSError
            If a worker is gone (`naming_lost_workers`).
        """
        if self._question is not None and self._question.done():
            question, self._question = self._question, None
            self._next_question = time.monotonic() + _CHECK_INTERVAL
            question.result()
        if self._question is None and time.monotonic() > self._next_question:
            asking = _answers(self._client, workers, self._timeout, os.getpid, **self._options)
            self._question = asyncio.run_coroutine_threadsafe(asking, self._client.loop.asyncio_loop)


async def _answers(
    client: distributed.Client,
    workers: Sequence[str],
    timeout: float,
    function: Callable[..., Any],
    *args: Any,
    **options: Any,
) -> dict[str, Any]:
    """Run a function on workers, and return the results by address. Raise an error that names silent workers."""
    calls = [asyncio.ensure_future(client.run(function, *args, workers=[address], **options)) for address in workers]
    try:
        answers = await asyncio.wait_for(asyncio.gather(*calls), timeout)
    except TimeoutError as error:
        silent = [address for address, call in zip(workers, calls, strict=True) if call.cancelled()]
        raise CommunicationError(
            f"worker {' and '.join(silent)} has been silent for {timeout:g} s: see whether it has been stopped or is "
            "overloaded, or pass a longer timeout"
        ) from error
    return {address: answer for part in answers for address, answer in part.items()}


@contextmanager
def naming_lost_workers(client: distributed.Client, workers: Sequence[str]) -> Iterator[None]:
    """Turn dask's error for a connection that has ended into one that names the lost worker."""
    try:
        yield
    except TimeoutError:
        raise
    except OSError as error:  # dask's CommClosedError
        known = known_workers(client)
        for rank, address in enumerate(workers):
            if address not in known:
                raise WorkerLostError(rank, address) from error
        raise CommunicationError(f"the connection to one of the workers {list(workers)} has ended: {error}") from error


def _num_gpus(device: str) -> int:
    if device == "cpu":
        return 0
    try:
        return int(get_device("gpu:0").xp.cuda.runtime.getDeviceCount())
    except DeviceError:
        if device != "auto":
            raise
        return 0
