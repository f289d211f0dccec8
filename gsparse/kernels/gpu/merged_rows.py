"""Products of two sparse matrices whose rows are merged in registers (kernels: `src/sparse_products_merged.cu`).

Each product a·b that contributes to a row of the result has a *slot*, stored in a byte: the index of its column within
that row. Slots depend only on the structures. If all rows have few products, their slots are found while the entries
are counted. Otherwise slots would take too much memory, so the entries are counted first; then the rows are merged
again and filled, some rows at a time.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np

from gsparse.device.base import Device
from gsparse.device.dtypes import COMPUTE_DTYPES, INDEX_DTYPES, Array
from gsparse.formats import Csr
from gsparse.formats.row_stats import MAX_INT32
from gsparse.kernels.gpu.launch import Source, constant, expression, launch_threads

_SOURCE = Source("sparse_products_merged.cu", constant("sparse_products_merged.cu", "GS_PRODUCT_THREADS"))
# Maximum number of entries of a row of the result.
MOST_SLOTS = constant(_SOURCE.file, "GS_MOST_SLOTS")
# Maximum number of bytes of shared memory of a launch.
SHARED_BYTES = 48 << 10
# (number of rows of B per lane, number of lanes per row) for rows of A with at most 8, 16, 32 and 128 entries, measured
# on an H200.
_MERGES = ((8, 1), (8, 2), (4, 8), (8, 16))
# Possible numbers of lanes that add the products with a row of B. The largest number that is at most the mean row
# length of B is used (measured on an H200).
_ADD_LANES = (1, 4, 16)
# If all rows have at most this many products, they are always merged, even if row lengths differ.
_FEW_PRODUCTS = 64
# Otherwise, rows are merged on two conditions. First, row lengths are similar: the longest row of each matrix has at
# most _EVEN times as many entries as the mean, and no row of the result has more than _MOST_PRODUCTS products. If not,
# most lanes would wait for the longest rows. Second, there are at least _MANY_ROWS rows, or _ENOUGH_ROWS times the
# square of the ratio of the longest to the mean row, because the entries of a row are found one after the other. (A @ A
# of a 27-point matrix on an H200: with 8,000 rows, merging was slower than classes; with 512,000 rows, it was 2.6 times
# as fast.)
_EVEN, _MOST_PRODUCTS = 4, 8192
_ENOUGH_ROWS, _MANY_ROWS = 9_000, 500_000
# Limits of the memory of slots: as a fraction of the memory of the result, for slots that are needed only while it is
# computed; in bytes, which are always allowed; as a fraction of the result, for slots that further products use again.
_SPARE_PART, _SPARE_BYTES, _KEPT_PART = 0.1, 1 << 20, 1.0


@dataclass(frozen=True)
class MergePlan:
    """The launch parameters with which the rows of a product are merged.

    Attributes
    ----------
    lists, lanes : int
        Number of rows of B per lane, and number of lanes per row, in `spgemm_merge`.
    add_lanes : int
        Number of lanes per row in `spgemm_add_merged`.
    most : int
        Maximum number of products that a row of the result may need.
    threads, add_threads : int
        Number of threads per block of the two kernels.
    """

    lists: int
    lanes: int
    add_lanes: int
    most: int
    threads: int = _SOURCE.threads
    add_threads: int = _SOURCE.threads

    @property
    def pitch(self) -> int:
        """Bytes for the slots of a row: an odd number of words, so that rows begin in different memory banks."""
        return 4 * (-(-self.most // 4) | 1)

    @property
    def has_few_products(self) -> bool:
        """Whether slots take so little memory that they are found while the entries are counted."""
        return self.most <= _FEW_PRODUCTS


@dataclass(frozen=True)
class Slots:
    """How the rows of a product are merged, and the slots of their products if they are stored.

    Attributes
    ----------
    plan : MergePlan
    longest : int
        An upper bound of the number of entries in a row of the product.
    places : array of uint32 or None
        The slots of all rows, ``plan.pitch`` bytes per row; None if they are computed again for each product.
    """

    plan: MergePlan
    longest: int
    places: Array | None

    @property
    def nbytes(self) -> int:
        return 0 if self.places is None else int(self.places.nbytes)


def instantiations() -> list[tuple[str, str]]:
    """List (source file, name expression) of every kernel."""
    merges = _SOURCE.variants("spgemm_merge", INDEX_DTYPES, _MERGES, (0, 1))
    return merges + _SOURCE.variants("spgemm_add_merged", COMPUTE_DTYPES, INDEX_DTYPES, _ADD_LANES, (0, 1))


def plan_merge(a: Csr, b: Csr, longest: tuple[int, int], warp: int) -> MergePlan | None:
    """Return the plan for merging the rows of A·B; None if another method is better.

    This is the only place that chooses between merging and the classes of `row_classes`.

    Parameters
    ----------
    a, b : Csr
    longest : (int, int)
        The lengths of the longest rows of A and B.
    warp : int
        Number of lanes of a warp.
    """
    shape, most = next((m for m in _MERGES if longest[0] <= m[0] * m[1]), None), longest[0] * longest[1]
    if shape is None or not a.num_rows or (b.num_cols > MAX_INT32 and a.indices.dtype == np.int32):
        return None
    if most > _FEW_PRODUCTS and not (most <= _MOST_PRODUCTS and _has_many_even_rows(a, b, longest)):
        return None
    add_lanes = max((lanes for lanes in _ADD_LANES if lanes * b.num_rows <= b.nnz), default=_ADD_LANES[0])
    plan = MergePlan(*shape, add_lanes, most)
    while plan.threads // plan.lanes * plan.pitch > SHARED_BYTES and plan.threads > warp:
        plan = replace(plan, threads=plan.threads // 2)
    return plan if plan.threads // plan.lanes * plan.pitch <= SHARED_BYTES else None


def _has_many_even_rows(a: Csr, b: Csr, longest: tuple[int, int]) -> bool:
    """Return whether row lengths are similar, and there are enough rows (see `_ENOUGH_ROWS`)."""
    ratio = max(of * csr.num_rows / csr.nnz for of, csr in zip(longest, (a, b), strict=True))
    return ratio <= _EVEN and a.num_rows >= min(_ENOUGH_ROWS * ratio**2, _MANY_ROWS)


def merge(
    device: Device, a: Csr, b: Csr, plan: MergePlan, rows: tuple[int, int], *, sizes: Array | None = None,
    places: Array | None = None, flag: Array | None = None,
) -> None:  # fmt: skip
    """Count the entries of rows ``rows[0]`` to ``rows[1] - 1`` of the product, find the slots, or do both.

    Parameters
    ----------
    sizes : array, shape (num_rows,), optional
        Receives the number of entries of each row.
    places : array of uint32, optional
        Receives the slots of these rows.
    flag : array of uint32, shape (1,), optional
        Is set to 0.
    """
    count, index, has_slots = rows[1] - rows[0], a.indices.dtype, places is not None
    structure = (a.indptr, a.indices, b.indptr, b.indices)
    args: Any = (np.int64(rows[0]), np.int64(count), np.int32(plan.pitch), *structure, sizes, places, flag)
    name = expression("spgemm_merge", index, plan.lists, plan.lanes, int(has_slots))
    shared = plan.threads // plan.lanes * plan.pitch if has_slots else 0
    launch_threads(device, _SOURCE.file, name, count * plan.lanes, plan.threads, args, shared)


def places_of(device: Device, a: Csr, b: Csr, plan: MergePlan, rows: tuple[int, int]) -> Array:
    """Return the slots of rows ``rows[0]`` to ``rows[1] - 1``."""
    places = empty_places(device, plan, rows[1] - rows[0])
    merge(device, a, b, plan, rows, places=places)
    return places


def empty_places(device: Device, plan: MergePlan, num_rows: int) -> Array:
    """Allocate an array for the slots of `num_rows` rows."""
    return device.empty(num_rows * plan.pitch // 4, np.uint32)


def slots_limit(nbytes: float, keeps_slots: bool) -> float:
    """Return the maximum bytes of slots for a result whose columns and values take `nbytes`."""
    return max((_KEPT_PART if keeps_slots else _SPARE_PART) * nbytes, _SPARE_BYTES)


def with_places(device: Device, a: Csr, b: Csr, c: Csr, slots: Slots) -> Slots:
    """Return `slots` with the slots of all rows of C = A·B, or unchanged if these would take too much memory."""
    num_bytes = slots.plan.pitch * a.num_rows
    if slots.places is not None or num_bytes > slots_limit(c.indices.nbytes + c.data.nbytes, True):
        return slots
    return replace(slots, places=places_of(device, a, b, slots.plan, (0, a.num_rows)))


def fill(device: Device, a: Csr, b: Csr, c: Csr, slots: Slots, flags: tuple[Array | None, Array | None]) -> None:
    """Write the values of the product to `c`. With flags, also write its columns, and set the flag if a value is 0."""
    if slots.places is not None:
        _add(device, a, b, c, slots, slots.places, (0, a.num_rows), flags)
        return
    plan = slots.plan
    parts = int(-(-a.num_rows * plan.pitch // slots_limit(c.indices.nbytes + c.data.nbytes, False)))
    bounds = [a.num_rows * part // parts for part in range(parts + 1)]
    for rows in pairwise(bounds):
        _add(device, a, b, c, slots, places_of(device, a, b, plan, rows), rows, flags)


def _add(
    device: Device, a: Csr, b: Csr, c: Csr, slots: Slots, places: Array, rows: tuple[int, int], flags: tuple[Any, Any]
) -> None:
    """Write the values of rows ``rows[0]`` to ``rows[1] - 1``. `places` holds their slots."""
    plan, structure, index, count = slots.plan, flags[0] is not None, c.indices.dtype, rows[1] - rows[0]
    each = c.dtype.itemsize + (index.itemsize if structure else 0)
    # The columns follow the sums in shared memory. A multiple of 32 keeps them aligned.
    of_block = -(-(plan.add_threads // plan.add_lanes) * slots.longest // 32) * 32
    capacity = min(of_block, SHARED_BYTES // each // 32 * 32)
    arrays = (a.indptr, a.indices, a.data, b.indptr, b.indices, b.data, c.indptr, c.indices, c.data)
    sizes = (np.int64(rows[0]), np.int64(count), np.int32(plan.pitch), np.int32(capacity))
    name = expression("spgemm_add_merged", c.dtype, index, plan.add_lanes, int(structure))
    args: Any = (*sizes, places.view(np.uint8), *arrays, *flags)
    launch_threads(device, _SOURCE.file, name, count * plan.add_lanes, plan.add_threads, args, capacity * each)
