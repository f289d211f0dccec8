"""Rows that repeat: the distinct rows of a matrix, found by hashes and then compared.

The functions that take a `structure` are properties of `gsparse.products.structure.Structure`.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from gsparse.device.base import Device
from gsparse.formats import Csr
from gsparse.formats.row_pattern import MAX_PATTERNS, Patterns, PatternStats
from gsparse.formats.row_stats import MAX_INT32, RowStats
from gsparse.kernels.backends import kernels_of
from gsparse.products.dictionary import Dictionary, find_dictionary

# Smallest average number of rows per pattern with which row patterns are a candidate. With fewer, hardly any rows are
# equal, and comparing all of them would take longer than the rest of the analysis.
_ROWS_PER_PATTERN = 4
# If the longest row has more entries than this, rows are not compared.
_LONGEST_REPEATED = 1024


class RepeatingStructure(Protocol):
    """What these functions need to know about the structure of a matrix."""

    device: Device
    csr: Csr

    @property
    def rows(self) -> RowStats: ...
    @property
    def _row_dictionary(self) -> Dictionary | None: ...
    @property
    def patterns(self) -> Patterns | None: ...


def row_dictionary(structure: RepeatingStructure) -> Dictionary | None:
    """The distinct rows by hashes of their offsets, or None if there are too many. Synchronizes."""
    return find_row_dictionary(structure.device, structure.csr, values=False)


def rows_repeat(structure: RepeatingStructure) -> bool:
    """Whether many rows have the same offsets as another row, judged by hashes. Synchronizes."""
    if structure.rows.max_length > _LONGEST_REPEATED:
        return False  # One thread would read such a row alone, both for its hash and in each product.
    rows = structure._row_dictionary
    return rows is not None and _ROWS_PER_PATTERN * rows.size <= structure.csr.num_rows


def patterns(structure: RepeatingStructure) -> Patterns | None:
    """The distinct rows by their offsets, or None if there are too many or hashes collide. Synchronizes."""
    return find_patterns(structure.device, structure.csr, structure._row_dictionary, values=False)


def pattern_stats(structure: RepeatingStructure) -> PatternStats | None:
    """Sizes of `patterns`. They remain known after the patterns have been freed. Synchronizes."""
    distinct = structure.patterns
    return None if distinct is None else PatternStats(distinct.num_patterns, distinct.nbytes(), distinct.runs)


def find_row_dictionary(device: Device, csr: Csr, *, values: bool) -> Dictionary | None:
    """Return the distinct hashes of rows, or None if there are too many or the shape exceeds int32. Synchronizes.

    The hash of a row is made of its offsets (column minus row), and of its values too if `values` is true.
    """
    if max(csr.shape) > MAX_INT32:
        return None
    return find_dictionary(device, kernels_of(device).encode.row_keys(device, csr, values), MAX_PATTERNS)


def find_patterns(device: Device, csr: Csr, hashes: Dictionary | None, *, values: bool) -> Patterns | None:
    """Return the distinct rows of a matrix, or None if `hashes` is None or hashes collide. Synchronizes.

    Parameters
    ----------
    device : Device
    csr : Csr
    hashes : Dictionary or None
        The result of `find_row_dictionary` for the same arrays and the same `values`.
    values : bool
        Whether rows with the same offsets and different values are distinct.
    """
    if hashes is None:
        return None
    # Different rows can have the same hash. So each row is compared with the representative of its code.
    representatives = device.upload(hashes.places)
    lengths = kernels_of(device).encode.rows_follow(device, csr, hashes.codes, representatives, values)
    if lengths is None:
        return None
    indptr = np.zeros(hashes.size + 1, np.int32)
    np.cumsum(lengths, out=indptr[1:])
    # Runs are groups of consecutive rows with the same pattern.
    runs = _runs(hashes.codes, lengths) if kernels_of(device).encode.SHARES_RUNS else (0, 0)
    return Patterns(hashes.codes, representatives, device.upload(indptr), int(indptr[-1]), runs)


def _runs(codes: Any, lengths: Any) -> tuple[int, int]:
    """Return the number of groups of consecutive rows with the same pattern, and the entries of their first rows."""
    run_codes = np.concatenate([codes[:1], codes[1:][codes[1:] != codes[:-1]]])
    return run_codes.size, int(lengths[run_codes].sum())
