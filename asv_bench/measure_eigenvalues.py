"""Time eigenvalues and singular values beside CuPy's and RAFT's, and compare them with SciPy's, in one run.

    python asv_bench/measure_eigenvalues.py [eigsh] [svds] [cells] [sigma] [real]

Each line shows a figure of gsparse, that of the peer, and the peer's over gsparse's (x). A goal is the x that the
project aims at, or the largest number of seconds. RAFT is a peer if pylibraft is installed. The sections are:

eigsh
    The largest eigenvalues of the 7-point Laplacian of 64³ and 100³ points, beside CuPy's, with the same tolerance. The
    Laplacian has multiple eigenvalues, of which CuPy finds single copies. For each number of eigenvalues, the first
    line is for single copies in gsparse as well, and the second one for all copies.
svds
    The largest singular values of a random matrix.
cells
    The 50 largest singular triplets of the logarithms of counts, in float32: 50,000 cells, 20,000 genes, 100 million
    entries. This is the principal component analysis of single cells, without centring.
sigma
    The six eigenvalues next to 0 for the Laplacian of 128³ points, with multigrid for the inner solves. SciPy's
    function would factorize the matrix, which takes minutes and tens of gigabytes.
real
    Eigenvalues of square matrices from ``GSPARSE_MATRICES`` with at most ``--rows`` rows: those of symmetric matrices
    with `eigsh`, of the others with `eigs`. They have to agree with SciPy's within ten times the tolerance, relative to
    the largest one.

``--device cpu --size 0.3`` tries the script without a GPU.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np
import scipy.sparse as sp
import scipy.sparse.linalg as la
from measure_solvers import LEGEND, cula, cupy, cusp, poisson, print_row, row, seconds

import gsparse
from gsparse import GpuSparseMatrix
from gsparse.bench.problems import matrix_folder, read_matrix
from gsparse.linalg import eigs, eigsh, svds

SECTIONS = ("eigsh", "svds", "cells", "sigma", "real")
REPEATS = 3
TOLERANCE, REAL_TOLERANCE = 1e-4, 1e-8
MIN_RATIO, MAX_SIGMA_SECONDS = 2.0, 2.0
# For a matrix from an application: the number of eigenvalues that are computed, and the number of SciPy's with which
# they are compared. The latter is larger, because the last one may be any member of a cluster.
SOUGHT, COMPARED = 6, 14


def median_seconds(call: Callable[[], Any]) -> float:
    """Return the median time of a call that has run once before."""
    call()
    return statistics.median(seconds(call) for _ in range(REPEATS))


def on_host(array: Any) -> Any:
    return array.get() if hasattr(array, "get") else np.asarray(array)


def compare(what: str, ours: Callable[[], Any], peers: dict[str, Callable[[], Any]], goal: float | None = None) -> None:
    """Print the times, with how far the values of each peer are from ours."""
    found, time_of_ours = np.sort(on_host(ours())), 1e3 * median_seconds(ours)
    if not peers:
        print(f"{what}: {time_of_ours:.4g} ms")
    for name, theirs in peers.items():
        try:
            expected = np.sort(on_host(theirs()))
            difference = abs(found - expected).max() / abs(expected).max()
            figures = (time_of_ours, name, 1e3 * median_seconds(theirs), "ms", goal)
        except Exception as error:  # A peer that fails says so, and the others are measured.
            print(f"{what}: {name} failed: {type(error).__name__}: {error}"[:200], flush=True)
            continue
        print_row(row(f"{what}, difference {difference:.0e}", *figures))


def eigsh_peers(S: Any, k: int, **options: Any) -> dict[str, Callable[[], Any]]:
    """Return calls of the peers that are installed, each of which returns eigenvalues."""
    if cupy is None:
        return {}
    T = cusp.csr_matrix(sp.csr_matrix(S))
    peers: dict[str, Callable[[], Any]] = {
        "CuPy": partial(cula.eigsh, T, k, **options, return_eigenvectors=False)  # type: ignore[union-attr]
    }
    if find_spec("pylibraft"):
        peers["RAFT"] = lambda: import_module("pylibraft.sparse.linalg").eigsh(T, k, **options)[0]
    return peers


def svds_peers(T: Any, k: int, *, vectors: bool) -> dict[str, Callable[[], Any]]:
    """Return calls of the peers that are installed, each of which returns singular values, given CuPy's matrix."""
    if cupy is None:
        return {}

    def values(svds: Callable[..., Any], **options: Any) -> Any:
        found = svds(T, k, **options, return_singular_vectors=vectors)
        return cupy.asarray(found[1] if isinstance(found, tuple) else found)

    peers: dict[str, Callable[[], Any]] = {"CuPy": partial(values, cula.svds, tol=TOLERANCE)}
    if find_spec("pylibraft"):
        raft = import_module("pylibraft.sparse.linalg").svds
        peers["RAFT, Lanczos"] = partial(values, raft, solver="lanczos", tol=TOLERANCE, seed=0)
        peers["RAFT, randomized"] = partial(values, raft, solver="randomized", seed=0)
    return peers


def measure_eigsh(size: float, device: Any) -> None:
    for n in (64, 100):
        S = poisson(round(size * n))
        A = GpuSparseMatrix(S, device=device)
        for k, copies in ((6, False), (6, True), (32, False), (32, True)):
            options: dict[str, Any] = {"which": "LA", "tol": TOLERANCE}
            ours = partial(eigsh, A, k, **options, return_eigenvectors=False, multiplicities=copies)
            what = f"eigsh, {round(size * n)}^3, k={k}{', all copies' if copies else ''}"
            compare(what, ours, eigsh_peers(S, k, **options), None if copies else MIN_RATIO)


def measure_svds(size: float, device: Any) -> None:
    rng = np.random.default_rng(0)
    S = sp.csr_array(sp.random_array((round(200_000 * size), round(20_000 * size)), density=1e-3, rng=rng))
    A = GpuSparseMatrix(S, device=device)
    T = None if cupy is None else cusp.csr_matrix(sp.csr_matrix(S))
    for k in (6, 32):
        ours = partial(svds, A, k, tol=TOLERANCE, return_singular_vectors=False)
        what = f"svds, {S.shape[0]} x {S.shape[1]}, k={k}"
        compare(what, ours, svds_peers(T, k, vectors=False), MIN_RATIO)


def cells(num_cells: int, num_genes: int, density: float, xp: Any) -> tuple[Any, Any, Any]:
    """Return the CSR arrays of log(1 + counts). The counts are Poisson variables, whose means follow Zipf's law."""
    rng, chunk = xp.random.default_rng(0), 1000
    genes = 1.0 / (np.random.default_rng(0).permutation(num_genes) + 10.0)
    low, high = 0.0, 1e6
    for _ in range(60):  # the scale with which the mean of 1 - exp(-rate) is the density
        scale = (low + high) / 2
        low, high = (scale, high) if -np.expm1(-scale * genes).mean() < density else (low, scale)
    rates, data, indices, lengths = xp.asarray(scale * genes), [], [], [xp.zeros(1, int)]
    for begin in range(0, num_cells, chunk):
        depths = xp.exp(0.3 * rng.standard_normal((min(chunk, num_cells - begin), 1)))
        counts = rng.poisson(depths * rates)
        _, columns = counts.nonzero()
        data.append(xp.log1p(counts[counts > 0]).astype(np.float32))
        indices.append(columns.astype(np.int32))
        lengths.append((counts > 0).sum(axis=1))
    return xp.concatenate(data), xp.concatenate(indices), xp.cumsum(xp.concatenate(lengths)).astype(np.int32)


def measure_cells(size: float, device: Any) -> None:
    xp, shape, k = np if cupy is None else cupy, (round(50_000 * size), round(20_000 * size)), 50
    arrays = cells(*shape, 0.1, xp)
    A = GpuSparseMatrix(arrays, shape=shape, device=device)
    T = None if cupy is None else cusp.csr_matrix(arrays, shape=shape)
    what = f"svds, {shape[0]} x {shape[1]}, {A.nnz} counts, k={k}"
    compare(what, lambda: svds(A, k, tol=TOLERANCE)[1], svds_peers(T, k, vectors=True))


def measure_sigma(size: float, device: Any) -> None:
    n = round(128 * size)
    A = GpuSparseMatrix(poisson(n), device=device)
    began = time.perf_counter()
    values = np.sort(on_host(eigsh(A, 6, sigma=0.0, return_eigenvectors=False)))
    first = time.perf_counter() - began
    again = median_seconds(lambda: eigsh(A, 6, sigma=0.0, return_eigenvectors=False))
    line = 2 - 2 * np.cos(np.pi * np.arange(1, 4) / (n + 1))  # the eigenvalues of one direction
    exact = np.sort((line[:, None, None] + line[:, None] + line).ravel())[:6]
    verdict = "met" if again <= MAX_SIGMA_SECONDS else "MISSED"
    print(
        f"eigsh, sigma=0, {n}^3, k=6: first {first:.2f} s, again {again:.2f} s, relative error "
        f"{abs(values / exact - 1).max():.0e}  goal {MAX_SIGMA_SECONDS:g} s {verdict}"
    )


def measure_real(most_rows: int, device: Any) -> None:
    """Print how many matrices have the eigenvalues that SciPy finds, and the others."""
    right, tried = 0, 0
    for path in sorted(matrix_folder().glob("*.npz")):
        S = read_matrix(path)
        if S.shape[0] != S.shape[1] or not 4 * COMPARED < S.shape[0] <= most_rows:
            continue
        S = S.astype(complex if S.dtype.kind == "c" else float)
        is_hermitian = abs(S - S.conj().T).max() == 0
        ours, theirs = (eigsh, la.eigsh) if is_hermitian else (eigs, la.eigs)
        options = {"return_eigenvectors": False, "maxiter": 3000}
        v0 = np.random.default_rng(0).standard_normal(S.shape[0]).astype(S.dtype)
        began = time.perf_counter()
        try:
            expected = theirs(S, COMPARED, v0=v0, tol=REAL_TOLERANCE / 100, **options)
        except (la.ArpackError, RuntimeError) as error:
            print(f"{path.stem:24} SciPy: {type(error).__name__}", flush=True)
            continue
        middle = time.perf_counter()
        try:
            found = on_host(ours(GpuSparseMatrix(S, device=device), SOUGHT, tol=REAL_TOLERANCE, **options))
        except (la.ArpackError, RuntimeError, gsparse.errors.GsparseError) as error:
            found, problem = np.full(SOUGHT, np.nan), f"{type(error).__name__}: {str(error)[:60]}"
        else:
            problem = ""
        times = middle - began, time.perf_counter() - middle
        scale = abs(expected).max() or 1.0
        distance = abs(found[:, None] - expected).min(axis=1).max() / scale
        # None of the largest ones is missing.
        missing = (np.sort(abs(expected))[::-1][:SOUGHT] - np.sort(abs(found))[::-1]).max() / scale
        is_right = max(distance, missing) <= 10 * REAL_TOLERANCE
        right, tried = right + is_right, tried + 1
        name = "eigsh" if is_hermitian else "eigs"
        print(
            f"{path.stem:24} {S.shape[0]:6} {name:5} {'right' if is_right else 'WRONG'} {distance:.0e} {missing:.0e} "
            f"{times[1]:6.2f} s, SciPy {times[0]:6.2f} s {problem}",
            flush=True,
        )
    print(f"matrices from applications: {right} of {tried} agree with SciPy within {10 * REAL_TOLERANCE:g}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sections", nargs="*", metavar="SECTION", help=", ".join(SECTIONS))
    parser.add_argument("--device")
    parser.add_argument("--size", type=float, default=1.0, help="factor of the sizes of the problems")
    parser.add_argument("--rows", type=int, default=20_000, help="rows of the largest matrix of section real")
    options = parser.parse_args()
    print(LEGEND)
    for section in options.sections or SECTIONS:
        if section == "real":
            measure_real(options.rows, options.device)
        else:
            calls = {"eigsh": measure_eigsh, "svds": measure_svds, "cells": measure_cells, "sigma": measure_sigma}
            calls[section](options.size, options.device)


if __name__ == "__main__":
    main()
