"""Matrices from and to files: Matrix Market, SciPy's ``.npz``, Harwell–Boeing, MATLAB's ``.mat``.

`kinds` chooses the reader or writer from the name of a file, and `checks` has the checks that all readers share. Each
of the other modules reads and writes one kind of file.
"""

from gsparse.files.kinds import SUFFIXES, WRITTEN, read_file, write_file

__all__ = ["SUFFIXES", "WRITTEN", "read_file", "write_file"]
