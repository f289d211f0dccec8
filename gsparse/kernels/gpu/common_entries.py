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
from gsparse.device.dtypes import Array
from gsparse.formats.row_pattern import MASK_BITS, CommonPattern

__all__ = ["CommonEntries", "common_entries", "find_triples"]

Integers = npt.NDArray[np.int64]
# No triples are looked for in longer patterns, because each distance is compared with all entries.
_MOST_ENTRIES = 128


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


def common_entries(
    device: Device, common: CommonPattern, pattern_values: Array, least: int, most: int
) -> CommonEntries:
    """Return the entries of the common pattern, with triples whose distance is between two limits if there are any."""
    distance, order, num_triples = find_triples(common.offsets, least, most)
    single = order[3 * num_triples :]
    firsts = np.append(order[: 3 * num_triples : 3], single)
    values = pattern_values[common.first : common.first + order.size]
    values = device.xp.take(values, device.upload(order)) if num_triples else values
    places = np.minimum(order, MASK_BITS - 1)
    numbers = device.upload(np.append(common.offsets[firsts], places).astype(np.int32))
    counts = np.int32(num_triples), np.int32(single.size)
    return CommonEntries(distance, (*counts, numbers[: firsts.size], values, numbers[firsts.size :]))


def find_triples(offsets: Integers, least: int, most: int) -> tuple[int, Integers, int]:
    """Find the distance that gives the most triples of entries.

    Only distances are tried for which the smallest offset begins a triple.

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
    entries = offsets.tolist()
    known = set(entries)
    best: tuple[int, int, list[int]] = (0, 0, [])
    if 3 <= offsets.size <= _MOST_ENTRIES:
        first = min(entries)
        tried = [d for d in (o - first for o in known) if max(least, 1) <= d <= most and first + 2 * d in known]
        # Triples that overlap are counted here, so there are at most as many of which each entry is in one only.
        num_starts = {d: sum(o + d in known and o + 2 * d in known for o in known) for d in tried}
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
    """Return the places of entries that form triples, one triple after the other, each entry in at most one."""
    places = {offset: place for place, offset in enumerate(offsets)}
    chosen: list[int] = []
    for offset in sorted(places):
        triple = [offset + j * distance for j in range(3)]
        if all(each in places for each in triple):
            chosen += [places.pop(each) for each in triple]
    return chosen
