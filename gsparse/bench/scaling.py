"""Products on the CPU for several sizes and numbers of threads: ``python -m gsparse bench --cpu-scaling``."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from gsparse.bench.problems import Arrays, Problem, uniform

__all__ = ["SIZES", "THREADS", "fitting", "scaling_problems"]

# The numbers of nonzeros and of CPU threads in the study.
SIZES = (1_000, 10_000, 100_000, 1_000_000, 10_000_000, 100_000_000)
THREADS = (1, 2, 4, 8, 16)

# Each row has an entry in one of this many columns, as in the published study: so dense that x stays in cache.
SPARSITY = 10

# Peak memory, in bytes per entry, of making such a matrix and preparing it for all peers at once.
BYTES_PER_ENTRY = 60

# The memory, in bytes, that is assumed on Windows, where Python's standard library cannot tell it.
ASSUMED_MEMORY = 8 << 30


def scaling_problems(sizes: Sequence[int]) -> Iterator[Problem]:
    """Yield a uniform random matrix, 10 % dense, for each number of nonzeros."""
    for nnz in sizes:
        yield Problem(f"uniform, 10 % dense, {nnz:,} nonzeros", partial(_dense_uniform, nnz), pictured=False)


def _dense_uniform(nnz: int, xp: Any) -> Arrays:
    num_rows = math.isqrt(nnz * SPARSITY)
    return uniform(num_rows, max(1, num_rows // SPARSITY), xp=xp)


def fitting(sizes: Sequence[int]) -> tuple[list[int], list[int]]:
    """Return the sizes that fit into half of this machine's memory, and those that do not."""
    has_sysconf = hasattr(os, "sysconf")
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if has_sysconf else ASSUMED_MEMORY
    fit = [size for size in sizes if size * BYTES_PER_ENTRY <= total // 2]
    return fit, [size for size in sizes if size not in fit]
