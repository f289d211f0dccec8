"""The storage formats: the frozen arrays of a matrix in each of them, and the registry from which one is chosen.

Read the files in this order:

1. `row_stats`: statistics of the row lengths, and `launch`: how a kernel is launched. Both are plain data.
2. `entries`: how columns and values are encoded.
3. `costs`: the model that predicts the time of a product, and `measured_costs`: its constants for each format.
4. `registry`: what a storage format has to provide.
5. The formats: `csr` (with two schedules), `ellpack`, `blocked_ellpack`, `row_lanes`, `row_pattern`, `bsr`.

`levels` is no storage format: it groups the rows of a triangular matrix for a parallel solve.
"""

from gsparse.formats.blocked_ellpack import BLOCKED_ELLPACK, BlockedEllpack, Slices
from gsparse.formats.bsr import BSR, BlockRows, Bsr
from gsparse.formats.csr import CSR_SCALAR, CSR_VECTOR, Csr, CsrEntries, LongRows
from gsparse.formats.ellpack import ELLPACK, Ellpack
from gsparse.formats.entries import Columns, Values, padding_code
from gsparse.formats.levels import Levels
from gsparse.formats.registry import names_of, register
from gsparse.formats.row_lanes import ROW_LANES, LaneSlices, RowLanes
from gsparse.formats.row_pattern import ROW_PATTERN, RowPattern

__all__ = [
    "FORMATS",
    "BlockRows",
    "BlockedEllpack",
    "Bsr",
    "Columns",
    "Csr",
    "CsrEntries",
    "Ellpack",
    "LaneSlices",
    "Levels",
    "LongRows",
    "RowLanes",
    "RowPattern",
    "Slices",
    "Stored",
    "Values",
    "padding_code",
]

Stored = CsrEntries | Ellpack | BlockedEllpack | RowLanes | RowPattern | Bsr

# Plans list the candidates in this order.
for _format in (
    CSR_SCALAR,
    CSR_VECTOR,
    ELLPACK,
    BLOCKED_ELLPACK,
    ROW_LANES,
    ROW_PATTERN,
    BSR,
):
    register(_format)

# The names of the built-in formats, after "auto", which chooses one of them.
FORMATS = ("auto", *names_of())
