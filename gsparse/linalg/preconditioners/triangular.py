"""Solves with I + N for a strictly triangular N, by levels or by Jacobi sweeps, and incomplete factors by blocks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, NamedTuple, Self

import numpy as np

from gsparse.device.base import Device
from gsparse.device.dtypes import Array
from gsparse.errors import FactorizationError
from gsparse.formats import Csr, Levels
from gsparse.kernels.backends import kernels_of
from gsparse.kernels.relaxation import MAX_INVERSE
from gsparse.kernels.steps import Call
from gsparse.linalg.operators import MatrixOperator
from gsparse.linalg.preconditioners.base import VectorPasses
from gsparse.linalg.preconditioners.square_matrix import MAX_ERROR, SquareMatrix, operator_of

SOLVES = ("levels", "jacobi")
# ``solve(x, y)`` returns the calls that write the solution for the right-hand side x into y.
Solve = Callable[[Array, Array], list[Call]]


def levels_of(device: Device, csr: Csr, *, upper: bool) -> Levels | None:
    """Return the levels of a strictly triangular matrix; None if one thread visits all rows. Synchronizes."""
    kernels = kernels_of(device).triangular
    return kernels.triangular_levels(device, csr, upper) if kernels.NEEDS_LEVELS else None


class UnitTriangularMatrix:
    """The matrix I + N on a device, with a strictly triangular N, and solves with it.

    Parameters
    ----------
    device : Device
    size : int
        Number of rows.
    csr : Csr
        N.
    solve : {"levels", "jacobi"}
    sweeps : int
        Number of Jacobi sweeps.
    upper : bool
        Whether N is above the diagonal.
    """

    def __init__(self, device: Device, size: int, csr: Csr, solve: str, sweeps: int, *, upper: bool) -> None:
        self._device, self._size, self._csr = device, size, csr
        self._solve, self._sweeps, self._upper = solve, sweeps, upper
        # From a key to a result that all matrices of this structure share: levels, the transpose, the operator.
        self._shared: dict[Any, Any] = {}

    def with_data(self, data: Array) -> Self:
        """Return a matrix of the same structure with other values. Results that depend on the structure are shared."""
        other = type(self)(
            self._device, self._size, self._csr.with_data(data), self._solve, self._sweeps, upper=self._upper
        )
        other._shared = self._shared
        return other

    def bind(self, passes: VectorPasses, *, adjoint: bool) -> Solve:
        """Return the function that makes the calls of a solve with I + N, or with its adjoint."""
        prepare = {"levels": self._solve_by_levels, "jacobi": self._solve_by_sweeps}[self._solve]
        return prepare(passes, adjoint)

    def _find_shared(self, key: Any, make: Callable[[], Any]) -> Any:
        if key not in self._shared:
            self._shared[key] = make()
        return self._shared[key]

    @cached_property
    def _operator(self) -> MatrixOperator:
        known: MatrixOperator | None = self._shared.get("operator")
        # After `with_data`, the operator of the previous values provides the structure.
        if known is None:
            operator = operator_of(self._device, self._csr)
        else:
            operator = MatrixOperator(known.matrix.with_data(self._csr.data))
        self._shared["operator"] = operator
        return operator

    @property
    def _transposed_numbers(self) -> Csr:
        """The transpose of N; the value of each entry is its position in N."""
        device, csr = self._device, self._csr
        numbers = Csr(csr.shape, csr.indptr, csr.indices, device.xp.arange(csr.nnz))
        transposed: Csr = self._find_shared(
            "transposed", lambda: kernels_of(device).transpose.csr_transpose(device, numbers)
        )
        return transposed

    @cached_property
    def _adjoint(self) -> Csr:
        transposed = self._transposed_numbers
        return transposed.with_data(self._device.xp.conj(self._csr.data[transposed.data]))

    def _solve_by_levels(self, passes: VectorPasses, adjoint: bool) -> Solve:
        """Return the function `Solve` that solves level by level, or row by row if one thread visits all rows."""
        upper, csr = self._upper != adjoint, self._adjoint if adjoint else self._csr
        levels = self._find_shared(("levels", adjoint), lambda: levels_of(passes.device, csr, upper=upper))
        csr = csr.with_data(csr.data.astype(passes.dtype, copy=False))
        solve = self._bind_solver(csr, levels, passes.columns, upper)
        return lambda x, y: [partial(solve, x, y)]

    def _bind_solver(
        self, csr: Csr, levels: Levels | None, columns: int, upper: bool
    ) -> Callable[[Array, Array], None]:
        bind: Callable[..., Callable[[Array, Array], None]] = kernels_of(self._device).triangular.triangular_solver
        return bind(self._device, csr, levels, columns, upper)

    def _solve_by_sweeps(self, passes: VectorPasses, adjoint: bool) -> Solve:
        """Return the function `Solve` that repeats y = x - N·y, beginning with y = x."""
        kind = (passes.device, passes.dtype, passes.columns)
        subtract = self._operator.bind(*kind, adjoint=adjoint, alpha=-1, beta=1)
        buffer = passes.vector(self._size)

        def build(x: Array, y: Array) -> list[Call]:
            calls, source = [], x
            for num_left in reversed(range(self._sweeps)):
                target = buffer if num_left % 2 else y  # so that the last sweep writes to y
                calls.append(passes.bind("copy", x=target, b=x))
                calls.append(partial(subtract, source, target))
                source = target
            return calls

        return build


class IncompleteFactors(NamedTuple):
    """Incomplete factors: A ≈ (I + L)·D·(I + U).

    Attributes
    ----------
    lower, upper : (UnitTriangularMatrix, bool)
        I + L and I + U. The bool says that the factor is the adjoint of this matrix.
    inverse_diagonal : array, shape (N,) or (number of blocks, size, size)
        The inverse of D, which is a diagonal or consists of dense blocks.
    """

    lower: tuple[UnitTriangularMatrix, bool]
    inverse_diagonal: Array
    upper: tuple[UnitTriangularMatrix, bool]


class IncompleteFactorization(ABC):
    """Base class of the functions that compute incomplete factors, with the options for their solves.

    Parameters
    ----------
    name : {"ilu0", "ic0"}
        The preconditioner. For "ic0" the matrix is Hermitian, I + U is the adjoint of I + L, and D is positive.
    solve : {"levels", "jacobi"} or None
        How to solve with the factors; None for the default of the device.
    sweeps : int
        Number of Jacobi sweeps.
    shift : float
        Manteuffel's shift.
    """

    def __init__(self, name: str, solve: str | None, sweeps: int, shift: float) -> None:
        self.name, self.solve, self.sweeps, self.shift = name, solve, sweeps, shift
        self._triangles: dict[bool, UnitTriangularMatrix] = {}

    def __call__(self, matrix: SquareMatrix, _: Any) -> IncompleteFactors:
        """Return the factors of a matrix. Synchronizes."""
        if self.name == "ic0" and not matrix.is_roughly_hermitian():
            raise FactorizationError(
                "ic0 needs a symmetric (complex: Hermitian) matrix, this one is not: use ilu0(A) with gmres or "
                "bicgstab; where A is one triangle of a symmetric matrix, add the other one first"
            )
        return self._factorize(matrix)

    @abstractmethod
    def _factorize(self, matrix: SquareMatrix) -> IncompleteFactors: ...

    def _triangle(self, cls: type[UnitTriangularMatrix], matrix: SquareMatrix, csr: Csr, *, upper: bool) -> Any:
        """Return I + N for the strictly triangular N in `csr`. In an update, the known structure is reused."""
        known = self._triangles.get(upper)
        if known is None:
            solve = self.solve or ("jacobi" if kernels_of(matrix.device).triangular.NEEDS_LEVELS else "levels")
            made = cls(matrix.device, matrix.size, csr, solve, self.sweeps, upper=upper)
        else:
            made = known.with_data(csr.data)
        self._triangles[upper] = made
        return made

    def _shifted_diagonal(self, matrix: SquareMatrix) -> Array:
        """Return the diagonal with each magnitude increased by `shift` times the sum of magnitudes of its row."""
        xp, diagonal = matrix.device.xp, matrix.diagonal
        if not self.shift:
            return diagonal
        phases = xp.where(diagonal == 0, 1, diagonal / xp.where(diagonal == 0, 1, xp.abs(diagonal)))
        return (diagonal + self.shift * matrix.row_sums() * phases).astype(matrix.dtype)


@dataclass(frozen=True, eq=False)
class BlockStructure:
    """The structure of incomplete factors by blocks: the positions of blocks and the order of block rows.

    Attributes
    ----------
    size : int
        Number of rows of a block.
    blocks : Csr
        A matrix without values that has one row for each node (block of rows). It has an entry for each block in which
        the matrix has entries, and for each diagonal block.
    places : array, shape (number of entries of the matrix,)
        For each entry of the matrix, the position of its block in `blocks`.
    diagonal : array, shape (number of nodes,)
        The positions of the diagonal blocks.
    lower, upper : Csr
        The blocks below and above the diagonal, with their positions as values.
    levels : Levels or None
        The levels of `lower`; None if one thread visits all rows.
    """

    size: int
    blocks: Csr
    places: Array
    diagonal: Array
    lower: Csr
    upper: Csr
    levels: Levels | None

    @classmethod
    def of(cls, matrix: SquareMatrix, size: int, name: str) -> BlockStructure:
        """Return the structure of a matrix for blocks of `size` rows. Errors name the method `name`. Synchronizes."""
        if size > MAX_INVERSE:
            raise ValueError(f"{name}: block_size must be at most {MAX_INVERSE}, got {size}")
        device, kernels, xp = matrix.device, kernels_of(matrix.device), matrix.device.xp
        csr, index, count = matrix.csr, matrix.csr.indices.dtype, -(-matrix.size // size)
        nodes = xp.arange(count, dtype=np.int64)
        keys = (matrix.rows // size).astype(np.int64) * count + csr.indices // size
        block_keys = xp.unique(xp.concatenate([keys, nodes * (count + 1)]))  # synchronizes
        rows = block_keys // max(count, 1)
        columns = (block_keys - rows * count).astype(index)
        indptr = xp.searchsorted(block_keys, xp.arange(count + 1, dtype=np.int64) * count).astype(index)
        diagonal = xp.searchsorted(block_keys, nodes * (count + 1)).astype(index)
        blocks = Csr((count, count), indptr, columns, xp.arange(int(block_keys.size)), True)
        lower, upper = (kernels.sparse_rows.triangle(device, blocks, *side) for side in ((-1, False), (1, True)))
        levels = levels_of(device, lower, upper=False)
        blocks = blocks.with_data(device.no_values(matrix.dtype))
        return cls(size, blocks, xp.searchsorted(block_keys, keys), diagonal, lower, upper, levels)

    def fill(self, matrix: SquareMatrix, diagonal: Array) -> Csr:
        """Return `blocks` with the values of a matrix of this structure, whose diagonal is replaced by `diagonal`.

        Elements that the matrix does not store are 0. Rows past the end of the matrix are rows of the identity.
        """
        xp, size, count = matrix.device.xp, self.size, self.blocks.num_rows
        blocks = xp.zeros((self.blocks.nnz, size, size), matrix.dtype)
        blocks[self.places, matrix.rows % size, matrix.csr.indices % size] = matrix.csr.data
        every = xp.arange(count * size)
        filled = xp.ones(count * size, matrix.dtype)
        filled[: matrix.size] = diagonal
        blocks[self.diagonal[every // size], every % size, every % size] = filled
        return self.blocks.with_data(blocks)


def are_positive_definite(device: Device, blocks: Array) -> Array:
    """Return for each Hermitian matrix of a batch whether it is positive definite, that is, has positive pivots."""
    xp, rest = device.xp, blocks.copy()
    are_positive = xp.ones(len(rest), bool)
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        for k in range(rest.shape[1]):
            column, pivot = rest[:, :, k].copy(), rest[:, k, k].real
            are_positive &= pivot > 0
            rest -= column[:, :, None] * (xp.conj(column) / pivot[:, None])[:, None, :]
    return are_positive


class BlockUnitTriangularMatrix(UnitTriangularMatrix):
    """The matrix I + N on a device, where N consists of dense blocks; see `UnitTriangularMatrix`."""

    @cached_property
    def _operator(self) -> MatrixOperator:
        return operator_of(self._device, self._entries())

    @cached_property
    def _adjoint(self) -> Csr:
        transposed = self._transposed_numbers
        return transposed.with_data(self._device.xp.conj(self._csr.data[transposed.data].swapaxes(1, 2)))

    def _bind_solver(
        self, csr: Csr, levels: Levels | None, columns: int, upper: bool
    ) -> Callable[[Array, Array], None]:
        bind: Callable[..., Callable[[Array, Array], None]] = kernels_of(
            self._device
        ).triangular.block_triangular_solver
        return bind(self._device, csr, levels, self._size, columns, upper)

    def _entries(self) -> Csr:
        """Return N as a CSR matrix with one entry for each element of a block. Synchronizes."""
        device, blocks, num_rows = self._device, self._csr, self._size
        xp, size, index = device.xp, blocks.data.shape[1], blocks.indices.dtype
        inner = xp.arange(size)
        rows = kernels_of(device).sparse_rows.row_numbers(device, blocks.indptr, blocks.nnz)
        begins, lengths = blocks.indptr.astype(np.int64), xp.diff(blocks.indptr).astype(np.int64)
        # The rows of a block row have the same length. Entry (r, c) of block k comes after r complete rows, and after
        # the earlier blocks of its own row.
        row_begins = begins[:-1, None] * size**2 + inner * (lengths * size)[:, None]
        places = row_begins[rows] + ((xp.arange(blocks.nnz) - begins[rows]) * size)[:, None]
        places = places[:, :, None] + inner
        columns, data = (xp.empty(blocks.data.size, dtype) for dtype in (index, blocks.data.dtype))
        columns[places] = (blocks.indices.astype(np.int64) * size)[:, None, None] + inner
        data[places] = blocks.data
        wide = np.dtype(np.int64) if blocks.data.size > np.iinfo(index).max else index
        ends = xp.full(1, blocks.data.size, np.int64)
        indptr = xp.concatenate([row_begins.reshape(-1)[:num_rows], ends]).astype(wide)
        csr = Csr((num_rows, num_rows), indptr, columns.astype(wide, copy=False), data, True)
        if num_rows % size == 0:
            return csr
        last = int(row_begins.reshape(-1)[num_rows])  # synchronizes
        indptr[num_rows] = last
        csr = Csr(csr.shape, indptr, csr.indices[:last], data[:last], True)
        inside: Csr = kernels_of(device).sparse_rows.keep_entries(device, csr, csr.indices < num_rows)
        return inside


class BlockFactorization(IncompleteFactorization):
    """Computes incomplete factors block by block; see `IncompleteFactorization`.

    Parameters
    ----------
    name, solve, sweeps, shift
    size : int
        Number of rows of a block.
    """

    _structure: BlockStructure | None = None

    def __init__(self, name: str, solve: str | None, sweeps: int, shift: float, size: int) -> None:
        super().__init__(name, solve, sweeps, shift)
        self.size = size

    def _factorize(self, matrix: SquareMatrix) -> IncompleteFactors:
        device, xp, hermitian = matrix.device, matrix.device.xp, self.name == "ic0"
        structure = self._structure or BlockStructure.of(matrix, self.size, self.name)
        blocks = structure.fill(matrix, self._shifted_diagonal(matrix))
        factors, is_regular = kernels_of(device).triangular.factorize_block_ilu0(
            device, blocks, structure.diagonal, structure.levels, MAX_ERROR
        )
        inverses = factors[structure.diagonal]
        if hermitian:
            inverses = (inverses + xp.conj(inverses.swapaxes(1, 2))) / 2
            is_regular = are_positive_definite(device, inverses) & (is_regular != 0)
        self._check(matrix, is_regular, "is not positive definite" if hermitian else "is singular")
        self._structure = structure
        parts = [(structure.lower, False)] if hermitian else [(structure.lower, False), (structure.upper, True)]
        triangles = [
            self._triangle(BlockUnitTriangularMatrix, matrix, part.with_data(factors[part.data]), upper=is_upper)
            for part, is_upper in parts
        ]
        return IncompleteFactors((triangles[0], False), inverses, (triangles[-1], hermitian))

    def _check(self, matrix: SquareMatrix, are_good: Array, fault: str) -> None:
        """Raise an error with the text `fault` if `are_good` is false for a diagonal block. Synchronizes."""
        node = kernels_of(matrix.device).reductions.first_where(matrix.device, are_good, "zero")
        if node is None:
            return
        size, name = self.size, self.name
        last = min((node + 1) * size, matrix.size) - 1
        raise FactorizationError(
            f"{name}: the diagonal block of node {node} (rows {node * size} to {last}) {fault}: try {name}(A, "
            f"block_size={size}, shift=0.01), or another block_size"
        )
