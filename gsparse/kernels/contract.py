"""The contract of the kernels: what each kernel computes, written once and implemented for the CPU and for GPUs.

Kernels of one subject are a module of the same name in both backends, such as `gsparse.kernels.cpu.sparse_rows` and
`gsparse.kernels.gpu.sparse_rows`. Both implement one protocol: the same names with the same signatures, which mypy and
tests/test_contract.py compare. `gsparse.kernels.backends.kernels_of` returns the modules of a device (`Kernels`):

    kernels_of(device).sparse_rows.take_rows(device, csr, rows)

To add a kernel, add it to the protocol and to the two modules. The module of the GPU also lists the instantiations of
its CUDA templates (`gsparse.kernels.gpu`).

Common to all kernels
---------------------
- All arrays are on `device`, which is active. A function waits for the device only if its docstring says
  "Synchronizes".
- Rows are summed in a fixed order, so the same input gives the same bits.
- Index arrays are int32 or int64, and `indptr` and `indices` have the same dtype.
- A *run* is ``device.lanes`` consecutive positions, and a slice of blocked ELLPACK has ``device.lanes`` rows.

The protocols of products with dense vectors and of triangular factors are in this file. Other files hold the set-up of
storage formats (`gsparse.kernels.set_up`), sparse algebra and gradients (`gsparse.kernels.algebra`), relaxation
(`gsparse.kernels.relaxation`), the set-up of multigrid (`gsparse.kernels.aggregation`), messages between ranks
(`gsparse.kernels.exchange`), steps of solvers (`gsparse.kernels.steps`), and Arnoldi's process and Krylov
decompositions (`gsparse.kernels.basis`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from gsparse.device.base import Device
from gsparse.device.dtypes import Array
from gsparse.formats import Bsr, Csr, Levels, RowPattern
from gsparse.formats.launch import Launch, Panel, PanelLaunch
from gsparse.kernels.aggregation import AggregationKernels, ProlongationKernels
from gsparse.kernels.algebra import (
    EditKernels,
    ReductionKernels,
    SparsePairKernels,
    SparseProductKernels,
    SparseRowKernels,
    TransposeKernels,
)
from gsparse.kernels.basis import BasisKernels
from gsparse.kernels.exchange import ExchangeKernels
from gsparse.kernels.relaxation import RelaxationKernels
from gsparse.kernels.set_up import BlockKernels, EncodeKernels, LayoutKernels, Survey
from gsparse.kernels.steps import Call, StepKernels

DType = np.dtype[Any]
ChoosePanelLaunch = Callable[[Panel], PanelLaunch]


class Multiply(Protocol):
    """A product with a fixed matrix: y = alpha·A·x + beta·y, which overwrites y.

    `x` and `y` are contiguous vectors of `num_cols` and `num_rows` elements of the compute dtype; they do not overlap.
    `alpha` and `beta` are NumPy scalars of that dtype. If beta is 0, y is never read, so it may contain NaN. If
    `conjugate`, the values of A are conjugated as they are read.

    Only scratch memory is allocated: on a GPU once for each stream, on a CPU in each product.
    Bytes moved: ``matrix.nbytes``, x once (more if gathers miss the cache), y once (twice if beta is not 0).
    """

    @property
    def num_dots(self) -> int:
        """Number of partial sums of conj(x)·y that the product can also write; 0 if it cannot.

        It is not 0 only for square matrices. A call may then have one more argument: an array `dots` of `num_dots`
        elements in double precision.
        """

    def __call__(self, x: Array, y: Array, alpha: Any, beta: Any, conjugate: bool) -> None: ...


class MultiplyColumns(Protocol):
    """A product of a fixed matrix with k dense columns: Y = alpha·A·X + beta·Y, which overwrites Y.

    X has shape (num_cols, k) and Y (num_rows, k), both with any strides. A GPU copies X only if its rows are at least
    2 GiB apart. A CPU copies strips of X if its rows are not contiguous, and strips of Y if, in addition, the matrix is
    a `Bsr`. Bytes moved: ``csr.nbytes`` once for each tile of columns, X and Y once. nnz·k elements of X are gathered,
    most of them from the cache.
    """

    def __call__(self, x: Array, y: Array, alpha: Any, beta: Any, conjugate: bool) -> None: ...


class BindProduct(Protocol):
    """Function that binds a product to a matrix in one storage format."""

    def __call__(self, device: Device, matrix: Any, dtype: DType, launch: Launch) -> Multiply:
        """Return the product of `matrix` with vectors of the compute dtype `dtype`.

        The type of `matrix` belongs to the format: `CsrEntries` for the CSR schedules, `Ellpack`, `BlockedEllpack`,
        `RowPattern` or `Bsr`. Its columns and values have any combination of the encodings in
        `gsparse.formats.entries`. Plain values are of `dtype`, or of a narrower dtype that is widened when read
        (float32 in a float64 product, for instance). Tables of values are of `dtype`.
        """


class SpmvKernels(Protocol):
    """Products with one vector."""

    @property
    def PRODUCTS(self) -> Mapping[str, BindProduct]:
        """A mapping from the name of each storage format to the function that binds its product."""

    @property
    def FIRST_FORMAT(self) -> str:
        """The format for the first few products of any matrix, which needs no set-up; "auto" if there is none."""

    @property
    def CSR_PRODUCT(self) -> Callable[[Csr, Array, Array, Any, Any, bool], None] | None:
        """A function ``(csr, x, y, alpha, beta, conjugate)`` for y = alpha·A·x + beta·y; None if there is none.

        It computes a product of `FIRST_FORMAT` without binding it before.
        """


class SpmmKernels(Protocol):
    """Products with several dense columns."""

    @property
    def FORMATS(self) -> tuple[str, ...]:
        """The names of the formats, in addition to CSR, that these products can read."""

    @property
    def READS_HALVES(self) -> bool:
        """Whether these products can also read CSR values that are stored in half the precision."""

    @property
    def TRANSPOSED_PRODUCT(self) -> Callable[[Csr, Array, Array, Any, Any, bool], None] | None:
        """A function ``(csr, x, y, alpha, beta, conjugate)`` for y = alpha·Aᵀ·x + beta·y; None if there is none.

        The function needs no transposed matrix. x and y are vectors, or have several columns.
        """

    def csr_spmm(
        self,
        device: Device,
        matrix: Csr | RowPattern | Bsr,
        dtype: DType,
        choose: ChoosePanelLaunch,
        survey: Survey,
        transpose: Csr | None = None,
    ) -> MultiplyColumns:
        """Return the product of a matrix with several dense columns.

        `matrix` is CSR with values of `dtype`, or of a narrower dtype of the same kind. It may also be a `RowPattern`
        with values in its patterns, or a `Bsr` of square blocks of at least 2 x 2, if the format is in `FORMATS`. Only
        GPUs use `choose`, which returns the launch for the memory layout of an X, and `survey`, the `Survey` of the
        matrix. Only the CPU uses `transpose`: the transposed matrix if the caller has it, with values of any dtype that
        can be converted to `dtype`. The CPU reads it in place of `matrix` where that is faster.
        """


class TriangularKernels(Protocol):
    """Incomplete factors and triangular solves, by rows or by blocks of rows; relaxation with diagonal blocks."""

    @property
    def NEEDS_LEVELS(self) -> bool:
        """Whether triangular solves go level by level, so that they need `Levels`."""

    def triangular_levels(self, device: Device, csr: Csr, upper: bool) -> Levels:
        """Return the rows of a strictly triangular matrix, grouped by level. Synchronizes.

        A row without entries has level 0. Any other row has a level one higher than the highest level among the rows
        whose numbers are its column indices. Within a level, rows are in ascending order. The values are not read.
        """

    def factorize_ilu0(self, device: Device, csr: Csr, diagonal: Array, levels: Levels | None) -> None:
        """Replace the values of a square matrix by its incomplete factors on the same pattern, in place.

        The columns of each row are in ascending order. The result holds L, without its unit diagonal, below the
        diagonal, and U on and above it. `diagonal` holds the position of each row's diagonal entry. `levels` are those
        of the matrix of entries below the diagonal; None if `NEEDS_LEVELS` is false. A zero pivot leaves inf and NaN
        in later rows.
        """

    def triangular_solver(
        self, device: Device, csr: Csr, levels: Levels | None, columns: int, upper: bool
    ) -> Callable[[Array, Array], None]:
        """Return ``solve(x, y)``: y = (I + N)⁻¹·x for a strictly triangular matrix N.

        N is upper triangular if `upper`, otherwise lower triangular. `x` and `y` hold `columns` vectors one after the
        other and do not overlap. `levels` are None if `NEEDS_LEVELS` is false.
        """

    def factorize_block_ilu0(
        self, device: Device, blocks: Csr, diagonal: Array, levels: Levels | None, largest_error: float
    ) -> tuple[Array, Array]:
        """Return the incomplete factors (I + L)·D·(I + U) of a square matrix whose entries are dense blocks.

        `blocks.data` has the shape (nnz, size, size), with blocks of at most `MAX_INVERSE` rows, and is overwritten.
        The columns of each row are in ascending order, `diagonal` holds the position of each diagonal block, and
        `levels` are as for `factorize_ilu0`. The first result has the shape of `blocks.data`: L below the diagonal, the
        inverses of the blocks of D on it, and U above it. The second result (uint8) says whether each block of D is
        regular: the product of the block and its inverse differs from the identity by less than `largest_error` in
        each element. An irregular block leaves inf and NaN in later rows.
        """

    def block_triangular_solver(
        self, device: Device, blocks: Csr, levels: Levels | None, num_rows: int, columns: int, upper: bool
    ) -> Callable[[Array, Array], None]:
        """Return ``solve(x, y)``: y = (I + N)⁻¹·x for a strictly triangular matrix N of dense blocks.

        `blocks.data` has the shape (nnz, size, size). The vectors have `num_rows` elements. If `num_rows` is not a
        multiple of the block size, the last block row is shorter, and elements of N past the end are 0. The other
        arguments are those of `triangular_solver`.
        """

    def invert_blocks(
        self, device: Device, csr: Csr, size: int, fills_rows: bool, largest_error: float
    ) -> tuple[Array, Array]:
        """Return the inverses of the diagonal blocks of a matrix, and whether each block is regular.

        Parameters
        ----------
        csr : Csr
            A square matrix of floating-point values, with ascending columns in each row. If the last block has fewer
            rows than the other blocks, it is padded with the identity.
        size : int
            Number of rows of a block, at most `MAX_INVERSE`.
        fills_rows : bool
            Whether a row of a block that has only zeros counts as a row of the identity.
        largest_error : float
            A block is regular if the product of the block and its inverse differs from the identity by less than this
            in each element.

        Returns
        -------
        array, shape (num_blocks, size, size)
        array of uint8, shape (num_blocks,)
        """

    def bind_block_step(
        self,
        device: Device,
        weights: Array,
        omega: float,
        b: Array,
        x: Array,
        r: Array,
        columns: int,
        start: str,
        copies: bool,
    ) -> Call:
        """Return a call that does x_i += ω·W_i·(b_i - r_i), or x_i = ω·W_i·b_i, for all blocks i.

        The call reads or writes 4 vectors (2 from zero), 1 more with `copies`, and W.

        Parameters
        ----------
        weights : array, shape (num_blocks, size, size)
            The transposes of W, contiguous, so that neighbouring elements belong to neighbouring rows. The last block
            may be padded.
        b, x, r : array
            `columns` vectors each, one after the other, all of one dtype. `b` is an array different from `x` and from
            `r`. From zero and without `copies`, `r` is not used.
        start : str
            `EVERY_GROUP`, or `FROM_ZERO` for x_i = ω·W_i·b_i, whatever x contains.
        copies : bool
            Whether the call finally copies b to r.
        """


@dataclass(frozen=True)
class Kernels:
    """The modules of a backend. Each implements one protocol."""

    aggregation: AggregationKernels
    basis: BasisKernels
    blocks: BlockKernels
    edits: EditKernels
    encode: EncodeKernels
    exchange: ExchangeKernels
    layout: LayoutKernels
    prolongation: ProlongationKernels
    reductions: ReductionKernels
    relaxation: RelaxationKernels
    sparse_pairs: SparsePairKernels
    sparse_products: SparseProductKernels
    sparse_rows: SparseRowKernels
    spmm: SpmmKernels
    spmv: SpmvKernels
    steps: StepKernels
    transpose: TransposeKernels
    triangular: TriangularKernels
