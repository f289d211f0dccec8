"""Tests that run in all processes of `mpiexec` at the same time. `tests/ranks/test_mpi.py` starts them."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from mpi4py import MPI

import gsparse.linalg as gla
from gsparse.distributed import MpiCommunicator, RankMatrix, from_mpi
from gsparse.errors import CommunicationError, ShapeError
from tests.linalg.problems import convection, laplacian, rectangular, residual, right_hand_side
from tests.ranks.groups import LONG, SOON

WORLD = MPI.COMM_WORLD
RANK, SIZE = WORLD.rank, WORLD.size


def own_rows(num_rows: int, kind: str = "even") -> slice:
    """Return the rows of this rank. "uneven" blocks differ in length, and with "empty", the last rank has no rows."""
    weights = {"even": np.ones(SIZE), "uneven": np.arange(1, SIZE + 1), "empty": np.arange(SIZE) < SIZE - 1}[kind]
    bounds = [0, *(num_rows * np.cumsum(weights) // weights.sum()).astype(int)]
    return slice(bounds[RANK], bounds[RANK + 1])


def whole(part: Any) -> Any:
    """Return the parts of all ranks, one after the other."""
    return np.concatenate(WORLD.allgather(part))


@pytest.mark.parametrize("kind", ["even", "uneven", "empty"])
@pytest.mark.parametrize("dtype", [float, complex])
def test_products_and_adjoint_products_are_those_of_the_whole_matrix(kind: str, dtype: type) -> None:
    S = convection(9, dtype)
    own, x, X = own_rows(S.shape[0], kind), right_hand_side(S), right_hand_side(S, 3)
    A = from_mpi(WORLD, S[own], device="cpu")
    with A.communicator:
        assert isinstance(A, RankMatrix) and A.whole_shape == S.shape and A.shape == 2 * (own.stop - own.start,)
        np.testing.assert_allclose(whole(A @ x[own]), S @ x, atol=1e-12)
        np.testing.assert_allclose(whole(A.matmat(X[own])), S @ X, atol=1e-12)
        np.testing.assert_allclose(whole(A.rmatvec(x[own])), S.conj().T @ x, atol=1e-12)


@pytest.mark.parametrize("own_columns", [None, "uneven"])
def test_columns_of_a_rectangular_matrix_are_divided_evenly_or_as_the_ranks_say(own_columns: str | None) -> None:
    S = rectangular(60, 35)
    own, columns = own_rows(60, "uneven"), own_rows(35, own_columns or "even")
    x, z = right_hand_side(S.T), right_hand_side(S)
    count = None if own_columns is None else columns.stop - columns.start
    A = from_mpi(WORLD, sp.coo_array(S[own]), own_columns=count, device="cpu")
    with A.communicator:
        assert A.shape == (own.stop - own.start, columns.stop - columns.start)
        np.testing.assert_allclose(whole(A @ x[columns]), S @ x, atol=1e-12)
        np.testing.assert_allclose(whole(A.rmatvec(z[own])), S.T @ z, atol=1e-12)
        result = gla.lsqr(A, z[own], atol=1e-12, btol=1e-12)
        np.testing.assert_allclose(whole(result[0]), np.linalg.lstsq(S.toarray(), z)[0], atol=1e-6)


@pytest.mark.parametrize("kind", ["uneven", "empty"])
def test_solvers_solve_the_system_of_all_ranks(kind: str) -> None:
    for S, solve in ((laplacian(12), gla.cg), (convection(12), gla.gmres)):
        b, own = right_hand_side(S), own_rows(S.shape[0], kind)
        A = from_mpi(WORLD, S[own], device="cpu", format="csr")
        with A.communicator:
            x, info = solve(A, b[own], rtol=1e-10, M=gla.jacobi(A.diagonal))
        assert info == 0
        assert residual(S, whole(x), b) < 1e-8
        assert A.diagonal.plan.chosen.format.startswith("csr")


def test_long_arrays_are_added_in_the_order_of_the_ranks() -> None:
    parts = [np.random.default_rng(rank).standard_normal((3, 20_001)) * 10.0**rank for rank in range(SIZE)]
    with MpiCommunicator(WORLD) as communicator:
        values = parts[RANK].copy()
        communicator.allreduce(values)
        flags = np.array([False, RANK == 0])
        communicator.allreduce(flags)
    total = parts[0].copy()
    for part in parts[1:]:
        total += part
    np.testing.assert_array_equal(values, total)
    assert flags.tolist() == [False, True]


# ------------------------------------------------------------------------------------------------------------- mistakes


def test_rows_with_different_numbers_of_columns_are_refused_by_all_ranks() -> None:
    with pytest.raises(ShapeError, match="rank 0 has 10, rank 1 has 11"):
        from_mpi(WORLD, sp.csr_array((5, 10 + RANK)), device="cpu")


def test_own_columns_must_fit_the_matrix_and_be_passed_by_all_ranks() -> None:
    with pytest.raises(ShapeError, match=rf"add up to {3 * SIZE}, the rows have 10 columns"):
        from_mpi(WORLD, sp.csr_array((5, 10)), own_columns=3, device="cpu")
    with pytest.raises(ShapeError, match=r"all ranks or none must pass own_columns: ranks \[1"):
        from_mpi(WORLD, sp.csr_array((5, 10)), own_columns=None if RANK else 10, device="cpu")


@pytest.mark.parametrize("mistake", ["dense rows", "negative columns", "no such option"])
def test_a_mistake_of_one_rank_is_an_error_of_all(mistake: str) -> None:
    rows, options = sp.csr_array((5, 10)), {}
    if RANK == SIZE - 1:
        rows = np.ones((5, 10)) if mistake == "dense rows" else rows
        options = {"negative columns": {"own_columns": -1}, "no such option": {"planted": 1}}.get(mistake, {})
    began = time.monotonic()
    with pytest.raises((TypeError, ShapeError, CommunicationError), match=r"sparse|negative|planted") as caught:
        from_mpi(WORLD, rows, device="cpu", timeout=LONG, **options)
    assert isinstance(caught.value, CommunicationError) == (RANK < SIZE - 1)
    assert time.monotonic() - began < SOON


def test_an_error_of_one_rank_ends_the_solves_of_all() -> None:
    S = laplacian(8)
    own, began = own_rows(64), time.monotonic()

    def stop(x: Any) -> None:
        raise ZeroDivisionError("planted")

    A = from_mpi(WORLD, S[own], device="cpu", timeout=LONG)
    with pytest.raises(CommunicationError if RANK else ZeroDivisionError, match="planted"), A.communicator:
        gla.cg(A, np.ones(own.stop - own.start), callback=None if RANK else stop)
    assert time.monotonic() - began < SOON


def test_arrays_of_the_same_size_and_another_dtype_are_refused() -> None:
    with pytest.raises(CommunicationError) as caught, MpiCommunicator(WORLD, LONG) as communicator:
        communicator.allreduce(np.zeros(3, np.int64 if RANK else np.float64))
    # Some ranks notice it by the message of another rank, and some by the abort of such a rank.
    assert "ranks disagree" in str(caught.value)
    for dtype in ("int64", "float64"):
        assert f"allreduce 1 of 3 numbers of {dtype}" in str(caught.value)


def test_a_message_that_nobody_receives_does_not_block_the_end() -> None:
    communicator = MpiCommunicator(WORLD, 0.5)
    began = time.monotonic()
    if RANK == 0:
        wait = communicator.exchange({1: np.zeros(1_000_000)}, {1: np.zeros(1_000_000)})
        with pytest.raises(CommunicationError, match=r"silent|planted"):
            wait()
        communicator.close()
        assert communicator.is_stuck
    elif RANK == 1:
        communicator.abort("planted")
        communicator.close()
    else:
        communicator.close()
    assert time.monotonic() - began < SOON
    WORLD.Barrier()


# ------------------------------------------------------------------------------------------------- the MPI communicator


def test_messages_do_not_mix_with_those_of_the_caller() -> None:
    S = laplacian(8)
    own, received = own_rows(64), np.zeros(1)
    request = WORLD.Irecv(received, MPI.ANY_SOURCE, MPI.ANY_TAG)
    A = from_mpi(WORLD, S[own], device="cpu")
    with A.communicator:
        np.testing.assert_allclose(whole(A @ np.ones(own.stop - own.start)), S @ np.ones(64))
    WORLD.Send(np.array([RANK + 1.0]), (RANK + 1) % SIZE, 7)
    request.Wait()
    assert received[0] == (RANK - 1) % SIZE + 1


def test_communicators_are_freed() -> None:
    for _ in range(30):
        communicator = MpiCommunicator(WORLD)
        communicator.allreduce(np.ones(1))
        of_mpi = [communicator._comm, communicator._aborts]
        communicator.close()
        communicator.close()
        assert not communicator.is_stuck
        assert of_mpi == [MPI.COMM_NULL] * 2


def test_ranks_of_one_host_are_counted() -> None:
    with MpiCommunicator(WORLD) as communicator:
        assert communicator.local_rank() == RANK


def test_one_process_alone_solves() -> None:
    S = laplacian(6)
    x, info = gla.cg(from_mpi(MPI.COMM_SELF, S, device="cpu"), np.ones(36), rtol=1e-10)
    assert info == 0 and residual(S, x, np.ones(36)) < 1e-8


def test_other_arguments_than_communicators_are_refused() -> None:
    for comm in (None, MPI.COMM_NULL, "COMM_WORLD"):
        with pytest.raises(TypeError, match="Intracomm"):
            from_mpi(comm, sp.csr_array((2, 2)))
        with pytest.raises(TypeError, match="Intracomm"):
            MpiCommunicator(comm)
