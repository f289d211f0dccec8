"""The arrays of a device matrix: on loan to the host, current for every product, shared where nothing was written."""

from __future__ import annotations

import dataclasses
import sys
import warnings
from typing import Any, Self, cast

import numpy as np

from gsparse.device.base import Device
from gsparse.device.counters import Stats
from gsparse.device.dtypes import Array
from gsparse.errors import HostLoanWarning, MatrixProductWarning
from gsparse.formats import Csr
from gsparse.matrix.loans import Mirror
from gsparse.products.prepared import Operand, make_operand
from gsparse.products.request import Request

__all__ = ["DeviceArrays", "initialize", "mirrors_of"]

# Entries that SciPy prints of a matrix.
MAXPRINT = 50


class Mirrors(dict[str, Mirror]):
    """Mirrors by name and what products multiply by: shared, as they are, by a matrix and its transposed views."""

    def __init__(self, mirrors: dict[str, Mirror], operand: Operand | None = None, warned: bool = False) -> None:
        super().__init__(mirrors)
        # None while SciPy's constructor sets one array after the other; there is no operand before it has set all.
        self._in_order: Any = tuple(map(mirrors.get, ("indptr", "indices", "data")))
        self.operand = operand
        self.warned = warned
        self.twin: Any = None  # see `HostedOperations.host_twin`; it reads the host arrays and must not count as a loan

    def share(self, *, flip: bool = False) -> Mirrors:
        """Give mirrors of their own over the same device arrays, with what was built from them.

        Parameters
        ----------
        flip : bool
            Whether the new values stand for the conjugates of these.
        """
        shared = {name: mirror.share(flip=flip and name == "data") for name, mirror in self.items()}
        return Mirrors(shared, self.operand)

    @property
    def were_lent(self) -> bool:
        """Whether any of the arrays was ever on loan, and may have been written since."""
        return any(mirror.was_lent for mirror in self.values())

    def are_resident(self, arrays: tuple[Array, Array, Array]) -> bool:
        """Tell whether these are the device arrays (indptr, indices, data) and nothing is due to be brought there."""
        indptr, indices, data = self._in_order  # (no loop: every product asks, and a loop takes three times as long)
        return not (
            indptr.lent
            or indices.lent
            or data.lent
            or indptr.on_device is not arrays[0]
            or indices.on_device is not arrays[1]
            or data.on_device is not arrays[2]
        )


class DeviceArrays:
    """Mixin: three mirrors, what was built from them, and SciPy's names for their host sides.

    The arrays are those of CSR; a class that reads them by columns (`_by_columns`) holds the transpose.
    """

    # From SciPy's class, which comes later in the order of inheritance.
    shape: tuple[int, ...]
    ndim: int
    nnz: int
    format: str
    maxprint: int
    _scipy_base: Any
    _by_columns: bool

    device: Device
    stats: Stats
    # Whether it was made from an `spmatrix`, or from a matrix that was, and has not warned: see `MatrixProductWarning`.
    _came_from_spmatrix = False
    _mirrors: Mirrors
    _options: Request

    @property
    def _request(self) -> Request:
        """Options of the matrix as it is now: a declared symmetry ends with the first loan of an array."""
        if self._options.symmetric and self._mirrors.were_lent:
            self._options = dataclasses.replace(self._options, symmetric=None)
        return self._options

    @_request.setter
    def _request(self, request: Request) -> None:
        self._options = request

    @property
    def _operand(self) -> Operand | None:
        return self._mirrors.operand

    def _lend(self, name: str) -> np.ndarray[Any, Any]:
        mirror = self._mirrors[name]
        if not mirror.lent:
            self.stats.left_device(name)
        self._mirrors.twin = None
        return mirror.lend()

    def _rebind(self, name: str, value: Any) -> None:
        mirrors = self.__dict__.setdefault("_mirrors", Mirrors({}))
        old = mirrors.get(name)
        if old is not None and old.frozen and not old.is_host(value):
            raise ValueError(f"the matrix is frozen: {name} cannot be replaced; work on A.copy()")
        if old is None or not old.is_host(value):
            # A new mirror, not new contents of the old: a transposed view made before keeps what it had, as in SciPy.
            fresh = {**mirrors, name: Mirror(self.device, host=np.asarray(value))}
            self._mirrors = Mirrors(fresh, mirrors.operand, mirrors.warned)

    @property
    def data(self) -> np.ndarray[Any, Any]:
        """Values as a host array, on loan: see `freeze` and `device_data`. Synchronizes."""
        return self._lend("data")

    @data.setter
    def data(self, value: Any) -> None:
        self._rebind("data", value)

    @property
    def indices(self) -> np.ndarray[Any, Any]:
        """Column indices as a host array, on loan. Synchronizes."""
        return self._lend("indices")

    @indices.setter
    def indices(self, value: Any) -> None:
        self._rebind("indices", value)

    @property
    def indptr(self) -> np.ndarray[Any, Any]:
        """Row pointers as a host array, on loan. Synchronizes."""
        return self._lend("indptr")

    @indptr.setter
    def indptr(self, value: Any) -> None:
        self._rebind("indptr", value)

    @property
    def device_data(self) -> Array:
        """Values as the device's own array: read it, never write to it (other matrices may share it)."""
        self.current_operand()
        mirror = self._mirrors["data"]
        if not mirror.conjugated:
            return mirror.resident()
        with self.device.active(), self.device.memory_guard():
            return self.device.xp.conjugate(mirror.resident())

    @property
    def device_indices(self) -> Array:
        """Column indices as the device's own array: read it, never write to it."""
        return self._mirrors["indices"].resident()

    @property
    def device_indptr(self) -> Array:
        """Row pointers as the device's own array: read it, never write to it."""
        return self._mirrors["indptr"].resident()

    @property
    def dtype(self) -> np.dtype[Any]:
        """Dtype of the values."""
        return self._mirrors["data"].dtype

    @dtype.setter
    def dtype(self, newtype: Any) -> None:
        self.data = self.data.view(newtype)

    def __sizeof__(self) -> int:
        """Return the bytes of the three arrays and the object itself: `dask.sizeof` and `sys.getsizeof` ask for it."""
        return object.__sizeof__(self) + sum(mirror.nbytes for mirror in self._mirrors.values())

    def freeze(self) -> Self:
        """Hand out read-only host arrays from now on, so that no loan ever costs a product anything.

        Returns
        -------
        GpuSparseMatrix
            The matrix itself. In-place operations on it raise from now on.
        """
        for mirror in self._mirrors.values():
            mirror.freeze()
        return self

    def release(self) -> None:
        """Drop converted formats, the transposed copy and idle host copies; each is made again when next needed."""
        if self._operand is not None:
            self._operand.release()
        self._mirrors.operand = self._mirrors.twin = None
        for mirror in self._mirrors.values():
            mirror.drop_host()

    def operand(self, *, transpose: bool = False, adjoint: bool = False) -> tuple[Operand, bool]:
        """Give what products multiply by, with every write so far (see `gsparse.products.multiply.Multiplicand`)."""
        found, flip = self.current_operand(), False
        if (transpose or adjoint) != self._by_columns:
            found, flip = found.transposed()
        return found, (self._mirrors["data"].conjugated != adjoint) != flip

    def resident_operand(self) -> Operand | None:
        """Give the operand of A·x if it is current as it is: nothing on loan, transposed or conjugated."""
        mirrors = self._mirrors
        found = mirrors.operand
        if found is None or self._by_columns or not mirrors.are_resident(found.source):
            return None
        return None if mirrors["data"].conjugated or found.csr.shape != self.shape else found

    def current_operand(self) -> Operand:
        """Give the operand of the arrays as they are stored, up to date with every write so far."""
        found = self._mirrors.operand
        if found is None or not self._mirrors.are_resident(found.source) or found.csr.shape != self._stored_shape():
            found = self._make_operand()
        return found

    def _stored_shape(self) -> tuple[int, int]:
        """Give the shape of the CSR arrays: one row for a vector, the transpose's for a class that reads by columns."""
        shape = self.shape if self.ndim == 2 else (1, *self.shape)
        return cast(tuple[int, int], shape[::-1] if self._by_columns else shape)

    def _make_operand(self) -> Operand:
        """Bring what is due to the device, check it, and keep what is still true of the last operand."""
        indptr, indices, data = (self._mirrors[name].resident() for name in ("indptr", "indices", "data"))
        held = [name for name, mirror in self._mirrors.items() if mirror.lent]
        # What is held may change before the next product: a conversion would serve one.
        request = dataclasses.replace(self._request, expected_products=1) if held else self._request
        found, shape = self._operand, self._stored_shape()
        if found is None or found.source[0] is not indptr or found.source[1] is not indices or found.csr.shape != shape:
            found = make_operand(self.device, shape, indptr, indices, data, request)
        elif found.source[2] is not data or found.request != request:
            found = found.with_data(data, request)
        self._mirrors.operand = found
        if held and not self._mirrors.warned:
            self._warn_of_loans(held)
        return found

    def _warn_of_loans(self, held: list[str]) -> None:
        self._mirrors.warned = True
        if not self.device.is_host:
            warnings.warn(
                f"A.{', A.'.join(held)} is held by somebody, so every product brings it to {self.device.name} again: "
                "drop it, or call A.freeze()",
                HostLoanWarning,
                stacklevel=_frames_to_the_caller(),
            )

    def _warn_of_operator(self, operator: str, remedy: str) -> None:
        """Warn, once for this matrix, that an operator is elementwise which was a matrix product of its source."""
        if self._came_from_spmatrix:
            self._came_from_spmatrix = False
            warnings.warn(
                f"{operator} is elementwise: this matrix is a sparse array, but it was made from a sparse matrix, of "
                f"which {operator} is a matrix product; {remedy}",
                MatrixProductWarning,
                stacklevel=_frames_to_the_caller(),
            )

    def _with_mirrors(self, cls: Any, mirrors: Mirrors, shape: tuple[int, ...]) -> Any:
        """Make a matrix over these mirrors; nothing is copied and nothing checked."""
        new = cls.__new__(cls)
        initialize(new, shape)
        new.device, new._request, new.stats, new._mirrors = self.device, self._request, Stats(), mirrors
        new._came_from_spmatrix = self._came_from_spmatrix
        return new

    def copy(self) -> Self:
        """Give an independent matrix on the same device. It shares device arrays until one of the two is written.

        Returns
        -------
        GpuSparseMatrix
            With the same plan; nothing is moved.
        """
        return cast(Self, self._with_mirrors(type(self), self._mirrors.share(), self.shape))

    def __copy__(self) -> Self:  # shallow, as SciPy's: writes to one show in the other
        return cast(Self, self._with_mirrors(type(self), self._mirrors, self.shape))

    def __deepcopy__(self, memo: Any) -> Self:
        return self.copy()


_PACKAGE = __name__.partition(".")[0]


def _frames_to_the_caller() -> int:
    """Count the frames from whoever warns up to the first that is not of this package."""
    frame, count = sys._getframe(1), 1
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] == _PACKAGE:
        frame, count = frame.f_back, count + 1
    return count


def mirrors_of(device: Device, csr: Csr, conjugated: bool) -> Mirrors:
    """Give mirrors over device arrays."""
    mirrors = {
        "indptr": Mirror(device, on_device=csr.indptr),
        "indices": Mirror(device, on_device=csr.indices),
        "data": Mirror(device, on_device=csr.data, conjugated=conjugated),
    }
    return Mirrors(mirrors)


def initialize(matrix: Any, shape: tuple[int, ...], maxprint: int | None = None) -> None:
    """Set what SciPy's constructor would, without its arrays: the one place that names SciPy's private attributes.

    The public way, ``csr_array.__init__(self, shape)``, allocates row pointers for a view that has its own.
    """
    matrix._shape = shape
    matrix.maxprint = MAXPRINT if maxprint is None else maxprint
