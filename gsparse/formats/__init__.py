"""The storage formats: the frozen arrays of a matrix in each of them, and the registry from which one is chosen.

How a format stores a matrix, and what it costs, is in the file of the same name in `gsparse.products`.

Read the files in this order:

1. `row_stats`: statistics of the row lengths, and `launch`: how a kernel is launched. Both are plain data.
2. `entries`: how columns and values are encoded.
3. `costs`: the model that predicts the time of a product.
4. `registry`: what a storage format has to provide.
5. The arrays of each format: `csr`, `blocked_ellpack` (with ELLPACK), `row_lanes`, `row_pattern`, `bsr`.
"""

from gsparse.formats.blocked_ellpack import BlockedEllpack, Ellpack, Slices
from gsparse.formats.bsr import BlockRows, Bsr
from gsparse.formats.csr import Csr, CsrEntries, LongRows
from gsparse.formats.entries import Columns, StoredMatrix, Values, padding_code
from gsparse.formats.row_lanes import LaneSlices, RowLanes
from gsparse.formats.row_pattern import RowPattern
from gsparse.formats.row_stats import Levels

__all__ = [
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
    "StoredMatrix",
    "Values",
    "padding_code",
]
