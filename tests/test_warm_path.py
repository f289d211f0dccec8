"""A repeated product calls few files, in the order of the layers, and the general path parses its input once.

The subpackages are the top-level folders of the package, as listed in pyproject.toml.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

import gsparse.device.interchange
import gsparse.products.multiply
from gsparse import GpuSparseMatrix
from gsparse.device.base import Device
from tests.support import on_device
from tests.test_architecture import LAYERS

PACKAGE = Path(gsparse.__file__).parent
FLOOR = {name: floor for floor, names in enumerate(LAYERS) for name in names}
# Files from the call to the kernel that is bound to the matrix, which is the last of them.
MOST_FILES = 5

CALLS: dict[str, Callable[[Any, Any, Any], Any]] = {
    "A @ x": lambda A, x, y: A @ x,
    "A.matvec(x)": lambda A, x, y: A.matvec(x),
    "A.matvec(x, out=y)": lambda A, x, y: A.matvec(x, out=y),
    "A @ X": lambda A, x, y: A @ x.reshape(-1, 2)[: A.shape[1]],
    "A @ X, one column": lambda A, x, y: A @ x.reshape(-1, 1)[: A.shape[1]],
    "A.conj() @ x": lambda A, x, y: A.conj() @ x,
}


def calls_of(function: Callable[[], Any]) -> list[tuple[Path | None, Path]]:
    """Return (caller's file, file) of every call of a function of the package, in order."""
    calls: list[tuple[Path | None, Path]] = []

    def file_of(frame: FrameType | None) -> Path | None:
        path = None if frame is None else Path(frame.f_code.co_filename)
        return path.relative_to(PACKAGE) if path is not None and path.is_relative_to(PACKAGE) else None

    def watch(frame: FrameType, event: str, arg: Any) -> None:
        file = file_of(frame) if event == "call" else None
        if file is not None:
            calls.append((file_of(frame.f_back), file))

    sys.setprofile(watch)
    try:
        function()
    finally:
        sys.setprofile(None)
    return calls


def warm(device: Device, call: str) -> tuple[Any, Callable[[], Any]]:
    """Return a matrix that has been planned and has multiplied before, and the call to watch."""
    S = sp.diags_array([-1.0, 2.0, -1.0], offsets=[-1, 0, 1], shape=(1000, 1000), format="csr")
    A = GpuSparseMatrix(S.astype(complex) if "conj" in call else S, device=device)
    A._prepared()[0].plan_for_many_products()
    size = 2000 if "X" in call else 1000
    x, y = on_device(device, np.ones(size, A.dtype)), on_device(device, np.empty(1000, A.dtype))
    A = A.conj() if "conj" in call else A
    product = CALLS["A @ x" if "conj" in call else call]
    for _ in range(3):
        product(A, x, y)
    return A, lambda: product(A, x, y)


@pytest.mark.parametrize("call", CALLS)
def test_a_warm_product_passes_few_files_and_calls_no_upper_layer(device: Device, call: str) -> None:
    calls = calls_of(warm(device, call)[1])
    files = list(dict.fromkeys(file for _, file in calls))
    kernels = [position for position, file in enumerate(files) if file.parts[0] == "kernels"]
    assert kernels, "no kernel was called"
    assert [file.parts[0] for file in files[: kernels[0]]][:2] == ["matrix", "matrix"]
    assert kernels[0] < MOST_FILES, files[: kernels[0] + 1]
    climbs = [
        (caller, file) for caller, file in calls if caller is not None and FLOOR[file.parts[0]] < FLOOR[caller.parts[0]]
    ]
    assert climbs == []
