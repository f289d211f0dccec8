"""PyAMG, scikit-learn and networkx accept the matrix and return the same results as for SciPy's own matrices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import scipy.sparse.linalg as la

import gsparse.sparse
from gsparse import GpuSparseMatrix
from gsparse.device.base import Device

AGREEMENT = 1e-6


def grid(n: int = 24) -> Any:
    """Return the 5-point Laplacian of an n×n grid."""
    line = sp.diags_array([-1.0, 2.0, -1.0], offsets=[-1, 0, 1], shape=(n, n))
    return sp.csr_array(sp.kronsum(line, line))


def samples() -> tuple[Any, Any, Any]:
    """Return nonnegative sparse features, and for each sample a number and a class that depend on them."""
    rng = np.random.default_rng(11)
    S = sp.csr_array(sp.random_array((200, 40), density=0.15, rng=rng))
    score = S @ rng.standard_normal(40)
    return S, score, (score > np.median(score)).astype(int)


def assert_same(got: Any, expected: Any) -> None:
    """Check that two results agree in every part, and that sparse parts stay sparse."""
    if isinstance(expected, (tuple, list)):
        assert len(got) == len(expected)
        for ours, theirs in zip(got, expected, strict=True):
            assert_same(ours, theirs)
        return
    assert sp.issparse(got) == sp.issparse(expected)
    if sp.issparse(expected):
        got, expected = got.toarray(), expected.toarray()
    np.testing.assert_allclose(
        got, expected, rtol=AGREEMENT, atol=AGREEMENT * max(1.0, np.abs(expected).max(initial=0))
    )


# Our class and SciPy's of each flavour.
FLAVOURS = {
    "array": (GpuSparseMatrix, sp.csr_array),
    "matrix": (gsparse.sparse.csr_matrix, sp.csr_matrix),
}


def compare(device: Device, S: Any, call: Callable[[Any], Any], flavour: str = "array") -> Any:
    """Check that a call returns the same for our matrix as for SciPy's, and that our products are right afterwards."""
    ours, scipys = FLAVOURS[flavour]
    A, S = ours(S, device=device), scipys(S)
    x = np.linspace(-1, 1, S.shape[1])
    np.random.seed(5)  # PyAMG draws from NumPy's global generator
    expected = call(S.copy())
    np.random.seed(5)
    assert_same(call(A), expected)
    np.testing.assert_allclose(A @ x, S @ x, rtol=1e-12, atol=1e-12)
    assert not A._arrays.lent_names
    return A


# ------------------------------------------------------------------------------------------ PyAMG

SOLVERS: dict[str, dict[str, Any]] = {
    "smoothed_aggregation_solver": {"max_coarse": 20},
    "ruge_stuben_solver": {"max_coarse": 20},
    "rootnode_solver": {"max_coarse": 20},
    "pairwise_solver": {"max_coarse": 20},
    "air_solver": {"max_coarse": 20},
}

RELAXATIONS: dict[str, dict[str, Any]] = {
    "jacobi": {"omega": 0.7},
    "gauss_seidel": {"sweep": "symmetric"},
    "sor": {"omega": 1.3},
    "polynomial": {"coefficients": [0.1, 0.2]},
    "gauss_seidel_ne": {},
    "jacobi_ne": {},
}


@pytest.fixture
def pyamg() -> Any:
    return pytest.importorskip("pyamg")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("flavour", FLAVOURS)
@pytest.mark.parametrize("solver", SOLVERS)
def test_pyamg_builds_a_hierarchy_and_solves(real_device: Device, pyamg: Any, solver: str, flavour: str) -> None:
    S = grid()
    b = np.random.default_rng(1).standard_normal(S.shape[0])

    def solve(A: Any) -> Any:
        hierarchy = getattr(pyamg, solver)(A, **SOLVERS[solver])
        residuals: list[float] = []
        x = hierarchy.solve(b, tol=1e-8, maxiter=30, residuals=residuals)
        return x, len(residuals), len(hierarchy.levels)

    compare(real_device, S, solve, flavour)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("flavour", FLAVOURS)
@pytest.mark.parametrize("solver", ["smoothed_aggregation_solver", "ruge_stuben_solver"])
def test_pyamg_preconditions_scipys_cg_on_our_matrix(
    real_device: Device, pyamg: Any, solver: str, flavour: str
) -> None:
    S = grid()
    b = np.random.default_rng(2).standard_normal(S.shape[0])

    def solve(A: Any) -> Any:
        steps: list[int] = []
        M = getattr(pyamg, solver)(A).aspreconditioner()
        x, info = la.cg(A, b, M=M, rtol=1e-10, callback=lambda _: steps.append(1))
        assert info == 0
        return x, len(steps)

    assert compare(real_device, S, solve, flavour).stats.products > 0


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", RELAXATIONS)
def test_pyamg_relaxes_on_our_matrix(real_device: Device, pyamg: Any, name: str) -> None:
    S = grid()
    b = np.ones(S.shape[0])

    def relax(A: Any) -> Any:
        x = np.zeros(S.shape[0])
        getattr(pyamg.relaxation.relaxation, name)(A, x, b, iterations=3, **RELAXATIONS[name])
        return x

    compare(real_device, S, relax)


@pytest.mark.filterwarnings("ignore")
def test_pyamgs_strengths_and_krylov_solvers_take_our_matrix(real_device: Device, pyamg: Any) -> None:
    S = grid()
    b = np.ones(S.shape[0])
    compare(real_device, S, lambda A: pyamg.strength.classical_strength_of_connection(A, 0.25))
    compare(real_device, S, pyamg.strength.symmetric_strength_of_connection)
    compare(real_device, S, lambda A: pyamg.krylov.cg(A, b, tol=1e-8))
    compare(real_device, S, lambda A: pyamg.krylov.fgmres(A, b, tol=1e-8))


# ----------------------------------------------------------------------------------- scikit-learn


def learn(path: str) -> Any:
    """Return an attribute of scikit-learn by its dotted path, or skip."""
    module, _, name = path.rpartition(".")
    return getattr(pytest.importorskip(f"sklearn.{module}"), name)


def coefficients(path: str, labels: bool = False, **options: Any) -> Callable[[Any], Any]:
    """Return a call that fits a linear model to a matrix, and returns its coefficients and predictions."""

    def call(A: Any) -> Any:
        _, score, classes = samples()
        model = learn(path)(**options).fit(A, classes if labels else score)
        return model.coef_, model.intercept_, model.predict(A)

    return call


def predictions(path: str, labels: bool = False, **options: Any) -> Callable[[Any], Any]:
    def call(A: Any) -> Any:
        _, score, classes = samples()
        return learn(path)(**options).fit(A, classes if labels else score).predict(A)

    return call


def transformed(path: str, **options: Any) -> Callable[[Any], Any]:
    return lambda A: learn(path)(**options).fit_transform(A)


def neighbours(A: Any) -> Any:
    model = learn("neighbors.NearestNeighbors")(n_neighbors=3).fit(A)
    return *model.kneighbors(A[:20]), model.kneighbors_graph(A[:20])


def clusters(A: Any) -> Any:
    model = learn("cluster.KMeans")(4, n_init=2, random_state=0).fit(A)
    return model.cluster_centers_, model.labels_, model.inertia_


def pipeline(A: Any) -> Any:
    steps = (learn("preprocessing.MaxAbsScaler")(), learn("decomposition.TruncatedSVD")(5, random_state=0))
    model = learn("pipeline.make_pipeline")(*steps, learn("linear_model.Ridge")())
    return model.fit(A, samples()[1]).predict(A)


def split(A: Any) -> Any:
    return learn("model_selection.train_test_split")(A, samples()[1], random_state=0)


def cross_validation(A: Any) -> Any:
    return learn("model_selection.cross_val_score")(learn("linear_model.Ridge")(), A, samples()[1], cv=3)


def spectral(A: Any) -> Any:
    affinity = A.T @ A
    return learn("cluster.SpectralClustering")(3, affinity="precomputed", random_state=0).fit_predict(affinity)


LEARNERS: dict[str, Callable[[Any], Any]] = {
    **{
        f"Ridge, {solver}": coefficients("linear_model.Ridge", solver=solver, random_state=0, tol=1e-10, max_iter=2000)
        for solver in ("sparse_cg", "sag", "lsqr", "auto")
    },
    "Ridge, saga": coefficients(
        "linear_model.Ridge", solver="saga", fit_intercept=False, random_state=0, tol=1e-10, max_iter=2000
    ),
    "Lasso": coefficients("linear_model.Lasso", alpha=0.001),
    "ElasticNet": coefficients("linear_model.ElasticNet", alpha=0.001),
    "LinearRegression": coefficients("linear_model.LinearRegression", tol=1e-12),
    **{
        f"LogisticRegression, {solver}": coefficients(
            "linear_model.LogisticRegression", labels=True, solver=solver, random_state=0, max_iter=500
        )
        for solver in ("lbfgs", "liblinear", "newton-cg", "saga")
    },
    "LinearSVC": coefficients("svm.LinearSVC", labels=True, random_state=0),
    "SVC": predictions("svm.SVC", labels=True),
    "SGDClassifier": coefficients("linear_model.SGDClassifier", labels=True, random_state=0),
    "SGDRegressor": coefficients("linear_model.SGDRegressor", random_state=0),
    "TruncatedSVD, randomized": transformed("decomposition.TruncatedSVD", n_components=5, random_state=0),
    "TruncatedSVD, arpack": transformed(
        "decomposition.TruncatedSVD", n_components=5, algorithm="arpack", random_state=0
    ),
    "PCA": transformed("decomposition.PCA", n_components=4, svd_solver="arpack", random_state=0),
    "NMF": transformed("decomposition.NMF", n_components=4, init="nndsvd", random_state=0, max_iter=400, tol=1e-3),
    "KMeans": clusters,
    "SpectralClustering": spectral,
    "NearestNeighbors": neighbours,
    "StandardScaler": transformed("preprocessing.StandardScaler", with_mean=False),
    "MaxAbsScaler": transformed("preprocessing.MaxAbsScaler"),
    "Normalizer": transformed("preprocessing.Normalizer"),
    "normalize, l1": lambda A: learn("preprocessing.normalize")(A, norm="l1"),
    "TfidfTransformer": transformed("feature_extraction.text.TfidfTransformer"),
    "VarianceThreshold": transformed("feature_selection.VarianceThreshold", threshold=0.01),
    "DecisionTree": predictions("tree.DecisionTreeRegressor", random_state=0),
    "RandomForest": predictions("ensemble.RandomForestClassifier", labels=True, n_estimators=8, random_state=0),
    "naive Bayes": predictions("naive_bayes.MultinomialNB", labels=True),
    "cosine similarity": lambda A: learn("metrics.pairwise.cosine_similarity")(A, dense_output=False),
    "euclidean distances": lambda A: learn("metrics.pairwise.euclidean_distances")(A, squared=True),
    "randomized_svd": lambda A: learn("utils.extmath.randomized_svd")(A, 3, random_state=0)[1],
    "pipeline": pipeline,
    "train_test_split": split,
    "cross_val_score": cross_validation,
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("flavour", FLAVOURS)
@pytest.mark.parametrize("name", LEARNERS)
def test_scikit_learn_models_equal_those_of_scipys_matrix(real_device: Device, name: str, flavour: str) -> None:
    pytest.importorskip("sklearn")
    compare(real_device, samples()[0], LEARNERS[name], flavour)


# --------------------------------------------------------------------------------------- networkx


def test_networkx_accepts_the_matrix(real_device: Device) -> None:
    networkx = pytest.importorskip("networkx")
    compare(real_device, grid(6), lambda A: networkx.to_scipy_sparse_array(networkx.from_scipy_sparse_array(A)))
