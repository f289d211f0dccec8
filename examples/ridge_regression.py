"""Predict a rating from the words of a text: ridge regression, with the parameter chosen on texts that were held back.

Each row of the matrix A is a text, each column a word, and each entry says how often the word occurs in the text. Ridge
regression predicts the ratings b by weights x of the words, and by a rating c that texts have without any of them. It
minimizes

    norm(b - A·x - c)² + α·norm(x)²

which `lsqr` does with `damp=√α`. A column of ones stands for c: its weight is hardly damped, because the column is
long. The larger α is, the smaller the weights are, and the less they follow the accidents of the texts that they were
computed from. The texts that were held back show which α predicts best. The texts are drawn at random: words are as
frequent as in natural texts, and a few of them change the rating.

The same function runs with SciPy and with gsparse. Finally `gsparse.linalg.solve` solves with the best α, and says how.
In scikit-learn, this is `Ridge(alpha=α, solver="lsqr")`.

    python examples/ridge_regression.py
    python examples/ridge_regression.py --texts 200000 --words 30000
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.sparse as sp
from scipy.sparse.linalg import lsqr as scipys_lsqr

import gsparse

PARAMETERS = np.logspace(-1, 4, 6)
LENGTH = 40  # words of a text, on average


def texts_of(num_texts: int, num_words: int, seed: int = 0) -> tuple[sp.csr_array, np.ndarray]:
    """Return the counts of the words in each text, with a column of ones, and the ratings."""
    rng = np.random.default_rng(seed)
    frequency = 1 / np.arange(10, num_words + 10)
    rows = np.arange(num_texts).repeat(rng.integers(0, 2 * LENGTH, num_texts))
    words = rng.choice(num_words, rows.size, p=frequency / frequency.sum())
    counts = sp.coo_array((np.ones(rows.size), (rows, words)), shape=(num_texts, num_words)).tocsr()
    weights = np.where(rng.random(num_words) < 0.2, rng.standard_normal(num_words), 0)
    ratings = 3 + counts @ weights + 2 * rng.standard_normal(num_texts)
    return sp.csr_array(sp.hstack([counts, np.ones((num_texts, 1))])), ratings


def regress(lsqr: Callable[..., Any], A: Any, b: np.ndarray) -> np.ndarray:
    """Return the weights for each parameter, as the columns of an array."""
    return np.column_stack([lsqr(A, b, damp=np.sqrt(alpha), atol=1e-9, btol=1e-9)[0] for alpha in PARAMETERS])


def mean_errors(A: Any, b: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return the root of the mean squared error of the predictions for each parameter."""
    return np.sqrt(np.mean((b[:, None] - A @ weights) ** 2, axis=0))


def plot(training: np.ndarray, held_back: np.ndarray, file: str) -> None:
    """Draw the errors over the parameter."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5, 3.4), layout="constrained")
    axes = figure.subplots()
    axes.semilogx(PARAMETERS, training, "o-", label="texts of the regression")
    axes.semilogx(PARAMETERS, held_back, "o-", label="texts held back")
    axes.set(xlabel="α", ylabel="mean error of the rating", title="The parameter of ridge regression")
    axes.legend()
    figure.savefig(file, dpi=130)


def main() -> None:
    """Choose the parameter with SciPy and with gsparse, compare the results and the times, and solve for the best."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--texts", type=int, default=20_000, help="100 at least (default: %(default)s)")
    parser.add_argument("--words", type=int, default=5_000, help="100 at least (default: %(default)s)")
    parser.add_argument("--device", default=None, help="auto, cpu, gpu or gpu:N")
    parser.add_argument("--plot", metavar="FILE", help="save a picture as .png or .svg; needs matplotlib")
    options = parser.parse_args()
    for name in ("texts", "words"):
        if getattr(options, name) < 100:
            parser.error(f"--{name} must be at least 100, got {getattr(options, name)}")

    S, b = texts_of(options.texts, options.words)
    rows = np.arange(S.shape[0])
    is_held_back = rows % 5 == 0
    learned, held_back = S[rows[~is_held_back]], S[rows[is_held_back]]
    print(f"{learned.shape[0]} texts with {learned.nnz} entries, and {held_back.shape[0]} texts held back")
    A = gsparse.GpuSparseMatrix(learned, device=options.device)
    gsparse.linalg.lsqr(A, b[~is_held_back])  # The first call compiles kernels.
    found = {}
    for name, lsqr, matrix in (("SciPy", scipys_lsqr, learned), ("gsparse", gsparse.linalg.lsqr, A)):
        begin = time.perf_counter()
        found[name] = regress(lsqr, matrix, b[~is_held_back])
        print(f"{name:8} {time.perf_counter() - begin:.3f} s for {len(PARAMETERS)} parameters")
    weights = found["gsparse"]
    difference = abs(weights - found["SciPy"]).max() / abs(weights).max()
    print(f"the weights differ by {difference:.1e}")

    errors = mean_errors(A, b[~is_held_back], weights), mean_errors(held_back, b[is_held_back], weights)
    print(f"{'α':>8} {'error':>7} {'held back':>10}")
    for alpha, of_learned, of_held_back in zip(PARAMETERS, *errors, strict=True):
        print(f"{alpha:8g} {of_learned:7.3f} {of_held_back:10.3f}")
    best = float(PARAMETERS[np.argmin(errors[1])])
    result = gsparse.linalg.solve(A, b[~is_held_back], damp=np.sqrt(best))
    print(f"best α: {best:g}; a text without words is rated {result.x[-1]:.2f}")
    print(f"solve: {result.method}, {result.reason}")

    if options.plot:
        plot(*errors, options.plot)


if __name__ == "__main__":
    main()
