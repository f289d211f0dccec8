"""Helpers for tests: matrices with difficult structures, exact products, and the row-wise error bound."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

import numpy as np
import pytest
import scipy.sparse as sp

import gsparse
from gsparse.device.base import Device

DTYPES = tuple(np.dtype(name) for name in ("float32", "float64", "complex64", "complex128"))
INDEX_DTYPES = (np.dtype(np.int32), np.dtype(np.int64))
SOURCE_ROOT = Path(gsparse.__file__).parents[1]


def random_values(rng: np.random.Generator, size: int | tuple[int, ...], dtype: Any) -> Any:
    """Return random values of any dtype, of both signs unless the dtype is unsigned."""
    dtype = np.dtype(dtype)
    if dtype.kind == "c":
        return (rng.standard_normal(size) + 1j * rng.standard_normal(size)).astype(dtype)
    if dtype.kind == "f":
        return rng.standard_normal(size).astype(dtype)
    if dtype.kind == "b":
        return rng.random(size) < 0.5
    return rng.integers(0 if dtype.kind == "u" else -9, 9, size).astype(dtype)


def from_lengths(lengths: Any, num_cols: int, rng: np.random.Generator) -> sp.csr_array:
    """Return a matrix with rows of these lengths. Its random columns are unsorted and may be repeated."""
    indptr = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    indices = rng.integers(0, max(num_cols, 1), indptr[-1]).astype(np.int32)
    return sp.csr_array((rng.standard_normal(indptr[-1]), indices, indptr), shape=(len(lengths), num_cols))


def _one_dense_row(rng: np.random.Generator) -> sp.csr_array:
    lengths = rng.integers(0, 3, 77)
    lengths[40] = 500
    return from_lengths(lengths, 501, rng)


STRUCTURES: dict[str, Any] = {
    "even": lambda rng: from_lengths(np.full(64, 7), 64, rng),
    "ragged, 1001 rows": lambda rng: from_lengths(rng.integers(0, 12, 1001), 333, rng),
    "empty rows": lambda rng: from_lengths(np.where(rng.random(100) < 0.7, 0, 5), 40, rng),
    "all rows empty": lambda rng: from_lengths(np.zeros(70, int), 9, rng),
    "one dense row": _one_dense_row,
    "one row": lambda rng: from_lengths([300], 64, rng),
    "one column": lambda rng: from_lengths(rng.integers(0, 3, 65), 1, rng),
    "no rows": lambda rng: sp.csr_array((0, 5)),
    "no columns": lambda rng: sp.csr_array((33, 0)),
    "nothing": lambda rng: sp.csr_array((0, 0)),
    "long rows": lambda rng: from_lengths(rng.integers(60, 90, 31), 4000, rng),
}


def with_types(S: sp.csr_array, dtype: Any, index: Any, rng: np.random.Generator) -> sp.csr_array:
    """Return the same structure with new random values of a dtype, and indices of an index dtype."""
    typed = sp.csr_array(S.shape, dtype=dtype)
    typed.data = random_values(rng, S.nnz, dtype)
    typed.indices, typed.indptr = S.indices.astype(index), S.indptr.astype(index)
    return typed


def exact_product(S: Any, x: Any) -> tuple[Any, Any]:
    """Return S·x and |S|·|x| in extended precision."""
    wide = np.clongdouble if np.result_type(S.dtype, x.dtype).kind == "c" else np.longdouble
    S = S.tocoo()  # COO keeps repeated entries; astype and abs of a CSR matrix would sum them in S itself
    terms = S.data.astype(wide).reshape(-1, *(1,) * (x.ndim - 1)) * x.astype(wide)[S.coords[1]]
    exact, bound = np.zeros((S.shape[0], *x.shape[1:]), wide), np.zeros((S.shape[0], *x.shape[1:]), np.longdouble)
    np.add.at(exact, S.coords[0], terms)
    np.add.at(bound, S.coords[0], abs(terms))
    return exact, bound


def assert_product(
    got: Any, S: Any, x: Any, *, dtype: Any = None, alpha: Any = 1, beta: Any = 0, y: Any = 0, where: Any = True
) -> None:
    """Check |computed - exact| ≤ c·eps·(|alpha|·|A|·|x| + |beta|·|y|) row by row; c is proportional to the row length.

    The exact result is alpha·A·x + beta·y. Integers must be equal. Of other results, elements where the mask `where` is
    false are not compared.
    """
    exact, bound = exact_product(S, x)
    exact, bound = alpha * exact + beta * np.asarray(y), abs(alpha) * bound + abs(beta * np.asarray(y))
    dtype = np.dtype(dtype or np.result_type(S.dtype, x.dtype))
    assert got.dtype == dtype, f"dtype {got.dtype}, not {dtype}"
    assert got.shape == exact.shape, f"shape {got.shape}, not {exact.shape}"
    if dtype.kind in "biu":
        np.testing.assert_array_equal(got, exact.astype(dtype))
        return
    lengths = np.diff(S.tocsr().indptr).reshape(-1, *(1,) * (x.ndim - 1)) + 4
    info = np.finfo(dtype)
    # A complex product has two more roundings. A subnormal result has an error of up to the smallest subnormal number.
    allowed = 2 * lengths * (info.eps * bound + info.smallest_subnormal)
    error = abs(got - exact)
    worst = np.max(error / allowed, where=where, initial=0)
    assert np.all(error <= allowed, where=where), f"worst error is {worst:.3g} of what is allowed"


def host(array: Any) -> Any:
    """Copy an array of any device to the host."""
    return array.get() if hasattr(array, "get") else np.asarray(array)


def on_device(device: Device, array: Any) -> Any:
    """Copy a host array to a device in the same memory order, without the staging buffers of `Device.upload`."""
    return device.xp.array(array, order="K")


def matrix_folder() -> Path:
    """Return the folder of the 71 matrices from applications, or skip if it is absent.

    It is $GSPARSE_MATRICES, or ../shared/matrices.
    """
    folder = Path(os.environ.get("GSPARSE_MATRICES", Path(__file__).resolve().parents[2] / "shared" / "matrices"))
    if not folder.is_dir():
        pytest.skip(f"no matrices from applications here: {folder} is absent (set GSPARSE_MATRICES)")
    return folder


@contextmanager
def closed_pipe() -> Iterator[TextIO]:
    """Yield a stream, buffered by lines, to a pipe that nobody reads any more."""
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w", buffering=1, encoding="utf-8") as stream:
        yield stream


def run_python(program: str, root: Path = SOURCE_ROOT, **environment: str) -> str:
    """Run a program in a new process, with `environment` added to the variables, and return its output."""
    variables = {**os.environ, "PYTHONPATH": str(root), **environment}
    command = [sys.executable, "-c", program]
    completed = subprocess.run(
        command, cwd=root, env=variables, capture_output=True, text=True, timeout=100, check=False
    )
    assert completed.returncode == 0, completed.stderr
    return completed.stdout.strip()
