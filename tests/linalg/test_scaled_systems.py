"""Solvers take the same iterations whatever the units of A and b are, also where squares of float32 values overflow."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from gsparse import linalg
from gsparse.device.base import Device
from tests.linalg.problems import laplacian, matrix, right_hand_side

S = sp.csr_array(laplacian(6) + sp.eye_array(36))
B = right_hand_side(S)
# Powers of two, so that scaling rounds nothing. Vectors hold products of A by A, so the square of norm(A) must be in
# the range of the dtype, without subnormal numbers. That of norm(b) need not be: 2**160 is beyond the range of float32.
EXPONENTS = {("float32", "A"): 40, ("float32", "b"): 80, ("float64", "A"): 200, ("float64", "b"): 200}


def solved(device: Device, method: str, A: Any, b: Any) -> tuple[int, int, Any]:
    """Return info, or what LSQR and LSMR return in its place, the number of iterations, and x."""
    solver, A = getattr(linalg, method), matrix(device, A)
    if method in ("lsqr", "lsmr"):
        x, istop, iterations = solver(A, b, atol=1e-5, btol=1e-5)[:3]
        return istop, iterations, x
    result = solver(A, b, rtol=1e-5, full_output=True)
    return result.info, result.iterations, result.x


@pytest.mark.parametrize("scaled", ["A", "b"])
@pytest.mark.parametrize("sign", [1, -1], ids=["large", "small"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("method", ["cg", "minres", "gmres", "bicgstab", "chebyshev", "lsqr", "lsmr"])
def test_iterations_do_not_depend_on_units(
    real_device: Device, method: str, dtype: str, sign: int, scaled: str
) -> None:
    A, b, factor = S.astype(dtype), B.astype(dtype), np.dtype(dtype).type(2.0 ** (sign * EXPONENTS[dtype, scaled]))
    info, iterations, x = solved(real_device, method, A, b)
    A, b, expected = (A * factor, b, x / factor) if scaled == "A" else (A, b * factor, x * factor)
    scaled_info, scaled_iterations, scaled_x = solved(real_device, method, A, b)
    assert (scaled_info, scaled_iterations) == (info, iterations)
    np.testing.assert_allclose(scaled_x / expected, 1, rtol=1e-3)
