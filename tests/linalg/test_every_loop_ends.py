"""Every iterative method ends within its limit of steps, whatever the matrix and the right-hand side are."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pytest
import scipy.sparse as sp
import scipy.sparse.linalg as la

from gsparse import GpuSparseMatrix
from gsparse import linalg as gla
from gsparse.errors import GsparseError

N = 70  # eigenproblems of at most 64 rows are solved as dense ones
SHIFT = sp.diags_array(np.ones(N - 1), offsets=1, shape=(N, N))
LAPLACIAN = sp.csr_array(2 * sp.eye_array(N) - SHIFT - SHIFT.T)
KEPT = sp.diags_array((np.arange(N) % 3 > 0).astype(float))


def with_entry(value: float) -> sp.csr_array:
    S = LAPLACIAN.copy()
    S[1, 1] = value
    return S


MATRICES: dict[str, Any] = {
    "zero": sp.csr_array((N, N)),
    "identity": sp.eye_array(N),
    "signs": sp.diags_array(np.where(np.arange(N) % 2, 1.0, -1.0)),
    "rank one": sp.csr_array(np.ones((N, N))),
    "nilpotent": SHIFT,
    "one eigenvector": SHIFT + sp.eye_array(N),
    "rotation": SHIFT - SHIFT.T,
    "large rotation": 1e20 * (SHIFT - SHIFT.T),
    "infinite": with_entry(np.inf),
    "NaN": with_entry(np.nan),
    "large": 1e200 * LAPLACIAN,
    "small": 1e-200 * LAPLACIAN,
    "large and small": sp.diags_array(np.logspace(-200, 200, N)),
    "empty rows": KEPT @ LAPLACIAN @ KEPT,
    "one row": sp.csr_array([[3.0]]),
    "one row of zero": sp.csr_array((1, 1)),
}
FACTORS = (1.0, 1e300, 1e-300, np.inf)


class CountingOperator(la.LinearOperator):
    """An operator that fails the test, without an exception that a solver could catch, after too many products."""

    def __init__(self, S: Any, limit: int) -> None:
        super().__init__(np.dtype(float), S.shape)
        self.S, self.left = sp.csr_array(S), limit

    def _count(self, S: Any, x: Any) -> Any:
        self.left -= 1
        if self.left < 0:
            pytest.fail("more products than the limit of steps allows")
        return S @ x

    def _matvec(self, x: Any) -> Any:
        return self._count(self.S, x)

    _matmat = _matvec

    def _rmatvec(self, x: Any) -> Any:
        return self._count(self.S.T, x)

    _rmatmat = _rmatvec


class Method(NamedTuple):
    """A call with an operator, a right-hand side and a limit, and its products for each step and besides the steps."""

    call: Callable[[CountingOperator, Any, int | None], Any]
    products: int = 1
    others: int = 20
    default_limit: int = 10 * N
    uses_b: bool = True


def solver(name: str, products: int = 1, others: int = 20, limit: str = "maxiter", **options: Any) -> Method:
    """Return a solver that is to reach a residual of 0."""
    zero = dict.fromkeys(("atol", "btol", "conlim") if name in ("lsqr", "lsmr") else ("rtol",), 0.0)
    function = partial(getattr(gla, name), full_output=True, **{**zero, **options})
    return Method(lambda A, b, steps: function(A, b, **{limit: steps}), products, others)


def preconditioned(make: Callable[[Any], Any], name: str = "cg", products: int = 1, **options: Any) -> Method:
    function = partial(getattr(gla, name), rtol=0.0, **options)
    make_of = lambda A: make(GpuSparseMatrix(A.S, device="cpu"))  # noqa: E731
    return Method(lambda A, b, steps: function(A, b, M=make_of(A), maxiter=steps), products)


def eigensolver(name: str, products: int = 25, **options: Any) -> Method:
    """Return an eigensolver, which takes up to 20 products in each cycle."""

    def call(A: Any, b: Any, steps: int | None) -> Any:
        return getattr(gla, name)(A, min(2, max(A.shape[0] - 2, 1)), maxiter=steps, **options)

    return Method(call, products, 100, uses_b=False)


def block(A: Any) -> Any:
    return np.random.default_rng(0).standard_normal((A.shape[0], 2))


# Products of an inner solve, by conjugate gradients and then, for each of 8 residuals, by MINRES.
INNER = 2000 + 8 * 6 * N
TIMES = {"start": 0.0, "stop": 2.0, "num": 7}
METHODS = {
    "cg": solver("cg"),
    "cg, one reduction": solver("cg", single_reduction=True),
    "cg, refined": solver("cg", products=3, inner_dtype="float32"),
    "bicgstab": solver("bicgstab", products=2),
    "gmres": solver("gmres", products=5, restart=4),
    "gmres, narrow basis": solver("gmres", products=5, restart=4, basis_dtype="float32"),
    "fgmres": preconditioned(gla.jacobi, "fgmres", 5, restart=4),
    "minres": solver("minres"),
    "chebyshev": solver("chebyshev", others=80),
    "chebyshev with bounds": solver("chebyshev", bounds=(0.1, 8)),
    "lsqr": solver("lsqr", products=2, limit="iter_lim"),
    "lsmr": solver("lsmr", products=2),
    "solve": Method(lambda A, b, steps: gla.solve(A, b, maxiter=steps), 20, 100),
    # Products of matrices do not count here, so that only the time limit ends an endless loop.
    "solve with entries": Method(lambda A, b, steps: gla.solve(sp.csr_array(A.S), b, maxiter=steps)),
    **{f"cg with {make.__name__}": preconditioned(make) for make in (gla.amg, gla.jacobi, gla.isai, gla.gauss_seidel)},
    "cg with ic0": preconditioned(partial(gla.ic0, solve="jacobi")),
    "cg with ilu0": preconditioned(partial(gla.ilu0, block_size=2)),
    "cg with many levels": preconditioned(partial(gla.amg, max_coarse=2)),
    "cg with a polynomial": preconditioned(gla.chebyshev_polynomial),
    **{f"eigsh {which}": eigensolver("eigsh", which=which) for which in ("LM", "SM", "LA", "SA", "BE")},
    **{f"eigs {which}": eigensolver("eigs", which=which) for which in ("LM", "SM", "LR", "SI")},
    "lobpcg": Method(lambda A, b, steps: gla.lobpcg(A, block(A), maxiter=steps), 4, 20, 20, uses_b=False),
    "lobpcg with B": Method(
        lambda A, b, steps: gla.lobpcg(LAPLACIAN, block(A), B=A, maxiter=steps), 12, 40, 20, uses_b=False
    ),
    **{f"svds {which}": eigensolver("svds", 100, which=which) for which in ("LM", "SM")},
    "expm_multiply": Method(lambda A, b, steps: gla.expm_multiply(A, b), others=3000),
    "expm_multiply, many times": Method(lambda A, b, steps: gla.expm_multiply(A, b, **TIMES), others=6000),
    "onenormest": Method(lambda A, b, steps: gla.onenormest(A, itmax=steps or 5), 4, 4, 5, uses_b=False),
    "spectral_radius": Method(lambda A, b, steps: gla.spectral_radius(A, maxiter=steps), 25, 100, uses_b=False),
}
# Eigensolvers with inner solves that fail, which takes seconds.
SLOW_METHODS = {
    **{
        f"eigsh near 0.5, {mode}": eigensolver("eigsh", 25 * INNER, sigma=0.5, mode=mode)
        for mode in ("normal", "buckling", "cayley")
    },
    "eigs near 0.5": eigensolver("eigs", 25 * INNER, sigma=0.5),
    "eigsh with M": Method(
        lambda A, b, steps: gla.eigsh(LAPLACIAN, 2, M=A, maxiter=steps), 25 * INNER, 100, uses_b=False
    ),
}


@pytest.mark.timeout(300)
@pytest.mark.parametrize("steps", [5, pytest.param(None, marks=pytest.mark.whole)])
@pytest.mark.parametrize("name", [*METHODS, *(pytest.param(name, marks=pytest.mark.whole) for name in SLOW_METHODS)])
def test_every_method_ends_within_its_limit_of_steps(name: str, steps: int | None) -> None:
    method, num_ended = {**METHODS, **SLOW_METHODS}[name], 0
    limit = method.others + method.products * (method.default_limit if steps is None else steps)
    for S in MATRICES.values():
        for factor in FACTORS[: None if method.uses_b else 1]:
            with warnings.catch_warnings(), np.errstate(all="ignore"):
                warnings.simplefilter("ignore")
                try:
                    method.call(CountingOperator(S, limit), np.full(S.shape[0], factor), steps)
                    num_ended += 1
                except (GsparseError, TypeError, ValueError, ArithmeticError, RuntimeError):
                    pass  # Refusing a matrix is an end too.
    assert num_ended
