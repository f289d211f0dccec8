"""Loading rows of a matrix that is never assembled in one place: `loaders.py`, and the file formats in `readers.py`."""
