"""Transposes that are made again for other values."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gsparse.device.base import Device
from gsparse.formats import Csr
from gsparse.kernels.backends import kernels_of
from gsparse.sparse.reshaping import CsrTranspose
from tests.support import DTYPES, INDEX_DTYPES, STRUCTURES, host, with_types
from tests.test_sparse_algebra import on


@pytest.mark.parametrize("name", STRUCTURES)
@pytest.mark.few(4)
def test_a_transpose_is_made_again_for_other_values(device: Device, name: str, rng: np.random.Generator) -> None:
    S = STRUCTURES[name](rng)
    transpose = CsrTranspose(device)
    with device.active():
        for _ in range(4):
            S.data = rng.standard_normal(S.nnz)
            check(device, transpose, on(device, S))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("index", INDEX_DTYPES, ids=str)
@pytest.mark.few(2)
def test_a_transpose_that_is_made_again_has_the_dtypes_of_the_matrix(
    device: Device, dtype: Any, index: Any, rng: np.random.Generator
) -> None:
    S = with_types(STRUCTURES[next(iter(STRUCTURES))](rng), dtype, index, rng)
    transpose = CsrTranspose(device)
    with device.active():
        for _ in range(3):
            check(device, transpose, on(device, S))


def check(device: Device, transpose: CsrTranspose, csr: Csr) -> None:
    made, want = transpose(csr), kernels_of(device).transpose.csr_transpose(device, csr)
    assert made.shape == want.shape
    for part in ("indptr", "indices", "data"):
        np.testing.assert_array_equal(host(getattr(made, part)), host(getattr(want, part)))
        assert getattr(made, part).dtype == getattr(want, part).dtype
