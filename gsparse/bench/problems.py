"""The problems of the benchmark: model problems made on the device, matrices from applications, and files."""

from __future__ import annotations

import itertools
import math
import os
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp

from gsparse.bench.assembled import assemble, assembled_names, parse_name
from gsparse.device.dtypes import Array
from gsparse.errors import FileFormatError
from gsparse.files import read_file
from gsparse.files.npz import headers

SEED = 20261120

FOLDER_VARIABLE = "GSPARSE_MATRICES"

# `--all` omits matrices from applications with fewer entries, because the launch takes most of the time of their
# products.
MIN_ENTRIES = 100_000


class Arrays(NamedTuple):
    """The CSR arrays of a matrix, all from one array module, and its shape."""

    data: Array
    indices: Array
    indptr: Array
    shape: tuple[int, int]

    def to_scipy(self) -> sp.csr_array:
        """Return a SciPy array that shares these arrays, which must be NumPy's."""
        return sp.csr_array((self.data, self.indices, self.indptr), shape=self.shape)


@dataclass(frozen=True)
class Problem:
    """A matrix of the benchmark, which is made when it is measured.

    Attributes
    ----------
    name : str
    make : callable
        ``make(xp)`` returns the arrays, made with the array module `xp` (NumPy or CuPy).
    path : Path or None
        The file from which the matrix is read, if any.
    """

    name: str
    make: Callable[[Any], Arrays]
    path: Path | None = None


def stencil(n: int, points: int, *, variable: bool = False, xp: Any = np) -> Arrays:
    """Make the matrix of the 7- or 27-point stencil on a grid of n³ points, with sorted columns.

    With constant coefficients, the matrix is symmetric: the diagonal is the number of the stencil's other points (6 or
    26), and all other entries are -1. With variable coefficients, each entry is multiplied by a different random factor
    from 1 to 1.125, so that only the structure is symmetric.

    Examples
    --------
    >>> stencil(3, 7).shape, stencil(3, 7).data.size
    ((27, 27), 135)
    """
    neighbours = itertools.product((-1, 0, 1), repeat=3)
    offsets = [offset for offset in neighbours if points == 27 or sum(map(abs, offset)) <= 1]
    z, y, x = xp.meshgrid(*(xp.arange(n, dtype=np.int32),) * 3, indexing="ij")
    rows = (z * n + y) * n + x
    inside = xp.empty((n**3, points), bool)
    columns = xp.empty((n**3, points), np.int32)
    for j, (dz, dy, dx) in enumerate(offsets):
        inside[:, j] = (
            (z + dz >= 0) & (z + dz < n) & (y + dy >= 0) & (y + dy < n) & (x + dx >= 0) & (x + dx < n)
        ).ravel()
        columns[:, j] = (rows + (dz * n + dy) * n + dx).ravel()
    indptr = xp.zeros(n**3 + 1, np.int64)
    xp.cumsum(inside.sum(axis=1), out=indptr[1:])
    indices = columns[inside]
    data = xp.where(indices == xp.repeat(rows.ravel(), points).reshape(-1, points)[inside], float(points - 1), -1.0)
    if variable:
        data = data * (1 + xp.random.default_rng(SEED).random(data.size) / 8)
    return Arrays(data, indices, indptr.astype(np.int32), (n**3, n**3))


def banded(num_rows: int, per_row: int, reach: int, *, xp: Any = np) -> Arrays:
    """Make a matrix with `per_row` random columns in each row, within ±reach of the diagonal, sorted.

    Columns may be repeated.
    """
    rng = xp.random.default_rng(SEED)
    columns = xp.arange(num_rows)[:, None] + rng.integers(-reach, reach + 1, (num_rows, per_row))
    return _even_rows(xp.clip(columns, 0, num_rows - 1), num_rows, per_row, rng, xp)


def uniform(num_rows: int, per_row: int, *, xp: Any = np) -> Arrays:
    """Make a matrix with `per_row` random columns in each row, sorted. Columns may be repeated."""
    rng = xp.random.default_rng(SEED)
    return _even_rows(rng.integers(0, num_rows, (num_rows, per_row)), num_rows, per_row, rng, xp)


def _even_rows(columns: Array, num_rows: int, per_row: int, rng: Any, xp: Any) -> Arrays:
    indices = xp.sort(columns, axis=1).astype(np.int32).ravel()
    indptr = xp.arange(0, num_rows * per_row + 1, per_row, dtype=np.int32)
    return Arrays(rng.random(indices.size), indices, indptr, (num_rows, num_rows))


def rmat(scale: int, edges_per_row: int, *, xp: Any = np) -> Arrays:
    """Make a power-law graph of 2**scale vertices without duplicate edges (R-MAT, a = 0.57, b = c = 0.19).

    References
    ----------
    D. Chakrabarti, Y. Zhan, C. Faloutsos, "R-MAT: a recursive model for graph mining", SDM 2004.
    """
    num_rows, rng = 2**scale, xp.random.default_rng(SEED)
    num_edges = num_rows * edges_per_row
    keys = xp.zeros(num_edges, np.int64)
    for bit in range(scale):
        draw = rng.random(num_edges)
        row, column = draw >= 0.76, ((draw >= 0.57) & (draw < 0.76)) | (draw >= 0.95)
        keys |= (row.astype(np.int64) << (bit + scale)) | (column.astype(np.int64) << bit)
    keys = xp.unique(keys)
    indptr = xp.searchsorted(keys >> scale, xp.arange(num_rows + 1)).astype(np.int32)
    return Arrays(rng.random(keys.size), (keys & (num_rows - 1)).astype(np.int32), indptr, (num_rows, num_rows))


def from_lengths(lengths: Any, num_cols: int, *, xp: Any = np) -> Arrays:
    """Make a matrix with these row lengths (a host array) and sorted random columns, which may be repeated."""
    rng, indptr = xp.random.default_rng(SEED), xp.asarray(np.concatenate([[0], np.cumsum(lengths)]))
    nnz = int(indptr[-1])
    rows = xp.searchsorted(indptr[1:], xp.arange(nnz), side="right")
    keys = xp.sort(rows * num_cols + rng.integers(0, num_cols, nnz))
    shape = (len(lengths), num_cols)
    return Arrays(rng.random(nnz), (keys % num_cols).astype(np.int32), indptr.astype(np.int32), shape)


def counts(shape: tuple[int, int], entries: int, *, spread: float = 0.5, used: float = 1.0, xp: Any = np) -> Arrays:
    """Make a matrix of small whole numbers, like counts of words in texts or of genes in cells, or ratings by users.

    Parameters
    ----------
    shape : (int, int)
    entries : int
    spread : float
        Standard deviation of the logarithm of a row's expected length.
    used : float
        The fraction of the columns that may have entries. The expected numbers of entries of these columns follow
        Zipf's law, in random order.
    xp : module
        NumPy or CuPy.
    """
    rng = np.random.default_rng(SEED)
    rows = rng.lognormal(sigma=spread, size=shape[0])
    columns = rng.permutation((np.arange(shape[1]) < used * shape[1]) / (np.arange(shape[1]) + 10.0))
    keys = np.zeros(0, np.int64)
    while keys.size < entries:
        drawn = [np.searchsorted(np.cumsum(w / w.sum()), rng.random(entries // 2)) for w in (rows, columns)]
        keys = np.union1d(keys, np.minimum(drawn[0], shape[0] - 1) * np.int64(shape[1]) + drawn[1])
    keys = np.sort(rng.choice(keys, entries, replace=False))
    indptr = np.searchsorted(keys, np.arange(shape[0] + 1) * np.int64(shape[1])).astype(np.int32)
    values = rng.geometric(0.6, entries).astype(np.float64)
    return _from_host(sp.csr_array((values, (keys % shape[1]).astype(np.int32), indptr), shape=shape), xp)


def _transposed_counts(shape: tuple[int, int], entries: int, *, spread: float, used: float, xp: Any) -> Arrays:
    S = counts(shape, entries, spread=spread, used=used).to_scipy()
    return _from_host(sp.csr_array(S.T.tocsr()), xp)


def shuffled_blocks(n: int, size: int, *, xp: Any = np) -> Arrays:
    """Make the 27-point pattern of n³ nodes in random order, with a dense block of random values for each entry.

    The rows are as irregular as those of an unstructured mesh with several unknowns per node.
    """
    _, indices, indptr, (num_nodes, _) = stencil(n, 27)
    rng = np.random.default_rng(SEED)
    order = rng.permutation(num_nodes)
    pattern = sp.csr_array((np.ones(indices.size, np.int8), indices, indptr), shape=(num_nodes, num_nodes))
    pattern = sp.csr_array(pattern[order][:, order])
    pattern.sort_indices()
    blocks = (rng.random((pattern.nnz, size, size)), pattern.indices, pattern.indptr)
    S = sp.csr_array(sp.bsr_array(blocks, shape=(num_nodes * size, num_nodes * size)).tocsr())
    return _from_host(S, xp)


def _with_long_rows(num_rows: int, per_row: int, num_long: int, length: int) -> Any:
    lengths = np.full(num_rows, per_row)
    lengths[:: num_rows // num_long][:num_long] = length
    return lengths


# The problems of the project's first measurements; smaller versions of them, with fewer than a million entries;
# matrices of dense blocks; matrices with a few very long rows, which are hard for most formats; and counts.
MODEL_PROBLEMS: dict[str, Callable[[Any], Arrays]] = {
    "7-point 200^3 constant": lambda xp: stencil(200, 7, xp=xp),
    "7-point 200^3 variable": lambda xp: stencil(200, 7, variable=True, xp=xp),
    "27-point 128^3 constant": lambda xp: stencil(128, 27, xp=xp),
    "27-point 128^3 variable": lambda xp: stencil(128, 27, variable=True, xp=xp),
    "banded 2M x 24": lambda xp: banded(2_000_000, 24, 2000, xp=xp),
    "uniform 2M x 24": lambda xp: uniform(2_000_000, 24, xp=xp),
    "R-MAT 21": lambda xp: rmat(21, 16, xp=xp),
    "uniform 4k x 400": lambda xp: uniform(4000, 400, xp=xp),
    "7-point 40^3 constant": lambda xp: stencil(40, 7, xp=xp),
    "7-point 40^3 variable": lambda xp: stencil(40, 7, variable=True, xp=xp),
    "27-point 24^3 constant": lambda xp: stencil(24, 27, xp=xp),
    "27-point 24^3 variable": lambda xp: stencil(24, 27, variable=True, xp=xp),
    "banded 20k x 24": lambda xp: banded(20_000, 24, 2000, xp=xp),
    "uniform 20k x 24": lambda xp: uniform(20_000, 24, xp=xp),
    "R-MAT 15": lambda xp: rmat(15, 16, xp=xp),
    "few dense rows": lambda xp: from_lengths(_with_long_rows(50_000, 6, 5, 20_000), 50_000, xp=xp),
    "one row of 90000": lambda xp: from_lengths(_with_long_rows(100_000, 3, 1, 90_000), 100_000, xp=xp),
    "27-point 12^3 x 3 shuffled": lambda xp: shuffled_blocks(12, 3, xp=xp),
    "27-point 40^3 x 3 shuffled": lambda xp: shuffled_blocks(40, 3, xp=xp),
    "counts of 32k genes in 2700 cells": lambda xp: _transposed_counts(
        (2700, 32_738), 1_900_000, spread=0.4, used=0.5, xp=xp
    ),
    "counts in 2700 cells of 32k genes": lambda xp: counts((2700, 32_738), 1_900_000, spread=0.4, used=0.5, xp=xp),
    "counts of words in 2246 texts": lambda xp: counts((2246, 10_473), 303_000, spread=0.6, xp=xp),
    "counts of words in 19k texts": lambda xp: counts((18_846, 130_107), 1_900_000, spread=0.8, xp=xp),
    "ratings of 3700 items by 6040 users": lambda xp: counts((6040, 3706), 1_000_000, spread=1.0, xp=xp),
    "ratings of 20k items by 100k users": lambda xp: counts((100_000, 20_000), 1_900_000, spread=1.5, xp=xp),
    "relations of 14541 entities": lambda xp: counts((14_541, 14_541), 272_000, spread=1.2, used=0.95, xp=xp),
    "36 rows of 17000": lambda xp: from_lengths(np.full(36, 17_000), 40_000, xp=xp),
}


def matrix_folder() -> Path:
    """Return the folder of matrices from applications: GSPARSE_MATRICES, or ../shared/matrices beside the checkout."""
    default = Path(__file__).resolve().parents[3] / "shared" / "matrices"
    return Path(os.environ.get(FOLDER_VARIABLE) or default)


def read_matrix(path: Path, name: str | None = None) -> sp.csr_array:
    """Read a matrix from a file, and refuse an array of one dimension.

    Raises
    ------
    FileFormatError, FileNotFoundError, DeviceMemoryError
    """
    S = read_file(path, name)
    if S.ndim != 2:
        raise FileFormatError(
            f"{path.name} holds an array of one dimension, of shape {S.shape}, and a matrix is needed: save "
            "A.reshape(1, -1) for a matrix with one row"
        )
    return S


def application_matrix(name: str) -> sp.csr_array:
    """Load a matrix from an application, in `matrix_folder`. The entries of a pattern matrix are ones."""
    return read_matrix(matrix_folder() / f"{name}.npz")


def find_problem(name: str, variable: str | None = None) -> Problem:
    """Return the problem with this name: a model problem, an assembled one, a file, or a matrix in `matrix_folder`.

    Parameters
    ----------
    name : str
    variable : str, optional
        The variable to read from a ``.mat`` file that holds several matrices.

    Raises
    ------
    FileNotFoundError
        If there is no such problem. The message says where it was searched for, and which names are similar.
    """
    if name in MODEL_PROBLEMS:
        return Problem(name, MODEL_PROBLEMS[name])
    assembled = parse_name(name)
    if assembled is not None:
        discretization, entries, displaced = assembled
        return Problem(name, lambda xp: _from_host(assemble(discretization, entries, displaced=displaced), xp))
    path = Path(name)
    if not path.is_file():
        path = matrix_folder() / f"{name}.npz"
    if path.is_file():
        return Problem(
            path.name.removesuffix(".npz"), lambda xp: _from_host(read_matrix(path, variable), xp), path=path
        )
    known = [*MODEL_PROBLEMS, *assembled_names(), *(p.stem for p in _application_files())]
    close = get_close_matches(name, known, n=3, cutoff=0.4)
    hint = f"; similar names: {', '.join(map(repr, close))}" if close else ""
    folder = f", nor a matrix in {matrix_folder()}" if matrix_folder().is_dir() else ""
    raise FileNotFoundError(
        f"{name!r} is neither a file nor a model problem{folder}{hint}; --list prints the names, and "
        f"{FOLDER_VARIABLE} names a folder of .npz files to add (.mtx files are given by their paths)"
    )


def with_distinct_names(problems: Iterable[Problem]) -> list[Problem]:
    """Return the problems. Files whose names are not unique are named by their paths."""
    listed = list(problems)
    counts = Counter(problem.name for problem in listed)
    are_shared = [problem.path is not None and counts[problem.name] > 1 for problem in listed]
    return [replace(p, name=str(p.path)) if is_shared else p for p, is_shared in zip(listed, are_shared, strict=True)]


def all_problems(min_entries: int = MIN_ENTRIES) -> Iterator[Problem]:
    """Yield every model problem, and every matrix in `matrix_folder` with at least `min_entries` entries."""
    for name, make in MODEL_PROBLEMS.items():
        yield Problem(name, make)
    for path in _application_files():
        if _stored_entries(path) >= min_entries:
            yield find_problem(str(path))


def _application_files() -> list[Path]:
    return sorted(matrix_folder().glob("*.npz")) if matrix_folder().is_dir() else []


def _stored_entries(path: Path) -> int:
    """Read the number of entries of a sparse ``.npz`` file from its header. Return 0 if it cannot be read."""
    try:
        with zipfile.ZipFile(path) as archive:
            return math.prod(headers(archive)["data"].shape)  # The values of BSR and DIA have two or more dimensions.
    except (OSError, EOFError, zipfile.BadZipFile, zlib.error, KeyError, ValueError, NotImplementedError):
        return 0


def _from_host(S: sp.csr_array, xp: Any) -> Arrays:
    return Arrays(xp.asarray(S.data), xp.asarray(S.indices), xp.asarray(S.indptr), S.shape)
