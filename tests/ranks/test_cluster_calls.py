"""Solves on a dask cluster that run as calls over connections: vectors of dask, errors, and what is left behind."""

from __future__ import annotations

import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import gsparse.linalg as gla
from gsparse.errors import CommunicationError, ShapeError
from tests.linalg.problems import laplacian, residual, right_hand_side
from tests.ranks.groups import LONG, SOON, wait_until

distributed = pytest.importorskip("distributed", reason="needs dask: pip install 'gsparse-gpu[dask]'")
da = pytest.importorskip("dask.array")

from gsparse.distributed import distribute  # noqa: E402
from tests.ranks.faults import error_within_deadline, is_solving, running_calls, start_solve  # noqa: E402

pytestmark = [pytest.mark.whole, pytest.mark.filterwarnings("ignore")]  # dask and tornado warn

S = laplacian(12)
B = right_hand_side(S)


def number_of_results() -> int:
    """Return how many vectors of solves wait on this worker."""
    from gsparse.distributed.worker.rank import _vectors

    return len(_vectors)


class UnpicklableError(Exception):
    def __reduce__(self) -> Any:
        raise TypeError("not pickled")


def fail(rank: Any, error: type[Exception]) -> None:
    if rank.number:
        raise error("planted")


@pytest.mark.parametrize(
    ("error", "raised", "words"),
    [(ShapeError, ShapeError, "^planted"), (UnpicklableError, RuntimeError, "^UnpicklableError: planted")],
)
def test_the_error_of_a_rank_reaches_the_client(
    client: Any, error: type[Exception], raised: type[Exception], words: str
) -> None:
    with distribute(S, client=client) as A:
        with pytest.raises(raised, match=words) as caught:
            A._rank_group.call(fail, [(error,)] * 3)
        assert caught.traceback[-1].name == "fail" or error is UnpicklableError
        np.testing.assert_allclose(A @ B, S @ B, atol=1e-12)


def test_ranks_that_dask_has_dropped_are_an_error_and_not_a_wait(client: Any) -> None:
    with distribute(S, client=client) as A:
        solve = start_solve(client, A)
        client.cancel(A._rank_group._references)
        errors = [solve.wait(SOON), error_within_deadline(lambda: A @ B)]
        for error in errors:
            assert isinstance(error, CommunicationError), repr(error)
        assert "can no longer be called" in str(errors[1])
        wait_until(lambda: not any(client.run(is_solving).values()))


def test_products_of_several_threads_have_the_bits_of_one(client: Any) -> None:
    with distribute(S, client=client) as A, ThreadPoolExecutor(8) as pool:
        expected = A @ B
        for product in pool.map(lambda _: A @ B, range(40)):
            np.testing.assert_array_equal(product, expected)


def test_a_result_of_dask_outlasts_its_matrix(client: Any) -> None:
    with distribute(S, client=client) as A:
        x, info = gla.cg(A, da.from_array(B, chunks=20), rtol=1e-10)
    assert info == 0
    assert residual(S, x.compute(), B) < 1e-9


def test_results_that_are_dropped_at_once_do_not_stay_on_the_workers(client: Any) -> None:
    with distribute(S, client=client) as A:
        chunks = client.persist(da.from_array(B, chunks=(tuple(np.diff(A.row_bounds).tolist()),)))
        for _ in range(10):
            gla.cg(A, chunks)
            gla.cg(A, B)
        wait_until(lambda: not any(client.run(number_of_results).values()))


def test_parts_that_lie_on_other_workers_are_moved(client: Any, workers: list[str]) -> None:
    with distribute(S, client=client, workers=workers[:2]) as A:
        (chunks,) = [tuple(np.diff(A.row_bounds).tolist())]
        lazy = da.from_array(B, chunks=(chunks,))
        elsewhere = client.persist(lazy, workers=workers[2:], allow_other_workers=False)
        distributed.wait(elsewhere)
        for guess in (None, B, elsewhere):
            x, info = gla.cg(A, elsewhere, x0=guess, rtol=1e-10)
            assert info == 0
            assert residual(S, x.compute(), B) < 1e-9
        assert type(gla.cg(A, B, x0=elsewhere)[0]) is np.ndarray


def test_an_interrupted_solve_ends_on_the_workers_and_the_next_one_is_right(client: Any) -> None:
    def interrupt() -> None:
        wait_until(lambda: all(client.run(running_calls).values()))
        os.kill(os.getpid(), signal.SIGINT)

    with distribute(S, client=client) as A:
        thread = threading.Thread(target=interrupt)
        thread.start()
        with pytest.raises(KeyboardInterrupt):
            gla.gmres(A, B, rtol=0, maxiter=10**9)
        thread.join(LONG)
        wait_until(lambda: not any(client.run(running_calls).values()))
        x, info = gla.cg(A, B, rtol=1e-10)
        assert info == 0
        assert residual(S, x, B) < 1e-9
