"""Eigenvalues of general matrices: the Krylov-Schur method with vectors on the device, and SciPy's interface."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.linalg

from gsparse.device.dtypes import Array
from gsparse.linalg.eigen.call import Options, dense_arrays, make_transform, result_of, run
from gsparse.linalg.eigen.problem import (
    GENERAL,
    Eigenproblem,
    EigenResult,
    check_arguments,
    check_dense_fallback,
    general_order,
    is_small,
    make_problem,
    seed_of,
)
from gsparse.linalg.eigen.rayleigh_ritz import products, residual_norms
from gsparse.linalg.eigen.restarted import KrylovSchur
from gsparse.linalg.eigen.runs import Wanted
from gsparse.linalg.operators import Apply
from gsparse.linalg.registry import register
from gsparse.linalg.small_matrices import rows_of, wide

Host = npt.NDArray[Any]


@register("eigensolver", vectors=(1,), start="v0")
def eigs(
    A: Any,
    k: int = 6,
    M: Any = None,
    sigma: complex | None = None,
    which: str = "LM",
    v0: Array | None = None,
    ncv: int | None = None,
    maxiter: int | None = None,
    tol: float = 0,
    return_eigenvectors: bool = True,
    Minv: Any = None,
    OPinv: Any = None,
    OPpart: str | None = None,
    rng: Any = None,
    *,
    multiplicities: bool = True,
    full_output: bool = False,
) -> Any:
    """Find k eigenvalues of A·x = λ·M·x for any square A, with vectors that stay on the device.

    This is the Krylov-Schur method. A step orthogonalizes twice and reads the basis only twice, and steps without
    solves do not wait for the host until the basis is full. A real matrix is treated in real arithmetic.

    Parameters
    ----------
    A : GpuSparseMatrix, sparse array, dense array or LinearOperator, shape (n, n)
        Real or complex: SciPy's or CuPy's.
    k : int, optional
        Number of eigenvalues, less than n - 1. For a larger k, `scipy.linalg.eig` computes all eigenvalues of a dense
        A, with a RuntimeWarning.
    M : like A, optional
        Hermitian and positive definite; the identity by default.
    sigma : complex, optional
        Find the eigenvalues near sigma, by solves with A - sigma·M. See the notes.
    which : {"LM", "SM", "LR", "SR", "LI", "SI"}, optional
        The largest or smallest in magnitude, real part, or imaginary part (of a real matrix: its absolute value). With
        `sigma`, this refers to the transformed eigenvalues 1/(λ - σ), so "LM" means those next to sigma.
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
    OPpart : {"r", "i"}, optional
        For a real A and a complex sigma: use the real part (default) or the imaginary part of the inverse.
    rng : numpy.random.Generator or int, optional
        Seed of random vectors. By default it is always the same, so that calls can be repeated bit for bit.
    multiplicities : bool, optional
        Look for further copies of multiple eigenvalues, by runs that start from other random vectors; see `eigsh`.
    full_output : bool, optional
        Return an `EigenResult`, with residuals, counts and the inner solves; it also unpacks as ``w, v``.

    Returns
    -------
    w : array, shape (k,)
        Complex eigenvalues, the most wanted first; conjugate pairs are adjacent. A NumPy array, or a CuPy array
        if v0 is one.
    v : array, shape (n, k)
        Eigenvectors of norm 1 in columns. Not returned with ``return_eigenvectors=False``.

    Raises
    ------
    scipy.sparse.linalg.ArpackNoConvergence
        If not all eigenvalues converge within `maxiter` restarts, if the search for further copies does not end, or if
        fewer than k are finite, because M is singular. As in SciPy, the error has those that have converged.
    RuntimeError, ValueError, TypeError, ShapeError, DtypeError, DeviceError, DeviceMemoryError
        As for `eigsh`.

    Notes
    -----
    Without OPinv, solves with A - sigma·M use the factors of `gsparse.linalg.factorized` up to 10,000 rows. For more
    rows they use GMRES with `gsparse.linalg.ilu0` or, if that fails, factors up to 100,000 rows (2,000,000 with cuDSS).
    The tolerance of GMRES is a tenth of `tol`, but at least 50 times the machine precision.

    A `sigma` that is an eigenvalue up to rounding errors is moved, as in `eigsh`.

    References
    ----------
    .. [1] G. W. Stewart, "A Krylov-Schur algorithm for large eigenproblems", SIAM J. Matrix Anal. Appl. 23(3), 2002.
    .. [2] B. N. Parlett, Y. Saad, "Complex shift and invert strategies for real matrices", Linear Algebra Appl. 88/89,
       1987.

    Examples
    --------
    >>> import numpy, scipy.sparse
    >>> from gsparse import GpuSparseMatrix
    >>> from gsparse.linalg import eigs
    >>> S = scipy.sparse.diags_array([numpy.arange(1.0, 501.0), numpy.ones(499)], offsets=[0, 1])
    >>> w, v = eigs(GpuSparseMatrix(S, device="cpu"), 3)
    >>> w.real.round(6)
    array([500., 499., 498.])
    """
    problem = make_problem(A, M, v0)
    check_arguments(k, which, GENERAL, maxiter, sigma=sigma, M=M, Minv=Minv, OPinv=OPinv)
    options = _options(problem, sigma, OPpart, Minv, OPinv, float(tol))
    if k >= problem.n - 1:
        check_dense_fallback(problem, A, M, k, "N - 1", "eig")
        return scipy.linalg.eig(*dense_arrays(problem, problem.dtype), right=return_eigenvectors)
    limit, seed = 10 * problem.n if maxiter is None else int(maxiter), seed_of(rng)
    wanted = Wanted(k, which, options.tol, problem.ncv(k, ncv, k + 2), limit, multiplicities, seed)
    is_dense, output = is_small(problem.n, k, ncv, maxiter), (return_eigenvectors, full_output)
    return run(problem, wanted, options, v0, is_dense, (_solve_dense, _solve), *output)


def _options(problem: Eigenproblem, sigma: Any, part: str | None, Minv: Any, OPinv: Any, tol: float) -> Options:
    """Check `OPpart`, and return the options of the transform."""
    if part is not None and (sigma is None or problem.dtype.kind == "c"):
        raise ValueError("OPpart should not be specified with sigma=None or complex A")
    if part is not None and part.lower() not in ("r", "i"):
        raise ValueError("OPpart must be one of ('r','i')")
    if sigma is None:
        return Options(None, Minv, None, tol)
    if problem.dtype.kind == "c":
        return Options(complex(sigma), None, OPinv, tol)
    part = "r" if part is None else part.lower()
    if np.imag(sigma):
        return Options(complex(sigma), None, OPinv, tol, part=part)
    if part == "i":
        raise ValueError("OPpart cannot be 'i' if sigma is real")
    return Options(float(np.real(sigma)), None, OPinv, tol)


def _transformed(values: Host, options: Options) -> Host:
    """Return the transformed eigenvalues, to which `which` refers; without a shift, the eigenvalues themselves."""
    if options.sigma is None:
        return values
    with np.errstate(divide="ignore", invalid="ignore"):
        nu = 1 / (values - options.sigma)
        if not options.part:
            return np.asarray(nu)
        conjugate = 1 / (values - np.conj(options.sigma))
        return np.asarray((nu + conjugate) / 2 if options.part == "r" else (nu - conjugate) / 2j)


# ---------------------------------------------------------------- dense


def _solve_dense(problem: Eigenproblem, options: Options, wanted: Wanted) -> EigenResult:
    device, dtype = problem.device, wide(problem.dtype)
    values, vectors = scipy.linalg.eig(*dense_arrays(problem, dtype))
    values, vectors = values[np.isfinite(values)], vectors[:, np.isfinite(values)]
    nu = _transformed(values, options)
    order = general_order(nu, wanted.which, problem.dtype.kind != "c")[: wanted.k]
    out = np.dtype(np.result_type(problem.dtype, np.complex64))
    w, v = problem.deliver(values[order].astype(out), rows_of(vectors[:, order], out, device))
    return EigenResult(w, v, np.full(len(order), np.nan), 0, 0, 1)


# ---------------------------------------------------------------- iterations


def _solve(problem: Eigenproblem, options: Options, wanted: Wanted, v0: Array | None) -> EigenResult:
    transform, solver = make_transform(problem, options, hermitian=False)
    method = KrylovSchur(problem.space(), transform, wanted)
    method.solve(v0)
    values, combinations = _pairs(problem, options, method)
    order = general_order(_transformed(values, options), wanted.which, problem.dtype.kind != "c")[: wanted.k]
    values, combinations = values[order], combinations[:, order]
    X, residuals = _vectors(problem, options, method, values, combinations)
    return result_of(problem, method, solver, values.astype(X.dtype), X, residuals)


def _pairs(problem: Eigenproblem, options: Options, method: KrylovSchur) -> tuple[Host, Host]:
    """Return eigenvalues λ, and a matrix whose columns are their eigenvectors in the basis of Schur vectors."""
    if not len(method.schur):
        return np.zeros(0, complex), np.zeros((0, 0), complex)
    if options.part:  # the part of the inverse does not determine λ, so project A and M
        X = method.krylov.vectors[: len(method.schur)]
        A = _projected(method, method.transform.product, X)
        M = None if problem.M is None else _projected(method, problem.M.bind(problem.device, problem.dtype), X)
        nu, combinations = scipy.linalg.eig(A, M)
        return nu.astype(complex), combinations.astype(complex)
    nu, combinations = scipy.linalg.eig(method.schur)
    return method.transform.eigenvalues(nu.astype(complex)), combinations.astype(complex)


def _projected(method: KrylovSchur, product: Apply, X: Array) -> Host:
    """Return the inner products xᵢᴴ·A·xⱼ of all pairs of rows of X, for the operator A. Synchronizes."""
    space, AX = method.space, products(method.space.device, product, X)
    return space.download(space.sum_over_ranks(space.device.xp.conj(X) @ AX.T))


def _vectors(
    problem: Eigenproblem, options: Options, method: KrylovSchur, values: Host, combinations: Host
) -> tuple[Array, Host]:
    """Return eigenvectors of norm 1 as rows, and the norms of their residuals. Synchronizes."""
    space, xp = method.space, method.space.device.xp
    dtype = np.dtype(np.result_type(space.dtype, np.complex64))
    basis = method.krylov.vectors[: len(method.schur)]

    def combine(rows: Array) -> Array:
        made = xp.empty((len(values), space.size), dtype)
        for part in ("real", "imag"):  # multiply the real basis by each part, instead of copying it as complex
            factors = getattr(combinations.T, part) if space.dtype.kind != "c" else combinations.T
            product = space.device.upload(np.ascontiguousarray(factors).astype(space.dtype)) @ rows
            if space.dtype.kind == "c":
                return product
            getattr(made, part)[...] = product
        return made

    X = combine(basis)
    norms = np.sqrt(space.download(space.sum_over_ranks((abs(X) ** 2).sum(axis=1))))
    scales = space.device.upload((1 / np.where(norms > 0, norms, 1)).astype(np.finfo(dtype).dtype))[:, None]
    X *= scales
    if options.OPinv is not None or not len(values):
        return X, np.full(len(values), np.nan)
    left, right = combine(products(space.device, method.transform.product, basis)) * scales, X
    if problem.M is not None:
        right = combine(products(space.device, problem.M.bind(space.device, space.dtype), basis)) * scales
    return X, residual_norms(method.space, left, values, right)
