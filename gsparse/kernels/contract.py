"""The contract of the kernels: what each one computes, written once and implemented for the CPU and for GPUs.

Kernels of one subject are a module of the same name in both backends, such as `gsparse.kernels.cpu.sparse_rows` and
`gsparse.kernels.gpu.sparse_rows`. Both implement one protocol: the same names with the same signatures, which mypy and
tests/test_contract.py compare. `gsparse.kernels.backends.kernels_of` returns the modules of a device (`Kernels`):

    kernels_of(device).sparse_rows.take_rows(device, csr, rows)

To add a kernel, add it to the protocol and to the two modules. The module of the GPU also lists the instantiations of
its CUDA templates (`gsparse.kernels.gpu`).

Common to all kernels
---------------------
- All arrays live on `device`, which is active. Nothing waits for the device unless the text says "Synchronizes".
- Rows are summed in a fixed order, so the same input gives the same bits.
- Index arrays are int32 or int64, one dtype for `indptr` and `indices`.
- A *run* is ``device.lanes`` consecutive positions, and a slice of blocked ELLPACK has ``device.lanes`` rows.

The protocols of products with dense vectors and of triangular factors are below, the others in files of their own: the
set-up of storage formats (`gsparse.kernels.set_up`), sparse algebra and gradients (`gsparse.kernels.algebra`),
relaxation (`gsparse.kernels.relaxation`), the set-up of multigrid (`gsparse.kernels.aggregation`), what ranks exchange
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
    """A product that is bound to a matrix: y = alpha·A·x + beta·y, in place.

    `x` and `y` are contiguous vectors of `num_cols` and `num_rows` elements of the compute dtype; they do not overlap.
    `alpha` and `beta` are NumPy scalars of that dtype. Where beta is 0, y is never read, so NaN in it does not survive.
    Where `conjugate` is true, the values of A are conjugated as they are read.

    A GPU allocates nothing but scratch memory, once for each stream. A CPU allocates it for each product.
    Bytes moved: ``matrix.nbytes``, x once (more where gathers miss the cache), y once (twice where beta is not 0).
    """

    @property
    def num_dots(self) -> int:
        """How many partial sums of conj(x)·y the product of a square matrix can leave, or 0 where it leaves none.

        Where this is not 0, a call takes one more argument: an array `dots` of as many elements in double precision.
        """

    def __call__(self, x: Array, y: Array, alpha: Any, beta: Any, conjugate: bool) -> None: ...


class MultiplyColumns(Protocol):
    """A product with k dense columns that is bound to a matrix: Y = alpha·A·X + beta·Y, in place.

    X has shape (num_cols, k) and Y (num_rows, k), both with any strides. A GPU copies neither, except an X whose rows
    are 2 GiB apart. A CPU copies strips of an X whose rows are not contiguous, and of such a Y for blocks. Bytes moved:
    ``csr.nbytes`` once for each tile of columns, X and Y once; nnz·k elements of X are gathered, most of them from the
    cache.
    """

    def __call__(self, x: Array, y: Array, alpha: Any, beta: Any, conjugate: bool) -> None: ...


class BindProduct(Protocol):
    """Bind a product to a matrix in one storage format."""

    def __call__(self, device: Device, matrix: Any, dtype: DType, launch: Launch) -> Multiply:
        """Return the product of `matrix` with vectors of the compute dtype `dtype`.

        The type of `matrix` belongs to the format: `CsrEntries` for the CSR schedules, `Ellpack`, `BlockedEllpack`,
        `RowPattern` or `Bsr`. Its columns and values are encoded as `gsparse.formats.entries` says, in any combination.
        Plain values are of `dtype` or of a dtype that widens to it (float32 read by a float64 product, for instance);
        tables of values are of `dtype`.
        """


class SpmvKernels(Protocol):
    """Products with one vector."""

    @property
    def PRODUCTS(self) -> Mapping[str, BindProduct]:
        """How to bind a product in each storage format, by the name of the format."""

    @property
    def FIRST_FORMAT(self) -> str:
        """A format without set-up that is fast enough for a few products of any matrix; "auto" if there is none."""


class SpmmKernels(Protocol):
    """Products with several dense columns."""

    @property
    def FORMATS(self) -> tuple[str, ...]:
        """The names of the formats that these products can read, besides CSR."""

    @property
    def READS_HALVES(self) -> bool:
        """Whether these products also read CSR's values in half the precision."""

    @property
    def TRANSPOSED_PRODUCT(self) -> Callable[[Csr, Array, Array, Any, Any, bool], None] | None:
        """``TRANSPOSED_PRODUCT(csr, x, y, alpha, beta, conjugate)`` computes y = alpha·Aᵀ·x + beta·y, if it exists.

        It needs no transposed arrays. x and y are vectors, or have several columns.
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
        """Bind a product with several dense columns.

        `matrix` is CSR with values of `dtype`, or of a dtype of the same kind that widens to it. In the formats of
        `FORMATS`, it may also be a `RowPattern` whose patterns hold the values, or a `Bsr` of square blocks of
        such values, at least 2 x 2. `choose` returns the launch for the layout of an X, and `survey` is that of this
        matrix; the CPU uses neither. `transpose` has the transposed arrays, with values of any dtype that can be
        converted to `dtype`, if the caller has them. The CPU reads them instead of `matrix` where that is faster; the
        GPU does not use them.
        """


class TriangularKernels(Protocol):
    """Incomplete factors and solves with them, by rows or by blocks of rows; relaxation with diagonal blocks."""

    @property
    def NEEDS_LEVELS(self) -> bool:
        """Whether triangular factors are solved level by level, and so need `Levels`."""

    def triangular_levels(self, device: Device, csr: Csr, upper: bool) -> Levels:
        """Return the rows of a strictly triangular matrix, grouped by level. Synchronizes.

        The level of a row is one more than the highest level of the rows that its entries name, and 0 without entries.
        Within a level, rows are in ascending order. The values are not read.
        """

    def factorize_ilu0(self, device: Device, csr: Csr, diagonal: Array, levels: Levels | None) -> None:
        """Replace the values of a square matrix by its incomplete factors on the same pattern, in place.

        Columns rise within each row. L, without its unit diagonal, ends up below the diagonal, and U on and above it.
        `diagonal` holds the position of each row's diagonal entry. `levels` are those of the entries below the
        diagonal; they are None where `NEEDS_LEVELS` is false. A zero pivot leaves inf and NaN in later rows.
        """

    def triangular_solver(
        self, device: Device, csr: Csr, levels: Levels | None, columns: int, upper: bool
    ) -> Callable[[Array, Array], None]:
        """Return ``solve(x, y)``: y = (I + N)⁻¹·x for a strictly triangular matrix N.

        N is upper triangular where `upper` is true, else lower. `x` and `y` hold `columns` vectors one after the other
        and do not overlap. `levels` are None where `NEEDS_LEVELS` is false.
        """

    def factorize_block_ilu0(
        self, device: Device, blocks: Csr, diagonal: Array, levels: Levels | None, largest_error: float
    ) -> tuple[Array, Array]:
        """Return the incomplete factors (I + L)·D·(I + U) of a square matrix whose entries are dense blocks.

        `blocks.data` has the shape (nnz, size, size), with blocks of at most `MAX_INVERSE` rows, and is overwritten.
        Columns rise within each row, `diagonal` holds the position of each diagonal block, and `levels` are as for
        `factorize_ilu0`. The first result has the same shape: L below the diagonal, the inverses of the blocks of D on
        it, and U above it. The second one, of uint8, says whether each block of D is regular: all elements of its
        product with its inverse are closer to the identity than `largest_error`. An irregular block leaves inf and NaN
        in later rows.
        """

    def block_triangular_solver(
        self, device: Device, blocks: Csr, levels: Levels | None, num_rows: int, columns: int, upper: bool
    ) -> Callable[[Array, Array], None]:
        """Return ``solve(x, y)`` as `triangular_solver` does, for a matrix N of dense blocks.

        `blocks.data` has the shape (nnz, size, size). The vectors have `num_rows` elements; where these are no multiple
        of the size, the last block of rows has fewer elements, and the elements of N past them are 0.
        """

    def invert_blocks(
        self, device: Device, csr: Csr, size: int, fills_rows: bool, largest_error: float
    ) -> tuple[Array, Array]:
        """Return the inverses of the blocks on the diagonal, and whether each block is regular.

        Parameters
        ----------
        csr : Csr
            A square matrix of floating-point values, whose columns rise. The last block may have fewer rows than the
            others; it is filled up with the identity.
        size : int
            Number of rows of a block, at most `MAX_INVERSE`.
        fills_rows : bool
            Whether a row of a block counts as a row of the identity if all of its elements are 0.
        largest_error : float
            A block is regular if all elements of its product with its inverse are closer than this to the identity.

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
        """Return a step x_i += ω·W_i·(b_i - r_i) for all blocks i, or x_i = ω·W_i·b_i.

        Traffic in vectors, beside W: 4, or 2 from zero, and 1 more with `copies`.

        Parameters
        ----------
        weights : array, shape (num_blocks, size, size)
            The transposes of W, contiguous, so that neighbouring elements belong to neighbouring rows. The last block
            may be filled up.
        b, x, r : array
            `columns` vectors each, one after the other, all of one dtype. `b` and `x` are different arrays; so are `b`
            and `r`. From zero and without `copies`, `r` is not used.
        start : str
            `EVERY_GROUP`, or `FROM_ZERO` for x_i = ω·W_i·b_i, whatever x contains.
        copies : bool
            Whether r finally becomes b.
        """


@dataclass(frozen=True)
class Kernels:
    """The modules of a backend, each of which implements a protocol."""

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
