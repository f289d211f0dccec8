"""Calls over connections: the client gets answers, errors and losses, and ranks notice the end of their client."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from typing import Any

import pytest

from gsparse.distributed.ranks.handshake import shut_down
from gsparse.distributed.ranks.product_connections import ProductServer
from gsparse.distributed.ranks.rank_calls import CallProgress, RankCalls
from gsparse.errors import CommunicationError, ShapeError
from tests.ranks.groups import LONG, SECRET, wait_until

pytest.importorskip("distributed", reason="needs dask: pip install 'gsparse-gpu[dask]'")

from gsparse.distributed.client.task_state import CUT_OFF, FAILED, FINISHED, PENDING, CallTasks
from gsparse.distributed.worker.calls import pickled_call, running_calls, served_calls


class Waiting:
    """A call that waits until its client has given up, or the test ends it."""

    begun, ended = threading.Event(), threading.Event()

    @classmethod
    def run(cls, is_awaited: Callable[[], bool]) -> str:
        cls.begun.set()
        wait_until(lambda: not is_awaited() or cls.ended.is_set())
        return "ended"

    @classmethod
    def reset(cls) -> None:
        cls.begun, cls.ended = threading.Event(), threading.Event()


class UnpicklableError(Exception):
    def __reduce__(self) -> Any:
        raise TypeError("not pickled")


def double(number: int, is_awaited: Callable[[], bool]) -> int:
    assert is_awaited()
    return 2 * number


def fail(error: type[Exception], is_awaited: Callable[[], bool]) -> None:
    raise error("planted")


@pytest.fixture
def servers() -> Iterator[list[ProductServer]]:
    Waiting.reset()
    with ExitStack() as stack:
        yield [
            stack.enter_context(closing(ProductServer(None, "127.0.0.1", SECRET, None, served_calls())))  # type: ignore[arg-type]
            for _ in range(2)
        ]
        Waiting.ended.set()


@pytest.fixture
def rank_calls(servers: list[ProductServer]) -> Iterator[RankCalls]:
    with closing(RankCalls([server.address for server in servers], SECRET, LONG, None)) as rank_calls:
        yield rank_calls


def finished(pending: CallProgress) -> CallTasks:
    """Return the tasks of calls after all of them have ended."""
    tasks = CallTasks(pending, ["first", "second"])
    while PENDING in tasks.states:
        tasks.wait(1.0)
    return tasks


def doubled(rank_calls: RankCalls, *numbers: int) -> list[Any]:
    with rank_calls.running([pickled_call("double", double, number) for number in numbers]) as pending:
        return finished(pending).results


def test_each_rank_runs_its_call_and_connections_are_used_again(
    servers: list[ProductServer], rank_calls: RankCalls
) -> None:
    for number in range(5):
        assert doubled(rank_calls, number, 7) == [2 * number, 14]
    assert [len(server._connections) for server in servers] == [1, 1]


def test_the_error_of_a_rank_reaches_the_client_as_itself(rank_calls: RankCalls) -> None:
    requests = [pickled_call("fail", fail, ShapeError), pickled_call("double", double, 3)]
    with rank_calls.running(requests) as pending:
        tasks = finished(pending)
    (error,) = tasks.errors()
    assert (type(error), str(error)) == (ShapeError, "planted")
    assert error.__traceback__ is not None
    assert (tasks.states, tasks.results[1]) == ([FAILED, FINISHED], 6)
    assert doubled(rank_calls, 1, 2) == [2, 4]


def test_an_error_that_cannot_be_pickled_arrives_as_its_text(rank_calls: RankCalls) -> None:
    with rank_calls.running([pickled_call("fail", fail, UnpicklableError)] * 2) as pending:
        errors = finished(pending).errors()
    assert [str(error) for error in errors] == ["UnpicklableError: planted"] * 2


@pytest.mark.parametrize("error", [KeyError, KeyboardInterrupt])
def test_ranks_see_that_their_client_has_given_up(rank_calls: RankCalls, error: type[BaseException]) -> None:
    with pytest.raises(error), rank_calls.running([pickled_call("waiting", Waiting.run)] * 2):
        assert Waiting.begun.wait(LONG)
        wait_until(lambda: running_calls() == ["waiting"] * 2)
        raise error
    wait_until(lambda: not running_calls())
    assert not Waiting.ended.is_set()
    assert doubled(rank_calls, 1, 2) == [2, 4]


def test_a_rank_whose_connection_ends_is_cut_off_and_the_others_answer(
    servers: list[ProductServer], rank_calls: RankCalls
) -> None:
    requests = [pickled_call("waiting", Waiting.run), pickled_call("double", double, 3)]
    with rank_calls.running(requests) as pending:
        assert Waiting.begun.wait(LONG)
        for connection in list(servers[0]._connections):
            shut_down(connection)
        tasks = finished(pending)
    assert (tasks.states, tasks.results[1]) == ([CUT_OFF, FINISHED], 6)
    (error,) = tasks.errors()
    assert isinstance(error, CommunicationError)
    assert "the connection to rank 0 on first has ended" in str(error)
    assert doubled(rank_calls, 1, 2) == [2, 4]


def test_connections_that_have_ended_between_calls_are_made_again(
    servers: list[ProductServer], rank_calls: RankCalls
) -> None:
    assert doubled(rank_calls, 1, 2) == [2, 4]
    for connection in list(servers[1]._connections):
        shut_down(connection)
    assert doubled(rank_calls, 3, 4) == [6, 8]
