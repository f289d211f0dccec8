"""Rows of a matrix that is nowhere as a whole: from files, or from a function of the rows' numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from gsparse.distributed.io.readers import Reader, open_files
from gsparse.errors import ShapeError, StructureError

__all__ = ["RowSources"]

Source = str | PathLike[str] | Callable[[int, int], Any]


class RowSources:
    """Where the rows of a matrix come from. It reads headers when it is made, can be pickled, and holds no rows.

    Parameters
    ----------
    sources : sequence of path-like, or one callable
        Files stand one below the other: SciPy's ``.npz``, of which only the rows asked for are read where it holds CSR
        (stored without compression, at the speed of the disk), and which is loaded whole where it holds another
        format; Matrix Market ``.mtx``, ``.mtx.gz`` and ``.mtx.bz2``, all of whose lines are read for any range of rows,
        a few megabytes at a time. A callable ``source(lo, hi)`` gives rows lo to hi, anything that
        `scipy.sparse.csr_array` takes, also where lo equals hi.
    shape : (int, int)
        Of the whole matrix.

    Attributes
    ----------
    dtype : numpy dtype or None
        What the values of all files fit into, and all rows are given in; None for a callable, which decides by itself.

    Raises
    ------
    ShapeError
        Where the sources do not make up that shape.
    StructureError
        Where the files of one folder are of different checkpoints.
    FileNotFoundError, FileFormatError

    Examples
    --------
    >>> import scipy.sparse
    >>> def laplacian(lo, hi):
    ...     return scipy.sparse.eye_array(hi - lo, 100, k=lo) * 2.0
    >>> RowSources([laplacian], (100, 100)).rows(98, 100).indices
    array([98, 99], dtype=int32)
    """

    def __init__(self, sources: Sequence[Source], shape: tuple[int, int]) -> None:
        self.shape = _shape_of(shape)
        self._readers = _readers(sources, self.shape)
        self._bounds = (0, *accumulate(reader.shape[0] for reader in self._readers))
        wrong = [reader.shape for reader in self._readers if reader.shape[1] != self.shape[1]]
        if wrong or self._bounds[-1] != self.shape[0]:
            found = ", ".join(str(reader.shape) for reader in self._readers)
            raise ShapeError(f"the sources must make up a matrix of shape {self.shape} together, theirs are {found}")
        dtypes = [reader.dtype for reader in self._readers if reader.dtype is not None]
        self.dtype = np.result_type(*dtypes) if dtypes else None

    def rows(self, lo: int, hi: int) -> sp.csr_array:
        """Read rows lo to hi.

        Returns
        -------
        csr_array, shape (hi - lo, columns of the matrix)

        Raises
        ------
        ShapeError
            Where there are no such rows, or a callable gives another shape.
        StructureError
            Where a callable gives no matrix, or a file of a checkpoint has been replaced by that of another one.
        FileFormatError
            Where a file is truncated or malformed.
        DeviceMemoryError
            Where the host has no room for so many rows.
        """
        parts = [reader.rows(first, last) for reader, first, last in self._covering(lo, hi)]
        found = parts[0] if len(parts) == 1 else sp.vstack(parts, format="csr")
        return found.astype(found.dtype if self.dtype is None else self.dtype, copy=False)

    def row_lengths(self, lo: int, hi: int) -> npt.NDArray[np.int64] | None:
        """Give how many entries each of the rows lo to hi holds; None where that takes reading them.

        Raises
        ------
        ShapeError, FileFormatError
        """
        parts = []
        for reader, first, last in self._covering(lo, hi):
            lengths = reader.row_lengths(first, last)
            if lengths is None:
                return None
            parts.append(lengths)
        return np.concatenate(parts)

    def permutation(self) -> npt.NDArray[np.int64] | None:
        """Read which row of the matrix each row of the sources is, and column too; None where none was moved.

        Raises
        ------
        StructureError
            Where the sources are not all those of one checkpoint.
        FileFormatError
        """
        found = [reader.moved() for reader in self._readers]
        parts = [part for part in found if part is not None]
        if not parts:
            return None
        firsts, whole = [first for first, _ in parts], np.concatenate([numbers for _, numbers in parts])
        rows, columns = self.shape
        if firsts != list(self._bounds[:-1]) or rows != columns or (np.sort(whole) != np.arange(rows)).any():
            raise StructureError(
                "files of a checkpoint whose rows were moved must be all of that one, in their order: give the list "
                "that checkpoint() has returned"
            )
        return whole

    def _covering(self, lo: int, hi: int) -> list[tuple[Reader, int, int]]:
        """Give the readers that hold these rows, and which of theirs; one reader at least."""
        if not 0 <= lo <= hi <= self.shape[0]:
            raise ShapeError(f"rows {lo} to {hi} are not all among the {self.shape[0]} of the matrix")
        spans = [(max(lo, a) - a, min(hi, b) - a) for a, b in pairwise(self._bounds)]
        found = [(reader, *span) for reader, span in zip(self._readers, spans, strict=True) if span[0] < span[1]]
        return found or [(self._readers[0], 0, 0)]


@dataclass(frozen=True)
class _Called:
    """A callable that covers all rows."""

    source: Callable[[int, int], Any]
    shape: tuple[int, int]
    dtype: None = None
    checkpoint: None = None

    def rows(self, lo: int, hi: int) -> sp.csr_array:
        expected = (hi - lo, self.shape[1])
        made = self.source(lo, hi)
        try:
            found = sp.csr_array(made, shape=expected if isinstance(made, tuple) else None)
            found.check_format(full_check=True)
        except (TypeError, ValueError) as error:
            what = f"a matrix of shape {expected} for rows {lo} to {hi}"
            raise StructureError(f"{self.source!r} must give {what}, got {type(made).__name__}: {error}") from error
        if found.shape != expected:
            raise ShapeError(f"{self.source!r} must give shape {expected} for rows {lo} to {hi}, got {found.shape}")
        return found

    def row_lengths(self, lo: int, hi: int) -> npt.NDArray[np.int64] | None:
        return None

    def moved(self) -> None:
        return None


def _readers(sources: Sequence[Source], shape: tuple[int, int]) -> tuple[Reader, ...]:
    if isinstance(sources, str | PathLike) or callable(sources):
        raise TypeError("sources must be a list, of one where there is one")
    calls = [source for source in sources if callable(source)]
    if not sources or (calls and len(sources) > 1):
        raise ShapeError(f"sources must be files, or one callable for all rows, got {len(sources)} sources")
    if calls:
        return (_Called(calls[0], shape),)
    return open_files([Path(source).absolute() for source in sources])  # type: ignore[arg-type]


def _shape_of(shape: tuple[int, int]) -> tuple[int, int]:
    try:
        num_rows, num_cols = map(int, shape)
    except (TypeError, ValueError):
        raise ShapeError(f"shape must be two integers, got {shape!r}") from None
    if num_rows < 0 or num_cols < 0:
        raise ShapeError(f"shape must be two integers from 0 on, got {shape!r}")
    return num_rows, num_cols
