"""The launch parameters of a kernel: plain data that the plan chooses and the backends read."""

from __future__ import annotations

from dataclasses import dataclass

# Numbers of threads per block that the user can choose.
THREADS_PER_BLOCK = (128, 256, 512)
# On an H200, 128 threads are up to 3 % faster than this default on stencils and 14 % slower on banded matrices, and 512
# threads are 1 to 3 % slower. AMD's lab notes recommend 256 too.
DEFAULT_THREADS_PER_BLOCK = 256

# Largest number of bytes of X that a GPU thread loads for one entry, in products with dense columns.
LANE_BYTES = 32

# The value of `long_length` with which no row is a long row.
NO_LIMIT = 2**62


@dataclass(frozen=True)
class Launch:
    """How a kernel is launched.

    Attributes
    ----------
    threads_per_block : {128, 256, 512}
        Threads in a GPU block. The CPU backend ignores it.
    threads_per_row : int
        For `csr_vector`: the number of threads that share a row, a power of two from 2 to the lanes of a warp; 1 for
        all other formats. The CPU backend ignores it, too.
    """

    threads_per_block: int = DEFAULT_THREADS_PER_BLOCK
    threads_per_row: int = 1


@dataclass(frozen=True)
class Panel:
    """The properties of X in a product with k dense columns on which the launch depends.

    Attributes
    ----------
    num_columns : int
        k, the number of columns.
    pack : int
        Number of elements of a row that one load can read: 2 or 4 if they are contiguous and aligned, otherwise 1.
    by_columns : bool
        Whether X is column-major, so that neighbours in memory belong to the same column.
    """

    num_columns: int
    pack: int = 1
    by_columns: bool = False


@dataclass(frozen=True)
class PanelLaunch:
    """How the lanes of a GPU share a product with k dense columns. Numbers of lanes are powers of two.

    Attributes
    ----------
    columns_per_load : int
        Number of neighbouring columns that one load reads: `Panel.pack`.
    loads : {1, 2, 4}
        Number of loads of a lane for one entry. Together they read at most `LANE_BYTES`.
    column_lanes : int
        Number of lanes among which the columns of a tile are divided.
    entry_lanes : int
        Number of lanes among which the entries of a row are divided. `column_lanes` times `entry_lanes` is at most the
        size of a warp.
    long_length : {16, 32, 64, 128, 256, 512, 1024}
        Rows with more entries than this are cut into chunks, and a warp or a block computes each chunk.
    by_length : bool
        Whether neighbouring lanes take rows of about the same length. This takes 4 bytes of memory for each row.
    """

    columns_per_load: int
    loads: int
    column_lanes: int
    entry_lanes: int = 1
    long_length: int = 1024
    by_length: bool = False

    @property
    def tile(self) -> int:
        """Number of columns that `column_lanes` lanes compute together."""
        return self.column_lanes * self.loads * self.columns_per_load
