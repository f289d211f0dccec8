"""CSR as a storage format, with two schedules: one thread multiplies a row, or several threads share it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np

from gsparse.formats import Columns, Csr, CsrEntries, LongRows
from gsparse.formats.costs import MICROSECOND, SCALAR_LENGTH, KernelModel, num_chunks, num_rounds, vector_length
from gsparse.formats.launch import NO_LIMIT
from gsparse.formats.registry import AnalysisLevel, Storage, StorageFormat, describe_positions
from gsparse.formats.row_stats import MAX_INT32, RowStats, share_above
from gsparse.kernels.backends import kernels_of
from gsparse.plan.choice import threads_per_row
from gsparse.products.storage import MatrixPreparation
from gsparse.products.structure import Part, releasable

# If a new matrix has at most this many rows and entries, its rows are not examined before its first products.
_FEW = 8192


class CsrRows(Part):
    """The encoded columns in CSR's order, and the long rows of each schedule."""

    @cached_property
    def column_dtype(self) -> np.dtype[Any]:
        """The narrowest dtype for columns in CSR's order."""
        codes, span = kernels_of(self.sparsity.device).encode.CSR_CODES, self.sparsity.survey.run_span
        return self.sparsity.narrowest(self.sparsity.csr.indices, codes, span)

    @releasable
    def columns(self) -> Columns:
        """Columns in CSR's order, encoded."""
        return self.sparsity.encoded(self.sparsity.csr.indices, self.column_dtype)

    @releasable
    def _long_rows_by_limit(self) -> dict[int, LongRows]:
        return {}

    def long_rows(self, limit: int) -> LongRows | None:
        """Return the rows with more than `limit` entries, with their positions in CSR, or None if there are none.

        The result is also None if `limit` is `NO_LIMIT`, or if the matrix has too many rows for int32 numbers.
        """
        sparsity, csr, known = self.sparsity, self.sparsity.csr, self._long_rows_by_limit
        if limit == NO_LIMIT or sparsity.longest <= limit or csr.num_rows > MAX_INT32:
            return None
        if limit not in known:
            known[limit], _ = kernels_of(sparsity.device).layout.long_rows(
                sparsity.device, csr.indptr, sparsity.survey, limit
            )
        return known[limit]

    def as_they_are(self, csr: Csr, threads_per_row: int) -> CsrEntries:
        """Return the arrays that `csr_vector` reads, neither encoded nor copied.

        A small new matrix is not examined for long rows, because one warp multiplies even its longest row fast enough.
        """
        long_rows = None if self._is_small_and_new else self.long_rows(vector_length(threads_per_row))
        return CsrEntries.of(csr, long_rows)

    @property
    def _is_small_and_new(self) -> bool:
        """Whether the matrix is small, and nothing is known about its row lengths yet."""
        sparsity, csr = self.sparsity, self.sparsity.csr
        return not sparsity.known_survey and csr.longest is None and max(csr.num_rows, csr.nnz) <= _FEW

    @cached_property
    def scalar_length(self) -> int:
        """The number of entries above which a row is a long row of `csr_scalar`."""
        return int(kernels_of(self.sparsity.device).layout.SCALAR_LENGTH)

    @property
    def vector_length(self) -> int:
        """The number of entries above which a row is a long row of `csr_vector`."""
        return NO_LIMIT if self.scalar_length == NO_LIMIT else vector_length(self.threads_per_row)

    @property
    def threads_per_row(self) -> int:
        """The number of threads of a GPU that share a row in `csr_vector`."""
        sparsity = self.sparsity
        if self._is_small_and_new:
            return sparsity.device.lanes
        return threads_per_row(sparsity.typical_length, sparsity.device.lanes, sparsity.csr.num_rows)


def _describe(matrix: MatrixPreparation, level: AnalysisLevel) -> Storage:
    sparsity, csr = matrix.sparsity, matrix.sparsity.csr
    columns: np.dtype[Any] = np.dtype(csr.indices.dtype)
    if level and matrix.encoding.columns:
        columns = matrix.structure.part(CsrRows).column_dtype
    values = matrix.values if level else matrix.plain_values
    return describe_positions(columns, values, csr.nnz, int(csr.indptr.nbytes), sparsity.device.lanes)


def _build(limit_of: Callable[[CsrRows], int]) -> Callable[[MatrixPreparation], CsrEntries]:
    """Return the function that builds CSR. `limit_of` takes a `CsrRows`; rows above the length it returns are long."""

    def build(matrix: MatrixPreparation) -> CsrEntries:
        csr, rows = matrix.sparsity.csr, matrix.structure.part(CsrRows)
        columns = rows.columns if matrix.encoding.columns else Columns(csr.indices)
        return CsrEntries(csr.shape, csr.nnz, csr.indptr, columns, matrix.values, rows.long_rows(limit_of(rows)))

    return build


def _terms(stats: RowStats, limit: float, threads: float) -> dict[str, float]:
    """Return how often the costs `step` and `chunk` of `KernelModel` occur, for a kernel with `threads` per row.

    The kernel cuts rows of more than `limit` entries into chunks.
    """
    rows, entries = share_above(stats, limit) if stats.nnz else (0.0, 0.0)
    chunks = num_chunks(rows * (stats.num_rows - stats.num_empty), entries * stats.nnz)
    return {"step": num_rounds(stats, limit, threads), "chunk": chunks}


CSR_SCALAR = StorageFormat(
    name="csr_scalar",
    layout="csr",
    schedule="scalar",
    reads_csr=True,
    fits=lambda stats: True,
    requirement="it fits every matrix",
    describe=_describe,
    build=_build(lambda rows: rows.scalar_length),
    parts=(CsrRows,),
    terms=lambda stats, *_: _terms(stats, SCALAR_LENGTH, 1.0),
    costs={
        "gpu": KernelModel(
            fixed=1.81 * MICROSECOND,
            byte=4.44e-14,
            stream=1.61e-13,
            row=5.7e-12,
            step=0.299 * MICROSECOND,
            stride=3.42e-14,
            chunk=1.06e-10,
            coded=1.12e-13,
            narrow=5.32e-13,
            table=1.24e-12,
        ),
        "cpu": KernelModel(
            fixed=17.7 * MICROSECOND,
            byte=3.8e-11,
            stream=2.93e-11,
            position=2.02e-10,
            row=2.47e-09,
        ),
    },
)

CSR_VECTOR = replace(
    CSR_SCALAR,
    name="csr_vector",
    schedule="vector",
    build=_build(lambda rows: rows.vector_length),
    terms=lambda stats, storage, launch, _: _terms(
        stats, vector_length(launch.threads_per_row), launch.threads_per_row
    ),
    costs={
        "gpu": KernelModel(
            fixed=1.85 * MICROSECOND,
            byte=6.1e-14,
            stream=1.81e-13,
            row=5.59e-12,
            step=0.567 * MICROSECOND,
            stride=4.51e-14,
            chunk=1.36e-10,
            coded=6.51e-13,
            narrow=2.36e-13,
            table=6.44e-13,
        ),
        "cpu": KernelModel(
            fixed=9.33 * MICROSECOND,
            byte=2.21e-11,
            stream=3.31e-11,
            position=9.15e-11,
            row=3.17e-09,
            chunk=6.54e-08,
            coded=3.79e-10,
            table=2.02e-11,
        ),
    },
)
