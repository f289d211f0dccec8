"""Calls of functions on workers, with a time limit, and errors that name a worker that is silent or lost."""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import distributed

from gsparse.distributed.client.scheduler import known_workers
from gsparse.errors import CommunicationError, WorkerLostError

T = TypeVar("T")

# Seconds between two checks that workers are alive, while a call of dask waits for them.
_CHECK_INTERVAL = 0.5
# Time limit, in seconds, for the scheduler to notice the loss of a worker to which a connection has ended.
_NOTICE_TIMEOUT, _NOTICE_INTERVAL = 1.0, 0.02


def run_on_workers(
    client: distributed.Client,
    workers: Sequence[str],
    timeout: float,
    function: Callable[..., Any],
    *args: Any,
    on_error: str = "raise",
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
    on_error : {"raise", "return", "ignore"}
        What becomes of the error of a worker, as for `Client.run`.

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
        answers: dict[str, Any] = client.sync(_answers, client, workers, timeout, function, *args, on_error=on_error)
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
    on_error : {"raise", "ignore"}
        "ignore" leaves out workers that are gone, for a caller that looks for these itself.
    """

    def __init__(self, client: distributed.Client, timeout: float, on_error: str = "raise") -> None:
        self._client, self._timeout, self._on_error = client, timeout, on_error
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
            asking = _answers(self._client, workers, self._timeout, os.getpid, on_error=self._on_error)
            self._question = asyncio.run_coroutine_threadsafe(asking, self._client.loop.asyncio_loop)


async def _answers(
    client: distributed.Client,
    workers: Sequence[str],
    timeout: float,
    function: Callable[..., Any],
    *args: Any,
    on_error: str = "raise",
) -> dict[str, Any]:
    """Run a function on workers, and return the results by address. Raise an error that names silent workers."""
    calls = {
        address: asyncio.ensure_future(client.run(function, *args, workers=[address], on_error=on_error))
        for address in workers
    }
    unanswered = dict(calls)
    try:
        return await asyncio.wait_for(_collect(client, unanswered, on_error), timeout)
    except TimeoutError as error:
        raise CommunicationError(
            f"worker {' and '.join(unanswered)} has been silent for {timeout:g} s: see whether it has been stopped or "
            "is overloaded, or pass a longer timeout"
        ) from error
    finally:
        for call in calls.values():
            call.add_done_callback(_retrieve_error)
            call.cancel()


async def _collect(
    client: distributed.Client, unanswered: dict[str, asyncio.Future[Any]], on_error: str
) -> dict[str, Any]:
    """Take the calls out of the dictionary as they end, and return their results by address. Raise the first error.

    A call to a worker that the scheduler does not know counts as failed: dask would try to connect for half a minute.
    """
    answers: dict[str, Any] = {}
    while unanswered:
        await asyncio.wait(unanswered.values(), timeout=_CHECK_INTERVAL, return_when=asyncio.FIRST_EXCEPTION)
        for address in [address for address, call in unanswered.items() if call.done()]:
            answers |= unanswered.pop(address).result()
        known = (await client.scheduler.identity(n_workers=-1))["workers"] if unanswered else {}
        for address in unanswered.keys() - known.keys():
            del unanswered[address]
            error = OSError(f"worker {address} is gone")
            if on_error == "raise":
                raise error
            if on_error == "return":
                answers[address] = error
    return answers


def _retrieve_error(call: asyncio.Future[Any]) -> None:
    """Retrieve the error of a call whose result nobody needs: otherwise asyncio would print it."""
    if not call.cancelled():
        call.exception()


@contextmanager
def naming_lost_workers(client: distributed.Client, workers: Sequence[str], remedy: str = "") -> Iterator[None]:
    """Turn dask's error for a connection that has ended into a `WorkerLostError` with this remedy."""
    try:
        yield
    except TimeoutError:
        raise
    except OSError as error:  # dask's CommClosedError
        lost = error_of_lost_worker(client, workers, remedy)
        if lost is not None:
            raise lost from error
        raise CommunicationError(f"the connection to one of the workers {list(workers)} has ended: {error}") from error


def error_of_lost_worker(
    client: distributed.Client, workers: Sequence[str], remedy: str = ""
) -> WorkerLostError | None:
    """Return the error for the first worker that is lost, after a connection has ended; None if none is lost.

    This waits for a moment, because the scheduler may learn of a loss later than this process, whose connection has
    ended.
    """
    deadline = time.monotonic() + _NOTICE_TIMEOUT
    while True:
        known = known_workers(client)
        for rank, address in enumerate(workers):
            if address not in known:
                return WorkerLostError(rank, address, remedy)
        if time.monotonic() > deadline:
            return None
        time.sleep(_NOTICE_INTERVAL)
