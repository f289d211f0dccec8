"""Frozen arrays of a matrix in each storage format, and how many bytes they hold."""

from gsparse.formats.blocked_ellpack import BlockedEllpack, Slices
from gsparse.formats.csr import Csr, CsrEntries, LongRows, RowBlocks, Tiles
from gsparse.formats.ellpack import Ellpack
from gsparse.formats.entries import Columns, Values, padding_code
from gsparse.formats.levels import Levels
from gsparse.formats.row_pattern import RowPattern

__all__ = [
    "BlockedEllpack",
    "Columns",
    "Csr",
    "CsrEntries",
    "Ellpack",
    "Levels",
    "LongRows",
    "RowBlocks",
    "RowPattern",
    "Slices",
    "Stored",
    "Tiles",
    "Values",
    "padding_code",
]

Stored = CsrEntries | Ellpack | BlockedEllpack | RowPattern
