"""Singular values of sparse matrices, with SciPy's interface; `gsparse.linalg.eigen.singular_triplets` finds them."""

from __future__ import annotations

import numbers
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from gsparse.device.dtypes import Array
from gsparse.device.select import device_of
from gsparse.linalg.eigen.problem import seed_of
from gsparse.linalg.eigen.singular_triplets import CenteredOperator, Options, System, scaled, triplets
from gsparse.linalg.krylov.units import times_power
from gsparse.linalg.operators import Operator, as_operator, device_for, solve_dtype
from gsparse.linalg.registry import register

Host = npt.NDArray[Any]


@register("eigensolver", vectors=(0, 2), start="v0")
def svds(
    A: Any,
    k: int = 6,
    ncv: int | None = None,
    tol: float = 0,
    which: str = "LM",
    v0: Array | None = None,
    maxiter: int | None = None,
    return_singular_vectors: bool | str = True,
    solver: str = "arpack",
    rng: Any = None,
    options: Any = None,
    *,
    random_state: Any = None,
    multiplicities: bool = True,
    center: Array | None = None,
) -> Any:
    """Find k singular values of a sparse matrix and their vectors, with vectors that stay on the device.

    Parameters
    ----------
    A : GpuSparseMatrix, sparse array, dense array or LinearOperator, shape (M, N)
        The matrix: SciPy's or CuPy's. An operator needs `rmatvec` too.
    k : int, optional
        Number of singular values, less than min(M, N).
    ncv : int, optional
        Number of basis vectors; ``max(2 * k + 1, 20)`` by default.
    tol : float, optional
        Relative accuracy: the residual norms of a triplet are at most tol times its singular value, or are rounding
        errors. 0 means machine precision. SciPy passes tol² to ARPACK.
    which : {"LM", "SM"}, optional
        The largest or the smallest singular values.
    v0 : array, shape (min(M, N),), optional
        Start vector: NumPy or CuPy. A random one by default.
    maxiter : int, optional
        Maximum number of restarts; 10·min(M, N) by default. The search for further copies has the same limit again.
    return_singular_vectors : {True, False, "u", "vh"}, optional
        Whether to compute both kinds of singular vectors, none, or one of them.
    solver : {"arpack", "lobpcg", "propack"}, optional
        Accepted as in SciPy, but there is only one method.
    rng : numpy.random.Generator or int, optional
        Seed of random vectors. By default it is always the same, so that calls can be repeated bit for bit.
    options : dict, optional
        Accepted as in SciPy, and not used.
    random_state : optional
        SciPy's old name of `rng`.
    multiplicities : bool, optional
        Look for further copies of multiple singular values; see `eigsh`.
    center : array, shape (N,), optional
        Find singular triplets of A with this vector subtracted from each row, ``A - center``, which would be dense and
        is never formed. With ``center=A.mean(axis=0)``, the rows of `vh` are the principal components of A's rows.

    Returns
    -------
    u : array, shape (M, k), or None
        Left singular vectors in columns.
    s : array, shape (k,)
        Singular values, ascending.
    vh : array, shape (k, N), or None
        Right singular vectors in rows, conjugated. With ``return_singular_vectors=False``, only `s` is returned. NumPy
        arrays, or CuPy arrays if v0 is one.

    Raises
    ------
    scipy.sparse.linalg.ArpackNoConvergence
        If not all singular values converge within `maxiter` restarts, or the search for further copies does not end.
    ValueError
        If an argument has no allowed value, or a value of A or v0 is not finite.
    TypeError
        If A is no matrix or operator.
    DeviceError, DeviceMemoryError

    Notes
    -----
    If M + N is at most 100,000, the smallest singular values of a sparse matrix are found with factors on the host. All
    other searches use products only, and need many of them if singular values are close together. Zero singular values
    are found too. The host waits once per restart, and in each solve with factors. Matrices with at most 64 rows or
    columns, and at most 4,000,000 elements, are solved by LAPACK on the host, unless `ncv` or `maxiter` is passed.

    References
    ----------
    .. [1] G. Golub, W. Kahan, "Calculating the singular values and pseudo-inverse of a matrix", SIAM J. Numer. Anal.
       2(2), 1965.
    .. [2] H. D. Simon, H. Zha, "Low-rank matrix approximation using the Lanczos bidiagonalization process with
       applications", SIAM J. Sci. Comput. 21(6), 2000.
    .. [3] J. Baglama, L. Reichel, "Augmented implicitly restarted Lanczos bidiagonalization methods", SIAM J. Sci.
       Comput. 27(1), 2005.

    Examples
    --------
    >>> import numpy, scipy.sparse
    >>> from gsparse import GpuSparseMatrix
    >>> from gsparse.linalg import svds
    >>> A = GpuSparseMatrix(scipy.sparse.diags_array(numpy.arange(1.0, 301.0), shape=(300, 500)), device="cpu")
    >>> u, s, vh = svds(A, 3)
    >>> s.round(8), u.shape, vh.shape
    (array([298., 299., 300.]), (300, 3), (3, 500))
    >>> svds(A, 2, which="SM", return_singular_vectors=False).round(8)
    array([1., 2.])
    >>> svds(A, 2, center=A.mean(axis=0), return_singular_vectors=False).round(4)
    array([298.8437, 299.8616])
    """
    seed = seed_of(random_state if rng is None else rng)
    operator = _parse_matrix(A, v0)
    if center is not None:
        operator = CenteredOperator(operator, center)
    settings, v0 = _parse(operator, (k, ncv, tol, which, maxiter), v0, return_singular_vectors, solver)
    settings = replace(settings, multiplicities=multiplicities, seed=seed)
    device = device_for(A, v0)
    rows, columns = operator.whole_shape
    on_host = v0 is None or device_of(v0) is None
    system = System(device, solve_dtype(operator), operator, rows < columns, on_host)
    with device.active(), device.memory_guard(), device.own_stream():
        system = scaled(system)
        U, s, V = triplets(system, settings, v0)
        return _deliver(system, U, s, V, return_singular_vectors)


# ---------------------------------------------------------------- arguments


def _parse_matrix(A: Any, v0: Any) -> Operator:
    """Return A as an operator, or raise SciPy's error if it is not a matrix."""
    if isinstance(A, str):
        raise TypeError("type not understood: A must be a matrix or an operator")
    if np.ndim(A) > 2 and not hasattr(A, "matvec"):
        raise ValueError(f"Only 2-D input is allowed: array must have ndim <= 2, not {np.ndim(A)}")
    if not np.issubdtype(getattr(A, "dtype", None) or np.asarray(A).dtype, np.number):
        raise ValueError("`A` must be of numeric data type.")
    device = device_for(A, v0)
    with device.active(), device.memory_guard():
        operator = as_operator(A, device)
    if not all(operator.whole_shape):
        raise ValueError("`A` must not be empty.")
    return operator


def _parse(A: Operator, options: tuple[Any, ...], v0: Any, vectors: Any, solver: Any) -> tuple[Options, Any]:
    """Check the arguments as SciPy does; return the options as numbers, and v0 as an array or None."""
    k, ncv, tol, which, maxiter = options
    if str(solver).lower() not in ("arpack", "lobpcg", "propack"):
        raise ValueError("solver must be one of {'arpack', 'lobpcg', 'propack'}.")
    smallest, own = min(A.whole_shape), A.shape[A.whole_shape[0] >= A.whole_shape[1]]
    if int(k) != k or not 0 < k < smallest:
        raise ValueError("`k` must be an integer satisfying `0 < k < min(A.shape)`.")
    if ncv is not None and (int(ncv) != ncv or not k < ncv < smallest):
        raise ValueError("`ncv` must be an integer satisfying `k < ncv < min(A.shape)`.")
    if tol < 0 or not np.isfinite(tol):
        raise ValueError("`tol` must be a non-negative floating point value.")
    if str(which).upper() not in ("LM", "SM"):
        raise ValueError("`which` must be in {'LM', 'SM'}.")
    if maxiter is not None and (int(maxiter) != maxiter or maxiter <= 0):
        raise ValueError("`maxiter` must be a positive integer.")
    if not (isinstance(vectors, bool | numbers.Integral) and vectors in (0, 1)) and vectors not in ("u", "vh"):
        raise ValueError("`return_singular_vectors` must be in {True, False, 'u', 'vh'}.")
    if v0 is not None:
        v0 = v0 if device_of(v0) is not None else np.atleast_1d(v0)
        if v0.dtype.kind not in "fc":
            raise ValueError("`v0` must be of floating or complex floating data type.")
        if v0.shape != (own,):
            raise ValueError(f"`v0` must have shape {(own,)}.")
    ncv, maxiter = (None if value is None else int(value) for value in (ncv, maxiter))
    return Options(int(k), ncv, float(tol), str(which).upper(), maxiter), v0


# ---------------------------------------------------------------- results


def _deliver(system: System, U: Array, s: Host, V: Array, vectors: Any) -> Any:
    """Return the triplets in the caller's form: ascending, left vectors in columns, right vectors in rows."""
    order = np.argsort(s, kind="stable")
    s = times_power(s[order].astype(np.finfo(system.dtype).dtype), system.exponent)
    places = system.device.upload(order.astype(np.int64))
    left, right = (part.astype(system.dtype, copy=False) for part in ((V, U) if system.is_adjoint else (U, V)))
    finish: Callable[[Array], Array] = system.device.download if system.on_host else lambda array: array.copy()
    values = s if system.on_host else system.device.upload(s)
    if not vectors:
        return values
    u = np.ascontiguousarray(finish(left[places].T)) if vectors in (True, "u") and system.on_host else None
    if u is None and vectors in (True, "u"):
        u = finish(left[places].T)
    vh = finish(right[places].conj()) if vectors in (True, "vh") else None
    return u, values, vh
