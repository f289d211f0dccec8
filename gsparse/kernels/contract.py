"""The contract of the kernels: what each one computes, written once and implemented for the CPU and for GPUs.

`gsparse.kernels.cpu` and `gsparse.kernels.gpu` are modules that implement the protocol `Kernels`: the same names with
the same signatures. `gsparse.kernels.backends.kernels_of` returns the one of a device. mypy checks both modules against
the protocols, and tests/test_contract.py compares the two namespaces.

Common to all kernels
---------------------
- All arrays live on `device`, which is active. Nothing waits for the device unless the text says "Synchronizes".
- Rows are summed in a fixed order, so the same input gives the same bits.
- Index arrays are int32 or int64, one dtype for `indptr` and `indices`.
- A *run* is ``device.lanes`` consecutive positions, and a slice of blocked ELLPACK has ``device.lanes`` rows.

The contracts of larger pieces have files of their own: the set-up of storage formats (`gsparse.kernels.set_up`),
sparse algebra (`gsparse.kernels.algebra`), relaxation (`gsparse.kernels.relaxation`), the set-up of multigrid
(`gsparse.kernels.aggregation`), gradients (`gsparse.kernels.gradients`), messages between ranks
(`gsparse.kernels.mailboxes`), the language of solver steps (`gsparse.kernels.steps`), Arnoldi's process for GMRES
(`gsparse.kernels.basis`) and Krylov decompositions (`gsparse.kernels.decomposition`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np

from gsparse.device.base import Device
from gsparse.device.dtypes import Array
from gsparse.formats import Bsr, Csr, Levels, RowPattern
from gsparse.formats.launch import Launch, Panel, PanelLaunch
from gsparse.kernels.aggregation import AggregationKernels
from gsparse.kernels.algebra import AlgebraKernels, EntryKernels, ReductionKernels
from gsparse.kernels.basis import Arnoldi
from gsparse.kernels.calls import Call
from gsparse.kernels.decomposition import Decomposition
from gsparse.kernels.gradients import GradientKernels
from gsparse.kernels.mailboxes import Mailboxes
from gsparse.kernels.relaxation import RelaxationKernels
from gsparse.kernels.set_up import SetUpKernels, Survey
from gsparse.kernels.steps import Multiplication, Program, Step, StepState

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
        ...

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
        ...


class ProductKernels(Protocol):
    """Products with one vector, by the name of the storage format, and with several dense columns."""

    @property
    def SPMV(self) -> Mapping[str, BindProduct]:
        """How to bind a product in each storage format."""
        ...

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
        `SPMM_FORMATS`, it may also be a `RowPattern` whose patterns hold the values, or a `Bsr` of square blocks of
        such values, at least 2 x 2. `choose` returns the launch for the layout of an X, and `survey` is that of this
        matrix; the CPU uses neither. `transpose` has the transposed arrays, with values of any dtype that can be
        converted to `dtype`, if the caller has them. The CPU reads them instead of `matrix` where that is faster; the
        GPU does not use them.
        """
        ...


class TriangularKernels(Protocol):
    """Incomplete factors and solves with them, by rows or by blocks of rows."""

    def triangular_levels(self, device: Device, csr: Csr, upper: bool) -> Levels:
        """Return the rows of a strictly triangular matrix, grouped by level. Synchronizes.

        The level of a row is one more than the highest level of the rows that its entries name, and 0 without entries.
        Within a level, rows are in ascending order. The values are not read.
        """
        ...

    def factorize_ilu0(self, device: Device, csr: Csr, diagonal: Array, levels: Levels | None) -> None:
        """Replace the values of a square matrix by its incomplete factors on the same pattern, in place.

        Columns rise within each row. L, without its unit diagonal, ends up below the diagonal, and U on and above it.
        `diagonal` holds the position of each row's diagonal entry. `levels` are those of the entries below the
        diagonal; they are None where `NEEDS_LEVELS` is false. A zero pivot leaves inf and NaN in later rows.
        """
        ...

    def sweep_ilu0(
        self, device: Device, csr: Csr, rows: Array, diagonal: Array, transposed: Csr, factors: Array, out: Array
    ) -> None:
        """Compute new incomplete factors from approximate ones, all entries at once: a step of fixed-point iteration.

        For entry (i, j) of the matrix, let s be a_ij minus the products l_ik·u_kj of the entries k < min(i, j), which
        are subtracted one after the other in the order of k. Then the new u_ij is s for i ≤ j, and the new l_ij is
        s / u_jj for i > j. The iteration ends, after at most twice as many steps as there are levels, with the bits of
        `factorize_ilu0`.

        Parameters
        ----------
        csr : Csr
            A square matrix with a full diagonal, whose columns rise within each row.
        rows : array, shape (nnz,)
            The row of each entry.
        diagonal : array, shape (num_rows,)
            The position of each row's diagonal entry.
        transposed : Csr
            The transpose, with the position of each entry in `csr` as its value (of the index dtype).
        factors, out : array, shape (nnz,)
            L and U on the pattern of `csr`, as `factorize_ilu0` leaves them. Different arrays.
        """
        ...

    def triangular_solver(
        self, device: Device, csr: Csr, levels: Levels | None, columns: int, upper: bool
    ) -> Callable[[Array, Array], None]:
        """Return ``solve(x, y)``: y = (I + N)⁻¹·x for a strictly triangular matrix N.

        N is upper triangular where `upper` is true, else lower. `x` and `y` hold `columns` vectors one after the other
        and do not overlap. `levels` are None where `NEEDS_LEVELS` is false.
        """
        ...

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
        ...

    def block_triangular_solver(
        self, device: Device, blocks: Csr, levels: Levels | None, num_rows: int, columns: int, upper: bool
    ) -> Callable[[Array, Array], None]:
        """Return ``solve(x, y)`` as `triangular_solver` does, for a matrix N of dense blocks.

        `blocks.data` has the shape (nnz, size, size). The vectors have `num_rows` elements; where these are no multiple
        of the size, the last block of rows has fewer elements, and the elements of N past them are 0.
        """
        ...


class ExchangeKernels(Protocol):
    """Elements of vectors that ranks exchange, and messages through memory that they share."""

    @property
    def Mailboxes(self) -> type[Mailboxes]:
        """The backend's implementation of `gsparse.kernels.mailboxes.Mailboxes`."""
        ...

    def gather(self, device: Device, x: Array, numbers: Array, out: Array) -> None:
        """Compute out = x[numbers]."""
        ...

    def scatter_add(
        self,
        device: Device,
        values: Array,
        numbers: Array,
        y: Array,
        x: Array | None = None,
        dots: Array | None = None,
    ) -> None:
        """Compute y[numbers] += values; all numbers are distinct.

        With `x` and `dots` it also leaves ``num_scatter_dots(values.size)`` partial sums of conj(x[numbers])·values in
        `dots`.
        """
        ...

    def num_scatter_dots(self, count: int) -> int:
        """Return how many partial sums `scatter_add` of `count` values leaves; 0 where it leaves none."""
        ...


class SolverKernels(Protocol):
    """The steps of solvers."""

    @property
    def Arnoldi(self) -> type[Arnoldi]:
        """The backend's implementation of `gsparse.kernels.basis.Arnoldi`."""
        ...

    @property
    def Decomposition(self) -> type[Decomposition]:
        """The backend's implementation of `gsparse.kernels.decomposition.Decomposition`."""
        ...

    def compile_steps(self, device: Device, program: Program, dtype: DType) -> None:
        """Begin to compile the passes of a program for vectors of this dtype, if other threads can do that."""
        ...

    def bind_step(
        self, device: Device, program: Program, step: Step, vectors: Mapping[str, Array], state: StepState
    ) -> Call:
        """Return a call that runs one step of a program on these vectors (`gsparse.kernels.steps`)."""
        ...

    def bind_iterations(
        self,
        device: Device,
        program: Program,
        operations: tuple[Step | Multiplication, ...],
        csr: Csr,
        width: int,
        vectors: Mapping[str, Array],
        state: StepState,
        turns: int,
    ) -> Call | None:
        """Return a call that runs up to `turns` iterations and stops when the program does, as one kernel.

        An iteration consists of these steps and products with the square matrix, in this order; each step occurs once.
        There is one right-hand side, values and vectors have one dtype, and the longest row has `width` entries. None
        if the device has no such kernel, or if the matrix is too large for it.
        """
        ...

    def fill_hashes(self, device: Device, out: Array, offset: int) -> None:
        """Write real numbers between -1/2 and 1/2 that look random: element i is a hash of i + 1 + offset, modulo 2³².

        For h = i + 1 + offset and each of two odd numbers, h becomes h·odd, and then its upper 16 bits are folded into
        the lower ones by an exclusive or. The element is h / 2³² - 1/2.
        """
        ...

    def bind_dots(self, device: Device, state: StepState, name: str, num_dots: int) -> tuple[Array, Call | None]:
        """Return an array for the partial sums that a product leaves, and what must be called after the product.

        Steps that are bound later read the sum under `name`. Only for products whose `num_dots` is not 0.
        """
        ...


class Constants(Protocol):
    """Constants of a backend."""

    @property
    def SORTING_SCOPE(self) -> int:
        """Rows within which slices are sorted by length."""
        ...

    @property
    def CHUNK_SIZE(self) -> int:
        """Entries of a chunk of a long row."""
        ...

    @property
    def LONG_LENGTH(self) -> int:
        """Entries above which a row is kept out of slices."""
        ...

    @property
    def SCALAR_LENGTH(self) -> int:
        """Entries above which scalar CSR treats a row as long; `NO_LIMIT` where it never does."""
        ...

    @property
    def CSR_CODES(self) -> tuple[DType, ...]:
        """Dtypes to which columns in CSR order may be narrowed."""
        ...

    @property
    def LOOKS_UP(self) -> bool:
        """Whether reading a value from a table by a one-byte code is faster than reading it in half the precision."""
        ...

    @property
    def FIRST_FORMAT(self) -> str:
        """A format without set-up that is fast enough for a few products of any matrix; "auto" if there is none."""
        ...

    @property
    def SPMM_FORMATS(self) -> tuple[str, ...]:
        """The names of the formats that products with several columns can read, besides CSR."""
        ...

    @property
    def SPMM_HALVES(self) -> bool:
        """Whether products with several columns also read CSR's values in half the precision."""
        ...

    @property
    def SLICES_BLOCKS(self) -> bool:
        """Whether blocks of BSR are stored in slices of `device.lanes` rows; otherwise one row after the other."""
        ...

    @property
    def SHARES_RUNS(self) -> bool:
        """Whether a product takes consecutive rows of one pattern together, so that their number decides its time."""
        ...

    @property
    def NEEDS_LEVELS(self) -> bool:
        """Whether triangular factors are solved level by level, and so need `Levels`."""
        ...


class Kernels(
    ProductKernels,
    AlgebraKernels,
    ReductionKernels,
    EntryKernels,
    SetUpKernels,
    TriangularKernels,
    RelaxationKernels,
    AggregationKernels,
    GradientKernels,
    ExchangeKernels,
    SolverKernels,
    Constants,
    Protocol,
):
    """All that a backend implements."""
