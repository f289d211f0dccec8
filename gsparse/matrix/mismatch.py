"""The error about two shapes that do not fit together, which all elementwise operations raise."""

from __future__ import annotations

from gsparse.errors import ShapeError


def shape_mismatch(first: tuple[int, ...], second: tuple[int, ...], *, broadcasts: bool) -> ShapeError:
    """Return the error. `broadcasts` says whether the operation repeats a row or a column, as NumPy does."""
    required = "must be equal, or 1, along each axis" if broadcasts else "must be the same"
    return ShapeError(
        f"inconsistent shapes {first} and {second}: they {required}; A[rows, columns] selects a part of A"
    )
