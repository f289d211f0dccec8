"""Sparse algebra of `RankMatrix`, compared with SciPy's on any number of ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from gsparse.device.base import Device
from gsparse.device.select import get_device
from gsparse.distributed import Communicator, RankMatrix, RowPartition, run_ranks
from gsparse.distributed.ranks.rank_rows import RankRows
from gsparse.errors import ShapeError
from gsparse.linalg import amg, cg
from tests.linalg.problems import laplacian, residual
from tests.proof.emulated_device import EmulatedDevice
from tests.support import random_values

WORLD_SIZES = [1, 2, 3, 4]


def random_matrix(rng: np.random.Generator, rows: int, cols: int, density: float, dtype: str) -> sp.csr_array:
    S = sp.random_array((rows, cols), density=density, rng=rng, format="csr")
    S.data = random_values(rng, S.nnz, dtype)
    return sp.csr_array(S, dtype=dtype)


def bounds(rng: np.random.Generator, size: int, world_size: int) -> RowPartition:
    """Return uneven blocks, some of which may be empty."""
    return RowPartition((0, *sorted(rng.integers(0, size + 1, world_size - 1).tolist()), size))


def rank_rows(S: sp.csr_array, rows: RowPartition, columns: RowPartition, c: Communicator, device: Device) -> RankRows:
    own = rows.rows(c.rank)
    return RankRows.of(RankMatrix(S[own.start : own.stop], rows, columns, c, device))


DTYPES = ["float32", "float64", "complex128", "int64", "int8", "bool"]


def numbers(rng: np.random.Generator, rows: int, cols: int, density: float, dtype: str) -> sp.csr_array:
    """Return a random matrix of any dtype, integers included."""
    if np.dtype(dtype).kind in "fc":
        return random_matrix(rng, rows, cols, density, dtype)
    S = sp.random_array((rows, cols), density=density, rng=rng, format="csr")
    S.data = rng.integers(-100, 100, S.nnz)
    return sp.csr_array(S, dtype=dtype)


def run(
    device: Device,
    work: Callable[..., Any],
    world_size: int,
    *matrices: tuple[sp.csr_array, RowPartition, RowPartition],
) -> list[Any]:
    """Return what `work` returns on each rank for these matrices."""

    def on_rank(c: Communicator) -> Any:
        with device.active():
            return work(*(RankMatrix(S[r.rows(c.rank)], r, columns, c, device) for S, r, columns in matrices))

    return run_ranks(on_rank, world_size, timeout=1000.0)


def check(parts: list[sp.csr_array], expected: Any) -> None:
    """Compare the rows of all ranks with a matrix of SciPy."""
    result, expected = sp.vstack(parts, format="csr"), sp.csr_array(expected)
    assert (result.shape, result.dtype, result.has_canonical_format) == (expected.shape, expected.dtype, True)
    tolerance = 100 * np.finfo(result.dtype).eps if result.dtype.kind in "fc" else 0
    np.testing.assert_allclose(result.toarray(), expected.toarray(), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("world_size", WORLD_SIZES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.few(2)
def test_results_and_their_dtypes_match_scipy(device: Device, world_size: int, dtype: str) -> None:
    rng = np.random.default_rng(world_size)
    for m, k, n, density in ((40, 30, 50, 0.1), (3, 20, 3, 0.4), (0, 4, 3, 0.5), (4, 3, 0, 0.5)):
        A, B, C = (numbers(rng, *shape, density, dtype) for shape in ((m, k), (k, n), (m, k)))
        of_m, of_k, of_n = (bounds(rng, size, world_size) for size in (m, k, n))
        others = bounds(rng, k, world_size)  # the owners of the columns need not be the same
        operations: dict[str, tuple[Callable[..., Any], Any]] = {
            "A @ B": (lambda a, b, c: a @ b, A @ B),
            "C @ B": (lambda a, b, c: c @ b, C @ B),
            "A + C": (lambda a, b, c: a + c, A + C),
            "A.T": (lambda a, b, c: a.transpose(), A.T),
            "A.H": (lambda a, b, c: a.adjoint(), A.conj().T),
            "3 * A": (lambda a, b, c: 3 * a, 3 * A),
            "A * x": (lambda a, b, c: np.float64(0.5) * a, np.float64(0.5) * A),
            "A / 2": (lambda a, b, c: a / 2, A / 2),
        }
        if dtype != "bool":
            operations["A - C"] = (lambda a, b, c: a - c, A - C)
            operations["-A"] = (lambda a, b, c: -a, -A)

        def work(a: RankMatrix, b: RankMatrix, c: RankMatrix, operations: Any = operations) -> Any:
            return [operation(a, b, c).rows_on_host() for operation, _ in operations.values()]

        results = run(device, work, world_size, (A, of_m, of_k), (B, of_k, of_n), (C, of_m, others))
        for parts, (_, expected) in zip(zip(*results, strict=True), operations.values(), strict=True):
            check(list(parts), expected)


# Operations of a matrix A, of another one C, of a row r, a column c, and a dense array d: SciPy's, and over ranks.
ELEMENTWISE: dict[str, Callable[..., Any]] = {
    "A * C": lambda A, C, r, c, d: A * C,
    "A.multiply(C)": lambda A, C, r, c, d: A.multiply(C),
    "A.multiply(r)": lambda A, C, r, c, d: A.multiply(r),
    "A * c": lambda A, C, r, c, d: A * c,
    "A / c": lambda A, C, r, c, d: A / c,
    "A.multiply(d)": lambda A, C, r, c, d: A.multiply(d),
    "A.maximum(C)": lambda A, C, r, c, d: A.maximum(C),
    "A.minimum(C)": lambda A, C, r, c, d: A.minimum(C),
    "A.maximum(-1)": lambda A, C, r, c, d: A.maximum(-1),
    "A.maximum(2)": lambda A, C, r, c, d: A.maximum(2),
    "A != C": lambda A, C, r, c, d: A != C,
    "A == C": lambda A, C, r, c, d: A == C,
    "A < C": lambda A, C, r, c, d: A < C,
    "A >= C": lambda A, C, r, c, d: A >= C,
    "A > 0": lambda A, C, r, c, d: A > 0,
    "A == 0": lambda A, C, r, c, d: A == 0,
    "A <= 3": lambda A, C, r, c, d: A <= 3,
    "abs(A)": lambda A, C, r, c, d: abs(A),
    "round(A, 1)": lambda A, C, r, c, d: round(A, 1),
    "A ** 2": lambda A, C, r, c, d: A**2,
    "A.power(2)": lambda A, C, r, c, d: A.power(2),
    "A.astype": lambda A, C, r, c, d: A.astype(np.complex64),
    "A.conj()": lambda A, C, r, c, d: A.conj(),
    "A.real": lambda A, C, r, c, d: A.real,
    "A.imag": lambda A, C, r, c, d: A.imag,
    "A.sin()": lambda A, C, r, c, d: A.sin(),
    "A.expm1()": lambda A, C, r, c, d: A.expm1(),
    "A.sign()": lambda A, C, r, c, d: A.sign(),
}
# What SciPy refuses, or computes otherwise, for a dtype.
NOT_FOR = {
    "complex128": (
        "A.maximum(C)",
        "A.minimum(C)",
        "A.maximum(-1)",
        "A.maximum(2)",
        "A < C",
        "A >= C",
        "A > 0",
        "A <= 3",
    ),
    "int8": ("A.sin()", "A.expm1()"),  # SciPy's results are of half precision.
    "bool": ("A.maximum(-1)", "A.maximum(2)", "round(A, 1)", "A.sign()", "A.sin()", "A.expm1()"),
}


@pytest.mark.parametrize("world_size", WORLD_SIZES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.filterwarnings("ignore::scipy.sparse.SparseEfficiencyWarning")
@pytest.mark.few(2)
def test_element_wise_operations_match_scipy(device: Device, world_size: int, dtype: str) -> None:
    rng = np.random.default_rng(world_size)
    shapes = (20, 30, 0.2), (3, 3, 0.9), (0, 4, 0.5), (4, 0, 0.5)
    for m, n, density in shapes if device.is_host else shapes[:1]:
        A, C = numbers(rng, m, n, density, dtype), numbers(rng, m, n, density, dtype)
        row, column, dense = (numbers(rng, *shape, 1.0, dtype).toarray() for shape in ((1, n), (m, 1), (m, n)))
        column[column == 0] = 1
        rows, columns, others = bounds(rng, m, world_size), bounds(rng, n, world_size), bounds(rng, n, world_size)
        names = [name for name in ELEMENTWISE if name not in NOT_FOR.get(dtype, ())]

        def work(a: RankMatrix, c: RankMatrix, rest: Any = (rows, columns, row, column, dense, names)) -> Any:
            rows, columns, row, column, dense, names = rest
            own, own_columns = rows.rows(a.communicator.rank), columns.rows(a.communicator.rank)
            arrays = row[0, own_columns], column[own], dense[own]
            return [ELEMENTWISE[name](a, c, *arrays).rows_on_host() for name in names]

        results = run(device, work, world_size, (A, rows, columns), (C, rows, others))
        for name, parts in zip(names, zip(*results, strict=True), strict=True):
            check(list(parts), ELEMENTWISE[name](A, C, row, column, dense))


@pytest.mark.parametrize("world_size", WORLD_SIZES)
@pytest.mark.parametrize("dtype", ["float64", "int8", "bool"])
@pytest.mark.few(2)
def test_selections_and_reductions_match_scipy(device: Device, world_size: int, dtype: str) -> None:
    rng = np.random.default_rng(world_size)
    for m, n in ((20, 30), (7, 7), (1, 5)) if device.is_host else ((20, 30),):
        A = numbers(rng, m, n, 0.4, dtype)
        rows, columns = bounds(rng, m, world_size), bounds(rng, n, world_size)
        wanted, chosen = rng.integers(0, m, 2 * m), rng.integers(0, n, n // 2)
        of_wanted, of_chosen = bounds(rng, len(wanted), world_size), bounds(rng, len(chosen), world_size)
        order = rng.permutation(n)
        names = ("sum", "mean", "max", "min", "argmax", "argmin", "count_nonzero")

        def work(a: RankMatrix, rest: Any = (wanted, of_wanted, chosen, of_chosen, order, columns, names)) -> Any:
            wanted, of_wanted, chosen, of_chosen, order, columns, names = rest
            mine = wanted[of_wanted.rows(a.communicator.rank)]
            parts = a.take_rows(mine, of_wanted, columns), a.take_rows(mine, of_wanted, columns, order)
            parts = (*parts, a.take_columns(chosen, of_chosen))
            return [part.rows_on_host() for part in parts], [a.reduce_rows(name, 1) for name in names]

        selections, reductions = zip(*run(device, work, world_size, (A, rows, columns)), strict=True)
        taken, ordered, of_columns = zip(*selections, strict=True)
        check(list(taken), A[wanted])
        check(list(ordered), A[wanted][:, np.argsort(order)])
        check(list(of_columns), A[:, chosen])
        for name, parts in zip(names, zip(*reductions, strict=True), strict=True):
            expected = getattr(A, name)(axis=1)
            expected = expected.toarray() if sp.issparse(expected) else expected
            np.testing.assert_allclose(np.concatenate(parts), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_rows_diagonals_and_other_values_match_scipy(device: Device, world_size: int) -> None:
    rng = np.random.default_rng(world_size)
    for shape in ((40, 40), (30, 50), (50, 30), (0, 4)):
        S = random_matrix(rng, *shape, 0.2, "float64")
        S.sort_indices()
        rows, columns = bounds(rng, shape[0], world_size), bounds(rng, shape[1], world_size)
        values = rng.standard_normal(S.nnz).astype(np.float32)

        def work(
            A: RankMatrix, S: sp.csr_array = S, rows: RowPartition = rows, values: Any = values
        ) -> tuple[Any, ...]:
            own = rows.rows(A.communicator.rank)
            changed = A.with_data(values[S.indptr[own.start] : S.indptr[own.stop]])
            assert changed.halo is A.halo
            back = changed.with_data(S.data[S.indptr[own.start] : S.indptr[own.stop]])
            some = np.flatnonzero(np.arange(A.shape[0]) % 3 == 1)[::-1]
            assert (A.rows_on_host(some) != S[own][some]).nnz == 0
            assert np.array_equal(A.row_lengths(), np.diff(S[own].indptr))
            moved = A.with_columns(RowPartition.by_rows(S.shape[1], rows.world_size))
            return changed.rows_on_host(), back.rows_on_host(), moved.rows_on_host(), A.main_diagonal()

        changed, back, moved, diagonal = zip(*run(device, work, world_size, (S, rows, columns)), strict=True)
        check(list(changed), sp.csr_array((values, S.indices, S.indptr), shape=shape))
        check(list(back), S)
        check(list(moved), S)
        np.testing.assert_array_equal(np.concatenate(diagonal), S.diagonal())


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int32", "int64", "float64"])
def test_only_sums_leave_out_zeros(dtype: str) -> None:
    S = sp.csr_array((np.array([0, 1, 0, 1], dtype), np.array([0, 5, 3, 1]), np.array([0, 2, 2, 3, 4, 4, 4])), (6, 6))
    partition, other = RowPartition((0, 2, 6)), RowPartition((0, 4, 6))

    def work(A: RankMatrix) -> Any:
        return [result.rows_on_host().nnz for result in (A.transpose(), A.adjoint(), A.with_columns(other))]

    counts = np.sum(run(get_device("cpu"), work, 2, (S, partition, partition)), axis=0)
    assert counts.tolist() == [4, 4, 4]


def test_sums_that_wrap_to_zero_are_left_out() -> None:
    S = sp.csr_array(np.array([[64, 1], [0, 64]], np.int8))
    partition = RowPartition((0, 1, 2))

    def work(A: RankMatrix) -> Any:
        doubled = A + A
        return (doubled + doubled).rows_on_host()

    result = sp.vstack(run(get_device("cpu"), work, 2, (S, partition, partition)))
    assert (result.nnz, result.dtype) == (1, np.int8)


@pytest.mark.parametrize("world_size", [1, 3])
def test_an_entry_that_is_stored_twice_gets_its_value_once(world_size: int) -> None:
    indices, indptr = np.array([3, 0, 3, 1, 1, 1, 2, 0]), np.array([0, 3, 6, 7, 8])
    S = sp.csr_array((np.ones(8), indices, indptr), shape=(4, 4))
    expected = S.copy()
    expected.sum_duplicates()
    expected.data = np.arange(1.0, 6.0)
    partition = RowPartition.by_rows(4, world_size)

    def work(A: RankMatrix) -> Any:
        own = partition.rows(A.communicator.rank)
        changed = A.with_data(expected.data[expected.indptr[own.start] : expected.indptr[own.stop]])
        assert changed.diagonal.nnz == A.diagonal.nnz
        return changed.rows_on_host(), (2 * changed).rows_on_host(), (changed / 2).rows_on_host()

    results = zip(*run(get_device("cpu"), work, world_size, (S, partition, partition)), strict=True)
    for parts, factor in zip(results, (1, 2, 0.5), strict=True):
        check(list(parts), factor * expected)


@pytest.mark.parametrize("world_size", [1, 3])
def test_a_result_is_solved_with_and_updates_multigrid(world_size: int) -> None:
    S, partition = laplacian(12), RowPartition.by_rows(144, world_size)
    b, D = np.random.default_rng(0).standard_normal(144), sp.diags_array(np.linspace(0, 50, 144), format="csr")

    def work(A: RankMatrix, D: RankMatrix) -> Any:
        own = partition.rows(A.communicator.rank)
        options: dict[str, Any] = {"strength": None, "max_levels": 2, "max_coarse": 20}
        M, changed = amg(A, **options), 3 * A + D + A.transpose()
        new = amg(changed, **options)
        assert not np.allclose(M.matvec(b[own]), new.matvec(b[own]), rtol=0.1)
        np.testing.assert_allclose(M.update(changed).matvec(b[own]), new.matvec(b[own]), rtol=1e-10)
        return cg(changed, b[own], M=M, rtol=1e-10)[0]

    x = np.concatenate(run(get_device("cpu"), work, world_size, (S, partition, partition), (D, partition, partition)))
    assert residual(sp.csr_array(4 * S + D), x, b) < 1e-8


def test_operands_that_do_not_fit_are_refused() -> None:
    S, device = sp.csr_array(np.eye(6)), get_device("cpu")
    one, other, small = RowPartition((0, 2, 6)), RowPartition((0, 3, 6)), RowPartition((0, 2, 5))
    matrices = (S, one, one), (S, other, other), (sp.csr_array((5, 5)), small, small)
    for work, error, words in (
        (lambda a, b, c: a + b, ShapeError, "distribute them in the same way"),
        (lambda a, b, c: a - c, ShapeError, "inconsistent shapes"),
        (lambda a, b, c: a @ c, ShapeError, r"\(6, 6\) times \(5, 5\)"),
        (lambda a, b, c: a * b, ShapeError, "distribute them in the same way"),
        (lambda a, b, c: "2" * a, TypeError, "over ranks and str"),
        (lambda a, b, c: a / np.ones(7), ShapeError, r"this rank takes rows .* got \(7,\)"),
        (lambda a, b, c: a / np.ones((6, 6)), ShapeError, r"this rank takes rows .* got \(6, 6\)"),
        (lambda a, b, c: a / a, TypeError, "truediv of a matrix over ranks and a matrix"),
        (lambda a, b, c: a.maximum(np.ones(6)), TypeError, "maximum of a matrix over ranks and ndarray"),
        (lambda a, b, c: a + 1, NotImplementedError, "nonzero scalar"),
        (lambda a, b, c: a.with_data(np.ones(7)), ShapeError, "one per entry"),
    ):
        with pytest.raises(error, match=words):
            run(device, work, 2, *matrices)
    product = run(device, lambda a, b, c: (a @ b).rows_on_host(), 2, *matrices)  # rows of B come from where they are
    check(product, S)


def test_algebra_runs_with_the_kernels_of_gpus() -> None:
    rng = np.random.default_rng(2)
    A, B = numbers(rng, 30, 20, 0.2, "float64"), numbers(rng, 20, 30, 0.2, "float64")
    of_rows, of_columns = (bounds(rng, size, 2) for size in (30, 20))

    def work(a: RankMatrix, b: RankMatrix) -> Any:
        changed = a.with_data(np.ones(a.entry_order().row_lengths.sum()))
        return [matrix.rows_on_host() for matrix in (a @ b, 2 * a + b.transpose(), changed)]

    results = run(EmulatedDevice(32), work, 2, (A, of_rows, of_columns), (B, of_columns, of_rows))
    for parts, expected in zip(zip(*results, strict=True), (A @ B, 2 * A + B.T, A.astype(bool) * 1.0), strict=True):
        check(list(parts), expected)


@pytest.mark.parametrize("world_size", WORLD_SIZES)
@pytest.mark.parametrize("dtype", ["float64", "complex128"])
def test_a_hermitian_matrix_equals_its_adjoint_up_to_rounding(world_size: int, dtype: str) -> None:
    device, rng = get_device("cpu"), np.random.default_rng(11)
    S = random_matrix(rng, 40, 40, 0.1, dtype)
    H = sp.csr_array(S + S.conj().T)
    rounded = H.copy()
    rounded.data = rounded.data * (1 + 1e-16 * rng.standard_normal(H.nnz))
    changed = H.tolil()
    changed[0, 39] += 1e-3
    partition = bounds(rng, 40, world_size)

    def work(communicator: Communicator, matrix: sp.csr_array, tolerance: float) -> bool:
        return rank_rows(matrix, partition, partition, communicator, device).equals_adjoint(tolerance)

    for matrix, tolerance, expected in ((H, 0.0, True), (rounded, 1e-14, True), (changed.tocsr(), 1e-14, False)):
        assert run_ranks(work, world_size, matrix, tolerance) == [expected] * world_size
