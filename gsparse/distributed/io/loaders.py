"""Load the rows of a matrix that is never assembled in one place, from files or from a function of the row numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from operator import index
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from gsparse.distributed.io.readers import Reader, open_file
from gsparse.errors import ShapeError, StructureError

Source = str | PathLike[str] | Callable[[int, int], Any]


class RowLoader:
    """Reads ranges of rows of a matrix.

    A loader holds no rows and can be pickled. The constructor reads only the headers of files.

    Parameters
    ----------
    sources : sequence of path-like, or sequence of one callable
        Files whose rows are stacked in this order, or a list of one callable.

        - SciPy's ``.npz``. If it holds CSR, only the requested rows are read, at the speed of the disk if the file is
          not compressed. A file in another format is loaded as a whole.
        - Matrix Market ``.mtx``, ``.mtx.gz`` and ``.mtx.bz2``. All lines are read for any range of rows, a few
          megabytes at the same time.
        - A callable ``source(lo, hi)`` that returns the rows from lo up to, but not including, hi, in any form that
          `scipy.sparse.csr_array` accepts. It must also work if lo equals hi.
    shape : (int, int)
        Shape of the whole matrix.

    Attributes
    ----------
    dtype : numpy dtype or None
        The common dtype of all files, to which rows are converted; None for a callable, whose dtype is not changed.

    Raises
    ------
    ShapeError
        If the stacked sources do not have that shape, if there are no sources, or if there is a callable and another
        source.
    TypeError
        If `sources` is a single path or callable instead of a list.
    FileNotFoundError, FileFormatError, DeviceMemoryError

    Examples
    --------
    >>> import scipy.sparse
    >>> def laplacian(lo, hi):
    ...     return scipy.sparse.eye_array(hi - lo, 100, k=lo) * 2.0
    >>> RowLoader([laplacian], (100, 100)).rows(98, 100).indices
    array([98, 99], dtype=int32)
    """

    def __init__(self, sources: Sequence[Source], shape: tuple[int, int]) -> None:
        self.shape = _shape_of(shape)
        self._readers = _readers(sources, self.shape)
        self._bounds = (0, *accumulate(reader.shape[0] for reader in self._readers))
        wrong = [reader.shape for reader in self._readers if reader.shape[1] != self.shape[1]]
        if wrong or self._bounds[-1] != self.shape[0]:
            shapes = ", ".join(str(reader.shape) for reader in self._readers)
            raise ShapeError(f"the sources must make up a matrix of shape {self.shape} together, theirs are {shapes}")
        dtypes = [reader.dtype for reader in self._readers if reader.dtype is not None]
        self.dtype = np.result_type(*dtypes) if dtypes else None

    def rows(self, lo: int, hi: int) -> sp.csr_array:
        """Read the rows from lo up to, but not including, hi.

        Returns
        -------
        csr_array, shape (hi - lo, columns of the matrix)

        Raises
        ------
        ShapeError
            If the matrix has no such rows, or a callable returns a matrix of another shape.
        StructureError
            If a callable does not return a matrix.
        FileNotFoundError
            If a newer checkpoint has replaced the one that is read.
        FileFormatError
            If a file is truncated or malformed.
        DeviceMemoryError
            If the host does not have enough memory for these rows.
        """
        parts = [reader.rows(first, last) for reader, first, last in self._covering(lo, hi)]
        rows = parts[0] if len(parts) == 1 else sp.vstack(parts, format="csr")
        return rows.astype(rows.dtype if self.dtype is None else self.dtype, copy=False)

    def row_lengths(self, lo: int, hi: int) -> npt.NDArray[np.int64] | None:
        """Return the number of entries in each row from `lo` up to `hi`; None if this needs reading the rows.

        Raises
        ------
        ShapeError, StructureError, FileFormatError
            As `rows`.
        """
        parts = []
        for reader, first, last in self._covering(lo, hi):
            lengths = reader.row_lengths(first, last)
            if lengths is None:
                return None
            parts.append(lengths)
        return np.concatenate(parts)

    def permutation(self) -> npt.NDArray[np.int64] | None:
        """Read the permutation of rows and columns from a checkpoint; return None if rows were not permuted.

        Row i of the sources is row ``permutation[i]`` of the matrix, and the same holds for the columns.

        Raises
        ------
        StructureError
            If the sources are not all files of one checkpoint, in their order.
        FileFormatError
        """
        parts = [part for part in (reader.permutation_part() for reader in self._readers) if part is not None]
        if not parts:
            return None
        first_rows, permutation = [first for first, _ in parts], np.concatenate([numbers for _, numbers in parts])
        num_rows, num_cols = self.shape
        is_complete = first_rows == list(self._bounds[:-1]) and num_rows == num_cols
        if not is_complete or (np.sort(permutation) != np.arange(num_rows)).any():
            raise StructureError(
                "if the rows of a checkpoint were moved, all of its files are needed, in their order: give the list "
                "that checkpoint() has returned"
            )
        return permutation

    def _covering(self, lo: int, hi: int) -> list[tuple[Reader, int, int]]:
        """Return tuples (reader, first, last) that cover the rows, at least one. Each reader counts its rows from 0."""
        if not 0 <= lo <= hi <= self.shape[0]:
            raise ShapeError(f"rows {lo} to {hi} are not all among the {self.shape[0]} of the matrix")
        spans = [(max(lo, a) - a, min(hi, b) - a) for a, b in pairwise(self._bounds)]
        covering = [(reader, *span) for reader, span in zip(self._readers, spans, strict=True) if span[0] < span[1]]
        return covering or [(self._readers[0], 0, 0)]


@dataclass(frozen=True)
class _CallableReader:
    """A reader that calls the user's function for rows."""

    source: Callable[[int, int], Any]
    shape: tuple[int, int]
    dtype: None = None

    def rows(self, lo: int, hi: int) -> sp.csr_array:
        expected = (hi - lo, self.shape[1])
        result = self.source(lo, hi)
        try:
            rows = sp.csr_array(result, shape=expected if isinstance(result, tuple) else None)
            rows.check_format(full_check=True)
        except (TypeError, ValueError) as error:
            required, kind = f"a matrix of shape {expected} for rows {lo} to {hi}", type(result).__name__
            raise StructureError(f"{self.source!r} must give {required}, got {kind}: {error}") from error
        if rows.shape != expected:
            raise ShapeError(f"{self.source!r} must give shape {expected} for rows {lo} to {hi}, got {rows.shape}")
        return rows

    def row_lengths(self, lo: int, hi: int) -> npt.NDArray[np.int64] | None:
        return None

    def permutation_part(self) -> None:
        return None


def _readers(sources: Sequence[Source], shape: tuple[int, int]) -> tuple[Reader, ...]:
    if isinstance(sources, str | PathLike) or callable(sources):
        raise TypeError("sources must be a list, also if it holds only one file or callable")
    calls = [source for source in sources if callable(source)]
    if not sources or (calls and len(sources) > 1):
        raise ShapeError(f"sources must be files, or one callable for all rows, got {len(sources)} sources")
    if calls:
        return (_CallableReader(calls[0], shape),)
    paths = [Path(source).absolute() for source in sources]  # type: ignore[arg-type]
    # The folder of a checkpoint is a link. The link is followed once, so that all files belong to one checkpoint.
    folders = {path.parent: path.parent.resolve() for path in paths}
    return tuple(open_file(folders[path.parent] / path.name) for path in paths)


def _shape_of(shape: tuple[int, int]) -> tuple[int, int]:
    try:
        num_rows, num_cols = map(index, shape)
    except (TypeError, ValueError):
        raise ShapeError(f"shape must be two integers, got {shape!r}") from None
    if num_rows < 0 or num_cols < 0:
        raise ShapeError(f"shape must be two integers, neither of them negative, got {shape!r}")
    return num_rows, num_cols
