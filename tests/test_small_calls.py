"""What operations with a small matrix ask of a GPU, where each launch, allocation, copy and wait takes microseconds.

The numbers are limits: a change that needs fewer may lower them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import scipy.sparse as sp

from gsparse import GpuSparseMatrix
from gsparse.device.dtypes import Array
from tests.proof.emulated_device import EmulatedDevice
from tests.test_algebra_tiles import with_lengths


class CountingArrays:
    """The array module of a device, which counts calls of functions that would launch kernels of CuPy's own.

    Operators of arrays are not counted.
    """

    _LAUNCHES = (
        *("arange", "argsort", "clip", "concatenate", "conjugate", "cumsum", "diff", "flatnonzero", "full", "isnan"),
        *("maximum", "minimum", "ones", "searchsorted", "take", "unique", "where", "zeros"),
    )

    def __init__(self, counts: Counter[str]) -> None:
        self._counts = counts

    def __getattr__(self, name: str) -> Any:
        if name in self._LAUNCHES:
            self._counts["launches of CuPy"] += 1
        return getattr(np, name)


class CountingDevice(EmulatedDevice):
    """An emulated GPU that counts launches, allocations, copies and waits."""

    def __init__(self) -> None:
        super().__init__(32)
        self.asked: Counter[str] = Counter()
        self.xp = CountingArrays(self.asked)

    def kernel(self, source: str, expression: str) -> Callable[..., None]:
        self.asked["launches"] += 1
        return super().kernel(source, expression)

    def empty(self, shape: int | tuple[int, ...], dtype: npt.DTypeLike) -> Array:
        self.asked["allocations"] += 1
        return super().empty(shape, dtype)

    def upload(self, host: npt.NDArray[Any]) -> Array:
        self.asked["copies"] += 1
        return super().upload(host)

    def download(self, array: Array) -> npt.NDArray[Any]:
        self.asked["copies"] += 1
        return super().download(array)

    def download_vector(self, array: Array) -> npt.NDArray[Any]:
        self.asked["copies"] += 1
        return super().download_vector(array)

    def synchronize(self) -> None:
        self.asked["waits"] += 1


def other_columns(S: sp.csr_array) -> sp.csr_array:
    """Return a matrix with as many entries in other columns."""
    moved = sp.csr_array((S.data, (S.indices + 1) % S.shape[1], S.indptr), shape=S.shape)
    moved.sort_indices()
    return moved


OPERATIONS: dict[str, tuple[Callable[[Any, Any, Any], Any], dict[str, int]]] = {
    "A[5, 5]": (lambda A, B, v: A[5, 5], {"launches": 1, "waits": 1}),
    "A @ B": (lambda A, B, v: A @ B, {"launches": 4, "allocations": 7, "waits": 2}),
    "A + B": (lambda A, B, v: A + B, {"launches": 2, "allocations": 5, "waits": 1}),
    "B.T.tocsr()": (
        lambda A, B, v: B.with_data(B.device_data).T.tocsr(),
        {"launches": 1, "allocations": 3, "copies": 1},
    ),
    "A.multiply(v)": (lambda A, B, v: A.multiply(v), {"launches": 1, "allocations": 1, "copies": 1}),
    "A + A": (lambda A, B, v: A + A, {"launches": 1, "allocations": 2, "waits": 1}),
    # (the copies are those of NumPy's vectors, which are on the device where they are CuPy's)
    "A.setdiag(v)": (
        lambda A, B, v: A.setdiag(v),
        {"launches": 2, "launches of CuPy": 1, "allocations": 2, "copies": 1, "waits": 1},
    ),
    "A.setdiag(1, 3)": (
        lambda A, B, v: A.setdiag(1.0, 3),
        {"launches": 3, "launches of CuPy": 2, "allocations": 6, "copies": 1, "waits": 1},
    ),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_a_small_call_asks_little_of_the_gpu(name: str, rng: np.random.Generator) -> None:
    device, (operation, limits) = CountingDevice(), OPERATIONS[name]
    S = with_lengths(np.full(100, 5), 100, rng)
    S.setdiag(1.0)
    S.setdiag(0.0, 3)
    S.eliminate_zeros()
    A, B = (GpuSparseMatrix(M, device=device) for M in (S, other_columns(S)))
    vector = rng.standard_normal(100)
    first = operation(A.copy(), B, vector)  # examines the matrices
    device.asked.clear()
    operation(A.copy() if "set" in name else A, B, vector)
    excess = {what: count for what, count in device.asked.items() if count > limits.get(what, 0)}
    assert not excess, f"{name} asked for {dict(device.asked)}, may ask for {limits}"
    del first
