"""Block preconditioners for systems of several fields, such as velocity and pressure.

If the unknowns are numbered field by field, the matrix consists of a few sparse blocks. One sweep over the fields is
then a step of the block Gauss–Seidel method, with approximate solves M0, M1 with the diagonal blocks:

    | A00  A01 | | y0 |   | x0 |      "lower":  y0 = M0·x0,  y1 = M1·(x1 − A10·y0)
    | A10  A11 | | y1 | = | x1 |      "full":   and then  y0 = M0·(x0 − A01·y1)

With M0 ≈ A00⁻¹ and M1 ≈ S⁻¹, where S = A11 − A10·A00⁻¹·A01 is the Schur complement, "full" is a block factorization.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from gsparse.device.base import Device
from gsparse.device.dtypes import Array
from gsparse.errors import ShapeError, StructureError
from gsparse.kernels.steps import Call
from gsparse.linalg.direct.factorization import Factorization
from gsparse.linalg.operators import MatrixOperator, Operator, as_operator
from gsparse.linalg.preconditioners.base import CallBuilder, MatrixPreconditioner, VectorPasses
from gsparse.linalg.preconditioners.square_matrix import SquareMatrix
from gsparse.linalg.registry import find_method
from gsparse.matrix.gpu_sparse_matrix import GpuSparseMatrix

FORMS = ("diagonal", "lower", "upper", "full")
_ADJOINT_FORMS = {"lower": "upper", "upper": "lower"}

Index = npt.NDArray[np.int64]
# A user's choice of the solve with one field: an element of the argument `solvers` of `fieldsplit`.
Solver = Any


class FieldPreconditioner(MatrixPreconditioner):
    """A sweep over the fields of a matrix, with a solve for each field.

    Parameters
    ----------
    matrix : SquareMatrix
    fields : list of ndarray
        The rows of each field.
    form, solvers, schur
        See `fieldsplit`.
    """

    def __init__(self, matrix: SquareMatrix, fields: list[Index], form: str, solvers: list[Solver], schur: Any) -> None:
        self._fields, self._form, self._solvers = fields, form, solvers
        is_matrix = schur is not None and not isinstance(schur, (str, GpuSparseMatrix))
        self._schur = GpuSparseMatrix(schur, device=matrix.device) if is_matrix else schur
        self._solves: list[Operator] = []
        size = matrix.size
        selections = [
            sp.csr_array((np.ones(len(rows), matrix.dtype), rows, np.arange(len(rows) + 1)), shape=(len(rows), size))
            for rows in fields
        ]
        # Operators that extract the elements of a field from a vector, and operators that put them back.
        self._gather = [MatrixOperator(GpuSparseMatrix(S, device=matrix.device)) for S in selections]
        self._scatter = [MatrixOperator(GpuSparseMatrix(S.T.tocsr(), device=matrix.device)) for S in selections]
        super().__init__(matrix, "fieldsplit")

    # ------------------------------------------------------------------------------------------------------- set-up

    def _set_values(self, matrix: SquareMatrix) -> None:
        blocks = self._blocks_of(matrix)
        targets = [self._target(blocks, i) for i in range(len(self._fields))]
        is_given = [_is_operator(solver) for solver in self._solvers]  # the user's operators are applied unchanged
        signs = [
            1 if given else _sign(target.diagonal().sum()) for target, given in zip(targets, is_given, strict=True)
        ]
        targets = [target if sign > 0 else -target for target, sign in zip(targets, signs, strict=True)]
        if self._has_schur_of_caller and not is_given[1]:
            signs[1] = self._sign_of_schur(blocks)
        if self._solves:
            self._update_solves(targets)
        else:
            pairs = zip(self._solvers, targets, strict=True)
            self._solves = [_make_solve(solver, target, matrix.device) for solver, target in pairs]
        needed = {(i, j) for i, others in self._steps(adjoint=False) for j in others}
        self._blocks = {place: MatrixOperator(block) for place, block in blocks.items() if place in needed}
        self._targets, self._signs = targets, [1 if self._form == "diagonal" else sign for sign in signs]
        self.is_resident = all(solve.is_resident for solve in self._solves)

    def _blocks_of(self, matrix: SquareMatrix) -> dict[tuple[int, int], Any]:
        """Return a dict from (row field, column field) to each block that is diagonal or has entries. Synchronizes."""
        csr = matrix.csr
        whole = GpuSparseMatrix((csr.data, csr.indices, csr.indptr), shape=csr.shape, device=matrix.device)
        places = range(len(self._fields))
        rows = [whole[field] for field in self._fields]
        blocks = {(i, j): rows[i][:, self._fields[j]] for i in places for j in places}
        return {(i, j): block for (i, j), block in blocks.items() if i == j or block.nnz}

    def _target(self, blocks: dict[tuple[int, int], Any], i: int) -> Any:
        """Return the matrix for solves with field i: its diagonal block or, if `schur` says so, a Schur complement."""
        block = blocks[i, i]
        if i != len(self._fields) - 1 or _is_operator(self._solvers[i]):
            return block
        if self._schur is None:  # the first matrix decides it, and updates keep the decision
            is_saddle_point = len(self._fields) == 2 and bool((block.diagonal() == 0).any())
            self._schur = "diagonal" if is_saddle_point and blocks.keys() >= {(0, 1), (1, 0)} else "none"
        if self._has_schur_of_caller:
            return self._schur
        if self._schur == "none" or not blocks.keys() >= {(0, 1), (1, 0)}:
            return block
        return block - blocks[1, 0] @ blocks[0, 1].multiply(_inverse_diagonal(blocks[0, 0])[:, None])

    @property
    def _has_schur_of_caller(self) -> bool:
        return self._schur is not None and not isinstance(self._schur, str)

    def _sign_of_schur(self, blocks: dict[tuple[int, int], Any]) -> int:
        """Return the sign of the sum of the diagonal of A11 − A10·diag(A00)⁻¹·A01. Synchronizes."""
        total = blocks[1, 1].diagonal().sum()
        if (0, 1) in blocks and (1, 0) in blocks:
            total = total - (blocks[1, 0].multiply(blocks[0, 1].T) @ _inverse_diagonal(blocks[0, 0])).sum()
        return _sign(total)

    def _update_solves(self, targets: list[Any]) -> None:
        """Update the solves. If an update fails, restore the previous values of all solves.

        Entries of a Schur complement may appear or disappear, because values cancel. Then its solve is created again.
        """
        solves, done = list(self._solves), []
        try:
            for i, (solver, new, old) in enumerate(zip(self._solvers, targets, self._targets, strict=True)):
                if _is_operator(solver) or new is old:  # a Schur complement that the user passed does not change
                    continue
                solve: Any = solves[i]
                if not hasattr(solve, "update"):
                    raise TypeError(f"{type(solve).__name__} has no update: use fieldsplit(A, fields) again")
                try:
                    solve.update(new)
                    done.append((solve, old))
                except StructureError:
                    solves[i] = _make_solve(solver, new, self.device)
        except Exception:
            for solve, old in done:
                solve.update(old)
            raise
        self._solves = solves

    # ----------------------------------------------------------------------------------------------------- products

    def _prepare(self, passes: VectorPasses, adjoint: bool) -> CallBuilder:
        build = self._sweep(VectorPasses(passes.device, passes.dtype, 1), adjoint)
        size = self.shape[0]

        def build_columns(x: Array, y: Array) -> list[Call]:
            parts = [slice(first, first + size) for first in range(0, passes.columns * size, size)]
            return [call for part in parts for call in build(x[part], y[part])]

        return build_columns

    def _steps(self, adjoint: bool) -> Iterator[tuple[int, list[int]]]:
        """Yield (field, fields whose solutions the solve with this field needs), in the order of the sweep."""
        form = _ADJOINT_FORMS.get(self._form, self._form) if adjoint else self._form
        places = list(range(len(self._fields)))
        if form == "diagonal":
            yield from ((i, []) for i in places)
        if form in ("lower", "full"):
            yield from ((i, places[:i]) for i in places)
        if form == "full":
            yield from ((i, [j for j in places if j != i]) for i in places[-2::-1])
        if form == "upper":
            yield from ((i, places[i + 1 :]) for i in places[::-1])

    def _sweep(self, passes: VectorPasses, adjoint: bool) -> CallBuilder:
        """Allocate vectors of each field, and return the function that makes the calls of a sweep for one column."""
        device, dtype, fields = passes.device, passes.dtype, range(len(self._fields))
        solves = [solve.bind(device, dtype, adjoint=adjoint) for solve in self._solves]
        right, solution, residual = ([passes.vector(len(rows)) for rows in self._fields] for _ in range(3))
        steps: list[Call] = []
        for i, others in self._steps(adjoint):
            places = [(j, (j, i) if adjoint else (i, j)) for j in others]
            needed = [(j, self._blocks[place]) for j, place in places if place in self._blocks]
            source, sign = right[i], self._signs[i]
            if needed or sign < 0:
                source = residual[i]
                steps.append(passes.bind("begin", omega=float(sign), b=right[i], x=source))
            for j, block in needed:
                product = block.bind(device, dtype, adjoint=adjoint, alpha=-sign, beta=1)
                steps.append(partial(product, solution[j], source))
            steps.append(partial(solves[i], source, solution[i]))
        gather = [operator.bind(device, dtype) for operator in self._gather]
        scatter = [operator.bind(device, dtype, beta=float(i > 0)) for i, operator in enumerate(self._scatter)]
        return lambda x, y: [
            *(partial(gather[i], x, right[i]) for i in fields),
            *steps,
            *(partial(scatter[i], solution[i], y) for i in fields),
        ]


def _is_operator(solver: Solver) -> bool:
    return isinstance(solver, Operator) or hasattr(solver, "matvec")


def _inverse_diagonal(block: Any) -> Array:
    with SquareMatrix.of(block, "fieldsplit") as matrix:
        return matrix.inverse_diagonal("fieldsplit")


def _sign(total: Any) -> int:
    """Return -1 if `total`, the sum of a diagonal, is negative, as for Schur complements of saddle points; else 1."""
    return -1 if float(total.real) < 0 else 1


def _make_solve(solver: Solver, target: Any, device: Device) -> Operator:
    """Return the operator for solves with the matrix `target`, from a user's choice `solver`."""
    if _is_operator(solver):
        operator = as_operator(solver, device, "solvers")
        if operator.shape != target.shape:
            raise ShapeError(
                f"the solver of a field of {target.shape[0]} unknowns must have the shape {target.shape}, got "
                f"{operator.shape}: pass `solvers` in the order of `fields`"
            )
        return operator
    if solver is None:
        with SquareMatrix.of(target, "fieldsplit") as matrix:
            solver = "amg" if matrix.is_roughly_hermitian() and matrix.has_positive_diagonal() else "ilu0"
    if isinstance(solver, str):
        if solver == "direct":
            return Factorization(target)
        solver = find_method(solver, "preconditioner").function
    return as_operator(solver(target), device, "solvers")


def fieldsplit(
    A: Any,
    fields: Sequence[Any],
    *,
    form: str = "lower",
    solvers: Solver | Sequence[Solver] = None,
    schur: Any = None,
) -> FieldPreconditioner:
    """Precondition a system of several fields by solves with one field at a time.

    It is meant for saddle points (incompressible flow, mixed finite elements, optimization with constraints) and for
    other coupled equations.

    Parameters
    ----------
    A : sparse array, shape (N, N)
        A GpuSparseMatrix, or a sparse array that can be converted to one.
    fields : sequence
        The unknowns of each field: index arrays, slices or boolean masks. Each unknown belongs to one field.
    form : {"lower", "diagonal", "upper", "full"}, optional
        The blocks that a sweep uses in addition to the diagonal blocks: those below them ("lower"), none ("diagonal"),
        those above them ("upper"), or all, by a second sweep in the other direction ("full"). "diagonal" is Hermitian
        and positive definite, as `minres` requires, if the solves are. "full" is Hermitian, and takes one more solve
        with each field but the last. "lower" and "upper" require `gmres` or `fgmres`.
    solvers : optional
        The approximate solve with each field: one choice for all fields, or a sequence. A choice is the name of a
        preconditioner, "direct" for a factorization, a function that returns an operator for a matrix, or an operator
        that is applied to right-hand sides of the field. By default `amg` for blocks that are Hermitian with a positive
        diagonal, and `ilu0` for others.
    schur : "diagonal" or sparse array, optional
        The matrix for the solves with the second of two fields, in place of its own diagonal block. "diagonal" stands
        for A11 − A10·diag(A00)⁻¹·A01, and is the default if the second block has a zero on its diagonal. A sparse array
        should be close to the Schur complement A11 − A10·A00⁻¹·A01, up to its sign. For the Stokes equations, the mass
        matrix of the pressure is such an array.

    Returns
    -------
    FieldPreconditioner
        To be passed as `M` to solvers of `gsparse.linalg`, SciPy or CuPy. ``M.update(A.with_data(values))`` computes it
        for other values, if the solvers have a method `update`; a matrix passed as `schur` stays the same.

    Raises
    ------
    ValueError
        If the fields overlap or miss an unknown, or an option does not exist.
    FactorizationError
        If a solver cannot be made for its block, for example because of a zero pivot, or a value is not finite.
    ShapeError
        If A is not square, or an operator in `solvers` or the matrix `schur` does not fit its field.
    TypeError
        If `schur` is neither "diagonal" nor a sparse array.
    DeviceError, DeviceMemoryError
        If A cannot be converted to a GpuSparseMatrix.

    Notes
    -----
    The diagonal of the Schur complement of a saddle point has a negative sum. If the diagonal of a field's matrix has a
    negative sum, the negative of the matrix is passed to the solver, and right-hand sides change their sign. In the
    form "diagonal", right-hand sides keep their sign, so that the preconditioner is positive definite.

    References
    ----------
    .. [1] M. Benzi, G. H. Golub, J. Liesen, "Numerical solution of saddle point problems", Acta Numerica 14, 2005.
    .. [2] D. Silvester, A. Wathen, "Fast iterative solution of stabilised Stokes systems part II: using general block
       preconditioners", SIAM J. Numer. Anal. 31(5), 1994.

    Examples
    --------
    >>> import numpy, scipy.sparse
    >>> from gsparse import GpuSparseMatrix
    >>> from gsparse.linalg import fieldsplit, gmres
    >>> K = scipy.sparse.diags_array([-1.0, 4.0, -1.0], offsets=[-1, 0, 1], shape=(100, 100))
    >>> B = scipy.sparse.eye_array(20, 100)
    >>> A = GpuSparseMatrix(scipy.sparse.block_array([[K, B.T], [B, None]], format="csr"), device="cpu")
    >>> M = fieldsplit(A, [slice(100), slice(100, 120)], form="full", solvers="direct")
    >>> result = gmres(A, numpy.ones(120), M=M, rtol=1e-8, full_output=True)
    >>> result.info, result.iterations < 20
    (0, True)
    """
    if form not in FORMS:
        raise ValueError(f"form must be one of {', '.join(map(repr, FORMS))}, got {form!r}")
    with SquareMatrix.of(A, "fieldsplit") as matrix:
        rows = _rows_of(fields, matrix.size)
        wanted = _solvers_of(solvers, len(rows))
        _check_schur(schur, rows)
        return FieldPreconditioner(matrix, rows, form, wanted, schur)


def _rows_of(fields: Sequence[Any], size: int) -> list[Index]:
    """Return the rows of each field, ascending."""
    everything = np.arange(size)
    try:
        rows = [np.sort(everything[f if isinstance(f, slice | list) else np.asarray(f)]) for f in fields]
    except IndexError as error:
        raise ValueError(f"fields are indices of {size} unknowns, slices or boolean masks: {error}") from error
    counts = np.bincount(np.concatenate([everything[:0], *rows]), minlength=size)
    if len(rows) < 2:
        raise ValueError(f"fieldsplit needs two fields or more, got {len(rows)}")
    for number, field in enumerate(rows):
        if not len(field):
            raise ValueError(f"field {number} of {len(rows)} is empty: leave it out")
    if (counts != 1).any():
        place = int(np.argmax(counts != 1))
        raise ValueError(f"each unknown belongs to one field, but {place} belongs to {counts[place]}")
    return rows


def _solvers_of(solvers: Any, count: int) -> list[Solver]:
    if solvers is None or isinstance(solvers, str) or callable(solvers) or _is_operator(solvers):
        return [solvers] * count
    if len(solvers) != count:
        raise ValueError(
            f"solvers has {len(solvers)} elements for {count} fields: pass one for each field, or one for all"
        )
    return list(solvers)


def _check_schur(schur: Any, rows: list[Index]) -> None:
    if schur is None:
        return
    if len(rows) != 2:
        raise ValueError(f"schur refers to the second of two fields, got {len(rows)} fields")
    if isinstance(schur, str):
        if schur != "diagonal":
            raise ValueError(f"schur must be 'diagonal', a sparse array or None, got {schur!r}")
    elif not hasattr(schur, "tocsr"):
        raise TypeError(f"schur must be a sparse array, got {type(schur).__name__}: pass an operator in solvers")
    elif schur.shape != (len(rows[1]),) * 2:
        raise ShapeError(f"schur must have the shape {(len(rows[1]),) * 2}, got {schur.shape}")
