"""Rows of a matrix that is never assembled in one place: where they come from and how they are read."""
