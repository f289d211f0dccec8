"""The entries of the most common row pattern, in the order in which `row_pattern_values` reads them.

A triple is three entries whose offsets are at one distance from each other, as those of a stencil are from plane to
plane of a grid. A thread whose rows are at this distance too reads the elements of x that a triple meets once for all
of its rows.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from gsparse.device.base import Device
from gsparse.formats.row_pattern import MASK_BITS, RowPattern

__all__ = ["CommonEntries", "common_entries", "find_triples"]

Integers = npt.NDArray[np.int64]
# In longer patterns no triples are looked for, because all pairs of entries are compared.
_MOST_ENTRIES = 256
# The number of distances that are tried, the most frequent ones of all pairs.
_MOST_DISTANCES = 8


class CommonEntries(NamedTuple):
    """The entries of the common pattern: triples first, then single ones.

    Attributes
    ----------
    distance : int
        The distance of the offsets of each triple; 0 if there are no triples.
    arguments : tuple
        The kernel's arguments: the number of triples, the number of single entries, the offsets of the first entry of
        each triple and of single ones, the values of all entries, and their bits in masks.
    """

    distance: int
    arguments: tuple[Any, ...]


def common_entries(device: Device, matrix: RowPattern, least: int, most: int) -> CommonEntries:
    """Arrange the entries of the common pattern for rows of a thread whose distance is between two limits."""
    common = matrix.common
    assert common is not None
    assert matrix.pattern_values is not None
    distance, order, num_triples = find_triples(common.offsets, least, most)
    firsts, single = order[: 3 * num_triples : 3], order[3 * num_triples :]
    offsets = common.offsets[np.append(firsts, single)].astype(np.int32)
    values = device.xp.take(matrix.pattern_values, device.upload(common.first + order))
    places = np.minimum(order, MASK_BITS - 1).astype(np.int32)
    counts = np.int32(num_triples), np.int32(single.size)
    return CommonEntries(distance, (*counts, device.upload(offsets), values, device.upload(places)))


def find_triples(offsets: Integers, least: int, most: int) -> tuple[int, Integers, int]:
    """Find the distance that gives the most triples of entries.

    Parameters
    ----------
    offsets : ndarray of int64
        The offsets of a pattern.
    least, most : int
        Limits of the distance.

    Returns
    -------
    distance : int
        The largest one of the best distances, or 0 if there are no triples.
    order : ndarray of int64, shape of `offsets`
        An order of the entries, in which those of each triple come first, and single ones last.
    num_triples : int
    """
    distance, triples = 0, np.empty(0, np.int64)
    if 3 <= offsets.size <= _MOST_ENTRIES:
        between = offsets[None, :] - offsets[:, None]
        distances, counts = np.unique(between[(between >= max(least, 1)) & (between <= most)], return_counts=True)
        frequent = distances[np.lexsort((-distances, -counts))[:_MOST_DISTANCES]].tolist()
        found = [(len(chosen), d, chosen) for d in frequent if (chosen := _triples(offsets.tolist(), d))]
        if found:
            _, distance, chosen = max(found)
            triples = np.array(chosen, np.int64)
    single = np.setdiff1d(np.arange(offsets.size), triples)
    return distance, np.append(triples, single), triples.size // 3


def _triples(offsets: list[int], distance: int) -> list[int]:
    """Return the entries that form triples, one triple after the other, each of them in at most one."""
    places = {offset: place for place, offset in enumerate(offsets)}
    chosen: list[int] = []
    for offset in sorted(places):
        triple = [offset + j * distance for j in range(3)]
        if all(each in places for each in triple):
            chosen += [places.pop(each) for each in triple]
    return chosen
