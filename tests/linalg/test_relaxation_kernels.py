"""Colours, wavefronts, sweeps and projections equal their definitions, row by row, on every device."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from gsparse import GpuSparseMatrix
from gsparse.device.base import Device
from gsparse.device.select import get_device
from gsparse.formats import Csr, Levels
from gsparse.kernels.backends import kernels_of
from gsparse.kernels.relaxation import EVERY_GROUP, FROM_ZERO, NOT_THE_FIRST
from gsparse.linalg.preconditioners.row_order import find_levels, ordered_matrix, symmetric_graph
from gsparse.linalg.preconditioners.square_matrix import SquareMatrix
from tests.linalg.problems import convection, laplacian
from tests.support import DTYPES, INDEX_DTYPES, STRUCTURES, random_values


def square(S: Any) -> sp.csr_array:
    """Return a square matrix with sorted columns and a diagonal, made of any structure."""
    S = sp.csr_array(S)
    size = max(S.shape)
    padded = sp.csr_array((S.data, S.indices, np.pad(S.indptr, (0, size - S.shape[0]), "edge")), shape=(size, size))
    padded = sp.csr_array(padded + (4 + 3 * abs(padded).sum(axis=1).max(initial=0)) * sp.eye_array(size))
    padded.sum_duplicates()
    return padded


def star(size: int) -> sp.csr_array:
    """Return a matrix in which one row and one column are dense: its row is longer than what a thread examines."""
    S = sp.lil_array(4.0 * sp.eye_array(size))
    S[size // 2, :] = 1.0
    S[:, size // 2] = -2.0
    S[size // 2, size // 2] = 2.0 * size
    return sp.csr_array(S)


GRAPHS = {
    **{name: lambda make=make: square(make(np.random.default_rng(0))) for name, make in STRUCTURES.items()},
    "mesh": lambda: laplacian(13),
    "flow": lambda: convection(9),
    "star": lambda: star(200),
    "clique": lambda: square(sp.csr_array(np.ones((150, 150)))),
}


def upload(device: Device, S: Any, index: Any = np.int32) -> Csr:
    arrays = (device.upload(a) for a in (S.indptr.astype(index), S.indices.astype(index), S.data))
    return Csr(S.shape, *arrays, True)


def assert_independent(S: Any, groups: Any) -> None:
    """Check that no entry joins two rows of the same group."""
    rows, columns = sp.coo_array(S).coords
    assert not np.any((groups[rows] == groups[columns]) & (rows != columns))


def group_of_rows(device: Device, levels: Levels) -> Any:
    order = device.download(levels.order)
    np.testing.assert_array_equal(np.sort(order), np.arange(order.size))
    groups = np.empty(order.size, np.int64)
    groups[order] = np.repeat(np.arange(levels.num_levels), np.diff(levels.bounds))
    return groups


@pytest.mark.parametrize("index", INDEX_DTYPES, ids=str)
@pytest.mark.parametrize("graph", GRAPHS)
@pytest.mark.few(4)
def test_colours_separate_neighbours_and_are_the_same_on_every_device(device: Device, graph: str, index: Any) -> None:
    S = GRAPHS[graph]()
    cpu = get_device("cpu")
    colors = []
    for place in (device, cpu):
        with place.active():
            graph = symmetric_graph(place, upload(place, S, index))
            colors.append(place.download(kernels_of(place).relaxation.color_rows(place, graph)))
    assert colors[0].dtype == np.int32
    assert_independent(S, colors[0])
    np.testing.assert_array_equal(colors[0], colors[1])
    degrees = np.diff(sp.csr_array(S + S.T).indptr)
    assert colors[0].max(initial=-1) < max(degrees, default=0)


@pytest.mark.parametrize("ordering", ["natural", "wavefront", "multicolor"])
@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize("graph", GRAPHS)
@pytest.mark.few(3)
def test_groups_of_every_ordering_are_independent(device: Device, graph: str, size: int, ordering: str) -> None:
    S = GRAPHS[graph]()
    with device.active():
        levels = find_levels(device, upload(device, S), ordering, size)
    if levels is None:
        assert (device.is_host, ordering) == (True, "natural")
        return
    groups = group_of_rows(device, levels)
    rows, columns = sp.coo_array(S).coords
    blocks = sp.csr_array((np.ones(rows.size), (rows // size, columns // size)), shape=2 * (-(-S.shape[0] // size),))
    assert_independent(blocks, groups)
    if ordering == "natural":  # a row comes after the earlier rows that it is joined with
        rows, columns = sp.coo_array(blocks + blocks.T).coords
        assert np.all((groups[rows] > groups[columns])[rows > columns])


def dense_sweep(S: Any, order: Any, weights: Any, x: Any, b: Any) -> Any:
    """Return a sweep over blocks of rows in this order, computed with dense matrices."""
    x, size = x.copy(), weights.shape[1]
    for place, block in enumerate(order):
        rows = slice(block * size, (block + 1) * size)
        count = x[rows].size
        x[rows] += weights[place][:count, :count] @ (b[rows] - S[rows] @ x)
    return x


def ordered(device: Device, S: Any, size: int, ordering: str, index: Any) -> tuple[Csr, Levels | None, Any]:
    """Return the rows in order, the levels, and the order of the blocks on the host."""
    with SquareMatrix.of(GpuSparseMatrix(S, device=device), "test") as matrix:
        found = ordered_matrix(replace(matrix, csr=matrix.csr.with_index_dtype(index)), ordering, size)
    blocks = np.arange(-(-S.shape[0] // size))
    return found.rows(S.dtype), found.levels, blocks if found.levels is None else device.download(found.levels.order)


@pytest.mark.parametrize("backward", [False, True], ids=["forward", "backward"])
@pytest.mark.parametrize("size", [1, 2, 7])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("ordering", ["natural", "wavefront", "multicolor"])
@pytest.mark.few(6)
def test_a_sweep_visits_every_block_with_the_newest_values(
    device: Device, ordering: str, dtype: Any, size: int, backward: bool
) -> None:
    rng, S = np.random.default_rng(0), sp.csr_array(convection(10), dtype=dtype)
    S.data = S.data + random_values(rng, S.nnz, dtype) / 10
    index = INDEX_DTYPES[size % 2]
    padded = sp.block_diag([S, sp.eye_array(-100 % size)], format="csr")
    weights = np.stack([np.linalg.inv(padded[i : i + size, i : i + size].toarray()) for i in range(0, 100, size)])
    x, b = random_values(rng, (3, 100), dtype), random_values(rng, (3, 100), dtype)
    with device.active():
        rows, levels, order = ordered(device, S, size, ordering, index)
        visits = np.arange(order.size)[::-1] if backward else np.arange(order.size)
        bounds = np.array([0, 1]) if levels is None else levels.bounds
        first = int(np.diff(bounds)[-1 if backward else 0])
        for start in (EVERY_GROUP, FROM_ZERO, *([] if levels is None else [NOT_THE_FIRST])):
            sweep = kernels_of(device).relaxation.bind_sweep(
                device, rows, levels, device.upload(weights[order].astype(dtype)), 3, backward, start
            )
            x_device = device.upload(x.ravel().copy())
            sweep(x_device, device.upload(b.ravel()))
            places = visits[first:] if start == NOT_THE_FIRST else visits
            for column, result in enumerate(device.download(x_device).reshape(3, -1)):
                guess = 0 * x[column] if start == FROM_ZERO else x[column]
                expected = dense_sweep(S.toarray(), order[places], weights[order[places]], guess, b[column])
                np.testing.assert_allclose(result, expected, rtol=0, atol=200 * np.finfo(dtype).eps)


@pytest.mark.parametrize("graph", ["star", "clique", "empty rows", "nothing", "no rows", "long rows"])
@pytest.mark.few(6)
def test_sweeps_of_odd_structures_are_right_and_always_the_same(device: Device, graph: str) -> None:
    S = GRAPHS[graph]()
    size = S.shape[0]
    rng = np.random.default_rng(1)
    x, b = rng.standard_normal((2, size))
    with device.active():
        rows, levels, order = ordered(device, S, 1, "multicolor", np.int32)
        weights = (1 / S.diagonal())[order].reshape(-1, 1, 1)
        sweep = kernels_of(device).relaxation.bind_sweep(
            device, rows, levels, device.upload(weights), 1, False, EVERY_GROUP
        )
        results = []
        for _ in range(2):
            x_device = device.upload(x.copy())
            sweep(x_device, device.upload(b))
            results.append(device.download(x_device))
    np.testing.assert_array_equal(*results)
    expected = dense_sweep(S.toarray(), order, weights, x, b)
    np.testing.assert_allclose(results[0], expected, rtol=0, atol=1e-13 * max(1, size))


@pytest.mark.parametrize("backward", [False, True], ids=["forward", "backward"])
@pytest.mark.parametrize("of_residual", [False, True], ids=["of x", "of the residual"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("ordering", ["natural", "wavefront", "multicolor"])
@pytest.mark.few(6)
def test_projections_solve_one_row_after_the_other(
    device: Device, ordering: str, dtype: Any, of_residual: bool, backward: bool
) -> None:
    rng, S = np.random.default_rng(0), sp.csr_array(convection(7), dtype=dtype)
    S.data = S.data + random_values(rng, S.nnz, dtype) / 10
    G, kernels = S.toarray(), kernels_of(device)
    squares = (abs(G) ** 2).sum(axis=1)
    v, b, y = (random_values(rng, (2, 49), dtype) for _ in range(3))
    with device.active():
        levels = find_levels(device, upload(device, sp.csr_array(abs(S) @ abs(S.T))), ordering)
        order = np.arange(49) if levels is None else device.download(levels.order)
        rows = upload(device, sp.csr_array(S[order]))
        weights = device.upload((0.9 / squares[order]).astype(dtype))
        project = kernels.relaxation.bind_projections(device, rows, levels, weights, 2, backward, of_residual)
        arrays = [device.upload(a.ravel().copy()) for a in (v, b, y)]
        project(arrays[0], arrays[2] if of_residual else arrays[1])
        got_v, got_b, got_y = (device.download(a).reshape(2, -1) for a in arrays)
    for column in range(2):
        expected_v, expected_y = v[column].copy(), y[column].copy()
        for row in order[::-1] if backward else order:
            delta = 0.9 / squares[row] * ((0 if of_residual else b[column, row]) - G[row] @ expected_v)
            expected_v += delta * G[row].conj()
            expected_y[row] -= delta if of_residual else 0
        tolerance = 200 * np.finfo(dtype).eps
        np.testing.assert_allclose(got_v[column], expected_v, rtol=0, atol=tolerance)
        np.testing.assert_allclose(got_y[column], expected_y, rtol=0, atol=tolerance)
    np.testing.assert_array_equal(got_b, b)
