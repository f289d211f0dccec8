"""Work on a structure is not repeated: matrices with other values share it, and symmetric ones need no transpose."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

import gsparse
from gsparse import GpuSparseMatrix
from gsparse.device.base import Device
from gsparse.errors import DtypeError, FormatError, ShapeError
from gsparse.kernels.backends import kernels_of
from tests.encodings import assert_decodes, patterned
from tests.support import DTYPES, STRUCTURES, assert_product, from_lengths, random_values, with_types

KERNELS = gsparse.FORMATS[1:]
# Not `lane_positions`: eight bytes an entry are not kept between matrices, but made again.
BUILDERS = {
    "layout": ("survey", "long_rows", "cut_slices", "lane_rows"),
    "encode": ("run_span", "encode_columns"),
    "blocks": ("full_blocks", "block_parts"),
}


def refuse_structure_work(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the kernels of `BUILDERS`, which examine row pointers and columns, and keys without values fail."""

    def refuse(*args: Any) -> None:
        raise AssertionError("the structure was examined again")

    for namespace, names in BUILDERS.items():
        for name in names:
            monkeypatch.setattr(getattr(kernels_of(device), namespace), name, refuse)
    row_keys = kernels_of(device).encode.row_keys
    monkeypatch.setattr(
        kernels_of(device).encode,
        "row_keys",
        lambda device, csr, values: row_keys(device, csr, values) if values else refuse(),
    )


# ---------------------------------------------------------------------------------------------------------- with_data


def large(name: str, rng: np.random.Generator) -> sp.csr_array:
    """Return a matrix large enough that every format is a candidate."""
    if name == "stencil":
        return sp.csr_array(sp.diags_array([1.0, 2.0, 1.0], offsets=[-1, 0, 1], shape=(30_000, 30_000)))
    return from_lengths(np.full(9000, 8) if name == "even" else rng.integers(0, 30, 9000), 3000, rng)


@pytest.mark.parametrize("structure", ["stencil", "even", "ragged"])
def test_with_data_chooses_a_format_without_examining_the_structure_again(
    device: Device, structure: str, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    S = large(structure, rng)
    A, x = GpuSparseMatrix(S, device=device), random_values(rng, S.shape[1], float)
    assert A.plan
    assert_product(A @ x, S, x)
    T = S.copy()
    T.data = random_values(rng, S.nnz, float)
    B = GpuSparseMatrix(T, device=device)
    fresh = B.plan
    refuse_structure_work(device, monkeypatch)
    reused = A.with_data(T.data)
    reused._prepared()[0].plan_for_many_products()
    assert reused.plan == fresh


@pytest.mark.parametrize("format", ["auto", *KERNELS])
@pytest.mark.parametrize("structure", ["ragged, 1001 rows", "one dense row", "few patterns", "nothing"])
def test_other_values_share_the_work_on_the_structure(
    device: Device, structure: str, format: str, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    S = patterned(rng, 1001, 20) if structure == "few patterns" else STRUCTURES[structure](rng)
    S.data = random_values(rng, S.nnz, float)
    A = GpuSparseMatrix(S, device=device, format=format)
    x = random_values(rng, S.shape[1], float)
    assert_product(A @ x, S, x)
    T = S.copy()
    T.data = random_values(rng, S.nnz, float)
    refuse_structure_work(device, monkeypatch)
    B = A.with_data(T.data)
    assert B._prepared()[0].structure is A._prepared()[0].structure
    assert_product(B @ x, T, x)
    assert_product(A @ x, S, x)
    assert_decodes(B.stored, T, device.lanes)
    if format not in ("auto", "row_pattern"):
        if format == "row_lanes":
            assert B.stored.codes is A.stored.codes and B.stored.columns is A.stored.columns
        else:
            assert B.stored.columns.codes is A.stored.columns.codes
            assert B.stored.columns.bases is A.stored.columns.bases
        for name in ("schedule", "slices"):
            assert getattr(B.stored, name, None) is getattr(A.stored, name, None)


@pytest.mark.parametrize("format", KERNELS)
@pytest.mark.few(1)
def test_other_values_are_encoded_again(device: Device, format: str, rng: np.random.Generator) -> None:
    S = patterned(rng, 10_000, 20)
    values = (
        np.full(S.nnz, 3.0),
        random_values(rng, 5, float)[rng.integers(0, 5, S.nnz)],
        random_values(rng, S.nnz, float),
    )
    A, x = GpuSparseMatrix(S, device=device, format=format), random_values(rng, S.shape[1], float)
    for data in (*values, *reversed(values)):
        T = S.copy()
        T.data = data
        A = A.with_data(data)
        assert_decodes(A.stored, T, device.lanes)
        assert_product(A @ x, T, x)
        if format != "row_pattern":
            assert (A.stored.values.codes is None) is (data is values[0])
            assert (A.stored.values.table is None) is (data is values[2])


@pytest.mark.parametrize("dtype", [*DTYPES, np.dtype(np.int64), np.dtype(np.int16), np.dtype(bool)], ids=str)
def test_with_data_accepts_values_of_another_dtype(device: Device, dtype: Any, rng: np.random.Generator) -> None:
    S = STRUCTURES["ragged, 1001 rows"](rng)
    T = with_types(S, dtype, np.int32, rng)
    B = GpuSparseMatrix(S, device=device).with_data(T.data)
    x = random_values(rng, S.shape[1], float)
    assert B.dtype == dtype
    assert_product(B @ x, T, x)


def test_a_matrix_with_other_values_has_its_own_views_and_loans(device: Device, rng: np.random.Generator) -> None:
    S = STRUCTURES["even"](rng)
    A = GpuSparseMatrix(S, device=device)
    T = S.copy()
    T.data = random_values(rng, S.nnz, float)
    B = A.with_data(T.data)
    x = random_values(rng, 64, float)
    assert_product(B.T @ x, T.T.tocsr(), x)
    assert_product(A.T.with_data(S.data) @ x, S.T.tocsr(), x)
    B *= 2
    assert_product(B @ x, 2 * T, x)
    assert_product(A @ x, S, x)


@pytest.mark.parametrize(
    ("data", "error"),
    [(np.ones(3), ShapeError), (np.ones((1, 2)), ShapeError), (np.ones(2, np.longdouble), DtypeError)],
)
def test_values_that_do_not_fit_are_refused(device: Device, data: Any, error: Any) -> None:
    A = GpuSparseMatrix(sp.diags_array([1.0, 2.0]), device=device)
    with pytest.raises(error):
        A.with_data(data)
    np.testing.assert_array_equal(A @ np.ones(2), [1.0, 2.0])


# ----------------------------------------------------------------------------------------------------------- symmetry


def square(rng: np.random.Generator, dtype: Any, kind: str) -> sp.csr_array:
    """Make a symmetric or Hermitian matrix with sorted columns."""
    S = with_types(sp.random_array((203, 203), density=0.03, format="csr", rng=rng), dtype, np.int32, rng)
    S = S + (S.conj() if kind == "hermitian" else S).T
    S.sort_indices()
    return sp.csr_array(S)


def is_its_own_transpose(A: GpuSparseMatrix) -> bool:
    return A._prepared()[0].transposed()[0] is A._prepared()[0]


def check_views(A: GpuSparseMatrix, S: Any, rng: np.random.Generator) -> None:
    x = random_values(rng, S.shape[0], S.dtype)
    assert_product(A @ x, S, x)
    assert_product(A.T @ x, S.T.tocsr(), x)
    assert_product(A.H @ x, S.conj().T.tocsr(), x)
    assert_product(A.conj() @ x, S.conj(), x)
    assert_product(A.rmatvec(x), S.conj().T.tocsr(), x)
    assert_product(A.T.H @ x, S.conj(), x)
    X = np.stack([x, 2 * x], axis=1)
    assert_product(A.rmatmat(X), S.conj().T.tocsr(), X)
    assert_product(A.T @ X, S.T.tocsr(), X)


@pytest.mark.parametrize("index", [np.int32, np.int64])
@pytest.mark.parametrize("dtype", [*DTYPES, np.dtype(np.int64), np.dtype(np.int8)], ids=str)
@pytest.mark.parametrize("kind", ["symmetric", "hermitian"])
def test_a_symmetric_matrix_is_recognized_and_not_copied(
    device: Device, kind: str, dtype: Any, index: Any, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: Any) -> None:
        raise AssertionError("a transposed copy was made")

    S = square(rng, dtype, kind)
    S.indices, S.indptr = S.indices.astype(index), S.indptr.astype(index)
    if device.kind == "gpu":  # on the CPU, the check itself makes a temporary transpose
        monkeypatch.setattr(kernels_of(device).transpose, "csr_transpose", refuse)
    A = GpuSparseMatrix(S, device=device)
    assert is_its_own_transpose(A)
    assert A._prepared()[0].transposed()[1] is (kind == "hermitian" and dtype.kind == "c")
    if dtype.kind in "fc":
        check_views(A, S, rng)


def unsymmetric(change: str, S: sp.csr_array, rng: np.random.Generator) -> sp.csr_array:
    """Change a symmetric matrix so that it is not its own transpose, or is not recognized as such."""
    rows = np.repeat(np.arange(S.shape[0]), np.diff(S.indptr))
    place = int(np.flatnonzero(rows != S.indices)[rng.integers(20)])
    match change:
        case "one ulp":
            S.data.view(S.data.real.dtype)[place * (S.data.itemsize // S.data.real.itemsize)] *= (
                1 + np.finfo(S.dtype).eps
            )
        case "one entry less":
            keep = np.arange(S.nnz) != place
            S = sp.csr_array((S.data[keep], (rows[keep], S.indices[keep])), shape=S.shape)
        case "one entry elsewhere":
            S = S.tolil()
            S[7, np.flatnonzero(S[[7]].toarray()[0] == 0)[0]] = 1
            S = S.tocsr()
        case "NaN":
            S.data[rows == S.indices] = np.nan
        case "unsorted":
            row = int(np.argmax(np.diff(S.indptr)))
            part = slice(S.indptr[row], S.indptr[row + 1])
            S.indices[part], S.data[part] = S.indices[part][::-1].copy(), S.data[part][::-1].copy()
            S.has_sorted_indices = False
        case "repeated":
            repeated = sp.csr_array(S.shape, dtype=S.dtype)
            repeated.indptr, repeated.indices, repeated.data = (
                2 * S.indptr,
                np.repeat(S.indices, 2),
                np.repeat(S.data, 2),
            )
            S = repeated
    return S


@pytest.mark.parametrize("kind", ["symmetric", "hermitian"])
@pytest.mark.parametrize("change", ["one ulp", "one entry less", "one entry elsewhere", "NaN", "unsorted", "repeated"])
def test_a_matrix_that_differs_from_its_transpose_is_copied(
    device: Device, change: str, kind: str, rng: np.random.Generator
) -> None:
    S = square(rng, complex if kind == "hermitian" else float, kind)
    if change == "NaN":
        S = sp.csr_array(S + sp.eye_array(203))
    S = unsymmetric(change, S, rng)
    A = GpuSparseMatrix(S, device=device)
    assert not is_its_own_transpose(A)
    if change == "NaN":
        x = random_values(rng, 203, S.dtype)
        np.testing.assert_array_equal(np.isnan(A.T @ x), np.isnan(S.T @ x))
    else:
        check_views(A, S, rng)


@pytest.mark.parametrize("empty", [sp.csr_array((0, 0)), sp.csr_array((5, 5)), sp.eye_array(1, format="csr")])
def test_empty_matrices_are_their_own_transposes(device: Device, empty: Any) -> None:
    A = GpuSparseMatrix(empty, device=device)
    assert is_its_own_transpose(A)
    np.testing.assert_array_equal(A.T @ np.ones(empty.shape[0]), empty.T @ np.ones(empty.shape[0]))


@pytest.mark.parametrize(("declared", "kind"), [(True, "symmetric"), ("hermitian", "hermitian")])
@pytest.mark.parametrize("dtype", [np.float64, np.complex128])
def test_a_declared_symmetry_is_not_checked(
    device: Device, dtype: Any, declared: Any, kind: str, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: Any) -> None:
        raise AssertionError("symmetry was checked or a transpose made, although it was declared")

    for name in ("is_symmetric", "csr_transpose"):
        monkeypatch.setattr(kernels_of(device).transpose, name, refuse)
    S = square(rng, dtype, kind)
    A = GpuSparseMatrix(S, device=device, symmetric=declared)
    assert is_its_own_transpose(A)
    check_views(A, S, rng)
    # A wrong declaration is not checked, either: the caller is responsible.
    wrong = sp.csr_array(np.array([[1.0, 2.0], [0.0, 3.0]], dtype))
    B = GpuSparseMatrix(wrong, device=device, symmetric=declared)
    np.testing.assert_array_equal(B.T @ np.array([1.0, 1.0], dtype), [3.0, 3.0])


def set_data(A: Any) -> None:
    A.data = A.data + np.arange(float(A.nnz))


def scale_in_place(A: Any) -> None:
    A *= np.complex128(1j) if A.dtype.kind == "c" else 2.0
    A.data[3] += 1


def write_through_a_view_of_a_loan(A: Any) -> None:
    A.data[2:9][1] += 5


# Writes after which a matrix is no longer symmetric; each works on our matrix and on SciPy's.
SYMMETRY_ENDS = {
    "an item": lambda A: A.__setitem__((0, 1), 9.0),
    "a new entry": lambda A: A.__setitem__((0, int(np.flatnonzero(A[[0]].toarray()[0] == 0)[5])), 9.0),
    "through data": write_through_a_view_of_a_loan,
    "data replaced": set_data,
    "through indices": lambda A: A.indices.__setitem__(slice(None), (A.indices + 1) % 203),
    "indices replaced": lambda A: setattr(A, "indices", (A.indices + 1) % 203),
    "through indptr": lambda A: A.indptr.__setitem__(5, A.indptr[4]),
    "setdiag": lambda A: A.setdiag(5.0, k=1),
    "A *= z": scale_in_place,
    "through A.T": lambda A: write_through_a_view_of_a_loan(A.T),
}


@pytest.mark.parametrize("declared", [True, "hermitian"])
@pytest.mark.parametrize("write", SYMMETRY_ENDS)
@pytest.mark.filterwarnings("ignore::gsparse.errors.HostLoanWarning", "ignore::scipy.sparse.SparseEfficiencyWarning")
def test_a_write_ends_the_declared_symmetry(
    device: Device, write: str, declared: Any, rng: np.random.Generator
) -> None:
    S = square(rng, complex if declared == "hermitian" else float, "hermitian")
    A = GpuSparseMatrix(S, device=device, symmetric=declared)
    view, scipy_view, copied = A.T, S.T, A.copy()
    check_views(A, S, rng)
    SYMMETRY_ENDS[write](A)
    SYMMETRY_ENDS[write](S)
    assert (abs(S - S.conj().T)).max() > 0
    check_views(A, S, rng)
    x = random_values(rng, 203, S.dtype)
    for got, expected in ((view, scipy_view), (A.copy(), S), (2 * A, 2 * S), (GpuSparseMatrix(A), S)):
        assert_product(got.T @ x, expected.T.tocsr(), x)
    assert is_its_own_transpose(copied), "the copy was not written to"


STAYS_SYMMETRIC: dict[str, Any] = {
    "copy": lambda A: A.copy(),
    "A.T": lambda A: A.T.T,
    "A.conj()": lambda A: A.conj(),
    "constructed": GpuSparseMatrix,
    "constructed, another dtype": lambda A: GpuSparseMatrix(A, dtype=np.complex64),
    "astype": lambda A: A.astype(np.complex64),
    "2 * A": lambda A: 2 * A,
    "A / 3": lambda A: A / 3,
    "-A": lambda A: -A,
    "abs(A)": abs,
    "A.real": lambda A: A.real,
    "read on the host": lambda A: A if A.toarray().any() and A.sum() and (A + A).nnz else None,
    "read when frozen": lambda A: A if A.freeze().data.any() else None,
    "pickled": lambda A: pickle.loads(pickle.dumps(A)),
}


@pytest.mark.parametrize(("declared", "kind"), [(True, "symmetric"), ("hermitian", "hermitian")])
@pytest.mark.parametrize("name", STAYS_SYMMETRIC)
def test_operations_that_preserve_symmetry_keep_its_declaration(
    real_device: Device, name: str, declared: Any, kind: str, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: Any) -> None:
        raise AssertionError("symmetry was checked, or a transposed copy made, though it was declared")

    for kernel in ("is_symmetric", "csr_transpose"):
        monkeypatch.setattr(kernels_of(real_device).transpose, kernel, refuse)
    A = GpuSparseMatrix(square(rng, complex, kind), device=real_device, symmetric=declared)
    assert is_its_own_transpose(STAYS_SYMMETRIC[name](A))


@pytest.mark.parametrize("format", KERNELS)
@pytest.mark.whole
def test_a_symmetric_matrix_multiplies_from_the_left_in_every_format(
    device: Device, format: str, rng: np.random.Generator
) -> None:
    S = square(rng, complex, "hermitian")
    try:
        A = GpuSparseMatrix(S, device=device, format=format)
        check_views(A, S, rng)
    except FormatError:
        assert format == "row_pattern"


def nearly(S: sp.csr_array, places: Any, eps: float) -> sp.csr_array:
    """Change some entries by `eps` rounding units of the smaller of the largest magnitudes in their two rows."""
    T, rows = S.copy(), np.repeat(np.arange(S.shape[0]), np.diff(S.indptr))
    largest = abs(S).max(axis=1).toarray().ravel()
    T.data[places] += eps * np.finfo(S.dtype).eps * np.minimum(largest[rows], largest[S.indices])[places]
    return sp.csr_array(T)


@pytest.mark.parametrize("index", [np.int32, np.int64])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("kind", ["symmetric", "hermitian"])
def test_the_symmetry_tolerance_is_relative_to_the_largest_entry_of_a_row(
    device: Device, kind: str, dtype: Any, index: Any, rng: np.random.Generator
) -> None:
    def is_near(S: sp.csr_array, tolerance: float) -> bool:
        csr = GpuSparseMatrix(S, device=device)._prepared()[0].csr
        return bool(kernels_of(device).transpose.is_symmetric(device, csr, kind == "hermitian", tolerance))

    scales = sp.diags_array(10.0 ** rng.integers(-6, 7, 203))
    S = sp.csr_array((scales @ square(rng, np.promote_types(dtype, float), kind) @ scales).astype(dtype))
    S.indices, S.indptr = S.indices.astype(index), S.indptr.astype(index)
    eps = float(np.finfo(dtype).eps)
    rows = np.repeat(np.arange(203), np.diff(S.indptr))
    above = np.flatnonzero(rows < S.indices)
    nearly_symmetric = nearly(S, above, 4)
    assert not is_near(nearly_symmetric, 0.0)
    assert is_near(nearly_symmetric, 8 * eps)
    assert not is_near(nearly(S, above[rng.integers(above.size, size=1)], 100), 8 * eps)
    # An entry that is not stored on the other side counts as 0.
    largest = abs(S).max(axis=1).toarray().ravel()
    place = above[np.argmax((abs(S.data) / np.maximum(largest[rows], largest[S.indices]))[above])]
    is_stored = np.arange(S.nnz) != place
    assert not is_near(
        sp.csr_array((S.data[is_stored], (rows[is_stored], S.indices[is_stored])), shape=S.shape), 8 * eps
    )
    is_stored &= (rows != S.indices[place]) | (S.indices != rows[place])
    T = sp.csr_array((S.data[is_stored], (rows[is_stored], S.indices[is_stored])), shape=S.shape)
    size = 4 * eps * abs(T).max(axis=1).toarray().ravel()[[rows[place], S.indices[place]]].min()
    one_sided = T + sp.csr_array(([size], ([rows[place]], [S.indices[place]])), shape=S.shape).astype(dtype)
    assert not is_near(sp.csr_array(one_sided), 0.0)
    assert is_near(sp.csr_array(one_sided), 8 * eps)


@pytest.mark.parametrize("dtype", [np.float32, np.complex64, np.float64])
def test_subnormal_values_that_differ_are_not_symmetric(device: Device, dtype: Any) -> None:
    least = np.finfo(dtype).smallest_subnormal
    for other, want in ((3 * least, True), (least, False), (0, False)):
        S = sp.csr_array((np.array([1, 3 * least, other, 1], dtype), np.array([0, 1, 0, 1]), np.array([0, 2, 4])))
        csr = GpuSparseMatrix(S, device=device)._prepared()[0].csr
        assert kernels_of(device).transpose.is_symmetric(device, csr, False) == want


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_nan_and_inf_are_never_nearly_symmetric(device: Device, value: float, rng: np.random.Generator) -> None:
    S = square(rng, float, "symmetric")
    rows = np.repeat(np.arange(203), np.diff(S.indptr))
    S.data[np.flatnonzero(rows < S.indices)[0]] = value
    csr = GpuSparseMatrix(S, device=device)._prepared()[0].csr
    assert not kernels_of(device).transpose.is_symmetric(device, csr, False, 1e-10)
