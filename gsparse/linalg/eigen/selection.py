"""Which eigenvalues are wanted: SciPy's `which`, as orders of values from the most wanted to the least."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from gsparse.device.dtypes import Array

HERMITIAN = ("LM", "SM", "LA", "SA", "BE")
GENERAL = ("LM", "SM", "LR", "SR", "LI", "SI")


def hermitian_order(values: Array, which: str) -> npt.NDArray[np.intp]:
    """Return the places of real values from the most wanted to the least. Equal values keep their order.

    Examples
    --------
    >>> import numpy
    >>> hermitian_order(numpy.array([-3.0, 0.5, 2.0]), "LM")
    array([0, 2, 1])
    >>> hermitian_order(numpy.array([-3.0, 0.5, 2.0]), "BE")
    array([2, 0, 1])
    """
    keys = {"LM": -abs(values), "SM": abs(values), "LA": -values, "SA": values}
    if which in keys:
        return np.argsort(keys[which], kind="stable")
    # Both ends: the largest, the smallest, the second largest, ...
    turns = np.stack([np.argsort(-values, kind="stable"), np.argsort(values, kind="stable")], axis=1).ravel()
    _, first_turns = np.unique(turns, return_index=True)
    return turns[np.sort(first_turns)]


def worsened(values: Array, which: str, margins: Array) -> Array:
    """Return real values that are less wanted by the given margins; negative margins make them more wanted.

    For "BE", `values` must contain all candidates, because a value is least wanted midway between the two ends.
    """
    if which == "LM":
        return np.sign(values) * np.maximum(abs(values) - margins, 0)
    if which == "SM":
        return np.where(values < 0, -1, 1) * np.maximum(abs(values) + margins, 0)
    if which == "BE":
        center = (values.max() + values.min()) / 2 if len(values) else 0.0
        return np.where(values >= center, np.maximum(values - margins, center), np.minimum(values + margins, center))
    return values + (margins if which == "SA" else -margins)


def general_keys(values: Array, which: str, is_real: bool) -> Array:
    """Return real numbers that are the smaller, the more wanted a complex value is.

    For a real matrix, "LI" and "SI" refer to the absolute value of the imaginary part, as in SciPy.
    """
    imaginary = abs(values.imag) if is_real else values.imag
    return {
        "LM": -abs(values), "SM": abs(values), "LR": -values.real, "SR": values.real, "LI": -imaginary, "SI": imaginary,
    }[which]  # fmt: skip


def general_order(values: Array, which: str, is_real: bool) -> npt.NDArray[np.intp]:
    """Return the places of complex values from the most wanted to the least.

    Of two conjugate values, the one with the positive imaginary part comes first.
    """
    keys = general_keys(values, which, is_real)
    return np.lexsort((-values.imag, abs(values.imag), values.real, keys))
