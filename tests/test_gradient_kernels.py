"""Kernels of gradients, one body for every device: products of dense rows at the places of entries."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from gsparse.device.base import Device
from gsparse.formats import Csr
from gsparse.kernels.backends import kernels_of
from tests.support import DTYPES, INDEX_DTYPES, STRUCTURES, host, on_device, random_values, with_types

WIDTHS = (0, 1, 2, 3, 5, 16, 17, 70)


def close(found: Any, expected: Any, size: Any, terms: int) -> None:
    """Check each element, up to the rounding errors of a sum of `terms` numbers whose magnitudes add up to `size`."""
    eps = np.finfo(found.dtype).eps
    assert found.shape == expected.shape
    assert (abs(found - expected) <= 4 * (terms + 2) * eps * size + np.finfo(found.dtype).tiny).all()


def wide(array: Any) -> Any:
    return array.astype(np.result_type(array.dtype, np.longdouble))


def transposed_positions(S: Any, index: Any) -> Any:
    """Return the transpose of a matrix, with the position of each entry as its value."""
    numbers = sp.csr_array((np.arange(1, S.nnz + 1), S.indices, S.indptr), shape=S.shape)
    T = sp.csr_array(numbers.T.tocsr())
    return T.indptr.astype(index), T.indices.astype(index), (T.data - 1).astype(index)


@pytest.mark.few(6)
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("index", INDEX_DTYPES, ids=str)
def test_dot_rows_multiplies_the_rows_of_each_pair(
    device: Device, index: Any, dtype: Any, width: int, rng: np.random.Generator
) -> None:
    left, right = (random_values(rng, (size, width), dtype) for size in (37, 65))
    rows, columns = rng.integers(0, 37, 333).astype(index), rng.integers(0, 65, 333).astype(index)
    arrays = [on_device(device, array) for array in (rows, columns, left, right)]
    with device.active():
        found, again = (host(kernels_of(device).edits.dot_rows(device, *arrays)) for _ in range(2))
    pairs = wide(left)[rows], wide(right).conj()[columns]
    close(found, (pairs[0] * pairs[1]).sum(axis=1), (abs(pairs[0]) * abs(pairs[1])).sum(axis=1), width)
    assert found.tobytes() == again.tobytes()


@pytest.mark.few(8)
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("structure", STRUCTURES)
def test_product_gradients_are_the_adjoint_product_and_the_products_at_the_entries(
    device: Device, structure: str, width: int, rng: np.random.Generator
) -> None:
    for dtype, index in zip(DTYPES, 2 * INDEX_DTYPES, strict=True):
        S = with_types(STRUCTURES[structure](rng), dtype, index, rng)
        S.sum_duplicates()
        gradient, x = (random_values(rng, (size, width), dtype) for size in S.shape)
        parts = [on_device(device, part) for part in transposed_positions(S, index)]
        arrays = [on_device(device, array) for array in (S.data, gradient, x)]
        with device.active():
            transposed = Csr(S.shape[::-1], *parts)
            of_x, of_values = map(host, kernels_of(device).edits.product_gradients(device, transposed, *arrays))
        adjoint, longest = sp.csr_array(S.T.conj()), int(np.diff(S.tocsc().indptr).max(initial=0))
        exact = np.zeros(x.shape, wide(x).dtype)
        size = abs(adjoint) @ abs(gradient).astype(np.float64)
        coo = S.tocoo()
        np.add.at(exact, coo.coords[1], wide(S.data).conj()[:, None] * wide(gradient)[coo.coords[0]])
        close(of_x, exact, size, longest)
        pairs = wide(gradient)[coo.coords[0]], wide(x).conj()[coo.coords[1]]
        close(of_values, (pairs[0] * pairs[1]).sum(axis=1), (abs(pairs[0]) * abs(pairs[1])).sum(axis=1), width)


def test_gradients_pass_on_what_is_not_finite(device: Device) -> None:
    S = sp.csr_array(np.array([[1.0, 2.0, 0.0], [0.0, 3.0, np.inf]]))
    gradient, x = np.array([[np.nan], [1.0]]), np.array([[1.0], [np.inf], [0.0]])
    parts = [on_device(device, part) for part in transposed_positions(S, np.int32)]
    arrays = [on_device(device, array) for array in (S.data, gradient, x)]
    with device.active():
        of_x, of_values = kernels_of(device).edits.product_gradients(device, Csr((3, 2), *parts), *arrays)
    np.testing.assert_array_equal(host(of_x).reshape(-1), [np.nan, np.nan, np.inf])
    np.testing.assert_array_equal(host(of_values), [np.nan, np.nan, np.inf, 0.0])
