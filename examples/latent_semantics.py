"""Find topics in texts: scikit-learn's TruncatedSVD and a pipeline with it, on a matrix that lives on the device.

The texts are the documentation of SciPy's own functions, which every machine with gsparse has. The weighted numbers of
their words make a sparse matrix of texts by words. Its leading singular vectors (latent semantic analysis) bring
together texts that say the same in other words. scikit-learn multiplies the matrix by blocks of columns
(`algorithm="randomized"`) or by one vector at a time ("arpack"). In both cases it accepts a GpuSparseMatrix, and finds
the same singular values as for SciPy's matrix. Then a pipeline with the same step learns to which module a function
belongs, and answers a question. The example needs scikit-learn: pip install 'gsparse-gpu[examples]'. It runs on the GPU
if there is one, else on the CPU, where this small matrix gains nothing.

    python examples/latent_semantics.py
    python examples/latent_semantics.py --topics 200
"""

from __future__ import annotations

import argparse
import inspect
import time
from importlib import import_module

import numpy as np
import scipy.sparse as sp

import gsparse

try:
    from sklearn.decomposition import TruncatedSVD
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import train_test_split
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import FunctionTransformer, Normalizer
except ModuleNotFoundError:
    raise SystemExit("needs scikit-learn: pip install 'gsparse-gpu[examples]'") from None

MODULES = ("fft", "integrate", "linalg", "ndimage", "optimize", "signal", "sparse", "spatial", "special", "stats")


def documentation() -> tuple[list[str], list[str], list[str]]:
    """Return the texts of SciPy's public functions and classes, their names, and their modules."""
    entries: dict[str, tuple[str, str, str]] = {}
    for module_name in MODULES:
        module = import_module(f"scipy.{module_name}")
        for name in module.__all__:
            text = inspect.getdoc(getattr(module, name)) or ""
            if len(text) > 300:
                entries.setdefault(text, (text, f"{module_name}.{name}", module_name))
    texts, names, modules = zip(*entries.values(), strict=True)
    return list(texts), list(names), list(modules)


def compare(S: sp.csr_array, A: gsparse.GpuSparseMatrix, topics: int) -> None:
    """Run both algorithms of TruncatedSVD on both matrices, and check that the singular values agree."""
    print(f"{'TruncatedSVD':12} {'SciPy s':>9} {'gsparse s':>9} {'variance':>9} {'differ by':>10}")
    for algorithm in ("randomized", "arpack"):
        results, seconds = [], []
        TruncatedSVD(2, algorithm=algorithm, n_iter=1).fit(A)  # The first call compiles the kernels.
        for matrix in (S, A):
            begin = time.perf_counter()
            model = TruncatedSVD(topics, algorithm=algorithm, n_iter=8, random_state=0).fit(matrix)
            seconds.append(time.perf_counter() - begin)
            results.append(model.singular_values_)
        difference = np.abs(results[1] / results[0] - 1).max()
        variance = model.explained_variance_ratio_.sum()
        print(f"{algorithm:12} {seconds[0]:9.2f} {seconds[1]:9.2f} {variance:9.1%} {difference:10.1e}")
        assert difference < 1e-10, "the same matrix has the same singular values, within rounding"


def time_products(matrix: sp.sparray, columns: int) -> float:
    """Return the milliseconds of AᵀA·Q, the best of several runs."""
    Q = np.random.default_rng(0).standard_normal((matrix.shape[1], columns))
    times = []
    for _ in range(7):
        begin = time.perf_counter()
        matrix.T @ (matrix @ Q)
        times.append(time.perf_counter() - begin)
    return 1e3 * min(times)


def main() -> None:
    """Compare the algorithms, train the pipeline, and answer a question."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--topics", type=int, default=50)
    parser.add_argument("--device", default=None, help="auto, cpu, gpu or gpu:N")
    options = parser.parse_args()

    texts, names, modules = documentation()
    vectorizer = TfidfVectorizer(sublinear_tf=True, stop_words="english")
    S = sp.csr_array(vectorizer.fit_transform(texts))
    print(f"{S.shape[0]} texts, {S.shape[1]} words, {S.nnz} entries")
    A = gsparse.GpuSparseMatrix(S, device=options.device)
    columns = options.topics + 10  # The randomized algorithm multiplies by this many columns at once.
    print(
        f"AᵀA·Q of {columns} columns: SciPy {time_products(S, columns):.2f} ms, gsparse {time_products(A, columns):.2f}"
    )
    # The dense steps of the algorithms are computed by SciPy for both matrices.
    compare(S, A, options.topics)

    # In a pipeline, one step copies the matrix to the device.
    to_device = FunctionTransformer(gsparse.GpuSparseMatrix, accept_sparse=True, kw_args={"device": options.device})
    semantics = make_pipeline(vectorizer, to_device, TruncatedSVD(options.topics, random_state=0), Normalizer())
    learner = make_pipeline(semantics, LogisticRegression(C=10.0, max_iter=1000))
    train, test, train_modules, test_modules = train_test_split(texts, modules, random_state=0)
    accuracy = learner.fit(train, train_modules).score(test, test_modules)
    print(f"the module of a function, predicted from its text: {accuracy:.1%} right, by chance {1 / len(MODULES):.0%}")
    assert accuracy > 0.7, "the prediction should be right for most functions"

    question = "smallest eigenvalues of a large symmetric matrix"
    nearest = np.argsort(-(semantics.fit_transform(texts) @ semantics.transform([question])[0]))[:5]
    print(f"{question}? {', '.join(names[i] for i in nearest)}")


if __name__ == "__main__":
    main()
