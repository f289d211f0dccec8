"""Row blocks: partitions, ghost columns, and products compared with SciPy on any number of ranks."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from gsparse.distributed import Communicator, RankMatrix, RowPartition, run_ranks, split_columns
from gsparse.errors import ShapeError
from gsparse.linalg import cg
from tests.linalg.problems import laplacian, right_hand_side
from tests.proof.emulated_device import EmulatedDevice
from tests.ranks.groups import GROUPS
from tests.support import random_values

# Time limit, in seconds, for a rank that compiles emulator kernels: a busy machine takes minutes for one file.
COMPILE_TIMEOUT = 1000.0


def matrices(dtype: str) -> dict[str, sp.csr_array]:
    rng = np.random.default_rng(0)

    def random_matrix(rows: int, cols: int, density: float) -> sp.csr_array:
        S = sp.random_array((rows, cols), density=density, rng=rng, format="csr")
        S.data = random_values(rng, S.nnz, dtype)
        return S

    dense_row = random_matrix(40, 40, 0.05).tolil()
    dense_row[7] = random_values(rng, 40, dtype)
    structures = {
        "square": random_matrix(101, 101, 0.08),
        "wide": random_matrix(23, 140, 0.1),
        "tall": random_matrix(140, 23, 0.1),
        "dense halo": random_matrix(30, 30, 1.0),
        "no entries": random_matrix(20, 20, 0.0),
        "fewer rows than ranks": random_matrix(2, 9, 0.7),
        "no rows": sp.csr_array((0, 5), dtype=dtype),
        "one dense row": dense_row.tocsr(),
        "diagonal": sp.diags_array(random_values(rng, 50, dtype)).tocsr(),
    }
    return {name: sp.csr_array(S, dtype=dtype) for name, S in structures.items()}


@pytest.mark.parametrize("run", GROUPS.values(), ids=GROUPS)
@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
@pytest.mark.parametrize("dtype", ["float64", "complex128"])
@pytest.mark.few(4)
def test_products_match_scipy_on_any_number_of_ranks(run: Callable[..., Any], world_size: int, dtype: str) -> None:
    rng = np.random.default_rng(1)
    cases = []
    for S in matrices(dtype).values():
        rows, columns = RowPartition.by_nnz(S.indptr, world_size), RowPartition.by_rows(S.shape[1], world_size)
        cases.append((S, rows, columns, random_values(rng, S.shape[1], dtype), random_values(rng, S.shape[0], dtype)))

    def multiply(communicator: Communicator, uses_second_stream: bool = False) -> list[tuple[np.ndarray, np.ndarray]]:
        results = []
        communicator.uses_second_stream = uses_second_stream
        for S, rows, columns, x, z in cases:
            own = rows.rows(communicator.rank)
            A = RankMatrix(S[own], rows, columns, communicator, device="cpu")
            results.append((A.matvec(x[columns.rows(communicator.rank)]), A.rmatvec(z[own])))
        return results

    parts = run(multiply, world_size)
    again = run(partial(multiply, uses_second_stream=True), world_size)
    for k, (S, _, _, x, z) in enumerate(cases):
        y, g = (np.concatenate([part[k][i] for part in parts]) for i in (0, 1))
        np.testing.assert_allclose(y, S @ x, atol=1e-12)
        np.testing.assert_allclose(g, S.conj().T @ z, atol=1e-12)
        np.testing.assert_array_equal(y, np.concatenate([part[k][0] for part in again]))
        np.testing.assert_array_equal(g, np.concatenate([part[k][1] for part in again]))


def test_ranks_agree_on_a_dtype_that_holds_the_values_of_all_that_have_rows() -> None:
    S, rows = laplacian(6), RowPartition((0, 20, 20, 36))

    def dtype_of(communicator: Communicator, dtypes: tuple[str, ...]) -> str:
        own = S[rows.rows(communicator.rank)].astype(dtypes[communicator.rank])
        return RankMatrix(own, rows, rows, communicator, device="cpu").dtype.name

    for dtypes, expected in ((("float32", "int8", "complex128"), "complex128"), (("float32",) * 3, "float32")):
        assert run_ranks(dtype_of, 3, dtypes) == [expected] * 3
    assert run_ranks(dtype_of, 3, ("float32", "float64", "float32")) == ["float32"] * 3  # that rank has no rows


@pytest.mark.whole
def test_gpus_without_a_direct_network_multiply_and_solve_through_the_host() -> None:
    S = laplacian(7)
    rows, x = RowPartition.by_nnz(S.indptr, 3), right_hand_side(S, 2)

    def work(communicator: Communicator) -> tuple[np.ndarray, ...]:
        own = rows.rows(communicator.rank)
        # Each rank has a device of its own.
        A = RankMatrix(S[own], rows, rows, communicator, device=EmulatedDevice(32))
        assert not A.is_resident  # transfers through the host synchronize, so no CUDA graph can hold them
        return A.matvec(x[own, 0]), A.matmat(x[own]), A.rmatvec(x[own, 0]), cg(A, x[own, 0], rtol=1e-10)[0]

    results = run_ranks(work, 3, timeout=COMPILE_TIMEOUT)
    vector, block, adjoint, solution = (np.concatenate(parts) for parts in zip(*results, strict=True))
    np.testing.assert_allclose(vector, S @ x[:, 0], atol=1e-12)
    np.testing.assert_allclose(block, S @ x, atol=1e-12)
    np.testing.assert_allclose(adjoint, S.T @ x[:, 0], atol=1e-12)
    np.testing.assert_allclose(S @ solution, x[:, 0], atol=1e-8)


@pytest.mark.parametrize("shape", [(1, 6), (3, 5), (3, 7)])
@pytest.mark.parametrize("is_split", [False, True])
def test_a_block_of_another_shape_is_refused(shape: tuple[int, int], is_split: bool) -> None:
    S, rows = sp.csr_array(np.ones(shape)), RowPartition((0, 3, 6))
    block = split_columns(S, slice(0, min(shape[1], 4) if shape[0] == 3 else 3)) if is_split else S

    def make(communicator: Communicator) -> None:
        RankMatrix(block, rows, rows, communicator, device="cpu")

    with pytest.raises(ShapeError, match=r"the block of the rows 0 to 3 must have the shape \(3, [36]\), got"):
        run_ranks(make, 2)


def test_owners_of_another_number_of_columns_are_refused() -> None:
    S, rows = sp.eye_array(6, format="csr"), RowPartition((0, 3, 6))

    def change(communicator: Communicator) -> None:
        A = RankMatrix(S[rows.rows(communicator.rank)], rows, rows, communicator, device="cpu")
        A.with_columns(RowPartition((0, 3, 5)))

    with pytest.raises(ShapeError, match="the matrix has 6 columns, the partition is one of 5"):
        run_ranks(change, 2)


@pytest.mark.parametrize("bounds", [(0, 6), (0, 2, 4, 6)])
@pytest.mark.parametrize("name", ["rows", "columns", "with_columns"])
def test_owners_of_another_number_of_ranks_are_refused(name: str, bounds: tuple[int, ...]) -> None:
    S, fitting = sp.eye_array(6, format="csr"), RowPartition((0, 3, 6))

    def make(communicator: Communicator) -> None:
        own = fitting.rows(communicator.rank)
        partitions = {"rows": fitting, "columns": fitting, name: RowPartition(bounds)}
        A = RankMatrix(S[own], partitions["rows"], partitions["columns"], communicator, device="cpu")
        A.with_columns(partitions["with_columns"])

    words = f"one block for each of the 2 ranks, got {len(bounds) - 1} blocks with the bounds"
    with pytest.raises(ShapeError, match=words):
        run_ranks(make, 2)


@pytest.mark.parametrize(
    "call",
    [
        lambda: RowPartition.by_rows(5, 0),
        lambda: RowPartition.by_nnz(np.arange(6), 0),
        lambda: run_ranks(lambda _: None, 0),
    ],
)
def test_there_is_at_least_one_rank(call: Callable[[], Any]) -> None:
    with pytest.raises(ValueError, match="world_size must be at least 1, got 0"):
        call()


def test_partitions_cover_all_rows_and_balance_entries() -> None:
    indptr = np.concatenate([[0], np.cumsum([1] * 50 + [1000] + [1] * 49)])
    partition = RowPartition.by_nnz(indptr, 4)
    assert partition.num_rows == 100
    assert partition.world_size == 4
    assert sum(rows.stop - rows.start for rows in map(partition.rows, range(4))) == 100
    assert partition.row_bounds == (0, 51, 51, 51, 100)
    even = RowPartition.by_nnz(np.arange(0, 801, 8), 4)
    assert even.row_bounds == (0, 25, 50, 75, 100)
    assert RowPartition.by_rows(3, 5).row_bounds == (0, 0, 1, 1, 2, 3)
    assert RowPartition((0, 4, 4, 10)).owners(np.array([0, 3, 4, 9])).tolist() == [0, 0, 2, 2]
    assert RowPartition.from_bounds(np.array([0, 2, 5]), 5).row_bounds == (0, 2, 5)
    for bounds in ((1, 2), (0,), (0, 3, 2)):
        with pytest.raises(ShapeError, match="bounds"):
            RowPartition(bounds)
    with pytest.raises(ShapeError, match="end at 5"):
        RowPartition.from_bounds((0, 5), 6)
