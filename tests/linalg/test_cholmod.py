"""CHOLMOD: our calls of scikit-sparse against a strict stand-in, and against CHOLMOD itself where it is installed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.linalg
import scipy.sparse as sp

from gsparse.device.base import Device
from gsparse.errors import FactorizationError
from gsparse.linalg import cholesky, factorized
from gsparse.linalg.direct import host_factors
from gsparse.linalg.direct.host_factors import MIN_COLUMNS
from tests.linalg.problems import convection, laplacian, matrix, right_hand_side
from tests.linalg.test_factorizations import assert_solution, transposed
from tests.support import DTYPES


class NotPositiveDefiniteError(Exception):
    """Stands for `CholmodNotPositiveDefiniteError`."""


class StandInFactor:
    """The part of `sksparse.cholmod.CholeskyFactor` 0.5 that we call; the order of elimination is reversed."""

    def __init__(self, A: Any, *, lower: bool = True, order: Any = "default") -> None:
        assert isinstance(A, sp.csc_array)
        assert lower
        if not A.nnz:
            raise NotPositiveDefiniteError("all zeros")
        self.pattern = A.indptr.tolist(), A.indices.tolist()
        self.dtype, self.size, self._L = A.dtype, A.shape[0], None

    def factorize(self, A: Any, ldl: bool | None = None, beta: float = 0.0) -> StandInFactor:
        assert (A.indptr.tolist(), A.indices.tolist()) == self.pattern, "the pattern of another matrix"
        assert ldl is False
        triangle = np.tril(A.toarray())[::-1, ::-1]  # only the lower triangle is read
        whole = triangle + np.triu(triangle, 1).conj().T
        try:
            self._L = scipy.linalg.cholesky(whole, lower=True)
        except np.linalg.LinAlgError as error:
            raise NotPositiveDefiniteError(str(error)) from error
        return self

    @property
    def nnz(self) -> int:
        return int(np.count_nonzero(self._L))

    def solve(self, b: Any, system: str = "A") -> Any:
        assert isinstance(b, np.ndarray)
        if not np.can_cast(b.dtype, self.dtype):
            raise TypeError("cannot safely cast b")
        return scipy.linalg.cho_solve((self._L, True), b[::-1])[::-1]

    def get_factor(self, kind: Any = None, lower: Any = None) -> Any:
        assert (kind, lower) == ("LL", True)
        return sp.csc_array(self._L)

    def get_perm(self) -> Any:
        return np.arange(self.size)[::-1].astype(np.int32)

    def logdet(self) -> Any:
        return 2 * np.log(np.diag(self._L).real).sum()


class StandIn:
    """The module `sksparse.cholmod`."""

    CholeskyFactor, CholmodNotPositiveDefiniteError = StandInFactor, NotPositiveDefiniteError


@pytest.fixture(params=["stand-in", "installed"])
def library(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "stand-in":
        monkeypatch.setattr(host_factors, "find_cholmod", StandIn)
    elif host_factors.find_cholmod() is None:
        pytest.skip("CHOLMOD is not installed: pip install 'scikit-sparse>=0.5'")
    return "cholmod"


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_cholmod_solves_and_updates(device: Device, library: str, dtype: Any) -> None:
    S = sp.csr_array(laplacian(5, dtype) + sp.eye_array(25), dtype=dtype)
    A = matrix(device, S)
    factors = cholesky(A, library=library)
    assert repr(factors).startswith("<CHOLMOD factors of a positive definite matrix")
    for scale in (1.0, 2.0):
        for columns in (None, 3, MIN_COLUMNS):
            for trans in "NTH":
                b = right_hand_side(S, columns)
                assert_solution(scale * transposed(S, trans), factors.solve(b, trans), b, dtype)
        expected = np.linalg.slogdet(scale * S.toarray())[1]
        assert factors.logdet() == pytest.approx(expected, rel=1e-4)
        factors.update(A.with_data(np.dtype(dtype).type(2) * S.data))
    assert factors.inertia() == (25, 0)
    assert factors.nnz >= 25


def test_cholmod_is_used_for_positive_definite_matrices_alone(real_device: Device, library: str) -> None:
    if real_device.is_host:
        assert factorized(matrix(real_device, laplacian(4))).library == library
    assert factorized(matrix(real_device, convection(4))).library != library
    with pytest.raises(FactorizationError, match=r"CHOLMOD cannot .* it factorizes positive definite matrices"):
        factorized(matrix(real_device, convection(4)), library=library)
    with pytest.raises(FactorizationError, match=r"not positive definite .*factorized\(A\)"):
        cholesky(matrix(real_device, laplacian(4) - 2 * sp.eye_array(16)), library=library)
    with pytest.raises(FactorizationError, match=r"not positive definite"):
        cholesky(matrix(real_device, sp.csr_array((3, 3))), library=library)


def test_without_scikit_sparse_the_command_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_module(name: str) -> Any:
        raise ImportError(name)

    monkeypatch.setattr(host_factors, "import_module", no_module)
    assert host_factors.find_cholmod.__wrapped__() is None
    monkeypatch.setattr(host_factors, "import_module", lambda name: object())  # an older version
    assert host_factors.find_cholmod.__wrapped__() is None
    monkeypatch.setattr(host_factors, "import_module", lambda name: StandIn)
    assert host_factors.find_cholmod.__wrapped__() is StandIn
    monkeypatch.setattr(host_factors, "find_cholmod", lambda: None)
    with pytest.raises(FactorizationError, match=r"pip install 'scikit-sparse>=0\.5'"):
        cholesky(laplacian(4), library="cholmod")
