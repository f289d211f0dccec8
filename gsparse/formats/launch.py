"""How kernels are launched for a storage format: plain data that the plan chooses and the backends read."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = [
    "DEFAULT_THREADS_PER_BLOCK",
    "FEW_PLACES",
    "LANE_BYTES",
    "NO_LIMIT",
    "THREADS_PER_BLOCK",
    "Launch",
    "Panel",
    "PanelLaunch",
]

# Launch shapes that may be asked for.
THREADS_PER_BLOCK = (128, 256, 512)
# The default. An H200 runs 128 up to 3 % faster on stencils and 14 % slower on banded matrices, and 512 1 to 3 % slower
# (python -m gsparse bench --threads-per-block 128,256,512); AMD's lab notes advise 256 too.
DEFAULT_THREADS_PER_BLOCK = 256

# Bytes of X that a GPU thread reads for an entry at most, in products with dense columns.
LANE_BYTES = 32

# A chunk of a long row has a whole block where a warp would have no more threads a column than these, else a warp.
FEW_PLACES = 2

# As `long_length`: no row is long.
NO_LIMIT = 2**62


@dataclass(frozen=True)
class Launch:
    """How a kernel is launched.

    Attributes
    ----------
    threads_per_block : {128, 256, 512}
        GPU threads a block; the CPU backend has no use for it.
    threads_per_row : int
        For `csr_vector`: threads (CPU: independent partial sums) that share a row, a power of two from 2 to the
        device's lanes per warp.
    """

    threads_per_block: int = DEFAULT_THREADS_PER_BLOCK
    threads_per_row: int = 1


@dataclass(frozen=True)
class Panel:
    """What a product with k dense columns can make of X's memory.

    Attributes
    ----------
    num_columns : int
        k.
    pack : int
        Elements of a row that one load reads together: 1, or 2 or 4 where they are side by side and aligned.
    by_columns : bool
        Whether neighbours in memory belong to one column (column-major) instead of one row.
    """

    num_columns: int
    pack: int = 1
    by_columns: bool = False


@dataclass(frozen=True)
class PanelLaunch:
    """How a product with k dense columns is shared out on a GPU; lanes are powers of two.

    Attributes
    ----------
    columns_per_load : int
        Neighbouring columns that one access takes: `Panel.pack`.
    loads : {1, 2, 4}
        Accesses of a lane for an entry, `LANE_BYTES` at most.
    column_lanes : int
        Lanes that own neighbouring columns.
    entry_lanes : int
        Lanes that take turns at the entries of a row; times `column_lanes` a warp at most.
    long_length : {16, 32, 64, 128, 256, 512, 1024}
        Longer rows are cut into chunks, which warps or blocks take.
    """

    columns_per_load: int
    loads: int
    column_lanes: int
    entry_lanes: int = 1
    long_length: int = 1024

    @property
    def tile(self) -> int:
        """Columns that a group of lanes owns."""
        return self.column_lanes * self.loads * self.columns_per_load
