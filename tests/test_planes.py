"""Products of row patterns on grids, where a thread has rows of several planes, and boundaries lack some entries."""

from __future__ import annotations

from functools import reduce
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from gsparse import GpuSparseMatrix, spmv
from gsparse.device.base import Device
from gsparse.kernels.gpu.product_arguments import find_triples
from tests.encodings import assert_scaled_product
from tests.support import host, random_values

# The distances of triples, for offsets of a stencil: the best one, and the number of triples.
STENCILS = {
    "7 points": ([-400, -20, -1, 0, 1, 20, 400], 400, 1),
    "27 points": ([i + j + k for i in (-400, 0, 400) for j in (-20, 0, 20) for k in (-1, 0, 1)], 400, 9),
    "five in a line": ([-40, -20, -1, 0, 1, 20, 40], 40, 1),
    "two lines": ([-30, -20, -10, 0, 10, 20], 20, 2),
    "none": ([-7, 0, 13, 100], 0, 0),
    "too near": ([-1, 0, 1], 0, 0),
    "too far": ([-10_000, 0, 10_000], 0, 0),
    "repeated": ([-20, 0, 0, 20], 20, 1),
    "empty": ([], 0, 0),
}


@pytest.mark.parametrize("name", STENCILS)
def test_triples_are_found_at_the_distance_of_planes(name: str) -> None:
    offsets, distance, num_triples = STENCILS[name]
    found, order, count = find_triples(np.array(offsets, np.int64), 4, 1000)
    assert (found, count) == (distance, num_triples)
    assert sorted(order) == list(range(len(offsets)))
    triples = np.array(offsets, np.int64)[order[: 3 * count]].reshape(-1, 3)
    assert (np.diff(triples, axis=1) == distance).all()
    assert (np.diff(order[3 * count :]) > 0).all()


# Points in each direction, and whether diagonal neighbours count. The numbers of points are no multiples of a warp.
GRIDS = {
    "5 points": ((131, 70), False),
    "9 points": ((131, 70), True),
    "7 points": ((41, 9, 13), False),
    "27 points": ((29, 9, 13), True),
    "3 points": ((1501,), False),
    "81 points": ((6, 5, 7, 9), True),  # more than a mask has bits
}


def line(n: int, boundary: str) -> sp.csr_array:
    """Return the differences on a line. With a periodic boundary, the rows of its ends have offsets of their own."""
    S = sp.lil_array(sp.diags_array([-1.0, 2.5, -1.25], offsets=[-1, 0, 1], shape=(n, n)))
    if boundary == "periodic":
        S[0, n - 1], S[n - 1, 0] = -1.0, -1.25
    return sp.csr_array(S)


def grid(points: tuple[int, ...], diagonals: bool, boundary: str = "Dirichlet") -> sp.csr_array:
    """Return a matrix of differences between neighbours, which is not symmetric."""
    lines = [line(n, boundary) for n in points]
    if diagonals:
        S = sp.csr_array(reduce(sp.kron, lines))
    else:
        eyes = [sp.eye_array(n) for n in points]
        S = sp.csr_array(
            sum(reduce(sp.kron, [*eyes[:i], one, *eyes[i + 1 :]]) for i, one in enumerate(lines))  # type: ignore[misc]
        )
    if boundary == "Neumann":  # Rows on the boundary have values of their own.
        S = sp.csr_array(S - sp.diags_array(S @ np.ones(S.shape[0])))
    S.sort_indices()
    return S


@pytest.fixture(params=[1, 3], ids=["one row", "three rows"])
def rows_per_thread(request: Any, monkeypatch: pytest.MonkeyPatch) -> int:
    """Choose the number of rows of a thread, and blocks so small that all of these grids have enough planes."""
    monkeypatch.setattr("gsparse.kernels.gpu.spmv._MANY_ROWS", 0 if request.param == 3 else 10**9)
    monkeypatch.setattr("gsparse.kernels.gpu.spmv._PATTERN_THREADS", 64)
    monkeypatch.setattr("gsparse.kernels.gpu.spmv._FEWEST_GROUPS", 2)
    return int(request.param)


@pytest.mark.parametrize("dtype", ["float32", "complex128"])
@pytest.mark.parametrize("boundary", ["Dirichlet", "Neumann", "periodic"])
@pytest.mark.parametrize("name", GRIDS)
@pytest.mark.few(4)
def test_stencils_multiply_right(
    device: Device, name: str, boundary: str, dtype: str, rows_per_thread: int, rng: np.random.Generator
) -> None:
    S = grid(*GRIDS[name], boundary).astype(dtype)
    S.data *= S.data.dtype.type(1 + 1j) if S.dtype.kind == "c" else 1
    x, y = random_values(rng, S.shape[1], dtype), random_values(rng, S.shape[0], dtype)
    with device.active():
        A = GpuSparseMatrix(S, device=device, format="row_pattern")
        out = device.upload(y.copy())
        spmv(A, device.upload(x), alpha=2, beta=0.5, out=out)
        stored: Any = A._prepared()[0].product(A.dtype, A.dtype).stored
        if (name, boundary) != ("81 points", "periodic"):  # There, most rows are near a boundary.
            assert stored.common is not None  # The values belong to the patterns.
        assert_scaled_product(host(out), S, x, 2, 0.5, y)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_values_that_are_not_finite_reach_only_the_rows_that_read_them(
    device: Device, value: float, rows_per_thread: int
) -> None:
    S = grid((40, 70), True)
    with device.active():
        A = GpuSparseMatrix(S, device=device, format="row_pattern")
        for place in (0, 69, 70, 1400, 2799):
            x = np.ones(S.shape[1])
            x[place] = value
            got = A @ x
            np.testing.assert_array_equal(~np.isfinite(got), S[:, [place]].toarray().ravel() != 0)
