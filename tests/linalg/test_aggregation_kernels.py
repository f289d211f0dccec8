"""The kernels of smoothed aggregation equal their definitions, with the same integers on every device."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from gsparse.device.base import Device
from gsparse.device.select import get_device
from gsparse.errors import ShapeError
from gsparse.formats import Csr
from gsparse.kernels.aggregation import ISOLATED, MOST_REACHED, OUTSIDE, UNDECIDED
from gsparse.kernels.backends import kernels_of
from gsparse.kernels.gpu.aggregation import _COUNTERS
from gsparse.linalg.multigrid.coarsening import aggregate_nodes
from tests.linalg.problems import laplacian
from tests.support import DTYPES, INDEX_DTYPES, STRUCTURES, random_values

ALL = 2**31 - 2
_TEAM_SIZE = 3  # GS_TEAM_SIZE, independent_set.cu


def symmetric(S: Any) -> sp.csr_array:
    """Return a square matrix with a symmetric structure and a diagonal, made of any structure."""
    S = sp.csr_array(S)
    size = max(S.shape)
    padded = sp.csr_array((S.data, S.indices, np.pad(S.indptr, (0, size - S.shape[0]), "edge")), shape=(size, size))
    graph = sp.csr_array(padded + padded.T + 9 * sp.eye_array(size))
    graph.sum_duplicates()
    return graph


def star(size: int) -> sp.csr_array:
    S = sp.lil_array(4.0 * sp.eye_array(size))
    S[size // 2, :] = 1.0
    S[:, size // 2] = 1.0
    return sp.csr_array(S)


GRAPHS = {
    **{name: lambda make=make: symmetric(make(np.random.default_rng(0))) for name, make in STRUCTURES.items()},
    "mesh": lambda: laplacian(13),
    "chain": lambda: symmetric(sp.eye_array(200, k=1)),
    "star": lambda: star(150),
    "parts": lambda: sp.csr_array(sp.block_diag([laplacian(4), sp.eye_array(3), star(9), laplacian(5)])),
    "no diagonal": lambda: sp.csr_array(laplacian(9) - 4 * sp.eye_array(81)),
}


def upload(device: Device, S: Any, index: Any = np.int32) -> Csr:
    S = sp.csr_array(S)
    S.sum_duplicates()
    arrays = (device.upload(a) for a in (S.indptr.astype(index), S.indices.astype(index), S.data))
    return Csr(S.shape, *arrays, True)


def hash_of(number: int) -> int:
    x = number
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B)):
        x = ((x ^ (x >> shift)) * factor) % 2**31
    return x ^ (x >> 16)


def greedy(S: sp.csr_array, labels: Any, hashed: bool, most: int, fewest: int) -> Any:
    """Choose roots by definition: by sets of nodes within distance one and two."""
    labels, takes_part = labels.copy(), labels < 0
    near = [
        {int(j) for j in S.indices[S.indptr[i] : S.indptr[i + 1]] if takes_part[j]} | {i} for i in range(len(labels))
    ]
    for i in np.flatnonzero(labels == UNDECIDED):
        if set(S.indices[S.indptr[i] : S.indptr[i + 1]].tolist()) <= {i}:
            labels[i] = ISOLATED
    key = hash_of if hashed else int
    generation = {int(i): np.inf for i in np.flatnonzero(labels == UNDECIDED)}
    for i in sorted(generation, key=key):
        if generation[i] < np.inf:
            continue
        within_two = set().union(*(near[j] for j in near[i])) - {i}
        latest = max((generation.get(j, 0) for j in within_two if key(j) < key(i)), default=0)
        if latest >= most:
            continue
        is_kept = len(near[i]) - 1 >= fewest
        for j in within_two | {i}:
            if j in generation:
                generation[j] = min(generation[j], latest + 1)
            if labels[j] == UNDECIDED:
                labels[j] = OUTSIDE
        for j in near[i]:
            labels[j] = i if is_kept else OUTSIDE
    return labels


@pytest.mark.parametrize("index", INDEX_DTYPES, ids=str)
@pytest.mark.parametrize("graph", GRAPHS)
@pytest.mark.few(4)
def test_roots_are_those_of_the_greedy_method_on_every_device(device: Device, graph: str, index: Any) -> None:
    S = GRAPHS[graph]()
    for hashed, most, fewest in ((False, ALL, 0), (True, ALL, 0), (False, 3, 0), (True, ALL, 3)):
        labels = device.upload(np.full(S.shape[0], UNDECIDED, np.int32))
        with device.active():
            counts = kernels_of(device).aggregation.independent_set(
                device, upload(device, S, index), labels, hashed=hashed, most_generations=most, fewest=fewest
            )
        expected = greedy(S, np.full(S.shape[0], UNDECIDED), hashed, most, fewest)
        np.testing.assert_array_equal(device.download(labels), expected)
        assert counts == ((expected == UNDECIDED).sum(), (expected == OUTSIDE).sum())


@pytest.mark.parametrize("width", ["short rows", "long rows"])
@pytest.mark.parametrize("blocks", ["one block at a time", "two blocks at the same time"])
def test_blocks_that_wait_for_each_other_choose_the_same_roots(
    device: Device, width: str, blocks: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gsparse.kernels.gpu.aggregation._SMALL", 0)
    is_emulated, counters = device.name.startswith("emulated"), []
    if is_emulated and blocks.startswith("two"):
        # The emulator runs two blocks of a grid of 32 at the same time. The first of them waits for the other one.
        monkeypatch.setattr(device, "multiprocessors", 16)
        monkeypatch.setattr("gsparse.kernels.gpu.aggregation._PATIENCE", 1 << 25)
        download = device.download
        monkeypatch.setattr(device, "download", lambda array: counters.append(download(array)) or counters[-1])
    S = laplacian(17) if width == "short rows" else sp.csr_array(abs(laplacian(16) @ laplacian(16) @ laplacian(16)))
    for hashed, most, fewest in ((False, ALL, 0), (False, 19, 0), (True, ALL, 0), (True, ALL, 4)):
        labels = np.full(S.shape[0], UNDECIDED, np.int32)
        on_device = device.upload(labels)
        with device.active():
            kernels_of(device).aggregation.independent_set(
                device, upload(device, S), on_device, hashed=hashed, most_generations=most, fewest=fewest
            )
        expected = greedy(S, labels, hashed, most, fewest)
        np.testing.assert_array_equal(device.download(on_device), expected)
    sizes = [int(array[_TEAM_SIZE]) for array in counters if array.size == _COUNTERS]
    assert all(size == 2 for size in sizes)
    assert len(sizes) == 4 * (is_emulated and blocks.startswith("two"))


def test_a_generation_with_more_nodes_than_a_block_collects_is_complete(device: Device) -> None:
    # Each root of 40 stars decides all of the nodes of its star in the first generation.
    S = sp.csr_array(sp.block_diag([star(61)] * 40))
    labels = np.full(S.shape[0], UNDECIDED, np.int32)
    for hashed in (False, True):
        on_device = device.upload(labels)
        with device.active():
            kernels_of(device).aggregation.independent_set(
                device, upload(device, S), on_device, hashed=hashed, most_generations=ALL, fewest=0
            )
        np.testing.assert_array_equal(device.download(on_device), greedy(S, labels, hashed, ALL, 0))


def test_nodes_with_labels_are_left_out_of_the_graph(device: Device) -> None:
    S, before = laplacian(12), np.full(144, UNDECIDED, np.int32)
    before[30:60] = 30
    before[70:75] = OUTSIDE
    labels = device.upload(before)
    with device.active():
        kernels_of(device).aggregation.independent_set(
            device, upload(device, S), labels, hashed=True, most_generations=ALL, fewest=2
        )
    np.testing.assert_array_equal(device.download(labels), greedy(S, before, True, ALL, 2))


@pytest.mark.parametrize("graph", GRAPHS)
@pytest.mark.few(4)
def test_aggregates_are_connected_and_hold_all_nodes_with_neighbours(device: Device, graph: str) -> None:
    S = GRAPHS[graph]()
    with device.active():
        aggregates, count = aggregate_nodes(device, upload(device, S))
    aggregates = device.download(aggregates)
    coordinates = sp.coo_array(S)
    off = coordinates.coords[0] != coordinates.coords[1]
    has_neighbour = np.zeros(S.shape[0], bool)
    has_neighbour[coordinates.coords[0][off]] = True
    np.testing.assert_array_equal(aggregates >= 0, has_neighbour)
    np.testing.assert_array_equal(np.unique(aggregates[has_neighbour]), np.arange(count))
    rows, columns = (part[off] for part in coordinates.coords)
    inside = aggregates[rows] == aggregates[columns]
    links = sp.coo_array((np.ones(inside.sum()), (rows[inside], columns[inside])), shape=S.shape)
    parts, _ = sp.csgraph.connected_components(links)
    assert parts == count + (~has_neighbour).sum()
    host, host_count = aggregate_nodes(get_device("cpu"), upload(get_device("cpu"), S))
    np.testing.assert_array_equal(aggregates, host)
    assert count == host_count


def test_a_node_joins_the_aggregate_of_its_strongest_connections(device: Device) -> None:
    # Nodes 0 and 4 are roots. Node 2 has one heavy entry to the aggregate of 0, and two to that of 4, which weigh more.
    rows, columns = np.array([[0, 1], [1, 2], [2, 3], [2, 5], [3, 4], [5, 4]]).T
    for heavy, expected in ((1.5, 1), (2.0, 0), (3.0, 0)):
        values = np.array([1.0, heavy, 1.0, 1.0, 1.0, 1.0])
        S = sp.csr_array(sp.coo_array((values, (rows, columns)), shape=(6, 6)))
        S = sp.csr_array(S + S.T + sp.eye_array(6))
        labels = device.upload(np.array([0, 0, OUTSIDE, 4, 4, 4], np.int32))
        with device.active():
            aggregates, count = kernels_of(device).aggregation.join_aggregates(device, upload(device, S), labels)
        assert count == 2
        np.testing.assert_array_equal(device.download(aggregates), [0, 0, expected, 1, 1, 1])


# ---------------------------------------------------------------------------------------------------- connections


def weights(values: Any) -> Any:
    """Round magnitudes to 17 bits."""
    mantissa, exponent = np.frexp(np.abs(values).astype(np.float64))
    return np.ldexp(np.floor(mantissa * 2**17 + 0.5) / 2**17, exponent)


def random_matrix(nodes: int, block_size: int, dtype: Any, seed: int = 0) -> sp.csr_array:
    """Return a matrix whose blocks are incomplete, with a symmetric structure of nodes and weak and strong entries."""
    rng = np.random.default_rng(seed)
    graph = sp.random_array((nodes, nodes), density=6 / nodes, rng=rng)
    graph = sp.coo_array(graph + graph.T + sp.eye_array(nodes))
    rows, columns = (np.repeat(part, block_size**2) for part in graph.coords)
    inner = np.tile(np.arange(block_size**2), graph.nnz)
    rows, columns = rows * block_size + inner // block_size, columns * block_size + inner % block_size
    keep = (rng.random(rows.size) < 0.8) | (rows == columns)
    rows, columns = rows[keep], columns[keep]
    values = random_values(rng, rows.size, dtype) * 10.0 ** rng.integers(-2, 2, rows.size)
    values[rows == columns] += 30
    size = nodes * block_size
    return sp.csr_array(sp.coo_array((values.astype(dtype), (rows, columns)), shape=(size, size)))


def node_matrix(S: sp.csr_array, block_size: int) -> sp.csr_array:
    coordinates = sp.coo_array(S)
    rows, columns = (part // block_size for part in coordinates.coords)
    count = S.shape[0] // block_size
    square = np.abs(coordinates.data.astype(np.complex128)) ** 2
    nodes = sp.csr_array(sp.coo_array((square, (rows, columns)), shape=(count, count)))
    nodes.data = weights(np.sqrt(nodes.data))
    return nodes


def test_nodes_of_more_than_32_unknowns_are_refused_on_a_gpu_with_the_remedy(device: Device) -> None:
    S = random_matrix(23, 33, np.dtype(float))
    with device.active():
        if device.kind == "cpu":
            nodes = kernels_of(device).aggregation.block_weights(device, upload(device, S), 33)
            np.testing.assert_allclose(nodes.data, node_matrix(S, 33).data, rtol=2**-16)
            return
        with pytest.raises(ShapeError, match=r"nodes of at most 32 unknowns .* got 33: pass a smaller block_size"):
            kernels_of(device).aggregation.block_weights(device, upload(device, S), 33)


def filtered(S: sp.csr_array, block_size: int, theta: float) -> tuple[sp.csr_array, Any, int]:
    """Return the filtered matrix, the scales of nodes, and the number of entries that are dropped, by definition."""
    nodes = node_matrix(S, block_size).tolil()
    scales = np.array([max((w for j, w in zip(nodes.rows[i], nodes.data[i], strict=True) if j != i), default=0.0)
                       for i in range(nodes.shape[0])])  # fmt: skip
    result, dropped = S.tolil(), 0
    for i in range(S.shape[0]):
        node = i // block_size
        for j in list(S.indices[S.indptr[i] : S.indptr[i + 1]]):
            other = j // block_size
            if other != node and nodes[node, other] < theta * scales[node]:
                value = result[i, j]
                result[i, j] = 0
                result[i, node * block_size + j % block_size] += value
                dropped += 1
    return sp.csr_array(result), scales, dropped


def examined(device: Device, S: Any, block_size: int, measure: str, theta: float) -> tuple[Csr, Csr, Any]:
    kernels, csr = kernels_of(device), upload(device, S)
    nodes = csr if block_size == 1 else kernels.aggregation.block_weights(device, csr, block_size)
    return csr, nodes, kernels.aggregation.examine_rows(device, csr, nodes, block_size, measure, theta)


# --------------------------------------------------------------------------------------------------- prolongators


def tentative(device: Device, aggregates: Any, candidates: Any, block_size: int) -> tuple[Any, Any]:
    count, dtype = int(aggregates.max(initial=-1)) + 1, np.int32
    keys = np.where(aggregates < 0, count, aggregates).astype(dtype)
    order, bounds = kernels_of(device).transpose.order_by_row(device, device.upload(keys), count + 1)
    arrays = (bounds[: count + 1], order, device.upload(candidates))
    return kernels_of(device).prolongation.orthonormal_candidates(device, *arrays, block_size)


def test_dependent_candidates_become_zero_as_in_pyamg(device: Device) -> None:
    pyamg = pytest.importorskip("pyamg.aggregation.tentative")
    aggregates = np.array([0, 0, 1, 1, 1, -1, 2], np.int32)
    B = np.stack([np.ones(7), 2 * np.ones(7), np.arange(7.0)], axis=1)
    with device.active():
        Q, R = (device.download(part) for part in tentative(device, aggregates, B, 1))
    has = aggregates >= 0
    pointers = np.concatenate([[0], np.cumsum(has)])
    op = sp.csr_array((np.ones(has.sum()), aggregates[has], pointers), shape=(7, 3))
    T, coarse = pyamg.fit_candidates(op, B)
    expected = T.toarray().reshape(7, 3, 3).sum(axis=1)  # a row has entries of one aggregate
    np.testing.assert_allclose(Q, expected, atol=1e-14)
    np.testing.assert_allclose(R, coarse, atol=1e-14)


@pytest.mark.parametrize("block_size", [1, 2])
@pytest.mark.parametrize("k", [1, 2, 3])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.few(3)
def test_prolongators_are_smoothed_with_the_filtered_matrix(
    device: Device, dtype: Any, k: int, block_size: int
) -> None:
    S, rng = random_matrix(40, block_size, dtype), np.random.default_rng(1)
    aggregates = rng.integers(-1, 12, 40).astype(np.int32)
    B = np.ascontiguousarray(random_values(rng, (40 * block_size, k), dtype))
    for theta in (0.0, 0.1):
        with device.active():
            kernels = kernels_of(device)
            csr, nodes, found = examined(device, S, block_size, "classical", theta)
            Q, _ = tentative(device, aggregates, B, block_size)
            on_device = device.upload(aggregates)
            pattern = kernels.prolongation.prolongator_pattern(device, nodes, on_device, 12, found.scales, theta)
            indptr, indices = kernels.prolongation.expand_pattern(
                device, pattern.indptr, pattern.indices, block_size, k
            )
            values = kernels.prolongation.prolongator_values(
                device, csr, nodes, pattern, on_device, found.scales, theta, Q, block_size, 0.6
            )
        parts = (device.download(part) for part in (values, indices, indptr))
        P = sp.csr_array(tuple(parts), shape=(40 * block_size, 12 * k))
        assert P.has_canonical_format
        T = np.zeros(P.shape, dtype)
        for row, aggregate in enumerate(np.repeat(aggregates, block_size)):
            if aggregate >= 0:
                T[row, aggregate * k : (aggregate + 1) * k] = device.download(Q)[row]
        AF = filtered(S, block_size, theta)[0].toarray()
        expected = T - 0.6 * (AF @ T) / np.diag(AF)[:, None]
        np.testing.assert_allclose(P.toarray(), expected, atol=200 * float(np.finfo(dtype).eps))


@pytest.mark.parametrize("longest", [1, 8, 9, 32, 33, 128, 150])
@pytest.mark.parametrize("is_known", [True, False])
def test_every_node_reaches_the_aggregates_of_its_row_whatever_the_longest_row(
    device: Device, longest: int, is_known: bool
) -> None:
    rng, size = np.random.default_rng(longest), 200
    lengths = np.append(rng.integers(0, longest + 1, size - 1), longest)
    columns = [np.sort(rng.choice(size, length, replace=False)) for length in lengths]
    indptr = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    S = sp.csr_array((np.ones(indptr[-1]), np.concatenate(columns).astype(np.int32), indptr), shape=(size, size))
    aggregates = rng.integers(-1, 12, size).astype(np.int32)
    with device.active():
        nodes = replace(upload(device, S), longest=longest if is_known else None)
        on_device, scales = device.upload(aggregates), device.upload(np.ones(size))
        pattern = kernels_of(device).prolongation.prolongator_pattern(device, nodes, on_device, 12, scales, 0.0)
    found = np.split(device.download(pattern.indices), device.download(pattern.indptr)[1:-1])
    for node, reached in enumerate(found):
        expected = np.unique(np.append(aggregates[columns[node]], aggregates[node]))
        np.testing.assert_array_equal(reached, expected[expected >= 0])


def test_a_node_that_reaches_many_aggregates_is_not_smoothed(device: Device) -> None:
    S = star(4 * MOST_REACHED)
    aggregates = (np.arange(S.shape[0]) // 2).astype(np.int32)
    with device.active():
        kernels = kernels_of(device)
        csr, nodes, found = examined(device, S, 1, "classical", 0.0)
        on_device, count = device.upload(aggregates), 2 * MOST_REACHED
        Q, _ = tentative(device, aggregates, np.ones((S.shape[0], 1)), 1)
        pattern = kernels.prolongation.prolongator_pattern(device, nodes, on_device, count, found.scales, 0.0)
        values = kernels.prolongation.prolongator_values(
            device, csr, nodes, pattern, on_device, found.scales, 0.0, Q, 1, 0.5
        )
    is_smoothed, indptr = device.download(pattern.is_smoothed), device.download(pattern.indptr)
    hub = S.shape[0] // 2
    np.testing.assert_array_equal(np.flatnonzero(~is_smoothed), [hub])
    assert device.download(values)[indptr[hub]] == device.download(Q)[hub, 0]
    assert np.diff(indptr)[hub] == 1
    assert np.diff(indptr)[0] == 2
