"""The model of the time of one product: a sum of terms. Each term is a measured constant times a count.

The constants of a built-in format are in its file in `gsparse.products`. All formats were timed in all encodings
(``python asv_bench/fit_costs.py measure``), and the constants were fitted to these times (``fit_costs.py fit``) by
non-negative least squares of relative errors. A format that is much slower than the best format for the same matrix has
a small weight. Then the constants were changed slightly, so that the choices lose less time. The model has no term for
gathers from x that miss the cache, because their time is about the same for all formats.

GPU
    One NVIDIA H200, float64 and float32: 36 assembled matrices (``gsparse bench --assembled``), 59 matrices from
    applications and 13 model problems. The choices are within 5 % of the best storage in 191 of 216 cases, and in 66 of
    72 for assembled matrices.
CPU
    Three cores of an Intel Xeon (Emerald Rapids) with one and two threads, float64: the assembled matrices, 31 matrices
    from applications and twelve model problems, and seven larger ones with two threads. All but the assembled and the
    larger ones were measured once more without gathers in hardware (`gsparse.kernels.cpu.vectors`), and one set of
    constants was fitted to all times. The choices are within 5 % of the best storage in 107 of 141 cases with gathers
    and in 73 of 86 without. With gathers, narrow columns take no additional time: `narrow` = 0 for blocked ELLPACK
    would give 125 of 141, but 50 of 86 without gathers.
"""

from __future__ import annotations

from dataclasses import dataclass

from gsparse.formats.row_stats import RowStats

MICROSECOND = 1e-6
# Number of entries that a thread loads at the same time. `KernelModel.step` was fitted with this number.
_LOADS_PER_ROUND = 4
# If a table of values has at least this many bytes, looking a value up takes the full time `KernelModel.table`.
TABLE_BYTES = 65_536
# The terms of `KernelModel` that count instructions, and bytes from a cache or memory. On a CPU, the threads divide
# this work.
_SHARED_TERMS = frozenset(
    ("byte", "position", "row", "step", "stride", "chunk", "sorted", "coded", "narrow", "table", "run", "run_entry")
)
# The term `stream` was fitted with one and two threads as if they did not divide it (_FITTED_THREADS). More threads
# divide it by half their number, up to _MEMORY_THREADS: plain CSR of 27-point 128³, 0.7 GB, takes 62, 31, 17, 9.8, 7.2
# and 6.4 ms with 1, 2, 4, 8, 12 and 16 threads (Intel Emerald Rapids).
_FITTED_THREADS, _MEMORY_THREADS = 2, 10
# Number of entries in a chunk of a long row on a GPU. The constants of CPUs were fitted with the same number, although
# their chunks are larger.
_CHUNK_ENTRIES = 256
# Rows with more entries than this are long rows of `csr_scalar` on a GPU.
SCALAR_LENGTH = 16
# A row is a long row of `csr_vector` if it has more than _VECTOR_LENGTH entries for each thread that shares it. If at
# least _FEWEST_LANES threads share it, the limit is _WARP_LENGTH entries in all, which is higher because in such a warp
# no thread waits for threads of other rows. 20,000 rows of 200 to 700 entries on an H200, in float64 and float32: 83
# and 75 µs with a limit of 256, 74 and 58 with 512, 63 and 39 with 1024.
_VECTOR_LENGTH, _WARP_LENGTH, _FEWEST_LANES = 8, 1024, 32


@dataclass(frozen=True)
class KernelModel:
    """The constants of one kernel. The predicted time of a product is the sum of these constants times their counts.

    All constants are in seconds, except `setup`. On a CPU, the constants hold for one thread, and `num_sharing` returns
    the number by which several threads divide the time of a term. On a GPU, they hold for the whole device.

    Attributes
    ----------
    fixed : float
        Time of a product of an empty matrix.
    byte : float
        Time per byte moved.
    stream : float
        Additional time per byte that does not stay in the cache between products (`MachineModel.cache`).
    position : float
        Time per stored position, padding included: the instructions, and the gather from x.
    row : float
        Time per row.
    step : float
        Time per round of `_LOADS_PER_ROUND` loads by the thread with the longest row. No other work hides the latency
        of these loads.
    stride : float
        Time per stored position and per entry of the mean row length, which is capped at `SCALAR_LENGTH`: the cost of
        uncoalesced reads by neighbouring threads.
    chunk : float
        Time per chunk of a long row.
    sorted : float
        Time per row of a matrix whose rows are sorted: the row number is looked up, and the result is written out of
        order.
    coded, narrow : float
        Time per value that is looked up in a table, and per column that is relative to a base.
    table : float
        Time per position if the table of values, or of shared rows, takes `TABLE_BYTES` or more; less if it is smaller.
        A small table stays in the first-level cache.
    run, run_entry : float
        Time per row whose pattern differs from the pattern of the row before it, and per entry of such a row. Following
        rows with the same pattern add nothing to this time.
    setup : float
        Time of the conversion from CSR, as a number of products.
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
    table: float = 0.0
    run: float = 0.0
    run_entry: float = 0.0
    setup: float = 0.0


def num_sharing(term: str, threads: int) -> float:
    """Return the number by which the threads of a CPU divide the time of a term of `KernelModel`.

    Examples
    --------
    >>> [num_sharing("position", threads) for threads in (1, 2, 4, 16)]
    [1, 2, 4, 16]
    >>> [num_sharing("stream", threads) for threads in (1, 2, 4, 16)]
    [1.0, 1.0, 2.0, 5.0]
    """
    if term == "stream":
        return max(1.0, min(threads, _MEMORY_THREADS) / _FITTED_THREADS)
    return threads if term in _SHARED_TERMS else 1


def num_rounds(stats: RowStats, limit: float | None = None, threads: float = 1.0) -> float:
    """Return how many times a thread of the longest row loads entries, `_LOADS_PER_ROUND` at a time.

    Parameters
    ----------
    stats : RowStats
    limit : float, optional
        Rows with more entries than this are long rows, which are not counted.
    threads : float
        Number of threads that share a row.
    """
    longest = stats.max_length
    return (longest if limit is None else min(longest, limit)) / threads / _LOADS_PER_ROUND


def num_chunks(rows: float, entries: float) -> float:
    """Estimate the number of chunks of long rows, from the number of these rows and of all their entries."""
    return rows + entries / _CHUNK_ENTRIES


def vector_length(threads: int) -> int:
    """Return the number of entries above which a row is a long row of `csr_vector` on a GPU.

    Parameters
    ----------
    threads : int
        Number of threads that share a row.

    Examples
    --------
    >>> [vector_length(threads) for threads in (2, 8, 16, 32, 64)]
    [32, 64, 128, 1024, 1024]
    """
    return _WARP_LENGTH if threads >= _FEWEST_LANES else max(_VECTOR_LENGTH * threads, 2 * SCALAR_LENGTH)
