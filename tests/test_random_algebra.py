"""Sparse algebra on random matrices: each operation returns what SciPy returns, and twice the same bits.

``GSPARSE_FUZZ_EXAMPLES=20000 python -m pytest tests/test_random_algebra.py`` tries more of them; the head of
``tests/test_random_structures.py`` says how several processes do.
"""

from __future__ import annotations

import math
import operator
import warnings
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, note
from hypothesis import strategies as st

import gsparse
import gsparse.sparse
from gsparse import GpuSparseMatrix
from gsparse.device.base import Device
from tests.support import host
from tests.test_random_structures import COLUMNS, LENGTHS, Recipe, examples, with_data

NUMBERS = ("bool", "int8", "uint8", "int32", "int64", "uint64", "float32", "float64", "complex64", "complex128")
VALUES = ("random", "of eight", "whole and zero", "with NaN and inf")

sizes = st.one_of(st.integers(0, 40), st.sampled_from([63, 64, 65, 96, 130]))
recipes = st.builds(
    Recipe,
    *(sizes, sizes, st.integers(0, 9)),
    *(st.sampled_from(list(names)) for names in (LENGTHS, COLUMNS, VALUES)),
    st.booleans(),
    *(st.sampled_from(names) for names in (NUMBERS, ("int32", "int64"))),
    st.integers(0, 2**32 - 1),
)


def make(recipe: Recipe) -> sp.csr_array:
    """Make the matrix of a recipe; of integers and booleans if its dtype has no fractions."""
    if np.dtype(recipe.dtype).kind in "fc":
        return recipe.matrix(np.random.default_rng(recipe.seed))
    exact = replace(recipe, dtype="float64", values="whole and zero")
    S = exact.matrix(np.random.default_rng(recipe.seed))
    scale = 100 if recipe.seed % 2 else 1  # Multiples of 100 overflow narrow integers.
    return sp.csr_array(((S.data * scale).astype(np.int64).astype(recipe.dtype), S.indices, S.indptr), shape=S.shape)


def magnitudes(S: sp.csr_array) -> sp.csr_array:
    """Return the magnitudes of all entries, also of repeated ones; large numbers instead of inf."""
    with np.errstate(all="ignore"):
        wide = S.data.astype(np.complex128 if S.dtype.kind == "c" else np.float64)
        return with_data(S.copy(), np.minimum(abs(wide), 1e150))


def times_terms(magnitude: Any, terms: Any) -> Any:
    """Return the bound of sums of this many terms with magnitudes of this sum; no bound for infinities and NaN."""
    return np.where(np.isfinite(magnitude), magnitude, np.inf) * np.maximum(terms, 1)


def outcome(call: Callable[[], Any]) -> Any:
    """Return the result of a call, or its error."""
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            return call()
    except Exception as error:
        return error


def assert_same(ours: Any, theirs: Any, bound: Any = None) -> None:
    """Compare kinds, shapes, dtypes and values of two results; values may differ by `bound` times eps."""
    if isinstance(theirs, Exception):
        assert isinstance(ours, type(theirs)), f"{ours!r} instead of {theirs!r}"
        return
    if isinstance(ours, Exception):
        raise ours
    if isinstance(theirs, tuple):
        for one, other in zip(ours, theirs, strict=True):
            assert_same(one, other)
        return
    if isinstance(ours, int) and isinstance(theirs, int | np.integer):
        assert ours == theirs
        return
    assert sp.issparse(ours) == sp.issparse(theirs)
    assert ours.shape == theirs.shape
    assert ours.dtype == theirs.dtype
    if sp.issparse(theirs):
        ours, theirs = ours.toarray(), theirs.toarray()
    if bound is None or theirs.dtype.kind not in "fc":
        np.testing.assert_array_equal(host(ours) if not isinstance(ours, np.generic) else ours, theirs)
        return
    with np.errstate(all="ignore"):
        finite, info = np.isfinite(theirs), np.finfo(theirs.dtype)
        np.testing.assert_array_equal(np.isfinite(ours), finite)
        allowed = 4 * info.eps * bound + 1000 * info.smallest_subnormal
        assert np.all((abs(ours - theirs) <= allowed)[finite])


def assert_repeats(first: Any, again: Any) -> None:
    """Check that two results have the same bits."""
    if isinstance(first, tuple):
        for one, other in zip(first, again, strict=True):
            assert_repeats(one, other)
    elif sp.issparse(first):
        assert_repeats((first.tocsr().data, first.tocsr().indices), (again.tocsr().data, again.tocsr().indices))
    elif not isinstance(first, Exception):
        assert np.asarray(first).tobytes() == np.asarray(again).tobytes()


# Operations on two matrices of one shape.
PAIRS: dict[str, Callable[[Any, Any], Any]] = {
    "plus": lambda A, B: A + B,
    "minus": lambda A, B: A - B,
    "times": lambda A, B: A.multiply(B),
    "maximum": lambda A, B: A.maximum(B),
    "minimum": lambda A, B: A.minimum(B),
    "equal": lambda A, B: A == B,
    "not equal": lambda A, B: A != B,
    "less": lambda A, B: A < B,
    "at most": lambda A, B: A <= B,
    "greater": lambda A, B: A > B,
    "at least": lambda A, B: A >= B,
}


@examples
@given(recipes, recipes, st.sampled_from(list(PAIRS)))
def test_two_matrices_are_combined_as_in_scipy(device: Device, recipe: Recipe, other: Recipe, name: str) -> None:
    S, T = make(recipe), make(replace(other, rows=recipe.rows, cols=recipe.cols))
    for matrix in (S, T):
        if matrix.dtype.kind in "fc":  # Sums of repeated entries are rounded in another order, which comparisons show.
            matrix.sum_duplicates()
    note(f"{S!r} {T!r}")
    A, B = (GpuSparseMatrix(matrix, device=device) for matrix in (S, T))
    ours, theirs = outcome(lambda: PAIRS[name](A, B)), outcome(lambda: PAIRS[name](S, T))
    assert_same(ours, theirs)
    if sp.issparse(theirs):
        assert ours.has_canonical_format
        assert ours.nnz == theirs.nnz
    assert_repeats(ours, outcome(lambda: PAIRS[name](A, B)))


# Operations that also take two matrices of which one has a single row or column, a number or a dense array.
WITH_ANY: dict[str, Callable[[Any, Any], Any]] = {
    name: function for name, function in PAIRS.items() if name not in ("plus", "minus")
}
ALL_DTYPES = [*NUMBERS, "int16", "uint16", "uint32"]


def repeating(dtype: str, shape: tuple[int, int] = (2, 3)) -> sp.csr_array:
    """Return a matrix with repeated entries, whose sums overflow if the dtype has a largest integer."""
    kind = np.dtype(dtype).kind
    top = np.iinfo(dtype).max if kind in "iu" else 1
    values = np.array([top, 1, top, top, 3, top - 2] if kind in "iu" else [1, 1, 2, -2, 3, 0], dtype)
    columns = np.array([0, 0, 1, 1, 2, 2]) % shape[1]
    return sp.csr_array((values, columns, [0, 4, 6] if shape[0] == 2 else [0, 6]), shape=shape)


@pytest.mark.parametrize("dtype", ALL_DTYPES)
def test_repeated_entries_of_every_dtype_are_added_up_as_in_scipy(device: Device, dtype: str) -> None:
    S, plain = repeating(dtype), sp.csr_array(np.array([[1, 2, 0], [1, 0, 3]]))
    operands = [0, 1, -1, 1.5, True, *(np.array([[1, 0, 2], [0, 3, 0]], other) for other in ALL_DTYPES)]
    operands += [repeating(other, shape) for other in ("bool", "uint8", dtype) for shape in ((1, 3), (2, 1), (1, 1))]
    cases: list[tuple[Any, Any, Any]] = [(function, S, other) for function in WITH_ANY.values() for other in operands]
    for other in ALL_DTYPES:
        pairs = [(S, plain.astype(other)), (plain.astype(other), S), (S, repeating(other))]
        cases += [(function, *pair) for function in PAIRS.values() for pair in pairs]
    if np.dtype(dtype).kind != "c":  # SciPy's quotients of complex numbers and 0 are others.
        cases += [(lambda A, B: A / B, S, plain), (lambda A, B: A / B, plain, S)]
    exact = [SINGLE["power"], SINGLE["absolute"], SINGLE["places"], ROUNDED["sum"], ROUNDED["sums of columns"]]
    exact += [function for name, function in CANONICAL.items() if name != "Kronecker product"]
    cases += [
        (lambda A, rng, function=function: function(sp, A, rng), S, np.random.default_rng(0)) for function in exact
    ]
    for function, *parts in cases[:: 1 if device.is_host else 7]:  # An emulated GPU takes long.
        on_device = [GpuSparseMatrix(part, device=device) if sp.issparse(part) else deepcopy(part) for part in parts]
        copies = deepcopy(parts)
        assert_same(outcome(lambda: function(*on_device)), outcome(lambda: function(*copies)))


@examples
@given(recipes, recipes)
def test_two_matrices_are_multiplied_as_in_scipy(device: Device, recipe: Recipe, other: Recipe) -> None:
    S, T = make(recipe), make(replace(other, rows=recipe.cols))
    note(f"{S!r} {T!r}")
    A, B = (GpuSparseMatrix(matrix, device=device) for matrix in (S, T))
    terms = (with_data(S, np.ones(S.nnz)) @ with_data(T, np.ones(T.nnz))).toarray()
    bound = times_terms((magnitudes(S) @ magnitudes(T)).toarray(), terms)
    product = A @ B
    assert_same(product, outcome(lambda: S @ T), bound)
    assert product.has_canonical_format
    assert_repeats(product, A @ B)


# Functions of one matrix: of the namespace (`scipy.sparse` or `gsparse.sparse`), the matrix and random numbers.
Single = Callable[[Any, Any, np.random.Generator], Any]


def _some(rng: np.random.Generator, size: int, count: int | None = None) -> list[int]:
    """Return numbers of rows or columns in any order, some of them negative or repeated."""
    count = int(rng.integers(0, 9)) if count is None else count
    return [int(number) for number in rng.integers(-size, size, count)] if size else []


def _places(rng: np.random.Generator, A: Any) -> tuple[list[int], list[int]]:
    """Return rows and columns of single entries."""
    count = int(rng.integers(1, 9)) if min(A.shape) else 0
    return _some(rng, A.shape[0], count), _some(rng, A.shape[1], count)


def _slice(rng: np.random.Generator) -> slice:
    return slice(*(int(n) for n in rng.integers(-50, 50, 2)), int(rng.choice([-3, -1, 1, 2])))


def _dense(rng: np.random.Generator, A: Any) -> Any:
    """Return a dense matrix, row or column of whole numbers, of another dtype."""
    shape = [int(rng.choice([1, size])) for size in A.shape]
    return rng.integers(-2, 3, shape).astype(rng.choice(["float32", "float64", "int64", "complex128"]))


SCALARS = (
    0,
    1,
    -1,
    2,
    0.5,
    float("nan"),
    float("inf"),
    300,
    -(2**40),
    True,
    np.uint8(3),
    np.int64(-1),
    np.float32(1e-40),
)
COMPARISONS = (operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge)


SINGLE: dict[str, Single] = {
    "transposed": lambda m, A, rng: A.T.tocsr(),
    "by columns": lambda m, A, rng: A.tocsc(),
    "in coordinates": lambda m, A, rng: A.tocoo(),
    "dense": lambda m, A, rng: A.toarray(),
    "diagonal": lambda m, A, rng: A.diagonal(int(rng.integers(-9, 10))),
    "rows": lambda m, A, rng: A[_some(rng, A.shape[0])],
    "columns": lambda m, A, rng: A[:, _some(rng, A.shape[1])],
    "block": lambda m, A, rng: A[np.ix_(_some(rng, A.shape[0]), _some(rng, A.shape[1]))],
    "slices": lambda m, A, rng: A[slice(*rng.integers(-50, 50, 2), 3), slice(*rng.integers(-50, 50, 2), -2)],
    "mask": lambda m, A, rng: A[rng.random(A.shape[0]) < 0.5],
    "number out of range": lambda m, A, rng: A[[A.shape[0]]],
    "power": lambda m, A, rng: A.power(2),
    "absolute": lambda m, A, rng: abs(A),
    "scaled": lambda m, A, rng: A * 3,
    "scaled by a fraction": lambda m, A, rng: A * 0.5,
    "above a number": lambda m, A, rng: A > 1,
    "unequal to 0": lambda m, A, rng: A != 0,
    "times a row": lambda m, A, rng: A.multiply(np.arange(A.shape[1])),
    "times a column": lambda m, A, rng: A.multiply(np.arange(A.shape[0])[:, None]),
    "upper triangle": lambda m, A, rng: m.triu(A, int(rng.integers(-5, 6))),
    "lower triangle": lambda m, A, rng: m.tril(A, int(rng.integers(-5, 6))),
    "found": lambda m, A, rng: tuple(sorted(zip(*m.find(A), strict=True), key=lambda entry: entry[:2])),
    "entry": lambda m, A, rng: A[tuple(_some(rng, size, 1)[0] for size in A.shape)],
    "entries": lambda m, A, rng: A[_places(rng, A)],
    "matrix of entries": lambda m, A, rng: A[tuple(np.array(part)[None] for part in _places(rng, A))],
    "entries of a mask": lambda m, A, rng: A[rng.random(A.shape) < 0.3],
    "entries of a sparse mask": lambda m, A, rng: A[m.csr_array(rng.random(A.shape) < 0.2)],
    "row": lambda m, A, rng: A[_some(rng, A.shape[0], 1)[0]],
    "part of a column": lambda m, A, rng: A[_slice(rng), _some(rng, A.shape[1], 1)[0]],
    "some of a row": lambda m, A, rng: A[_some(rng, A.shape[0], 1)[0], _some(rng, A.shape[1])],
    "new axis": lambda m, A, rng: A[None, :, 0],
    "rows, one by one": lambda m, A, rng: tuple(A)[:5],
    "places": lambda m, A, rng: A.nonzero(),
    "another shape": lambda m, A, rng: A.reshape((A.shape[1], -1), order=str(rng.choice(["C", "F"]))),
    "one dimension": lambda m, A, rng: A.T.reshape(-1),
    "diagonals": lambda m, A, rng: A.todia(),
    "blocks": lambda m, A, rng: A.tobsr((math.gcd(A.shape[0], 6) or 1, math.gcd(A.shape[1], 4) or 1)),
    "entries counted": lambda m, A, rng: tuple(A._getnnz(axis=axis) for axis in (0, 1)),
    "compared with a number": lambda m, A, rng: COMPARISONS[rng.integers(6)](A, SCALARS[rng.integers(len(SCALARS))]),
    "extreme with a number": lambda m, A, rng: A.maximum(SCALARS[rng.integers(8)]),
    "compared with an array": lambda m, A, rng: COMPARISONS[rng.integers(6)](A, _dense(rng, A)),
    "extreme with an array": lambda m, A, rng: A.minimum(_dense(rng, A)),
    "plus an array": lambda m, A, rng: _dense(rng, A) + A,
    "minus an array": lambda m, A, rng: A - _dense(rng, A),
    "from an array": lambda m, A, rng: _dense(rng, A) - A,
    # Products of complex numbers are rounded in another way.
    "times a sparse row": lambda m, A, rng: A.real.multiply(A[:1].real),
    "times a sparse column": lambda m, A, rng: A[:, :1].real.multiply(A.real),
    "a column times a row": lambda m, A, rng: A[:, :1].real.multiply(A[:1].real),
    "beside itself": lambda m, A, rng: m.hstack([A, A]),
    "above itself": lambda m, A, rng: m.vstack([A, A]),
    "on the diagonal": lambda m, A, rng: m.block_diag([A, A]),
}
# Functions whose results depend on the order in which a sum is rounded.
ROUNDED: dict[str, Single] = {
    "sum": lambda m, A, rng: A.sum(),
    "sums of columns": lambda m, A, rng: A.sum(axis=0),
    "sums of rows": lambda m, A, rng: A.sum(axis=1),
    "means of rows": lambda m, A, rng: A.mean(axis=1),
    "trace": lambda m, A, rng: A.trace(),
}
# Functions that need canonical form in SciPy, or bring it about.
CANONICAL: dict[str, Single] = {
    "maximum": lambda m, A, rng: A.max(),
    "maxima of rows": lambda m, A, rng: A.max(axis=1),
    "minima of columns": lambda m, A, rng: A.min(axis=0),
    "explicit minima": lambda m, A, rng: A.min(axis=1, explicit=True),
    "place of the maximum": lambda m, A, rng: A.argmax(),
    "places of minima": lambda m, A, rng: A.argmin(axis=1),
    "nonzeros": lambda m, A, rng: A.count_nonzero(axis=int(rng.integers(0, 2))),
    "Kronecker product": lambda m, A, rng: m.kron(A[:9, :9], A[:5]).astype(A.dtype),
}


def check(device: Device, recipe: Recipe, function: Single, *, summed: bool, rounded: bool) -> None:
    """Compare a function of one matrix with SciPy's."""
    S = make(recipe)
    if summed:
        S.sum_duplicates()
    note(repr(S))
    A = GpuSparseMatrix(S, device=device)

    def call(namespace: Any, matrix: Any) -> Any:
        return outcome(lambda: function(namespace, matrix, np.random.default_rng(recipe.seed)))

    ours, theirs = call(gsparse.sparse, A), call(sp, S.copy())
    assert_same(ours, theirs, times_terms(magnitudes(S).sum(), S.nnz) if rounded else None)
    assert_repeats(ours, call(gsparse.sparse, A))


@examples
@given(recipes, st.sampled_from(list(SINGLE)))
def test_functions_of_one_matrix_return_the_results_of_scipy(device: Device, recipe: Recipe, name: str) -> None:
    # Sums of whole numbers do not depend on their order, so that repeated entries may remain.
    check(device, recipe, SINGLE[name], summed=recipe.values != "whole and zero", rounded=False)


@examples
@given(recipes, st.sampled_from(list(ROUNDED)))
def test_sums_differ_from_those_of_scipy_by_roundings(device: Device, recipe: Recipe, name: str) -> None:
    check(device, recipe, ROUNDED[name], summed=False, rounded=True)


@examples
@given(recipes, st.sampled_from(list(CANONICAL)))
def test_functions_of_canonical_matrices_return_the_results_of_scipy(device: Device, recipe: Recipe, name: str) -> None:
    if name == "Kronecker product" and recipe.values == "with NaN and inf":
        recipe = replace(recipe, values="random")  # SciPy's dense blocks hold products of NaN and zeros, too.
    check(device, recipe, CANONICAL[name], summed=True, rounded=False)


# Functions of one dimension, applied to a row.
VECTORS: dict[str, Callable[[Any, np.random.Generator], Any]] = {
    "sum": lambda v, rng: v.sum(axis=0),
    "extremes": lambda v, rng: (v.max(), v.min(axis=-1)),
    "places": lambda v, rng: (v.argmax(), v.argmin(), v.nonzero()[0].astype(int)),
    "count": lambda v, rng: v.count_nonzero(),
    "element": lambda v, rng: v[_some(rng, v.shape[0], 1)[0]],
    "elements": lambda v, rng: v[_some(rng, v.shape[0])],
    "slice": lambda v, rng: v[_slice(rng)],
    "sum of two": lambda v, rng: v + v[::-1],
    "comparison": lambda v, rng: v > 0,
    "scaled": lambda v, rng: v.multiply(np.arange(v.shape[0])),
    "column": lambda v, rng: v.multiply(np.arange(3)[:, None]),
    "dense": lambda v, rng: v.toarray(),
    # (not v @ v: SciPy returns memory that it has not written if the products add up to 0)
    "product with a matrix": lambda v, rng: v @ sp.eye_array(v.shape[0], 5, format="csr"),
    "column of a product": lambda v, rng: sp.eye_array(5, v.shape[0], format="csr") @ v,
    "product with a vector": lambda v, rng: v @ np.arange(v.shape[0]),
    "product with columns": lambda v, rng: v @ np.ones((v.shape[0], 3)),
    "product from the left": lambda v, rng: np.ones((2, v.shape[0])) @ v,
}


@examples
@given(recipes, st.sampled_from(list(VECTORS)))
def test_functions_of_one_dimension_return_the_results_of_scipy(device: Device, recipe: Recipe, name: str) -> None:
    S = make(replace(recipe, values="whole and zero", rows=max(recipe.rows, 1), cols=max(recipe.cols, 1)))
    S.sum_duplicates()
    A, rng = GpuSparseMatrix(S, device=device), np.random.default_rng
    for row in range(min(3, S.shape[0])):
        ours, theirs = (outcome(lambda M=M: VECTORS[name](M, rng(recipe.seed))) for M in (A[row], S[row].tocsr()))
        assert_same(ours, theirs)


# Writes: functions that change a matrix.
WRITES: dict[str, Callable[[Any, np.random.Generator], Any]] = {
    "zeros": lambda A, rng: A.eliminate_zeros(),
    "duplicates": lambda A, rng: A.sum_duplicates(),
    "order": lambda A, rng: A.sort_indices(),
    "diagonal": lambda A, rng: A.setdiag(2, int(rng.integers(-3, 4))),
    "entry": lambda A, rng: A.__setitem__(tuple(int(rng.integers(0, size)) for size in A.shape), 3),
    "block": lambda A, rng: A.__setitem__((slice(1, 4), slice(0, 2)), 1),
    "slices": lambda A, rng: A.__setitem__((_slice(rng), _slice(rng)), 2),
    "row": lambda A, rng: A.__setitem__(_some(rng, A.shape[0], 1)[0], np.arange(A.shape[1]) % 3),
    "column": lambda A, rng: A.__setitem__((slice(None), _some(rng, A.shape[1], 1)), np.ones((A.shape[0], 1))),
    "entries": lambda A, rng: A.__setitem__(_places(rng, A), 5),
    "repeated entries": lambda A, rng: A.__setitem__(([0, -1, 0], [0, -1, 0]), [1, 2, 3]),
    "grid": lambda A, rng: A.__setitem__(np.ix_(_some(rng, A.shape[0], 3), _some(rng, A.shape[1], 2)), [[4, 5]] * 3),
    "mask": lambda A, rng: A.__setitem__(rng.random(A.shape) < 0.1, 3),
    # SciPy adds repeated entries up in `A > 0`, and all of them if one is in a block.
    "sparse mask": lambda A, rng: (A.sum_duplicates(), A.__setitem__(A > 0, 0))[1],
    "rows of a mask": lambda A, rng: A.__setitem__(rng.random(A.shape[0]) < 0.2, 1),
    "sparse row": lambda A, rng: (
        A.sum_duplicates(),
        A.__setitem__((_some(rng, A.shape[0], 2), slice(None)), A[:1]),
    )[1],
    "sparse block": lambda A, rng: (
        A.sum_duplicates(),
        A.__setitem__((slice(0, 2), slice(0, 3)), sp.csr_array(np.eye(2, 3)[:, ::-1])),
    )[1],
    "other diagonal": lambda A, rng: A.setdiag(rng.integers(0, 3, int(rng.integers(0, 9))), int(rng.integers(-3, 4))),
    "scale": lambda A, rng: A.__imul__(2),
    "quotient": lambda A, rng: A.__itruediv__(2.0),
    "size": lambda A, rng: A.resize(*(int(size) for size in rng.integers(0, 70, 2))),
}


@pytest.mark.filterwarnings("ignore::scipy.sparse.SparseEfficiencyWarning")
@examples
@given(recipes, st.lists(st.sampled_from(list(WRITES)), min_size=1, max_size=4), st.booleans())
def test_writes_have_the_results_of_scipy(device: Device, recipe: Recipe, names: list[str], is_view: bool) -> None:
    S = make(replace(recipe, values="whole and zero", rows=max(recipe.rows, 1), cols=max(recipe.cols, 1)))
    A = GpuSparseMatrix(S.copy(), device=device)
    if is_view:
        A, S = A.T, S.T
    copies = A.copy(), S.copy()
    with gsparse.strict():
        for name in names:
            # SciPy remembers whether rows are sorted; `resize` and others leave that as it was.
            S = type(S)((S.data[: S.nnz], S.indices[: S.nnz], S.indptr), shape=S.shape)
            ours, theirs = (outcome(lambda M=M: WRITES[name](M, np.random.default_rng(recipe.seed))) for M in (A, S))
            assert isinstance(ours, type(theirs)), f"{ours!r} instead of {theirs!r}"
    assert A.shape == S.shape
    assert A.dtype == S.dtype
    assert A.nnz == S.nnz
    np.testing.assert_array_equal(A.toarray(), S.toarray())
    np.testing.assert_array_equal(copies[0].toarray(), copies[1].toarray())
    x = np.arange(S.shape[1])
    np.testing.assert_allclose(A @ x, S @ x, rtol=1e-4)
