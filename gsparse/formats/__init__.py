"""Frozen arrays of a matrix in each storage format, and how many bytes they hold."""

from gsparse.formats.blocked_ellpack import BlockedEllpack
from gsparse.formats.csr import Csr
from gsparse.formats.ellpack import Ellpack

__all__ = ["BlockedEllpack", "Csr", "Ellpack", "Stored"]

Stored = Csr | Ellpack | BlockedEllpack
