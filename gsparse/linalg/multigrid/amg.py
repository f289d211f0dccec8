"""Algebraic multigrid: smoothed aggregation that is set up on the device, or a hierarchy that PyAMG has set up."""

from __future__ import annotations

from functools import partial
from inspect import signature
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from gsparse.device.base import Device
from gsparse.device.select import get_device
from gsparse.linalg.multigrid.cycle import MultigridPreconditioner
from gsparse.linalg.multigrid.level_setup import LevelSetup, MakeSmoothers
from gsparse.linalg.multigrid.options import AggregationOptions, parse_candidates, parse_options
from gsparse.linalg.multigrid.pyamg_hierarchy import convert_hierarchy
from gsparse.linalg.multigrid.smoothed_aggregation import SmoothedAggregation
from gsparse.linalg.multigrid.smoothers import SMOOTHERS, chebyshev_smoother, parallel_smoother
from gsparse.linalg.preconditioners.relaxation import Smoother
from gsparse.linalg.preconditioners.row_order import check_ordering
from gsparse.linalg.preconditioners.square_matrix import SquareMatrix
from gsparse.linalg.registry import register
from gsparse.matrix.gpu_sparse_matrix import DeviceMatrix, GpuSparseMatrix

# Default number of steps of a smoother that the user chose by name.
_DEFAULT_SWEEPS = 2
# Default Chebyshev smoother for several unknowns per node: its degree, and the smallest damped eigenvalue divided by
# the largest eigenvalue. For elasticity with Poisson's ratio 0.49, it needs 37 iterations to 1e-8; degree 2 and ratio
# 0.25 need 55, and Gauss-Seidel 33.
_SYSTEM_DEGREE, _SYSTEM_RATIO = 3, 0.1
# The arguments that cannot be combined with a hierarchy of PyAMG.
_SETUP_ARGUMENTS = ("B", "BH", "block_size", "symmetry", "strength", "max_levels", "max_coarse")


@register("preconditioner", spans_ranks=True, row_arguments=("B", "BH"))
def amg(
    A: Any,
    *,
    B: Any = None,
    BH: Any = None,
    block_size: int | None = None,
    symmetry: Literal["hermitian", "symmetric", "nonsymmetric"] | None = None,
    strength: Any = "classical",
    max_levels: int = 10,
    max_coarse: int = 150,
    cycle: Literal["V", "W"] = "V",
    smoother: str | tuple[str, dict[str, Any]] = "auto",
    sweeps: int | None = None,
    dtype: npt.DTypeLike | None = None,
    device: str | Device | None = None,
) -> MultigridPreconditioner:
    r"""Precondition with a cycle of algebraic multigrid.

    The levels of a matrix are set up by smoothed aggregation on the device of the matrix. The same matrix yields the
    same bits in every run, and the same aggregates on every device. A hierarchy that PyAMG has set up is copied to a
    device. A cycle only queues kernels, so a CUDA graph of the solver can contain it. ``print(M)`` shows the levels.

    Parameters
    ----------
    A : sparse array, shape (N, N), or pyamg.MultilevelSolver
        A matrix: a GpuSparseMatrix, or a sparse array that can be converted to one. Or a hierarchy: the result of
        `pyamg.smoothed_aggregation_solver`, `pyamg.ruge_stuben_solver` or a sibling. Only `cycle`, `smoother`,
        `sweeps`, `dtype` and `device` can be combined with a hierarchy.
    B : array_like, shape (N,) or (N, k), optional
        Near-nullspace candidates: vectors that A nearly maps to zero, on the host or on the device. By default a
        constant for each unknown of a node. For elasticity, see `rigid_body_modes`.
    BH : array_like, shape (N,) or (N, k), optional
        The candidates for the adjoint of a nonsymmetric matrix; by default `B`.
    block_size : int, optional
        Number of unknowns at each node of a mesh, whose rows are adjacent. By default the block size of a matrix in
        BSR, or of the BSR matrix from which a GpuSparseMatrix was made; 1 for others.
    symmetry : {"hermitian", "symmetric", "nonsymmetric"}, optional
        With "hermitian" and "symmetric", the restriction is the adjoint and the transpose of the prolongation. With
        "nonsymmetric", it is smoothed with the adjoint of A: use gmres or bicgstab. By default "hermitian" if the
        matrix was declared so (``symmetric=``) or, without a declaration, is Hermitian up to rounding; otherwise
        "nonsymmetric".
    strength : {"classical", "symmetric", None}, (str, dict), or list of these, optional
        Which entries join nodes to aggregates. With "classical", the default, entry (i, j) is strong if \|a_ij\|² ≥
        θ²·m_i·m_j, where m_i is the largest magnitude in row i off the diagonal and θ is 0.1; and the prolongation is
        smoothed with a matrix in which entries below θ·m_i are added to the diagonal. With "symmetric", entry (i, j) is
        strong if \|a_ij\|² ≥ θ²·\|a_ii·a_jj\|, θ is 0, and the prolongation is smoothed with A, as in PyAMG. With
        None, all entries are strong. ``("classical", {"theta": 0.25})`` sets θ. A list has an element for each level;
        the last element also applies to all further levels. For several unknowns per node, magnitudes are norms of
        blocks.
    max_levels : int, optional
        Maximum number of levels.
    max_coarse : int, optional
        A level with at most this many nodes is not coarsened further, but inverted (if it has at most 3,000 rows).
    cycle : {"V", "W"}, optional
        A level visits the next coarser one once ("V", the default) or twice ("W").
    smoother : str, or (str, dict), optional
        For a matrix, "auto" is a Chebyshev polynomial if A is Hermitian with a positive diagonal; its degree is 2, or 3
        if there are several candidates. Otherwise it is a forward and a backward Gauss-Seidel sweep. For a hierarchy,
        "auto" uses PyAMG's smoothers. On a GPU, smoothers that visit one row after the other are replaced: gauss_seidel
        and sor become a Chebyshev polynomial with about as many products if A is Hermitian with a positive diagonal. (A
        hierarchy with ``symmetry="nonsymmetric"`` counts as not Hermitian; the matrix of any other is tested.)
        Otherwise gauss_seidel, sor, block_gauss_seidel, gauss_seidel_ne and gauss_seidel_nr visit the rows of a group
        at the same time, see `gauss_seidel`. The Schwarz and Krylov methods are replaced on all devices, with a
        warning. Other smoothers are chosen by name: "jacobi", "l1_jacobi", "chebyshev", "gauss_seidel", "sor",
        "block_jacobi", "block_gauss_seidel", "jacobi_ne", "gauss_seidel_ne" or "gauss_seidel_nr", or by a name with
        options, as in PyAMG: `omega` of sor; `block_size` of the block methods; `ordering` of those that visit rows,
        see `gauss_seidel`. Forward and backward sweeps alternate, and the sweeps of the postsmoother mirror those of
        the presmoother. So M is Hermitian if A is, as `cg` requires, except with the smoothers "..._ne" and "..._nr".
    sweeps : int, optional
        Number of steps of the presmoother and of the postsmoother if `smoother` is not "auto"; 2 by default.
    dtype : {float32, float64}, optional
        The dtype of the levels and of the vectors inside the cycle; by default that of the solve. float32 halves the
        traffic, and a preconditioner seldom needs more. (In float32, residuals below 1e-38 become 0.)
    device : optional
        The device to which a hierarchy or a matrix of SciPy is copied, see `gsparse.device.get_device`. A
        GpuSparseMatrix keeps its own device.

    Returns
    -------
    MultigridPreconditioner
        To be passed as `M` to solvers of `gsparse.linalg`, SciPy or CuPy. Its ``repr`` shows the number of rows of each
        level and the smoother, and ``str`` a table with the operator complexity and the seconds of each phase of the
        set-up. ``M.update(A)`` computes the levels again for other values in the same structure. Synchronizes.

    Raises
    ------
    FactorizationError
        If the coarsest level of a hierarchy, or the one at which `max_levels` ends the coarsening, has more than 3,000
        rows; if a smoother cannot divide by a diagonal that has a zero; if a value is not finite; or if the smoother
        diverges so much that the result of a cycle is not finite. (The diagonal of an empty row counts as 1.)
    ShapeError
        If A is not square, or `B` or `BH` does not have a row for each row of A.
    TypeError
        If A is an operator whose entries cannot be read, or `B` or `BH` is complex and A is not.
    ValueError
        If an option has no allowed value, or cannot be combined with A or with another option.

    Warns
    -----
    SmootherWarning
        If a smoother of the hierarchy is replaced by another one that may need more iterations, or if a cycle makes a
        residual so much larger that all digits are lost, because the smoother diverges for this matrix.
    CoarseningWarning
        If the coarsest level has more than 3,000 rows and is only smoothed, because it has too few strong connections
        for a coarser level, or because of `max_coarse`.

    Notes
    -----
    Roots of aggregates are chosen greedily in the order of the nodes, as in PyAMG; no two roots are within distance
    two. Each root and its neighbours form an aggregate. All other nodes join the aggregates to which they have the
    strongest connections. Nodes without strong connections, such as those of rows with a diagonal only, are left to the
    smoother.

    The candidates of the finest level are smoothed before they are used. Each row of the prolongation is smoothed by
    one Jacobi step with ω = 4/3 divided by the largest eigenvalue of D⁻¹A, unless it would have entries for more than
    64 aggregates.

    References
    ----------
    .. [1] P. Vaněk, J. Mandel, M. Brezina, "Algebraic multigrid by smoothed aggregation for second and fourth order
       elliptic problems", Computing 56, 1996.
    .. [2] N. Bell, S. Dalton, L. N. Olson, "Exposing fine-grained parallelism in algebraic multigrid methods", SIAM J.
       Sci. Comput. 34(4), 2012.
    .. [3] N. Bell, L. N. Olson, J. Schroder, B. Southworth, "PyAMG: algebraic multigrid solvers in Python", J. Open
       Source Software 8(87), 2023.
    .. [4] M. Adams, M. Brezina, J. Hu, R. Tuminaro, "Parallel multigrid smoothing: polynomial versus Gauss–Seidel", J.
       Comput. Phys. 188, 2003.
    .. [5] M. Sala, R. S. Tuminaro, "A new Petrov–Galerkin smoothed aggregation preconditioner for nonsymmetric linear
       systems", SIAM J. Sci. Comput. 31(1), 2008.

    Examples
    --------
    >>> import numpy, scipy.sparse
    >>> from gsparse import GpuSparseMatrix
    >>> from gsparse.linalg import amg, cg
    >>> line = scipy.sparse.diags_array([-1.0, 2.0, -1.0], offsets=[-1, 0, 1], shape=(40, 40))
    >>> A = GpuSparseMatrix(scipy.sparse.kronsum(line, line), device="cpu")
    >>> M = amg(A)
    >>> result = cg(A, numpy.ones(1600), M=M, rtol=1e-8, full_output=True)
    >>> result.info, result.iterations < 15
    (0, True)
    """
    make, cycle_index, inner = parse_cycle(cycle, smoother, sweeps, dtype)
    if not hasattr(A, "levels"):
        setup = (block_size, symmetry, strength, max_levels, max_coarse)
        if device is not None and sp.issparse(A) and not isinstance(A, DeviceMatrix):
            A = GpuSparseMatrix(A, device=device)
        return _set_up(A, B, BH, setup, make, cycle_index, inner)
    passed = (B, BH, block_size, symmetry, strength, max_levels, max_coarse)
    for name, argument in zip(_SETUP_ARGUMENTS, passed, strict=True):
        default = signature(amg).parameters[name].default
        if argument is not default and (default is None or argument != default):
            raise ValueError(f"{name} belongs to the set-up, which PyAMG has done for this hierarchy: pass it to PyAMG")
    home = get_device(device)
    with home.active(), home.memory_guard():
        return convert_hierarchy(A, home, make, cycle_index, inner)


def parse_cycle(
    cycle: str, smoother: Any, sweeps: int | None, dtype: npt.DTypeLike | None
) -> tuple[MakeSmoothers | None, int, np.dtype[Any] | None]:
    """Check the options of a cycle.

    Returns
    -------
    (callable or None, int, dtype or None)
        The function that returns the smoothers of a level, or None for "auto"; the number of visits to the next coarser
        level; and the dtype of the vectors inside the cycle, or None for that of the solve.

    Raises
    ------
    ValueError
        If an option has a value that is not allowed.
    """
    if cycle not in ("V", "W"):
        raise ValueError(f"cycle must be 'V' or 'W', got {cycle!r}")
    make = _smoother_maker(smoother, sweeps)
    if dtype is not None and np.dtype(dtype) not in (np.dtype(np.float32), np.dtype(np.float64)):
        raise ValueError(
            f"dtype must be float32 or float64, got {np.dtype(dtype)}: pass one of the two, also for complex vectors"
        )
    return make, 1 if cycle == "V" else 2, None if dtype is None else np.dtype(dtype)


def _set_up(
    A: Any, B: Any, BH: Any, arguments: Any, make: MakeSmoothers | None, cycle_index: int, dtype: Any
) -> SmoothedAggregation:
    with SquareMatrix.of(A, "amg", keep=True) as matrix:
        options: AggregationOptions = parse_options(A, *arguments)
        symmetry = options.symmetry or ("hermitian" if matrix.is_hermitian() else "nonsymmetric")
        candidates = parse_candidates(matrix.device, matrix.size, matrix.dtype, options, symmetry, B, BH)
        smoothers = make or automatic_smoothers(candidates[0].shape[1])
        setup = LevelSetup(options, symmetry, *candidates, smoothers, dtype, is_automatic=make is None)
        return SmoothedAggregation(matrix, setup, cycle_index)


def automatic_smoothers(num_candidates: int) -> MakeSmoothers:
    """Return the function that makes the default smoothers of a level."""
    return _smoothers_of_one if num_candidates == 1 else _smoothers_of_several


def _smoothers_of_one(matrix: SquareMatrix, hermitian: bool) -> tuple[Smoother, Smoother]:
    smoother = parallel_smoother(matrix, 1, hermitian=hermitian)
    return smoother, smoother.mirrored()


def _smoothers_of_several(matrix: SquareMatrix, hermitian: bool) -> tuple[Smoother, Smoother]:
    """Return the default smoothers for several unknowns per node, where matrices have a wider spectrum."""
    if not (hermitian and matrix.has_positive_diagonal()):
        return _smoothers_of_one(matrix, hermitian)
    smoother = chebyshev_smoother(matrix, _SYSTEM_DEGREE, _SYSTEM_RATIO)
    return smoother, smoother


def _smoother_maker(smoother: Any, sweeps: int | None) -> MakeSmoothers | None:
    """Return the function that makes the smoothers of a level; None if `smoother` is "auto"."""
    name, options = smoother if isinstance(smoother, tuple) else (smoother, {})
    if name == "auto" and options == {}:
        if sweeps is not None:
            raise ValueError(f"sweeps needs a smoother other than 'auto', got sweeps={sweeps}: choose one by its name")
        return None
    if name not in SMOOTHERS:
        raise ValueError(f"smoother must be 'auto' or one of {', '.join(map(repr, SMOOTHERS))}, got {smoother!r}")
    if sweeps is not None and sweeps < 1:
        raise ValueError(f"sweeps must be at least 1, got {sweeps}")
    make = partial(SMOOTHERS[name], sweeps=_DEFAULT_SWEEPS if sweeps is None else sweeps, **options)
    unknown = {*options} - {*signature(SMOOTHERS[name]).parameters}
    if unknown:
        raise ValueError(f"the smoother {name!r} has no option {', '.join(map(repr, sorted(unknown)))}")
    check_ordering(options.get("ordering", "auto"))

    def pair(matrix: SquareMatrix, hermitian: bool) -> tuple[Smoother, Smoother]:
        before = make(matrix)
        return before, before.mirrored()

    return pair
