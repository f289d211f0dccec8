"""The predicted time of one product: a sum of terms, each a measured constant times a count.

The constants of each format stand in the format's own file, one `KernelModel` for each kind of device. They were
measured as follows.

GPU
    Fitted by non-negative least squares of relative errors, with the largest weights near the best format, to the times
    of every format on the 50 matrices of ``python -m gsparse bench --all``, in float64 and float32 together, on one
    NVIDIA H200. What the gathers from x cost beyond that is the same for all formats. It was a term of each matrix in
    the fit, and is no term here. `chunk` of csr_vector and blocked_ellpack and `fixed` of csr_vector are set by hand,
    for R-MAT and bfly_G. With any one matrix left out of the fit, the choice was within 5 % of the best candidate on 89
    of 100.
CPU
    Fitted in the same way to two cores of an AMD EPYC (Zen 4), float64: 7-point 100³, 27-point 64³, banded, R-MAT 18,
    G3_circuit, cnr-2000, USA-road-FLA, armadillo13k_elast_P1. `run` and `run_entry` are set by hand, for two patterns
    of seven entries that alternate every 1 to 128 rows, for bcsstk16 and for bfly_G.
"""

from __future__ import annotations

from dataclasses import dataclass

from gsparse.formats.row_stats import RowStats

__all__ = [
    "LOADS_PER_ROUND",
    "MICROSECOND",
    "SCALAR_LENGTH",
    "_CHUNK_ENTRIES",
    "KernelModel",
    "num_chunks",
    "num_rounds",
]

MICROSECOND = 1e-6
# Entries that a thread loads at once (`KernelModel.step` was fitted with this number).
LOADS_PER_ROUND = 4
# Entries of a chunk of a long row.
_CHUNK_ENTRIES = 256
# Entries above which `csr_scalar` keeps a row apart on a GPU.
SCALAR_LENGTH = 16


@dataclass(frozen=True)
class KernelModel:
    """The constants of one kernel: seconds for each unit of a term. A product takes the sum of all terms.

    Attributes
    ----------
    fixed : float
        A product, however small the matrix is.
    byte : float
        A byte moved.
    stream : float
        An additional cost of a byte that does not stay in the cache between products (`MachineModel.cache`).
    position : float
        A stored position, padding included: the instructions, and the gather from x.
    row : float
        A row.
    step : float
        A round of loads on the longest path of one thread, when nothing hides it.
    stride : float
        An entry, multiplied by the length of its row: the cost of uncoalesced reads by neighbouring threads.
    chunk : float
        A chunk of a row that is kept apart.
    sorted : float
        A row of a matrix whose rows are sorted: its number is looked up, and its result is written out of order.
    coded, narrow : float
        A position whose value is looked up in a table; a position whose column is stored relative to a base.
    run, run_entry : float
        A row whose pattern differs from that of the row before it, and an entry of such a row. The rows that follow
        with the same pattern share this cost.
    setup : float
        The conversion from CSR, as a number of products.
    """

    fixed: float
    byte: float
    stream: float = 0.0
    position: float = 0.0
    row: float = 0.0
    step: float = 0.0
    stride: float = 0.0
    chunk: float = 0.0
    sorted: float = 0.0
    coded: float = 0.0
    narrow: float = 0.0
    run: float = 0.0
    run_entry: float = 0.0
    setup: float = 0.0


def num_rounds(stats: RowStats, limit: float | None = None, threads: float = 1.0) -> float:
    """Return the rounds of loads of the longest row, or of a row of `limit` entries where longer ones are kept apart.

    Parameters
    ----------
    stats : RowStats
    limit : float, optional
    threads : float
        Threads that share a row.
    """
    longest = stats.max_length
    return (longest if limit is None else min(longest, limit)) / threads / LOADS_PER_ROUND


def num_chunks(rows: float, entries: float) -> float:
    """Return the number of chunks, about, of long rows with these entries together."""
    return rows + entries / _CHUNK_ENTRIES
