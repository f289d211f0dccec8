"""The phases of a product of two sparse matrices on a GPU, and other ways to launch them.

The section `phases` of measure_algebra.py times them. A product whose rows are merged
(`gsparse.kernels.gpu.merged_rows`) has these phases:

    longest          the lengths of the longest rows of both matrices, unless they are known
    count            the number of entries of each row of the result
    count and slots  the same, with the slot of each product, where the rows have few products
    row pointers     the sum and the maximum of these numbers, and the row pointers
    fill             columns and values
    fill values      the values alone, where the slots have been kept (numeric reuse)

Transposes are timed in both ways, too: by counting the columns, and by sorting (`gsparse.kernels.gpu.transpose`).
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from gsparse.device.base import Device
from gsparse.formats import Csr
from gsparse.kernels.gpu import merged_rows, row_classes, sparse_products, transpose
from gsparse.kernels.gpu.merged_rows import MergePlan, Slots
from gsparse.kernels.gpu.sparse_rows import point_to_rows

__all__ = ["alternatives", "phases", "transposes"]

TURNS = 7
# Ways of launching that are tried: (lists, lanes) of a merge, lanes that add, threads of a block.
MERGES = tuple((lists, lanes) for lists in (4, 8) for lanes in (1, 2, 4, 8, 16, 32))
ADD_LANES = (1, 2, 4, 8, 16, 32)
THREADS = (64, 128)

Timings = Iterator[tuple[str, float]]


def busy(device: Device, call: Callable[[], Any]) -> float:
    """Return the milliseconds that a call takes on the device, as the median of several turns."""
    call()  # compiles
    readings = []
    for _ in range(TURNS):
        reading = device.timed(call)
        device.synchronize()
        readings.append(reading() or 0.0)
    return 1e3 * statistics.median(readings)


class Phases:
    """A product of two matrices, phase by phase, as `gsparse.kernels.gpu.sparse_products` makes it.

    Parameters
    ----------
    device : Device
        A GPU, active.
    a, b : Csr
        B in canonical form.
    """

    def __init__(self, device: Device, a: Csr, b: Csr) -> None:
        self.device, self.a, self.b = device, a, b
        longest = row_classes.longest_rows(device, a, b)
        plan = merged_rows.plan_merge(a, b, longest, device.lanes)
        if plan is None:
            raise ValueError(f"the rows of this product are not merged: the longest rows have {longest} entries")
        self.plan, self.longest_of_a = plan, longest[0]
        self.sizes, self.flag = device.empty(a.num_rows, a.indices.dtype), device.xp.zeros(1, np.uint32)
        self.known = sparse_products.spgemm_known(device, a, b)
        self.slots: Slots = self.known.order
        self.places = merged_rows.places_of(device, a, b, plan, (0, a.num_rows))

    def count(self, plan: MergePlan | None = None, with_slots: bool = False) -> None:
        rows, places = (0, self.a.num_rows), self.places if with_slots else None
        merged_rows.merge(
            self.device, self.a, self.b, plan or self.plan, rows, sizes=self.sizes, places=places, flag=self.flag
        )

    def point(self) -> None:
        offsets, _, _ = row_classes.sizes_and_longest(self.device, self.sizes)
        point_to_rows(self.device, self.sizes, offsets, self.sizes.dtype)

    def fill(self, plan: MergePlan | None = None, structure: bool = True, keeps_places: bool = True) -> None:
        slots = replace(self.slots, plan=plan or self.plan, places=self.places if keeps_places else None)
        flags = (self.flag, self.device.counts.flag) if structure else (None, None)
        merged_rows.fill(self.device, self.a, self.b, self.known.result, slots, flags)


def phases(device: Device, a: Csr, b: Csr) -> Timings:
    """Time each phase of A·B."""
    made = Phases(device, a, b)
    keeps_places = made.plan.has_few_products
    yield "longest", busy(device, lambda: row_classes.longest_rows(device, a, b))
    yield "count", busy(device, made.count)
    yield "count and slots", busy(device, lambda: made.count(with_slots=True))
    yield "row pointers", busy(device, made.point)
    yield "fill, slots kept", busy(device, made.fill)
    if not keeps_places:
        yield "fill, slots found again", busy(device, lambda: made.fill(keeps_places=False))
    yield "fill values, slots kept", busy(device, lambda: made.fill(structure=False))
    yield "product, all phases", busy(device, lambda: sparse_products.spgemm(device, a, b))


def alternatives(device: Device, a: Csr, b: Csr) -> Timings:
    """Time other launches of the kernels of A·B. Each result is compared with that of the plan, to the bit."""
    made = Phases(device, a, b)
    want = made.known.result
    data = want.data.copy()
    for lists, lanes in MERGES:
        if not made.longest_of_a <= lists * lanes < max(4 * made.longest_of_a, 9):
            continue
        for threads in THREADS:
            plan = replace(made.plan, lists=lists, lanes=lanes, threads=threads)
            if threads // lanes * plan.pitch > merged_rows.SHARED_BYTES:
                continue
            name = f"{lists} lists of {lanes} lanes, {threads} threads"
            yield f"count, {name}", busy(device, lambda plan=plan: made.count(plan))
            yield f"count and slots, {name}", busy(device, lambda plan=plan: made.count(plan, with_slots=True))
    made.count(with_slots=True)
    for lanes in ADD_LANES:
        for threads in THREADS:
            plan = replace(made.plan, add_lanes=lanes, add_threads=threads)
            name = f"{lanes} lanes, {threads} threads"
            yield f"fill, {name}", busy(device, lambda plan=plan: made.fill(plan))
            if not bool((want.data == data).all()):
                raise AssertionError(f"fill, {name}: other values")
            yield f"fill values, {name}", busy(device, lambda plan=plan: made.fill(plan, structure=False))


def transposes(device: Device, csr: Csr) -> Timings:
    """Time the two ways to the transpose of a matrix that is not small. Both have the same result, to the bit."""
    limits, results = transpose._MOST_NUMBERS, list[Csr]()
    try:
        for name, transpose._MOST_NUMBERS in (("columns counted", 2**31), ("sorted", 0)):
            yield f"transpose, {name}", busy(device, lambda: transpose.csr_transpose(device, csr))
            results.append(transpose.csr_transpose(device, csr))
    finally:
        transpose._MOST_NUMBERS = limits
    if not all(bool((getattr(results[0], part) == getattr(results[1], part)).all()) for part in ("indices", "data")):
        raise AssertionError("the two ways to the transpose have other results")
