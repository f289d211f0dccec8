"""Matrices from and to files: Matrix Market, SciPy's ``.npz``, Harwell–Boeing, MATLAB's ``.mat``."""

from gsparse.files.kinds import SUFFIXES, WRITTEN, read_file, write_file

__all__ = ["SUFFIXES", "WRITTEN", "read_file", "write_file"]
