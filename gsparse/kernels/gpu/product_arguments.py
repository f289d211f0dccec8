"""Arguments and types of kernels for A·x, and the arguments for the most common row pattern."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt

from gsparse.device.base import Device
from gsparse.device.dtypes import COMPUTE_DTYPES, Array
from gsparse.device.launching import Passed
from gsparse.formats import Columns, Values
from gsparse.formats.row_pattern import MASK_BITS, CommonPattern
from gsparse.kernels.contract import Multiply
from gsparse.kernels.gpu.launch import BLOCK_DOTS, NARROW, NO_DOTS, bind_product, expression, launch_blocks, plain_types

# The arguments that each call of a product supplies, in the order of the kernels' parameters.
SLOTS = (Passed.X, Passed.Y, Passed.ALPHA, Passed.BETA, Passed.READ_Y, Passed.CONJUGATE)


class ProductKernel(NamedTuple):
    """A kernel of a product y = A·x, with a variant that also writes partial sums of conj(x)·y.

    Attributes
    ----------
    source : str
        The file in `src/`.
    name : str
    types : tuple
        The template arguments, except the last one: `NO_DOTS` or `BLOCK_DOTS`.
    """

    source: str
    name: str
    types: tuple[Any, ...]

    def expression(self, dots: str) -> str:
        """Return the C++ name expression of the variant with or without partial sums."""
        return expression(self.name, *self.types, dots)


def bind_with_dots(
    device: Device,
    kernel: ProductKernel,
    blocks: int,
    threads_per_block: int,
    args: tuple[Any, ...],
    dtype: np.dtype[Any],
) -> Multiply:
    """Return a function that computes y = A·x. All arguments that do not change between calls are fixed.

    Parameters
    ----------
    device : Device
    kernel : ProductKernel
    blocks, threads_per_block : int
    args : tuple
        The kernel's arguments that precede the vectors.
    dtype : dtype
        The compute dtype.
    """
    sizes = blocks, threads_per_block
    plain = bind_product(device, kernel.source, kernel.expression(NO_DOTS), *sizes, (*args, *SLOTS, None), dtype)

    def multiply(x: Array, y: Array, alpha: Any, beta: Any, conjugate: bool, dots: Array | None = None) -> None:
        if dots is None:
            plain(x, y, alpha, beta, conjugate)
            return
        vectors = x, y, alpha, beta, np.int32(bool(beta)), np.int32(bool(conjugate)), dots
        launch_blocks(device, kernel.source, kernel.expression(BLOCK_DOTS), *sizes, (*args, *vectors))

    return with_num_dots(multiply, blocks)


def with_num_dots(multiply: Callable[..., None], num_dots: int) -> Multiply:
    """Return the product with its attribute `num_dots` set: how many partial sums of conj(x)·y it writes."""
    product: Any = multiply
    product.num_dots = num_dots
    return cast(Multiply, product)


def entry_args(values: Values, columns: Columns | None = None) -> tuple[Any, ...]:
    """Return the arguments from which kernels read entries of A (`Entries` in entries.cuh)."""
    value_args = (values.codes, values.table)
    return value_args if columns is None else (columns.codes, columns.bases, *value_args)


def value_type(values: Values) -> np.dtype[Any] | str:
    """Return the type of stored values as a template argument."""
    return "Same" if values.codes is None else values.codes.dtype


def stored_types() -> list[tuple[Any, np.dtype[Any]]]:
    """List pairs: a type of stored values, and a dtype in which products with these values compute."""
    return [*plain_types(), *product((*NARROW, "Same"), COMPUTE_DTYPES)]


Integers = npt.NDArray[np.int64]
# Longer patterns are not searched for triples, because the search compares each distance with all entries.
_MOST_ENTRIES = 128


class CommonEntries(NamedTuple):
    """The entries of the most common row pattern: first those in triples (`find_triples`), then single entries.

    Attributes
    ----------
    distance : int
        The distance between consecutive offsets of each triple; 0 if there are no triples.
    arguments : tuple
        The kernel's arguments: the number of triples, the number of single entries, the offsets of the first entry of
        each triple and of single entries, the values of all entries, and the bit number of each entry in the masks
        (`CommonPattern.masks`).
    """

    distance: int
    arguments: tuple[Any, ...]


def common_entries(
    device: Device, common: CommonPattern, pattern_values: Array, least: int, most: int
) -> CommonEntries:
    """Return the entries of the common pattern. Only triples with a distance from `least` to `most` are formed."""
    distance, order, num_triples = find_triples(common.offsets, least, most)
    single = order[3 * num_triples :]
    firsts = np.append(order[: 3 * num_triples : 3], single)
    values = pattern_values[common.first : common.first + order.size]
    values = device.xp.take(values, device.upload(order)) if num_triples else values
    # With more than 32 entries, the mask of the common pattern has all bits set, and all other masks are 0. So entries
    # with numbers above 31 may use any bit of a mask.
    places = np.minimum(order, MASK_BITS - 1)
    numbers = device.upload(np.append(common.offsets[firsts], places).astype(np.int32))
    counts = np.int32(num_triples), np.int32(single.size)
    return CommonEntries(distance, (*counts, numbers[: firsts.size], values, numbers[firsts.size :]))


def find_triples(offsets: Integers, least: int, most: int) -> tuple[int, Integers, int]:
    """Find the distance for which most entries form triples: three offsets o, o + distance, o + 2·distance.

    Only distances for which the smallest offset begins a triple are tried.

    Parameters
    ----------
    offsets : ndarray of int64
        The offsets of a pattern.
    least, most : int
        The smallest and the largest distance that a triple may have.

    Returns
    -------
    distance : int
        The distance with the most triples, or the largest of several such distances; 0 if there are no triples.
    order : ndarray of int64, shape of `offsets`
        An order of the entries: all triples, each with its three entries in order, and then the single entries.
    num_triples : int
    """
    entries = offsets.tolist()
    distinct = set(entries)
    best: tuple[int, int, list[int]] = (0, 0, [])
    if 3 <= offsets.size <= _MOST_ENTRIES:
        first = min(entries)
        tried = [d for d in (o - first for o in distinct) if max(least, 1) <= d <= most and first + 2 * d in distinct]
        # These counts include triples that overlap, so they are upper bounds of the numbers of triples without overlap.
        num_starts = {d: sum(o + d in distinct and o + 2 * d in distinct for o in distinct) for d in tried}
        for d in sorted(tried, key=num_starts.__getitem__, reverse=True):
            if num_starts[d] < best[0]:
                break
            triples = _triples(entries, d)
            best = max(best, (len(triples) // 3, d, triples))
    num_triples, distance, triples = best
    in_triples = set(triples)
    single = [place for place in range(offsets.size) if place not in in_triples]
    return distance, np.array(triples + single, np.int64), num_triples


def _triples(offsets: list[int], distance: int) -> list[int]:
    """Return the positions of entries that form triples, one triple after the other; each entry is in at most one."""
    places = {offset: place for place, offset in enumerate(offsets)}
    chosen: list[int] = []
    for offset in sorted(places):
        triple = [offset + j * distance for j in range(3)]
        if all(each in places for each in triple):
            chosen += [places.pop(each) for each in triple]
    return chosen
