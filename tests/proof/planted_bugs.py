"""Run a kernel of planted/planted.cu and compare its result with the right one.

``python -m tests.proof.planted_bugs LANES KERNEL:BUG ...`` exits with status 0 if no error is found. Tests run it in
a process of its own under a sanitizer, which ends the process or sets its exit status.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache
from itertools import pairwise

import numpy as np

from .emulator import PROOF_FOLDER, SANITIZER, EmulatedModule, Kernel

__all__ = ["BUGS", "CLEAN", "KERNELS", "check"]

# The bugs that each kernel can be compiled with.
BUGS = {
    "block_sum": (
        "NO_BARRIER_AFTER_WRITE", "NO_BARRIER_IN_TREE", "NO_BARRIER_BEFORE_REUSE", "SHARED_ONE_SHORT",
        "DIVERGENT_BARRIER",
    ),
    "swap_pairs": ("SHUFFLE_FOR_BARRIER",),
    "row_sums": ("EARLY_RETURN", "ROW_END_OFF_BY_ONE", "NO_ROW_BOUND"),
    "warp_sums": ("TREE_OF_32", "LANE_OF_32"),
    "count_positive": ("PLAIN_ADD",),
    "keep_block": ("TOO_MUCH_SHARED",),
}  # fmt: skip
CLEAN = "NONE"
# Orders of threads: ascending, descending, and two random ones.
SEEDS = (0, 1, 2, 3)

THREADS = 256  # as in planted.cu
BLOCKS = 4
# 1001 rows of 8 lanes: the last warp is not full, so that an early return is noticed.
NUM_ROWS = 1001
# Number of elements after the end of an output, so that writes past the end are noticed and do no harm.
SLACK = 64


@cache
def planted_module(lanes: int, sanitizer: str = SANITIZER) -> EmulatedModule:
    names = [f"{kernel}<Bug::{bug}>" for kernel, bugs in BUGS.items() for bug in (CLEAN, *bugs)]
    return EmulatedModule(PROOF_FOLDER / "planted" / "planted.cu", names, lanes, sanitizer)


def check(kernel: str, bug: str, lanes: int) -> None:
    """Run a kernel in every order of threads; raise an error if the emulator reports one or a result is wrong."""
    function = planted_module(lanes).get_function(f"{kernel}<Bug::{bug}>")
    for seed in SEEDS:
        planted_module(lanes).seed = seed
        KERNELS[kernel](function, lanes)


def _input() -> np.ndarray:
    # The values are small integers, so that sums are exact in any order.
    return np.random.default_rng(0).integers(-9, 9, BLOCKS * THREADS).astype(np.float32)


def _block_sum(function: Kernel, lanes: int) -> None:
    values, rounds = _input(), 3
    out = np.full((rounds, BLOCKS), np.nan, np.float32)
    function((BLOCKS,), (THREADS,), (values, out, np.int32(rounds)))
    np.testing.assert_array_equal(out, values.reshape(BLOCKS, THREADS).sum(1) * np.arange(1, rounds + 1)[:, None])


def _swap_pairs(function: Kernel, lanes: int) -> None:
    values = _input()
    out = np.full_like(values, np.nan)
    function((BLOCKS,), (THREADS,), (values, out))
    np.testing.assert_array_equal(out, values.reshape(-1, 2)[:, ::-1].ravel())


def _row_sums(function: Kernel, lanes: int) -> None:
    lengths = np.random.default_rng(1).integers(0, 20, NUM_ROWS)
    indptr = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    data = np.arange(1, indptr[-1] + 2, dtype=np.float32)  # one element more than is stored
    out = np.full(NUM_ROWS + SLACK, np.nan, np.float32)
    function((-(-NUM_ROWS * 8 // THREADS),), (THREADS,), (np.int32(NUM_ROWS), indptr, data, out))
    expected = np.full_like(out, np.nan)
    expected[:NUM_ROWS] = [data[begin:end].sum() for begin, end in pairwise(indptr)]
    np.testing.assert_array_equal(out, expected)


def _warp_sums(function: Kernel, lanes: int) -> None:
    values = _input()
    out = np.full(values.size // lanes, np.nan, np.float32)
    function((BLOCKS,), (THREADS,), (values, out))
    np.testing.assert_array_equal(out, values.reshape(-1, lanes).sum(1))


def _count_positive(function: Kernel, lanes: int) -> None:
    values, count = _input(), np.zeros(1, np.int64)
    function((BLOCKS,), (THREADS,), (values, count))
    assert count[0] == (values > 0).sum()


def _keep_block(function: Kernel, lanes: int) -> None:
    values = _input()
    out = np.full_like(values, np.nan)
    function((BLOCKS,), (THREADS,), (values, out))
    np.testing.assert_array_equal(out, values)


KERNELS: dict[str, Callable[[Kernel, int], None]] = {
    "block_sum": _block_sum,
    "swap_pairs": _swap_pairs,
    "row_sums": _row_sums,
    "warp_sums": _warp_sums,
    "count_positive": _count_positive,
    "keep_block": _keep_block,
}


if __name__ == "__main__":
    for argument in sys.argv[2:]:
        kernel, bug = argument.split(":")
        check(kernel, bug, int(sys.argv[1]))
