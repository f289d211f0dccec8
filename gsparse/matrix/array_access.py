"""The three arrays of a matrix, as users see them: on loan to the host, and on the device."""

from __future__ import annotations

from typing import Any, cast

import numpy as np

from gsparse.device.dtypes import Array
from gsparse.matrix.in_place import one_at_a_time
from gsparse.matrix.matrix_like import MatrixLike
from gsparse.profiling import recording


def lent_array(name: str, doc: str) -> np.ndarray[Any, Any]:
    """Return a property that lends a host array of the matrix, and replaces the array if somebody assigns another one.

    Parameters
    ----------
    name : {"data", "indices", "indptr"}
    doc : str
        The docstring of the property.
    """

    def lend(matrix: MatrixLike) -> np.ndarray[Any, Any]:
        arrays = matrix._arrays
        pair = getattr(arrays, name)
        if not pair.lent:
            matrix.stats.left_device(name)
        arrays.scipy_array = None
        if recording.recorder is None:
            return cast("np.ndarray[Any, Any]", pair.lend())
        with recording.span("host", f"A.{name}: the program asks for a host array", None, None, pair.nbytes):
            return cast("np.ndarray[Any, Any]", pair.lend())

    def replace(matrix: MatrixLike, value: Any) -> None:
        matrix._arrays = matrix._arrays.with_host_array(name, value)

    return cast("np.ndarray[Any, Any]", property(lend, one_at_a_time(replace), doc=doc))


class LentArrays(MatrixLike):
    """The arrays of a matrix, on loan to the host and on the device."""

    data = lent_array("data", "Values as a host array, on loan: see `freeze` and `device_data`. Synchronizes.")
    indices = lent_array("indices", "Column indices as a host array, on loan. Synchronizes.")
    indptr = lent_array("indptr", "Row pointers as a host array, on loan. Synchronizes.")

    @property
    def name(self) -> str | None:
        """Name of the matrix in profiles (`gsparse.profile`); None, unless it is set. Copies and views have none."""
        return self.stats.name

    @name.setter
    def name(self, name: str | None) -> None:
        """Name the matrix."""
        self.stats.name = name

    @property
    def device_data(self) -> Array:
        """Values as the device's own array: read it, never write to it (other matrices may share it)."""
        self._arrays.current(self._stored_shape)
        pair = self._arrays.data
        if not pair.conjugated:
            return pair.current_array()
        with self.device.active(), self.device.memory_guard():
            return self.device.xp.conjugate(pair.current_array())

    @property
    def device_indices(self) -> Array:
        """Column indices as the device's own array: read it, never write to it."""
        return self._arrays.indices.current_array()

    @property
    def device_indptr(self) -> Array:
        """Row pointers as the device's own array: read it, never write to it."""
        return self._arrays.indptr.current_array()
