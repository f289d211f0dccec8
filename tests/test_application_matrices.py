"""Products with A, A.T and A.H are right for matrices from applications, in every format that fits, on every device."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

import gsparse
from gsparse import GpuSparseMatrix
from gsparse.device.base import Device
from gsparse.errors import FormatError
from tests.support import assert_product, host, matrix_folder, on_device, random_values

pytestmark = pytest.mark.whole

# Padding beyond which a test does not build ELLPACK's arrays, to save memory.
MAX_PADDING = 50.0


def names() -> list[str]:
    try:
        folder = matrix_folder()
    except pytest.skip.Exception:
        return []
    return sorted(path.stem for path in folder.glob("*.npz"))


def test_the_matrices_from_applications_are_here() -> None:
    matrix_folder()
    assert len(names()) == 71


@pytest.mark.parametrize("name", names())
def test_a_matrix_from_an_application_multiplies_right_in_every_format(
    real_device: Device, name: str, rng: np.random.Generator
) -> None:
    S = sp.csr_array(sp.load_npz(matrix_folder() / f"{name}.npz"))
    if S.dtype.kind in "biu":
        S = S.astype(float)
    x, z = random_values(rng, S.shape[1], S.dtype), random_values(rng, S.shape[0], S.dtype)
    adjoint = S.conj().T.tocsr()
    for format in gsparse.FORMATS:
        try:
            A = GpuSparseMatrix(S, device=real_device, format=format)
        except FormatError as error:
            assert str(error).startswith("row_pattern")
            continue
        if served(A):
            assert_product(A @ x, S, x)
            device_x: Any = on_device(real_device, x)
            assert_product(host(A @ device_x), S, x)
        if served(A.T):
            assert_product(A.T @ z, S.T.tocsr(), z)
            assert_product(A.H @ z, adjoint, z)


def served(A: Any) -> bool:
    """Return whether a format pads a matrix so little that a test can afford it."""
    return bool(A.plan.chosen.padding_ratio <= MAX_PADDING)
