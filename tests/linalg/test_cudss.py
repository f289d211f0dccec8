"""cuDSS: our calls of its bindings, against a strict stand-in on an emulated GPU, and against cuDSS on a real one."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from gsparse.device.base import Device
from gsparse.errors import DeviceMemoryError, FactorizationError, SingularMatrixError
from gsparse.linalg import cg, cholesky, factorized, splu, spsolve
from gsparse.linalg.direct import cudss, cudss_solver
from tests.conftest import make_device
from tests.linalg.cudss_stand_in import StandIn, Status
from tests.linalg.problems import convection, exchanged, indefinite, laplacian, matrix, right_hand_side, saddle_point
from tests.linalg.test_factorizations import assert_solution, symmetric, transposed
from tests.support import DTYPES, host, on_device


def positive_definite(n: int, dtype: Any = float) -> sp.csr_array:
    """Return the Laplacian of an n×n grid plus 1: the complex one alone has negative eigenvalues."""
    return sp.csr_array(laplacian(n, dtype) + sp.eye_array(n * n), dtype=dtype)


KINDS = {
    "positive definite": positive_definite,
    "hermitian": indefinite,
    "general": convection,
    "symmetric": symmetric,
}


@pytest.fixture(params=[(0, 8, 0), (1, 0, 0)], ids=["cuDSS 0.8", "cuDSS 1.0"])
def api(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[StandIn]:
    """Replace the bindings by the stand-in, and check afterwards that all handles were released."""
    stand_in = StandIn(version=request.param)
    monkeypatch.setattr(cudss_solver, "find_bindings", lambda: (stand_in, ""))
    monkeypatch.setattr(cudss, "find_bindings", lambda: (stand_in, ""))
    monkeypatch.setattr(cudss, "is_nvidia", lambda device: not device.is_host)
    monkeypatch.setattr(cudss_solver, "find_threading_layer", lambda: "/a/layer.so")
    yield stand_in
    gc.collect()
    assert stand_in.live == {}, "handles that were not released"


@pytest.fixture
def gpu() -> Device:
    return make_device("emulated:32")


@pytest.fixture
def nvidia() -> Device:
    """Return a real GPU on which cuDSS runs, or skip."""
    device = make_device("gpu")
    obstacle = cudss.CUDSS.obstacle(device, "general")
    if obstacle:
        pytest.skip(obstacle)
    return device


def assert_solves(device: Device, S: Any, factors: Any) -> None:
    """Check solves with one and many columns, of the host and of the device, with A and its transposes."""
    for trans in "NTH":
        for columns in (None, 1, 7, 2):
            b = right_hand_side(S, columns)
            x = factors.solve(b, trans)
            assert (x.dtype, x.shape) == (b.dtype, b.shape)
            assert_solution(transposed(S, trans), x, b)
            assert_solution(transposed(S, trans), host(factors.solve(on_device(device, b), trans)), b)


# ---------------------------------------------------------------------------------------------------- the stand-in


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("index", [np.int32, np.int64])
def test_every_kind_is_solved_and_updated(api: StandIn, gpu: Device, kind: str, dtype: Any, index: Any) -> None:
    if kind == "symmetric" and np.dtype(dtype).kind != "c":
        pytest.skip("real symmetric matrices are Hermitian")
    S = KINDS[kind](4, dtype)
    S.indices, S.indptr = S.indices.astype(index), S.indptr.astype(index)
    A = matrix(gpu, S)
    factors = factorized(A, assume_a=kind)
    assert (factors.library, factors.kind, factors.reason) == ("cudss", kind, "")
    assert repr(factors).startswith(f"<cuDSS factors of a {kind} matrix of shape (16, 16), dtype {np.dtype(dtype)}, ")
    assert_solves(gpu, S, factors)
    new = sp.csr_array((1.5 * S.data, S.indices, S.indptr), shape=S.shape)
    factors.update(A.with_data(new.data))
    assert_solves(gpu, new, factors)
    assert factors.logdet() == pytest.approx(np.linalg.slogdet(new.toarray())[1], rel=1e-4)
    # With cuDSS 0.8, the transpose of a general matrix has factors of its own.
    solvers = 2 if kind == "general" and api.version < (1,) else 1
    assert api.number("REFACTORIZATION") == solvers
    del factors


def test_the_analysis_is_made_once(api: StandIn, gpu: Device) -> None:
    S = indefinite(4)
    A = matrix(gpu, S)
    factors = factorized(A)
    for scale in (2.0, 3.0):
        factors.update(A.with_data(scale * S.data))
        b = right_hand_side(S, 3)
        assert_solution(scale * S, factors.solve(b), b)
    counts = {phase: api.number(phase) for phase in ("ANALYSIS", "FACTORIZATION", "REFACTORIZATION", "SOLVE")}
    assert counts == {"ANALYSIS": 1, "FACTORIZATION": 1, "REFACTORIZATION": 2, "SOLVE": 2}
    np.testing.assert_array_equal(host(A.device_data), S.data)  # the caller's values are not overwritten


def test_update_does_not_write_to_the_matrix_of_the_caller(api: StandIn, gpu: Device) -> None:
    S = laplacian(4)
    A = matrix(gpu, S)
    factors = factorized(A)
    factors.update(A.with_data(5 * S.data))
    np.testing.assert_array_equal((A @ np.eye(16)), S.toarray())


@pytest.mark.parametrize("square_roots", [True, False])
@pytest.mark.parametrize("dtype", ["float64", "complex128"])
def test_logdet_holds_for_both_conventions_of_cholesky(
    api: StandIn, gpu: Device, square_roots: bool, dtype: str
) -> None:
    api.square_roots = square_roots
    S = laplacian(4, dtype) + sp.eye_array(16)
    assert cholesky(matrix(gpu, S)).logdet() == pytest.approx(np.linalg.slogdet(S.toarray())[1], rel=1e-12)


def test_inertia_is_that_of_cudss(api: StandIn, gpu: Device) -> None:
    for S in (indefinite(4), indefinite(4, complex), laplacian(4)):
        values = np.linalg.eigvalsh(S.toarray())
        assert factorized(matrix(gpu, S)).inertia() == ((values > 0).sum(), (values < 0).sum())
    with pytest.raises(FactorizationError, match="general factors have no inertia"):
        factorized(matrix(gpu, convection(4))).inertia()


def test_a_singular_matrix_is_refused_although_cudss_replaces_its_pivots(api: StandIn, gpu: Device) -> None:
    neumann = laplacian(4) - sp.diags_array(laplacian(4) @ np.ones(16))
    for S in (sp.csr_array(neumann), sp.csr_array(np.ones((5, 5))), sp.csr_array(sp.diags_array([1.0, 0.0, 2.0]))):
        for kind in ("general", "hermitian"):
            with pytest.raises(SingularMatrixError, match=r"singular to working precision.*lsmr"):
                factorized(matrix(gpu, S), assume_a=kind)
    assert api.number("SOLVE") > 0


def test_replaced_pivots_of_a_regular_matrix_are_refined(
    monkeypatch: pytest.MonkeyPatch, api: StandIn, gpu: Device
) -> None:
    monkeypatch.setattr(cudss_solver.CudssSolver, "num_replaced_pivots", lambda self: 1)
    factors = factorized(matrix(gpu, convection(4)))
    configured = [value["values"] for value in api.live.values() if value["kind"] == "config"]
    assert [values["IR_N_STEPS"] for values in configured] == [2]
    del factors


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("kind", ["general", "hermitian"])
def test_zeros_on_the_diagonal_are_moved_by_a_matching(api: StandIn, gpu: Device, kind: str, dtype: Any) -> None:
    check_matching(gpu, kind, dtype)


def check_matching(device: Device, kind: str, dtype: Any) -> None:
    """Factorize matrices with zeros on the diagonal, and others of the same pattern."""
    S = exchanged(7, dtype) if kind == "general" else saddle_point(7, dtype)
    A = matrix(device, S)
    factors = factorized(A, assume_a=kind)
    assert_solves(device, S, factors)
    assert factors.logdet() == pytest.approx(np.linalg.slogdet(S.toarray())[1], rel=100 * float(np.finfo(dtype).eps))
    if kind == "hermitian":
        with pytest.raises(FactorizationError, match="exchange columns"):
            factors.inertia()
    new = sp.csr_array((1.5 * S.data, S.indices, S.indptr), shape=S.shape)
    factors.update(A.with_data(new.data))
    assert_solves(device, new, factors)
    factors.update(A)
    assert_solves(device, S, factors)


def test_new_values_that_need_a_matching_get_one(api: StandIn, gpu: Device) -> None:
    S = sp.csr_array(np.array([[2.0, 1, 0], [1, 3, 1], [0, 1, 2]]))
    A = matrix(gpu, S)
    factors = factorized(A, assume_a="general")
    values = S.data.copy()
    values[[0, 3]] = 0  # two entries of the diagonal
    new = sp.csr_array((values, S.indices, S.indptr), shape=S.shape)
    factors.update(A.with_data(values))
    assert api.number("ANALYSIS") == 3  # of the first values, and of the others without and with a matching
    assert_solves(gpu, new, factors)


def test_a_matrix_that_is_not_positive_definite_is_refused(api: StandIn, gpu: Device) -> None:
    with pytest.raises(FactorizationError, match=r"not positive definite: cuDSS reports the leading minor"):
        cholesky(matrix(gpu, indefinite(4)))
    monkey = api.failing
    monkey["INFO"] = [Status.NOT_SUPPORTED]
    with pytest.raises(FactorizationError, match=r"cuDSS: data_get failed with NOT_SUPPORTED .* library='superlu'"):
        factorized(matrix(gpu, laplacian(4)))


@pytest.mark.parametrize("phase", ["ANALYSIS", "FACTORIZATION", "SOLVE"])
def test_too_little_memory_is_tried_again_and_then_an_error_with_a_remedy(
    api: StandIn, gpu: Device, phase: str
) -> None:
    S = laplacian(4)
    b = right_hand_side(S)
    api.failing[phase] = [Status.ALLOC_FAILED]
    assert_solution(S, factorized(matrix(gpu, S)).solve(b), b)
    api.failing[phase] = [Status.ALLOC_FAILED, Status.ALLOC_FAILED]
    needed = "more memory" if phase == "ANALYSIS" else r"1\.00 GB"
    with pytest.raises(DeviceMemoryError, match=rf"cuDSS needs {needed} of emulated:32 .*16 rows.*library='superlu'"):
        factorized(matrix(gpu, S)).solve(b)


def test_other_errors_name_the_phase_and_release_the_handles(api: StandIn, gpu: Device) -> None:
    for name in ("FACTORIZATION", "ANALYSIS", "create", "data_create", "matrix_create_csr", "matrix_create_dn"):
        api.failing[name] = [Status.EXECUTION_FAILED]
        with pytest.raises(FactorizationError, match=rf"cuDSS: {name} failed with EXECUTION_FAILED"):
            factorized(matrix(gpu, laplacian(4)))


def test_threads_of_the_host_analyse_unless_one_is_wanted(
    monkeypatch: pytest.MonkeyPatch, api: StandIn, gpu: Device
) -> None:
    def configured(**options: Any) -> dict[str, int]:
        factors = factorized(matrix(gpu, laplacian(3)), **options)
        values: dict[str, int] = next(v["values"] for v in api.live.values() if v["kind"] == "config")
        assert values.pop("MATCHING_ALG") == 0  # the default of cuDSS 1.0 is another one
        del factors
        gc.collect()
        return values

    assert configured(num_threads=3) == {"HOST_NTHREADS": 3}
    before = api.number("set_threading_layer")
    assert configured(num_threads=1) == {}
    assert api.number("set_threading_layer") == before
    api.failing["set_threading_layer"] = [Status.INVALID_VALUE]  # the layer cannot be loaded
    assert configured(num_threads=3) == {}
    monkeypatch.setattr(cudss_solver, "find_threading_layer", lambda: None)
    assert configured(num_threads=3) == {}


def test_the_threading_layer_is_looked_for_beside_cudss(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    find = cudss_solver.find_threading_layer.__wrapped__
    layer = tmp_path / "nvidia" / "cu13" / "lib" / "libcudss_mtlayer_gomp.so.0"
    layer.parent.mkdir(parents=True)
    layer.touch()
    monkeypatch.delenv("CUDSS_THREADING_LIB", raising=False)

    class Spec:
        submodule_search_locations = (str(tmp_path / "nvidia"),)

    monkeypatch.setattr(cudss_solver, "find_spec", lambda name: Spec if name == "nvidia" else None)
    assert find() == str(layer)
    monkeypatch.setattr(cudss_solver, "find_spec", lambda name: None)
    assert find() is None
    monkeypatch.setenv("CUDSS_THREADING_LIB", str(layer))
    assert find() == str(layer)
    monkeypatch.setenv("CUDSS_THREADING_LIB", str(tmp_path / "absent"))
    assert find() is None


def test_the_deterministic_mode_solves_column_by_column(api: StandIn, gpu: Device) -> None:
    S = laplacian(4)
    factors, b = factorized(matrix(gpu, S), deterministic=True), right_hand_side(S, 5)
    assert_solution(S, factors.solve(b), b)
    assert api.number("SOLVE") == 5


def test_without_the_bindings_the_extra_is_named(monkeypatch: pytest.MonkeyPatch, gpu: Device) -> None:
    monkeypatch.setattr(cudss, "is_nvidia", lambda device: not device.is_host)
    monkeypatch.setattr(cudss, "find_bindings", lambda: (None, "nvmath-python is not installed"))
    A = matrix(gpu, laplacian(3))
    factors = factorized(A)
    assert factors.library == "superlu"
    assert "cuDSS: nvmath-python is not installed: pip install 'gsparse-gpu[direct]'" in repr(factors)
    with pytest.raises(FactorizationError, match=r"cuDSS cannot factorize this matrix: .*gsparse-gpu\[direct\]"):
        factorized(A, library="cudss")
    with pytest.raises(FactorizationError, match="it needs a matrix on a GPU"):
        factorized(matrix(make_device("cpu"), laplacian(3)), library="cudss")
    monkeypatch.setattr(cudss, "is_nvidia", lambda device: False)
    with pytest.raises(FactorizationError, match="it needs a GPU of NVIDIA"):
        factorized(A, library="cudss")


def test_missing_bindings_and_a_missing_library_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    find = cudss_solver.find_bindings.__wrapped__

    class NoLibrary:
        def get_property(self, number: int) -> int:
            raise RuntimeError("libcudss.so not found\n  in these folders")

    def no_module(name: str) -> Any:
        raise ImportError(f"No module named {name!r}")

    monkeypatch.setattr(cudss_solver, "import_module", no_module)
    assert find() == (None, "nvmath-python is not installed (No module named 'nvmath.bindings.cudss')")
    monkeypatch.setattr(cudss_solver, "import_module", lambda name: NoLibrary())
    assert find() == (None, "nvmath-python does not find the library (libcudss.so not found)")
    stand_in = StandIn()
    monkeypatch.setattr(cudss_solver, "import_module", lambda name: stand_in)
    assert find() == (stand_in, "")


def test_splu_and_spsolve_use_cudss_and_solvers_take_its_factors(api: StandIn, gpu: Device) -> None:
    S = laplacian(4)
    A, b = matrix(gpu, S), right_hand_side(S)
    assert splu(A).library == "cudss"
    assert splu(A, permc_spec="COLAMD").library == "superlu"
    assert_solution(S, spsolve(A, b), b)
    with pytest.raises(AttributeError, match="perm_r"):
        _ = splu(A).perm_r
    x, info = cg(A, b, M=factorized(A), maxiter=2, rtol=1e-12)
    assert info == 0
    assert_solution(S, x, b)
    complex_b = b + 1j * b[::-1]
    assert_solution(S, factorized(A).solve(complex_b), complex_b)


def test_the_stand_in_has_the_names_and_numbers_of_the_real_bindings() -> None:
    if find_spec("nvmath") is None:
        pytest.skip("nvmath-python is not installed: pip install 'gsparse-gpu[direct]'")
    from nvmath.bindings import cudss as real

    for name in (
        "Phase", "ConfigParam", "DataParam", "DataType", "MatrixType", "MatrixViewType", "IndexBase", "Layout",
        "Status", "MatchingAlg",
    ):  # fmt: skip
        for member in getattr(StandIn, name):
            assert getattr(real, name)[member.name] == member
    for name in vars(StandIn):
        if not name.startswith("_") and name != "number":
            assert hasattr(real, name), name
    assert str(real.cuDSSError(2)) == str(StandIn.cuDSSError(2))
    for parameter in StandIn.ConfigParam:
        assert real.get_config_param_dtype(int(parameter)) is np.int32


# ------------------------------------------------------------------------------------------------------ a real GPU


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_cudss_solves_and_updates_every_kind(nvidia: Device, kind: str, dtype: Any) -> None:
    if kind == "symmetric" and np.dtype(dtype).kind != "c":
        pytest.skip("real symmetric matrices are Hermitian")
    S = KINDS[kind](20, dtype)
    A = matrix(nvidia, S)
    factors = factorized(A, assume_a=kind)
    assert factors.library == "cudss"
    assert factors.nnz >= S.nnz
    assert_solves(nvidia, S, factors)
    new = sp.csr_array((1.5 * S.data, S.indices, S.indptr), shape=S.shape)
    factors.update(A.with_data(new.data))
    assert_solves(nvidia, new, factors)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float64", "complex128"])
@pytest.mark.parametrize("kind", KINDS)
def test_cudss_gives_the_determinant_and_the_inertia(nvidia: Device, kind: str, dtype: str) -> None:
    if kind == "symmetric" and dtype != "complex128":
        pytest.skip("real symmetric matrices are Hermitian")
    S = KINDS[kind](9, dtype)
    factors = factorized(matrix(nvidia, S), assume_a=kind)
    assert factors.logdet() == pytest.approx(np.linalg.slogdet(S.toarray())[1], rel=1e-9)
    if kind in ("hermitian", "positive definite"):
        values = np.linalg.eigvalsh(S.toarray())
        assert factors.inertia() == ((values > 0).sum(), (values < 0).sum())


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("kind", ["general", "hermitian"])
def test_cudss_moves_zeros_on_the_diagonal_by_a_matching(nvidia: Device, kind: str, dtype: Any) -> None:
    check_matching(nvidia, kind, dtype)


@pytest.mark.gpu
def test_cudss_refuses_what_it_cannot_factorize(nvidia: Device) -> None:
    with pytest.raises(SingularMatrixError):
        factorized(matrix(nvidia, sp.csr_array(np.ones((5, 5)))), library="cudss")
    with pytest.raises(FactorizationError, match="not positive definite"):
        cholesky(matrix(nvidia, indefinite(9)), library="cudss")


@pytest.mark.gpu
def test_cudss_is_deterministic_if_asked(nvidia: Device) -> None:
    S = laplacian(40)
    b = right_hand_side(S, 3)
    first, second = (factorized(matrix(nvidia, S), deterministic=True).solve(b) for _ in range(2))
    np.testing.assert_array_equal(first, second)
    assert_solution(S, first, b)
