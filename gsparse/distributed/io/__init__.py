"""Loading the rows of a matrix that is never assembled in one place: `loaders.py`, and `readers.py` for each format."""
