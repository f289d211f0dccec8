"""Products of random matrices, in every format, with a vector and with columns.

A longer run, in twelve processes with different seeds; Hypothesis reduces and prints a failing case::

    seq 12 | GSPARSE_FUZZ_EXAMPLES=100000 xargs -P 12 -I{} python -m pytest -q -p no:cacheprovider -m gpu \\
        --seed {} --hypothesis-seed {} tests/test_random_structures.py
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st

import gsparse
from gsparse import GpuSparseMatrix, spmm, spmv
from gsparse.device.base import Device
from gsparse.errors import FormatError
from tests.seeds import num_examples
from tests.support import DTYPES, INDEX_DTYPES, exact_product, random_values

# Functions that draw the number of entries of each of `n` rows.
LENGTHS: dict[str, Any] = {
    "all alike": lambda rng, n, most: np.full(n, most),
    "uniform": lambda rng, n, most: rng.integers(0, most + 1, n),
    "mostly none": lambda rng, n, most: np.where(rng.random(n) < 0.9, 0, most),
    "a heavy tail": lambda rng, n, most: np.minimum(rng.pareto(0.7, n) * most / 4, 40 * most + 40).astype(int),
    "one row has most": lambda rng, n, most: np.where(np.arange(n) == rng.integers(n + 1), 50 * most + 300, most // 4),
    "falling": lambda rng, n, most: np.linspace(3 * most, 0, n).astype(int),
}  # fmt: skip
# Functions that draw the columns, out of `m`, of entries in the rows `row`.
COLUMNS: dict[str, Any] = {
    "anywhere": lambda rng, row, m: rng.integers(0, m, row.size),
    "near the diagonal": lambda rng, row, m: np.clip(row + rng.integers(-9, 10, row.size), 0, m - 1),
    "few": lambda rng, row, m: rng.choice(m, 3)[rng.integers(0, 3, row.size)],
    "repeating offsets": lambda rng, row, m: (row + np.arange(row.size) % 5) % m,
    "the last": lambda rng, row, m: np.full(row.size, m - 1),
}
VALUES: dict[str, Any] = {
    "random": random_values,
    "all one": lambda rng, size, dtype: np.ones(size, dtype),
    "of eight": lambda rng, size, dtype: random_values(rng, 8, dtype)[rng.integers(0, 8, size)],
    "float32's": lambda rng, size, dtype: random_values(rng, size, np.float32).astype(dtype),
    "by column's place": lambda rng, size, dtype: (np.arange(size) % 5 + 1).astype(dtype),
    "whole and zero": lambda rng, size, dtype: rng.integers(-1, 2, size).astype(dtype),
    "with NaN and inf": lambda rng, size, dtype: np.where(
        rng.random(size) < 0.03, rng.choice([np.nan, np.inf, -np.inf], size), random_values(rng, size, dtype)
    ).astype(dtype),
}


@dataclass(frozen=True)
class Recipe:
    """Parameters of a random matrix, short enough to read in the report of a failing test."""

    rows: int
    cols: int
    most: int
    lengths: str
    columns: str
    values: str
    is_sorted: bool
    dtype: str
    index: str
    seed: int

    def matrix(self, rng: np.random.Generator) -> sp.csr_array:
        lengths = LENGTHS[self.lengths](rng, self.rows, self.most) if self.cols else np.zeros(self.rows, int)
        row = np.repeat(np.arange(self.rows), lengths)
        column = COLUMNS[self.columns](rng, row, self.cols) if row.size else row
        if self.is_sorted:
            column = column[np.lexsort((column, row))]
        made = sp.csr_array((self.rows, self.cols), dtype=self.dtype)
        made.indptr = np.concatenate([[0], np.cumsum(lengths)]).astype(self.index)
        made.indices, made.data = column.astype(self.index), VALUES[self.values](rng, row.size, self.dtype)
        return made


sizes = st.one_of(st.integers(0, 70), st.integers(71, 700), st.sampled_from([31, 32, 33, 63, 64, 65, 2047, 2049]))
recipes = st.builds(
    Recipe,
    *(sizes, sizes, st.integers(0, 40)),
    *(st.sampled_from(list(names)) for names in (LENGTHS, COLUMNS, VALUES)),
    st.booleans(),
    *(st.sampled_from([d.name for d in names]) for names in (DTYPES, INDEX_DTYPES)),
    st.integers(0, 2**32 - 1),
)
options = st.fixed_dictionaries(
    {
        "format": st.sampled_from(gsparse.FORMATS),
        "compress": st.booleans(),
        "expected_products": st.sampled_from([1, 1000, 10**9]),
        "threads_per_block": st.sampled_from([128, 256, 512]),
    }
)
VIEWS: dict[str, tuple[Any, Any]] = {
    "A": (lambda A: A, lambda S: S),
    "A.T": (lambda A: A.T, lambda S: S.T.tocsr()),
    "A.H": (lambda A: A.H, lambda S: S.conj().T.tocsr()),
    "with_data": (lambda A: A.with_data(A.data[::-1].copy()), lambda S: with_data(S, S.data[::-1])),
}


def with_data(S: sp.csr_array, data: Any) -> sp.csr_array:
    return sp.csr_array((data, S.indices, S.indptr), shape=S.shape)


def assert_rows(got: Any, S: Any, x: Any, alpha: Any, beta: Any, y: Any) -> None:
    """Check alpha·S·x + beta·y row by row, and that exactly the expected elements are NaN or infinite."""
    with np.errstate(all="ignore"):
        exact, bound = exact_product(S, x)
        exact = alpha * exact + (beta * y.astype(exact.dtype) if beta else 0)
        bound = abs(alpha) * bound + abs(beta) * abs(y) if beta else abs(alpha) * bound
        finite = np.isfinite(exact)
        np.testing.assert_array_equal(np.isfinite(got), finite)
        info, lengths = np.finfo(got.dtype), np.diff(S.indptr).reshape(-1, *[1] * (x.ndim - 1)) + 8
        allowed = 2 * lengths * (info.eps * bound + info.smallest_subnormal)
        error = abs(got - exact)[finite]
    assert np.all(error <= allowed[finite]), f"worst error is {np.max(error / allowed[finite]):.3g} of what is allowed"


def assert_right(
    device: Device, recipe: Recipe, options: dict[str, Any], view: str, beta: int, damage: bool, shape: Any = ()
) -> None:
    """Check 3·A·x + beta·y of a view, and that a repetition has the same bits; `shape` follows the first dimension."""
    rng = np.random.default_rng(recipe.seed)
    S = recipe.matrix(rng)
    of_ours, of_scipys = VIEWS[view]
    note(f"{S.nnz} entries, rows of {np.diff(S.indptr)[:20]}…")
    try:
        A = GpuSparseMatrix(S, device=device, **options)
    except FormatError:
        assert options["format"] == "row_pattern"
        return
    V = of_scipys(S)
    x, y = (
        np.asarray(random_values(rng, (size, *shape), S.dtype), order=rng.choice(["C", "F"])) for size in V.shape[::-1]
    )
    if damage and x.size:
        # A NaN that no entry of a row multiplies must not reach that row, even if the format pads it.
        x[tuple(rng.integers(x.shape))] = rng.choice([np.nan, np.inf])
    multiply = spmm if shape else spmv
    got = multiply(of_ours(A), x, 3, beta, out=y.copy(order="K"))
    assert_rows(got, V, x, 3, beta, y)
    repeated = multiply(of_ours(A), x, 3, beta, out=y.copy(order="K"))
    np.testing.assert_array_equal(got, repeated)


examples = settings(max_examples=num_examples(40), deadline=None, suppress_health_check=list(HealthCheck))
views, betas = st.sampled_from(list(VIEWS)), st.sampled_from([0, 1, -2])
# The columns of a lane, of a tile and of several tiles, and one more or less.
columns = st.one_of(st.integers(1, 20), st.sampled_from([31, 32, 33, 63, 64, 65, 127, 130, 257]))


@examples
@given(recipes, options, views, betas, st.booleans())
def test_any_structure_in_any_format_is_right(
    device: Device, recipe: Recipe, options: dict[str, Any], view: str, beta: int, damage: bool
) -> None:
    assert_right(device, recipe, options, view, beta, damage)


@examples
@given(recipes, options, views, betas, st.booleans(), columns)
@pytest.mark.whole
def test_any_structure_times_columns_is_right(
    device: Device, recipe: Recipe, options: dict[str, Any], view: str, beta: int, damage: bool, columns: int
) -> None:
    assert_right(device, recipe, options, view, beta, damage, (columns,))


def test_the_check_detects_a_wrong_row_and_an_unexpected_nan() -> None:
    S = sp.csr_array(np.eye(3))
    x, y = np.ones(3), np.zeros(3)
    assert_rows(S @ x, S, x, 1, 0, y)
    for wrong in ([1, 1, 1 + 1e-13], [1, np.nan, 1]):
        with pytest.raises(AssertionError):
            assert_rows(np.array(wrong), S, x, 1, 0, y)
