"""SciPy's tests of csr_array and csr_matrix, run against our classes: what a user may rely on, mutation included."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
from scipy.sparse import SparseEfficiencyWarning
from scipy.sparse.tests import test_base as scipys

import gsparse.sparse
from gsparse import GpuSparseMatrix
from gsparse.device.select import get_device

# SciPy's tests that GpuSparseMatrix differs from on purpose. Strict: one that begins to pass must leave the list.
DIFFERENCES = {
    "test_repr": "our repr ends with the device the matrix lives on",
    "test_pickle": "compares __dict__ entries with ==; ours hold device arrays (tests/test_matrix.py tests pickling)",
    "test_has_canonical_format": "SciPy's answer is wrong after M.indices has been replaced, as the test says",
    "test_constructor1_base": "wants copy=False to share memory with its source; a device has memory of its own",
}


class _OnDevice:
    csr_container: Any = GpuSparseMatrix

    @classmethod
    def spcreator(cls, *args: Any, **options: Any) -> Any:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", scipys.WMSG, SparseEfficiencyWarning)
            return cls.csr_container(*args, **options)


def _differing(name: str, reason: str) -> Any:
    scipys_test = getattr(scipys.TestCSR, name)  # fails if SciPy has renamed the test

    @pytest.mark.xfail(strict=True, reason=reason)
    def test(self: Any) -> None:
        scipys_test(self)

    return test


for _name, _reason in DIFFERENCES.items():
    setattr(_OnDevice, _name, _differing(_name, _reason))


_OnDevice.test_str = pytest.mark.skip(reason="our first line names the class and the device")(scipys.TestCSR.test_str)

# Compared to the last bit with NumPy's functions, which CUDA's differ from by a rounding.
ROUNDED_OTHERWISE_ON_A_GPU = ("test_ufuncs", "test_unary_ufunc_overrides")

if get_device().kind == "gpu":
    for _name in ROUNDED_OTHERWISE_ON_A_GPU:
        setattr(_OnDevice, _name, pytest.mark.skip(reason="CUDA rounds otherwise")(getattr(scipys.TestCSR, _name)))


class TestCSR(_OnDevice, scipys.TestCSR):
    pass


@pytest.mark.whole
class TestCSRNonCanonical(scipys._NonCanonicalCSMixin, TestCSR):
    pass


class _MatrixOnDevice(_OnDevice):
    csr_container = gsparse.sparse.csr_matrix


@pytest.mark.whole
class TestCSRMatrix(_MatrixOnDevice, scipys.TestCSRMatrix):
    pass


@pytest.mark.whole
class TestCSRNonCanonicalMatrix(scipys._NonCanonicalCSMixin, TestCSRMatrix):
    pass


for _name in ("test_sum_dtype_pair_of_dtypes", "test_sum_dtype_fractional_to_int"):
    if hasattr(scipys.TestCSR, _name):  # from SciPy 1.18 on
        _reason = (
            "SciPy's sum(axis=1, dtype=…) casts repeated entries one by one unless an earlier sum, which ours computes "
            "on a copy, added them up in place"
        )
        for _suite in (TestCSRNonCanonical, TestCSRNonCanonicalMatrix):
            setattr(_suite, _name, _differing(_name, _reason))


TestCSR.init_class()
TestCSRMatrix.init_class()
