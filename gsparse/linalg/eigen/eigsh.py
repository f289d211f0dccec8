"""Eigenvalues of Hermitian matrices: thick-restart Lanczos with vectors on the device, and SciPy's interface."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.linalg

from gsparse.device.dtypes import Array
from gsparse.linalg.eigen.call import Options, dense_arrays, make_transform, result_of, run
from gsparse.linalg.eigen.eigs import eigs
from gsparse.linalg.eigen.problem import (
    GENERAL,
    HERMITIAN,
    Eigenproblem,
    EigenResult,
    check_arguments,
    check_dense_fallback,
    hermitian_order,
    is_small,
    make_problem,
    seed_of,
)
from gsparse.linalg.eigen.rayleigh_ritz import hermitian_quotients, products, residual_norms
from gsparse.linalg.eigen.restarted import Lanczos, SemidefiniteMassError
from gsparse.linalg.eigen.runs import Wanted
from gsparse.linalg.eigen.transforms import FilterRule, Solve, Transform
from gsparse.linalg.operators import MatrixOperator, Operator
from gsparse.linalg.registry import register
from gsparse.linalg.small_matrices import hermitian_pairs, rows_of, wide

Host = npt.NDArray[Any]

# The error estimates of filters are rough. After a filter, a residual may be up to this factor times the tolerance.
_SLACK = 10.0


@register("eigensolver", vectors=(1,), start="v0")
def eigsh(
    A: Any,
    k: int = 6,
    M: Any = None,
    sigma: float | None = None,
    which: str = "LM",
    v0: Array | None = None,
    ncv: int | None = None,
    maxiter: int | None = None,
    tol: float = 0,
    return_eigenvectors: bool = True,
    Minv: Any = None,
    OPinv: Any = None,
    mode: str = "normal",
    rng: Any = None,
    *,
    multiplicities: bool = True,
    full_output: bool = False,
) -> Any:
    """Find k eigenvalues of A·x = λ·M·x for a Hermitian A, with vectors that stay on the device.

    This is thick-restart Lanczos with full reorthogonalization. A step reads the basis once, and steps without solves
    do not wait for the host until the basis is full. Where products are cheap, steps use a Chebyshev polynomial of A,
    so that the basis is read less often.

    Parameters
    ----------
    A : GpuSparseMatrix, sparse array, dense array or LinearOperator, shape (n, n)
        Real symmetric or complex Hermitian: SciPy's or CuPy's.
    k : int, optional
        Number of eigenvalues, less than n. For a larger k, `scipy.linalg.eigh` computes all eigenvalues of a dense A,
        with a RuntimeWarning.
    M : like A, optional
        Hermitian and positive definite; the identity by default. With `sigma`, it may be semidefinite. In buckling
        mode, it may be indefinite, and A must be positive definite.
    sigma : float, optional
        Find the eigenvalues near sigma, by solves with A - sigma·M. See the notes.
    which : {"LM", "SM", "LA", "SA", "BE"}, optional
        The largest or smallest in magnitude, the largest or smallest, or half from each end (one more from the high end
        if k is odd). With `sigma`, this refers to the transformed eigenvalues, so "LM" means those next to sigma.
    v0 : array, shape (n,), optional
        Start vector: NumPy or CuPy. A random one by default.
    ncv : int, optional
        Number of basis vectors, ``max(2 * k + 1, 20)`` by default. Runs that look for further copies use at least 16,
        in addition to the eigenvectors that have been found.
    maxiter : int, optional
        Maximum number of restarts; 10·n by default. The search for further copies has the same limit again.
    tol : float, optional
        Relative accuracy of the eigenvalues: the residual norm of a pair is at most ``tol * abs(λ)``, or is rounding
        error. With `sigma`, this refers to the transformed eigenvalues. 0 means machine precision.
    return_eigenvectors : bool, optional
        Whether to return eigenvectors as well.
    Minv : operator, optional
        Solves with M (only if sigma is None).
    OPinv : operator, optional
        Solves with A - sigma·M.
    mode : {"normal", "buckling", "cayley"}, optional
        The transform with `sigma`: 1/(λ-σ), λ/(λ-σ) or (λ+σ)/(λ-σ).
    rng : numpy.random.Generator or int, optional
        Seed of random vectors. By default it is always the same, so that calls can be repeated bit for bit.
    multiplicities : bool, optional
        Look for further copies of multiple eigenvalues, by runs that start from other random vectors. SciPy finds these
        only by chance. Even without multiple eigenvalues, this can double the time; ``False`` omits it.
    full_output : bool, optional
        Return an `EigenResult`, with residuals, counts and the inner solves; it also unpacks as ``w, v``.

    Returns
    -------
    w : array, shape (k,)
        Eigenvalues: ascending, or the most wanted first if A is complex, as in SciPy. A NumPy array, or a CuPy array
        if v0 is one.
    v : array, shape (n, k)
        Eigenvectors in columns, orthonormal with respect to M (in buckling mode, to A). Not returned with
        ``return_eigenvectors=False``.

    Raises
    ------
    scipy.sparse.linalg.ArpackNoConvergence
        If not all eigenvalues converge within `maxiter` restarts, if the search for further copies does not end, or if
        fewer than k are finite, because M is singular. As in SciPy, the error has those that have converged.
    RuntimeError
        If A - sigma·M, or M without sigma, is singular.
    ValueError
        If arguments have no allowed values or do not fit together, if products are not finite, or if no solver with
        A - sigma·M or M reaches its tolerance.
    TypeError
        If A or M is no matrix or operator, or k is too large and A is not dense.
    ShapeError
        If A is not square, or M or v0 does not fit A.
    DtypeError, DeviceError, DeviceMemoryError

    Notes
    -----
    Without OPinv, solves with A - sigma·M use the factors of `gsparse.linalg.factorized` up to 10,000 rows. For more
    rows they use conjugate gradients with `gsparse.linalg.amg`; if the shifted matrix is not positive definite, factors
    up to 100,000 rows (2,000,000 with cuDSS), or MINRES. The tolerance of iterations is a tenth of `tol`, but at least
    50 times the machine precision. ``full_output=True`` returns the method that was used.

    Eigenvalues converge slowly if they are close to each other compared with the range of all eigenvalues, such as the
    smallest ones of the Laplacian of a large graph or grid (``which="SA"``). A `sigma` a little below them is faster
    (-1e-3 for smallest eigenvalues of 0 and 3e-3), and so is a larger `tol`.

    If `sigma` is an eigenvalue up to rounding errors, such as 0 of a Laplacian, it is moved by a small part of the
    distance to the next eigenvalue. Otherwise rounding errors would hide all other eigenvalues.

    The host waits once per restart, or every three steps with solves by A - sigma·M or M. LAPACK solves problems
    of at most 64 rows on the host (unless `ncv` or `maxiter` is passed), and those with no more rows than `ncv`.

    References
    ----------
    .. [1] K. Wu, H. Simon, "Thick-restart Lanczos method for large symmetric eigenvalue problems", SIAM J. Matrix Anal.
       Appl. 22(2), 2000.
    .. [2] Y. Zhou, Y. Saad, "A Chebyshev-Davidson algorithm for large symmetric eigenproblems", SIAM J. Matrix Anal.
       Appl. 29(3), 2007.
    .. [3] T. Ericsson, A. Ruhe, "The spectral transformation Lanczos method for the numerical solution of large sparse
       generalized symmetric eigenvalue problems", Math. Comp. 35, 1980.

    Examples
    --------
    >>> import numpy, scipy.sparse
    >>> from gsparse import GpuSparseMatrix
    >>> from gsparse.linalg import eigsh
    >>> A = GpuSparseMatrix(scipy.sparse.diags_array(numpy.arange(1.0, 1001.0)), device="cpu")
    >>> w, v = eigsh(A, 3)
    >>> w.round(8)
    array([ 998.,  999., 1000.])
    >>> eigsh(A, 3, sigma=10.3, return_eigenvectors=False).round(8)
    array([ 9., 10., 11.])
    """
    problem = make_problem(A, M, v0)
    check_arguments(k, which, HERMITIAN, maxiter, sigma=sigma, M=M, Minv=Minv, OPinv=OPinv)
    sigma, inner_product = _parse_shift(sigma, mode), "A" if sigma is not None and mode == "buckling" else "M"
    options = Options(sigma, Minv, OPinv, float(tol), mode, inner_product=inner_product)
    if k >= problem.n:
        check_dense_fallback(problem, A, M, k, "N", "eigh")
        return scipy.linalg.eigh(*dense_arrays(problem, problem.dtype), eigvals_only=not return_eigenvectors)
    limit, seed = 10 * problem.n if maxiter is None else int(maxiter), seed_of(rng)
    wanted = Wanted(k, which, options.tol, problem.ncv(k, ncv, k + 1), limit, multiplicities, seed)
    is_dense, output = is_small(problem.n, k, ncv, maxiter), (return_eigenvectors, full_output)
    return run(problem, wanted, options, v0, is_dense, (_solve_dense, _solve), *output)


def _parse_shift(sigma: Any, mode: str) -> float | None:
    if sigma is None:
        return None
    if mode not in ("normal", "buckling", "cayley"):
        raise ValueError(f"unrecognized mode {mode!r}: use normal, buckling or cayley")
    if np.imag(sigma):
        raise ValueError(f"sigma must be real, because the eigenvalues are, got {sigma}")
    return float(np.real(sigma))


# ---------------------------------------------------------------- dense


def _solve_dense(problem: Eigenproblem, options: Options, wanted: Wanted) -> EigenResult:
    dtype, device = wide(problem.dtype), problem.device
    A, M = dense_arrays(problem, dtype)
    if options.sigma is None:
        values, vectors = hermitian_pairs(A, M)
        nu = values
    else:
        sigma = np.real(options.sigma)
        if options.mode == "buckling":
            inverses, vectors = hermitian_pairs(np.eye(len(A), dtype=dtype) if M is None else M, A)
            nu = 1 / (1 - sigma * inverses)  # λ/(λ-σ) for λ = 1/inverse; λ may be infinite
            with np.errstate(divide="ignore"):
                values = 1 / inverses
        else:
            values, vectors = hermitian_pairs(A, M)
            with np.errstate(divide="ignore"):
                nu = (1 if options.mode == "normal" else values + sigma) / (values - sigma)
    order = hermitian_order(nu, wanted.which)[: wanted.k]
    order = _scipys_order(problem, values[order], order)
    rows = rows_of(vectors[:, order], problem.dtype, device)
    w, v = problem.deliver(values[order].astype(np.finfo(problem.dtype).dtype), rows)
    return EigenResult(w, v, np.full(len(order), np.nan), 0, 0, 1)


def _scipys_order(problem: Eigenproblem, values: Host, order: npt.NDArray[np.intp]) -> npt.NDArray[np.intp]:
    """Return the indices `order` in SciPy's order: ascending values or, if A is complex, the most wanted first."""
    return order if problem.dtype.kind == "c" else order[np.argsort(values, kind="stable")]


# ---------------------------------------------------------------- iterations


def _solve(problem: Eigenproblem, options: Options, wanted: Wanted, v0: Array | None) -> EigenResult:
    transform, solver = make_transform(problem, options, hermitian=True)
    inner_product = problem.A if options.inner_product == "A" else problem.M
    mass = None if inner_product is None else inner_product.bind(problem.device, problem.dtype)
    rule = _filter_rule(problem, transform, options.tol)
    lanczos = Lanczos(problem.space(mass), transform, wanted, rule)
    try:
        lanczos.solve(v0)
    except SemidefiniteMassError:
        return _solve_without_mass(problem, options, wanted)
    if not isinstance(transform, Solve):
        values, residuals = _quotients(lanczos)
        if rule is not None and not _is_accurate(lanczos, values, residuals):
            lanczos = _polished(lanczos)
            values, residuals = _quotients(lanczos)
        order = hermitian_order(values, wanted.which)
    else:
        order = hermitian_order(lanczos.values, wanted.which)
        values = transform.eigenvalues(lanczos.values)
        residuals = _residuals(problem, options, lanczos, values)
    order = _scipys_order(problem, values[order], order)
    vectors = lanczos.krylov.vectors[: len(order)][problem.device.upload(order.astype(np.int64))]
    values = values[order].astype(np.finfo(problem.dtype).dtype)
    return result_of(problem, lanczos, solver, values, vectors, residuals[order])


def _solve_without_mass(problem: Eigenproblem, options: Options, wanted: Wanted) -> EigenResult:
    """Find the eigenpairs by `eigs`, with the standard inner product, for a singular M. Synchronizes."""
    which = {"LA": "LR", "SA": "SR"}.get(wanted.which, wanted.which)
    if options.mode != "normal" or options.sigma is None or which not in GENERAL or problem.M is None:
        raise ValueError("M is singular: this needs sigma, mode='normal', and which other than 'BE'")
    result: EigenResult = eigs(
        problem.A, wanted.k, problem.M, options.sigma, which, None, max(wanted.ncv, wanted.k + 2), wanted.maxiter,
        wanted.tol, OPinv=options.OPinv, rng=wanted.seed, multiplicities=wanted.multiplicities, full_output=True,
    )  # fmt: skip
    w, v = result.eigenvalues.real, np.asarray(result.eigenvectors)
    # Multiply the vectors of a real problem by phases that make them real. Then make all vectors M-orthonormal.
    if problem.dtype.kind != "c":
        v = (v * np.exp(-1j * np.angle(v[abs(v).argmax(axis=0), np.arange(len(w))]))).real
    gram = v.conj().T @ problem.M.matmat(v)
    v = np.linalg.solve(np.linalg.cholesky((gram + gram.conj().T) / 2), v.conj().T).conj().T
    order = np.argsort(w, kind="stable") if problem.dtype.kind != "c" else np.arange(len(w))
    rows = rows_of(v[:, order], problem.dtype, problem.device)
    values, vectors = problem.deliver(w[order].astype(np.finfo(problem.dtype).dtype), rows)
    return replace(result, eigenvalues=values, eigenvectors=vectors, residuals=result.residuals[order])


def _filter_rule(problem: Eigenproblem, transform: Transform, tol: float) -> FilterRule | None:
    """Return the rule for filters if A is a sparse matrix whose products only queue work; otherwise None."""
    cost = matrix_cost(problem.A, problem.dtype)
    if isinstance(transform, Solve) or not problem.A.is_resident or cost is None:
        return None
    if problem.A.ranks is not None:  # all ranks must decide alike
        cost = float(problem.A.ranks.agreed(np.array([cost]))[0])
    return FilterRule(transform, cost, tol, problem.epsilon)


def matrix_cost(A: Operator, dtype: np.dtype[Any]) -> float | None:
    """Return the bytes of a sparse matrix divided by the bytes of a vector; None for other operators."""
    matrix = A.matrix if isinstance(A, MatrixOperator) else getattr(A, "diagonal", None)
    if matrix is None or not hasattr(matrix, "nnz"):
        return None
    return float(matrix.nnz * (np.dtype(matrix.dtype).itemsize + 4) / max(matrix.shape[0] * dtype.itemsize, 1))


def _quotients(lanczos: Lanczos) -> tuple[Host, Host]:
    if not len(lanczos.values):
        return np.zeros(0), np.zeros(0)
    return hermitian_quotients(lanczos.krylov, lanczos.transform.product, len(lanczos.values))


def _is_accurate(lanczos: Lanczos, values: Host, residuals: Host) -> bool:
    """Return whether eigenpairs that were found with a filter reach the user's tolerance."""
    epsilon, scale = lanczos.space.epsilon, abs(values).max(initial=0)
    tolerances = np.maximum(max(lanczos.wanted.tol, epsilon) * abs(values), 2 * epsilon * scale)
    return bool((residuals <= _SLACK * tolerances).all())


def _polished(lanczos: Lanczos) -> Lanczos:
    """Return a new solve without filters that starts from the vectors of `lanczos`, with the same limit of cycles."""
    start = lanczos.krylov.vectors[: max(len(lanczos.values), 1)].sum(axis=0)
    again = Lanczos(lanczos.space, lanczos.transform, lanczos.wanted, None)
    again.solve(start)
    again.cycles += lanczos.cycles
    return again


def _residuals(problem: Eigenproblem, options: Options, lanczos: Lanczos, values: Host) -> Host:
    """Return ‖A·x - λ·M·x‖ of each pair; NaN if the caller passed OPinv, because A may then be a placeholder."""
    if options.OPinv is not None or not len(values):
        return np.full(len(values), np.nan)
    X = lanczos.krylov.vectors[: len(values)]
    AX = products(problem.device, lanczos.transform.product, X)
    MX = X if problem.M is None else products(problem.device, problem.M.bind(problem.device, problem.dtype), X)
    return residual_norms(lanczos.space, AX, values, MX)
