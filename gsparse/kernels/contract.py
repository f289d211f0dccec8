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

The contracts of larger pieces have files of their own: sparse algebra (`gsparse.kernels.algebra`), relaxation
(`gsparse.kernels.relaxation`), the set-up of multigrid (`gsparse.kernels.aggregation`), the language of solver steps
(`gsparse.kernels.steps`), Arnoldi's process for GMRES (`gsparse.kernels.basis`) and Krylov decompositions
(`gsparse.kernels.decomposition`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from gsparse.device.base import Device
from gsparse.device.dtypes import Array
from gsparse.formats import Columns, Csr, Levels, LongRows, RowBlocks, RowPattern, Slices, Tiles
from gsparse.formats.launch import Launch, Panel, PanelLaunch
from gsparse.kernels.aggregation import AggregationKernels
from gsparse.kernels.algebra import AlgebraKernels, EntryKernels
from gsparse.kernels.basis import Arnoldi
from gsparse.kernels.calls import Call
from gsparse.kernels.decomposition import Decomposition
from gsparse.kernels.relaxation import RelaxationKernels
from gsparse.kernels.steps import Program, Step, StepState

__all__ = [
    "BindProduct",
    "ChoosePanelLaunch",
    "Constants",
    "ExchangeKernels",
    "Kernels",
    "Multiply",
    "MultiplyColumns",
    "ProductKernels",
    "SetUpKernels",
    "SolverKernels",
    "Survey",
    "TriangularKernels",
]

HostArray = npt.NDArray[Any]
DType = np.dtype[Any]
ChoosePanelLaunch = Callable[[Panel], PanelLaunch]


# ---------------------------------------------------------------------------- products


class Multiply(Protocol):
    """A product that is bound to a matrix: y = alpha·A·x + beta·y, in place.

    `x` and `y` are contiguous vectors of `num_cols` and `num_rows` elements of the compute dtype; they do not overlap.
    `alpha` and `beta` are NumPy scalars of that dtype. Where beta is 0, y is never read, so NaN in it does not survive.
    Where `conjugate` is true, the values of A are conjugated as they are read.

    Nothing is allocated, except the scratch memory of formats that add up parts of rows: once for each stream.
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

    X has shape (num_cols, k) and Y (num_rows, k), both with any strides. Neither is copied, except an X whose rows are
    2 GiB apart. Bytes moved: ``csr.nbytes`` once for each tile of columns, X and Y once; nnz·k elements of X are
    gathered, most of them from the cache.
    """

    def __call__(self, x: Array, y: Array, alpha: Any, beta: Any, conjugate: bool) -> None: ...


class BindProduct(Protocol):
    """Bind a product to a matrix in one storage format."""

    def __call__(self, device: Device, matrix: Any, dtype: DType, launch: Launch) -> Multiply:
        """Return the product of `matrix` with vectors of the compute dtype `dtype`.

        The type of `matrix` belongs to the format: `CsrEntries` for the CSR schedules (with `LongRows` or None for
        scalar and vector, `RowBlocks` for adaptive, `Tiles` for split), `Ellpack`, `BlockedEllpack` or `RowPattern`.
        Its columns and values are encoded as `gsparse.formats.entries` says, in any combination. Plain values are of
        `dtype` or of a dtype that widens to it (float32 read by a float64 product, for instance); tables of values are
        of `dtype`.
        """
        ...


class ProductKernels(Protocol):
    """Products with one vector, by the name of the storage format, and with several dense columns."""

    @property
    def SPMV(self) -> Mapping[str, BindProduct]:
        """How to bind a product in each storage format."""
        ...

    def csr_spmm(
        self, device: Device, matrix: Csr | RowPattern, dtype: DType, choose: ChoosePanelLaunch, survey: Survey
    ) -> MultiplyColumns:
        """Bind a product with several dense columns.

        `matrix` is CSR with values of `dtype`, or of a dtype of the same kind that widens to it; on a GPU it may also
        be a `RowPattern` whose patterns hold the values. `choose` returns the launch for the layout of an X, and
        `survey` is that of this matrix; the CPU uses neither.
        """
        ...


# ---------------------------------------------------------------------------- set-up


@dataclass(frozen=True, eq=False)
class Survey:
    """Statistics of a matrix's row pointers and columns; 0 where there is nothing to count.

    Attributes
    ----------
    min_length, max_length, num_empty, sum_squares : int
        Of the rows' lengths: the least, the greatest, how many are 0, the sum of their squares.
    blocked_stored, split_stored : int
        Positions of slices in natural order; the same without rows longer than `LONG_LENGTH`.
    num_long, long_entries : int
        Rows longer than that, and their entries.
    first, last, num_falls : int
        First and last row pointer, and how many row pointers are less than the one before them.
    min_column, max_column : int
        Of the entries up to the last row pointer, or of all entries where there are fewer.
    num_unsorted : int
        Entries whose column is not greater than that of the entry before them in the same row.
    run_span : int
        The largest distance between two columns of one run in CSR order, where it was asked for.
    counts : object
        Private data of the backend, which it reads in later set-up steps.
    """

    min_length: int
    max_length: int
    num_empty: int
    sum_squares: int
    blocked_stored: int
    split_stored: int
    num_long: int
    long_entries: int
    first: int
    last: int
    num_falls: int
    min_column: int
    max_column: int
    num_unsorted: int
    run_span: int
    counts: Any = None

    def describes(self, num_cols: int, room: int) -> bool:
        """Return whether the arrays are a valid CSR structure.

        Parameters
        ----------
        num_cols : int
            Columns of the matrix.
        room : int
            Entries that the arrays can hold.
        """
        columns_fit = not self.last or (self.min_column >= 0 and self.max_column < num_cols)
        return self.first == 0 and not self.num_falls and 0 <= self.last <= room and columns_fit


class SetUpKernels(Protocol):
    """What `gsparse.products` makes storage formats of. Every function returns new arrays, written by kernels."""

    def survey(self, device: Device, indptr: Array, indices: Array, spans: bool) -> Survey:
        """Return the statistics of row pointers and columns, whatever the arrays hold. Synchronizes.

        `spans` says whether `Survey.run_span` is wanted.
        """
        ...

    def long_rows(
        self, device: Device, indptr: Array, survey: Survey, limit: int, first: int | None = None
    ) -> tuple[LongRows, int]:
        """Return the rows longer than `limit`, and the position at which their last run ends.

        Without `first` they stay at their positions in CSR. With it they are to be copied one after the other from
        position `first` on, each beginning with a whole run. `limit` is one of the backend's constants (with `first`,
        `LONG_LENGTH`).
        """
        ...

    def row_blocks(self, device: Device, indptr: Array, survey: Survey) -> RowBlocks:
        """Return consecutive rows gathered into blocks of about equal work."""
        ...

    def tiles(self, device: Device, indptr: Array, survey: Survey) -> Tiles:
        """Return the merged list of entries and row ends cut into equal tiles."""
        ...

    def cut_slices(
        self, device: Device, indptr: Array, survey: Survey, long_length: int, sort: bool
    ) -> tuple[Array | None, Array, int]:
        """Return (rows, slice_offsets, number of positions) as in `Slices`.

        Rows longer than `long_length` get no place. `sort` orders the other rows within each `SORTING_SCOPE`
        consecutive ones by falling length, rows of equal length in order; -1 marks places without a row, at the end.
        `rows` is None where all rows keep their order. Synchronizes where it sorts.
        """
        ...

    def lay_out(self, device: Device, indptr: Array, items: Array, slices: Slices, padding: Any) -> Array:
        """Return items, one for each entry in CSR order, at the positions of `slices`, and `padding` elsewhere.

        Long rows are included. Items may have any dtype of 1, 2, 4, 8 or 16 bytes.
        """
        ...

    def lay_out_ellpack(
        self, device: Device, indptr: Array, items: Array, width: int, pitch: int, padding: Any
    ) -> Array:
        """Return the same for the column-major positions of `Ellpack`."""
        ...

    def run_span(self, device: Device, columns: Array, num_cols: int) -> int:
        """Return the largest distance between the columns of one run, over all runs of positions.

        Padding (negative columns) is not counted. Synchronizes.
        """
        ...

    def encode_columns(self, device: Device, columns: Array, dtype: Any) -> Columns:
        """Return columns as distances of `dtype` from a base for each run; they must fit below the padding code."""
        ...

    def row_keys(self, device: Device, csr: Csr, values: bool) -> Array:
        """Return a hash (uint64) of each row's length and offsets, column minus row, and of its values if `values`."""
        ...

    def distinct_keys(self, device: Device, keys: Array, limit: int) -> tuple[HostArray, npt.NDArray[np.int64]] | None:
        """Return the distinct keys, rising, and a position of each in `keys`; both on the host.

        `keys` are uint32 or uint64. Returns None where there are more than `limit` distinct keys; `limit` is at most
        4096. Synchronizes.
        """
        ...

    def encode_keys(self, device: Device, keys: Array, table: Array, dtype: Any) -> Array:
        """Return the position of each key in the sorted `table`, which holds all of them."""
        ...

    def rows_follow(
        self, device: Device, csr: Csr, codes: Array, representatives: Array, values: bool
    ) -> npt.NDArray[np.int32] | None:
        """Return the lengths of the representative rows if every row is like its own representative, else None.

        Row i is compared with row ``representatives[codes[i]]``: the offsets, and the values if `values` is true.
        Synchronizes.
        """
        ...

    def gather_rows(
        self, device: Device, csr: Csr, representatives: Array, indptr: Array, num_entries: int, values: bool
    ) -> tuple[Array, Array | None]:
        """Return the int32 offsets of the representative rows, row r's at ``indptr[r]``, and their values if asked."""
        ...

    def survives_halving(self, device: Device, data: Array) -> bool:
        """Return whether every float64 or complex128 value comes back from half the precision with the same bits.

        That must hold however the values are cast. Synchronizes.
        """
        ...

    def is_symmetric(self, device: Device, csr: Csr, hermitian: bool, tolerance: float = 0.0) -> bool:
        """Return whether a square matrix with rising columns equals its (conjugate) transpose. Synchronizes.

        With a `tolerance` above 0, two values that mirror each other may differ by this fraction of the largest
        magnitude in either of their rows, and entries that are not stored count as 0. The magnitude of a complex number
        is the larger of its parts.
        """
        ...

    def csr_transpose(self, device: Device, csr: Csr) -> Csr:
        """Return the transpose. Synchronizes."""
        ...


# ---------------------------------------------------------------------------- triangular factors


class TriangularKernels(Protocol):
    """Incomplete factors and solves with them."""

    def factorize_ilu0(self, device: Device, csr: Csr, diagonal: Array, levels: Levels | None) -> None:
        """Replace the values of a square matrix by its incomplete factors on the same pattern, in place.

        Columns rise within each row. L, without its unit diagonal, ends up below the diagonal, and U on and above it.
        `diagonal` holds the position of each row's diagonal entry. `levels` are those of the entries below the
        diagonal; they are None where `NEEDS_LEVELS` is false. A zero pivot leaves inf and NaN in later rows.
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


# ---------------------------------------------------------------------------- exchange between ranks


class ExchangeKernels(Protocol):
    """Elements of vectors that ranks exchange."""

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


# ---------------------------------------------------------------------------- solvers


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

    def bind_step(
        self, device: Device, program: Program, step: Step, vectors: Mapping[str, Array], state: StepState
    ) -> Call:
        """Return a call that runs one step of a program on these vectors (`gsparse.kernels.steps`)."""
        ...

    def bind_dots(self, device: Device, state: StepState, name: str, num_dots: int) -> tuple[Array, Call | None]:
        """Return an array for the partial sums that a product leaves, and what must be called after the product.

        Steps that are bound later read the sum under `name`. Only for products whose `num_dots` is not 0.
        """
        ...


# ---------------------------------------------------------------------------- constants


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
    def VECTOR_LENGTH(self) -> int:
        """The same for vector CSR, for each thread that shares a row."""
        ...

    @property
    def BLOCK_WORK(self) -> int:
        """Entries plus rows of a row block of adaptive CSR."""
        ...

    @property
    def TILE_WORK(self) -> int:
        """Entries plus row ends of a tile of split CSR."""
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
    def SPMM_READS_LESS(self) -> bool:
        """Whether products with several columns also read row patterns and values in half the precision."""
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
    EntryKernels,
    SetUpKernels,
    TriangularKernels,
    RelaxationKernels,
    AggregationKernels,
    ExchangeKernels,
    SolverKernels,
    Constants,
    Protocol,
):
    """All that a backend implements."""
