"""The functions of `gsparse.sparse` return the same matrices as those of `scipy.sparse`, but on the device.

Conversions and mixed expressions also stay on the device.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

import gsparse
import gsparse.sparse as gsp
from gsparse import GpuSparseMatrix
from gsparse.errors import DeviceError
from tests.support import STRUCTURES

DTYPES = (np.float64, np.float32, np.complex64, np.int8, np.uint64, np.bool_)


def untidy(shape: tuple[int, int], rng: np.random.Generator, dtype: Any = float) -> sp.csr_array:
    """Return a matrix with unsorted rows, repeated entries, zeros and empty rows."""
    count = shape[0] * 2
    rows = np.sort(rng.integers(0, max(1, shape[0] - 1), count))
    indptr = np.searchsorted(rows, np.arange(shape[0] + 1))
    data = rng.integers(0, 3, count).astype(dtype)
    return sp.csr_array((data, rng.integers(0, shape[1], count), indptr), shape=shape)


def assert_same(got: Any, want: Any) -> None:
    """Compare structure, values and dtype to the last bit; the result lives on a device."""
    assert isinstance(got, GpuSparseMatrix)
    want = sp.csr_array(want)
    want.sum_duplicates()
    assert (got.shape, got.dtype) == (want.shape, want.dtype)
    for part in ("indptr", "indices", "data"):
        np.testing.assert_array_equal(getattr(got, part), getattr(want, part))


# Each function makes the same matrix with the functions of `scipy.sparse` and with those of `gsparse.sparse`.
ASSEMBLIES = {
    "eye": lambda m, A, B: m.eye_array(5),
    "a high diagonal": lambda m, A, B: m.eye_array(4, 7, k=2, dtype=np.float32),
    "a low diagonal": lambda m, A, B: m.eye_array(7, 4, k=-2, dtype=bool),
    "a diagonal of length 0": lambda m, A, B: m.eye_array(3, 4, k=4),
    "an empty eye": lambda m, A, B: m.eye_array(0, 4),
    "diagonals": lambda m, A, B: m.diags_array([[1.0, 2, 0], [4.0, 5, 6, 7]], offsets=[1, 0]),
    "broadcast diagonals": lambda m, A, B: m.diags_array([-1.0, 2.0, 0.5], offsets=[2, 0, -3], shape=(6, 9)),
    "one diagonal": lambda m, A, B: m.diags_array(np.arange(4.0), offsets=-2),
    "kron": lambda m, A, B: m.kron(A, B),
    "kron of a dense matrix": lambda m, A, B: m.kron(A, np.array([[0, 2], [1, 0]], A.dtype), format="csr"),
    "kronsum": lambda m, A, B: m.kronsum(A[:, :5], B[:, :7]),
    "blocks": lambda m, A, B: m.block_array([[A, None, B[:5]], [None, A.T, None]]),
    "blocks of two dtypes": lambda m, A, B: m.block_array([[A, B[:5].astype(complex)]]),
    "a row of None": lambda m, A, B: m.block_array([[A, None, None], [None, None, B]]),
    "vstack": lambda m, A, B: m.vstack([A, B[:, :6], A]),
    "hstack": lambda m, A, B: m.hstack([A, B[:5]], dtype=np.complex128),
    "block_diag": lambda m, A, B: m.block_diag([A, np.ones((2, 1)), B]),
    "tril": lambda m, A, B: m.tril(A, k=-1),
    "triu": lambda m, A, B: m.triu(A.T, k=1),
    "coordinates": lambda m, A, B: m.coo_array((A.data, (A.indices, A.indices[::-1])), shape=(8, 6)),
    "random": lambda m, A, B: m.random_array((9, 8), density=0.3, rng=np.random.default_rng(5)),
}


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: np.dtype(dtype).name)
@pytest.mark.parametrize("name", ASSEMBLIES)
@pytest.mark.few(20)
def test_assembled_matrices_equal_scipys(device, name, dtype, rng):
    A, B = untidy((5, 6), rng, dtype), untidy((7, 8), rng, dtype)
    want = ASSEMBLIES[name](sp, A, B)

    class OnDevice:
        def __getattr__(self, function: str) -> Any:
            return lambda *args, **options: getattr(gsp, function)(*args, device=device, **options)

    if sp.issparse(want) and name == "kron of a dense matrix":
        want.eliminate_zeros()
        got = ASSEMBLIES[name](OnDevice(), A, B).copy()
        got.eliminate_zeros()
    else:
        got = ASSEMBLIES[name](OnDevice(), A, B)
    assert_same(got, want)
    assert got.device is device


@pytest.mark.parametrize("dtype", [np.bool_, np.int8])
def test_repeated_entries_are_added_up_in_the_dtype_of_the_result(device: Any, dtype: Any) -> None:
    repeated = sp.csr_array((np.array([1, 1, 100, 100]).astype(dtype), [1, 1, 0, 0], [0, 2, 4]), shape=(2, 2))
    for name, options in (("hstack", {"dtype": complex}), ("vstack", {"dtype": np.float32}), ("block_diag", {})):
        blocks = [repeated, np.ones((2, 2))]
        assert_same(getattr(gsp, name)(blocks, device=device, **options), getattr(sp, name)(blocks, **options))


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: np.dtype(dtype).name)
def test_kronecker_products_without_entries_have_the_dtype_of_a_product(device: Any, dtype: Any) -> None:
    empty, full = sp.csr_array((2, 2), dtype=dtype), sp.csr_array(np.ones((2, 2), dtype))
    for A, B in ((empty, full), (full, empty), (empty, empty)):  # SciPy's product is then of float64.
        for name in ("kron", "kronsum"):
            made = getattr(gsp, name)(A, B, device=device)
            assert made.dtype == dtype
            np.testing.assert_array_equal(made.toarray(), getattr(sp, name)(A, B).toarray())


@pytest.mark.parametrize("name", ["vstack", "hstack", "block_diag", "kron"])
def test_wide_indices_remain_wide(device: Any, name: str) -> None:
    narrow = sp.csr_array(np.eye(2))
    wide = sp.csr_array((narrow.data, narrow.indices.astype(np.int64), narrow.indptr.astype(np.int64)))
    for parts in ((wide, wide), (narrow, wide), (narrow, narrow)):
        matrices = [GpuSparseMatrix(part, device=device) for part in parts]
        made = getattr(gsp, name)(*matrices) if name == "kron" else getattr(gsp, name)(matrices)
        want = getattr(sp, name)(*parts, format="csr") if name == "kron" else getattr(sp, name)(parts, format="csr")
        assert made.indices.dtype == made.indptr.dtype == want.indices.dtype


def test_parts_on_a_device_are_put_together_there(device, rng):
    A = untidy((5, 5), rng)
    K = GpuSparseMatrix(A, device=device)
    with gsparse.strict():
        made = [
            gsp.kron(K, K),
            gsp.block_array([[K, None], [K.T, K]]),
            gsp.tril(K),
            gsp.vstack([K, K]),
            gsp.kronsum(K, K),
        ]
    assert all(M.device is device for M in made)
    assert_same(made[1], sp.block_array([[A, None], [A.T, A]]))


@pytest.mark.parametrize("format", ["csr", "csc", "coo", "dia"])
def test_formats_are_those_of_scipy(format):
    made = gsp.eye_array(4, format=format, device="cpu")
    assert made.format == format
    np.testing.assert_array_equal(made.toarray(), np.eye(4))


@pytest.mark.parametrize(
    "make",
    [
        lambda m: m.block_array([[np.ones((2, 2)), np.ones((3, 2))]]),
        lambda m: m.block_array([[np.ones((2, 2))], [np.ones((2, 3))]]),
        lambda m: m.block_array([]),
        lambda m: m.eye_array(3, 4, k=9),
        lambda m: m.kronsum(np.ones((2, 3)), np.ones((2, 2))),
        lambda m: m.diags_array([[1.0, 2.0], [1.0, 2.0]], offsets=[0, 0]),
        lambda m: m.eye_array(-1),
        lambda m: m.block_diag([]),
        lambda m: m.vstack([]),
        lambda m: m.hstack([]),
        lambda m: m.vstack([m.csr_array((1, 0)), m.csr_array((8, 4))], format="csr"),
        lambda m: m.hstack([m.csr_array((0, 1)), m.csr_array((4, 8))], format="csr"),
    ],
)
@pytest.mark.filterwarnings("ignore:.*switching to the sparse array interface:DeprecationWarning")
def test_arguments_that_scipy_refuses_are_refused(make):
    with pytest.raises((ValueError, IndexError)) as refusal:
        make(sp)
    with pytest.raises(refusal.type):
        make(gsp)


@pytest.mark.parametrize("wrong", [(3, 0), ([1.0], ([0], [0])), None], ids=str)
@pytest.mark.parametrize(
    "make",
    [
        gsp.tril,
        gsp.triu,
        lambda wrong: gsp.kron(wrong, np.eye(2)),
        lambda wrong: gsp.kron(np.eye(2), wrong),
        lambda wrong: gsp.kronsum(np.eye(2), wrong),
        lambda wrong: gsp.block_diag([np.eye(2), wrong]),
        lambda wrong: gsp.hstack([wrong or (3, 0), np.eye(2)]),
        lambda wrong: gsp.vstack([np.eye(2), wrong or (3, 0)]),
        lambda wrong: gsp.block_array([[np.eye(2)], [wrong or (3, 0)]]),
    ],
)  # fmt: skip
def test_a_shape_or_arrays_in_place_of_a_matrix_are_refused_with_what_to_do(make, wrong):
    with pytest.raises(TypeError, match=r"a matrix is required, got .*gsparse.sparse.csr_array"):
        make(wrong)


@pytest.mark.parametrize("name", ["vstack", "hstack", "block_diag"])
def test_blocks_of_extended_precision_are_put_together(name, rng):
    blocks = untidy((4, 4), rng), sp.csr_array(np.eye(4, dtype=np.longdouble) / 3)
    made, want = getattr(gsp, name)(blocks, device="cpu"), getattr(sp, name)(blocks)
    assert isinstance(made, GpuSparseMatrix)
    assert made.dtype == np.longdouble
    np.testing.assert_array_equal(made.toarray(), want.toarray())


def test_find_and_issparse_accept_our_matrices():
    A = sp.csr_array([[0.0, 2], [3, 0]])
    K = gsp.csr_array(A, device="cpu")
    assert gsp.issparse(K)
    for got, want in zip(gsp.find(K), sp.find(A), strict=True):
        np.testing.assert_array_equal(got, want)
    assert set(gsp.__dict__["PUBLIC_NAMES"]) <= set(dir(gsp))
    with pytest.raises(AttributeError, match="no attribute 'speye'"):
        gsp.speye


@pytest.mark.parametrize("structure", STRUCTURES)
def test_conversions_stay_on_the_device(device, structure, rng):
    S = sp.csr_array(STRUCTURES[structure](rng))
    A = GpuSparseMatrix(S, device=device)
    with gsparse.strict():
        rows, columns = A.T.tocsr(), A.tocsc()
        again = columns.tocsr()
    assert isinstance(rows, GpuSparseMatrix)
    assert columns.format == "csc"
    assert columns.device is device
    for got, want in ((rows, S.T.tocsr()), (columns, S.tocsc()), (again, S.tocsc().tocsr())):
        for part in ("shape", "indptr", "indices", "data"):
            np.testing.assert_array_equal(getattr(got, part), getattr(want, part))


def test_a_conversion_of_a_declared_symmetric_matrix_is_sorted(device):
    S = sp.csr_array((np.array([1.0, 2.0, 1.0]), np.array([1, 0, 0]), np.array([0, 2, 3])), shape=(2, 2))
    A = GpuSparseMatrix(S, device=device, symmetric=True)
    for got, want in ((A.tocsc(), S.tocsc()), (A.T.tocsr(), S.T.tocsr())):
        np.testing.assert_array_equal(got.indices, want.indices)
        np.testing.assert_array_equal(got.data, want.data)


def test_a_matrix_on_the_host_cannot_be_converted_to_cupy():
    with pytest.raises(DeviceError, match="device='gpu'"):
        GpuSparseMatrix(sp.eye_array(3), device="cpu").to_cupy()


def test_a_conversion_is_independent_and_conjugates(device):
    S = sp.csr_array(np.array([[1j, 2], [0, 3]]))
    A = GpuSparseMatrix(S, device=device)
    C = A.H.tocsr()
    np.testing.assert_array_equal(C.toarray(), S.toarray().conj().T)
    C.data[:] = 0
    np.testing.assert_array_equal(A.toarray(), S.toarray())


# The table "Which results stay on the device" of the user guide: the class of each result.
STAYS = {
    "K.T.tocsr()": "csr",
    "(K.T @ K).tocsr()": "csr",
    "csr @ K": "csr",
    "csr - K": "csr",
    "csr + K": "csr",
    "K - csc": "csr",
    "K @ csc": "csr",
    "K @ dia": "csr",
    "P.T.tocsr() @ K @ P": "csr",
    "gsp.csr_array(dia, device='cpu') @ K": "csr",
    "gsp.csr_array(csc, device='cpu') - K": "csr",
    "D @ K": "csr",
    "E - K": "csr",
    "K.multiply(d)": "csr",
    "P.T @ K @ P": "csc",
    "dia @ K": None,
    "dia - K": None,
    "csc @ K": None,
    "csc - K": None,
    "coo @ K": None,
    "csc @ K @ P": None,
    "sp.kron(K, K)": None,
    "sp.block_array([[K, K]])": None,
    "sp.vstack([K, K])": None,
    "sp.tril(K)": None,
}


@pytest.mark.parametrize("expression", STAYS)
def test_results_stay_on_the_device_as_the_guide_says(expression, rng):
    S = untidy((5, 5), rng)
    S.sum_duplicates()
    K, diagonal, eye = GpuSparseMatrix(S, device="cpu"), sp.diags_array(np.arange(5.0)), sp.eye_array(5)
    names = {"csr": S, "csc": S.tocsc(), "coo": S.tocoo(), "dia": S.todia(), "d": np.arange(5.0), "sp": sp, "gsp": gsp}
    ours = {"K": K, "P": K, "D": gsp.diags_array(np.arange(5.0), device="cpu"), "E": gsp.eye_array(5, device="cpu")}
    got = eval(expression, {**names, **ours})
    want = eval(expression, {**names, "K": S, "P": S, "D": diagonal, "E": eye})
    np.testing.assert_array_equal(got.toarray(), want.toarray())
    assert (got.format if hasattr(got, "device") else None) == STAYS[expression]
