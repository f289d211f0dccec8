"""The arrays of a matrix: copies on the device and on the host, loans to the user, and the `PreparedMatrix`.

    A  ----+
           +--> MatrixArrays --+--> ArrayPair `indptr`       one array on both sides (loans.py)
    A.T ---+                   +--> ArrayPair `indices`
                               +--> ArrayPair `data`
                               +--> PreparedMatrix               checked, with plans and formats (products/prepared.py)

A matrix and its transposed views own the same `MatrixArrays`, so a write through one of them changes them all. A copy
of the matrix owns another `MatrixArrays` over the same device arrays. Sharing device arrays is safe, because they are
never written in place.

The lock of `indptr` is held while the three arrays are replaced or read together, so that no thread reads new arrays
beside old ones. `in_place.py` keeps two threads from writing at the same time.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from gsparse.device.base import Device
from gsparse.device.dtypes import Array
from gsparse.device.streams import NO_CONTEXT
from gsparse.errors import HostLoanWarning
from gsparse.formats import Csr
from gsparse.kernels.backends import kernels_of
from gsparse.matrix.loans import ArrayPair
from gsparse.products.checks import common_index_dtype, refuse_arrays
from gsparse.products.planning import MatrixOptions
from gsparse.products.prepared import PreparedMatrix
from gsparse.products.structure import SparsityPattern, Structure
from gsparse.profiling import recording
from gsparse.profiling.names import ON_LOAN

ARRAY_NAMES = ("indptr", "indices", "data")


class MatrixArrays:
    """The three CSR arrays of a matrix, the options of the matrix, and the prepared matrix.

    Parameters
    ----------
    device : Device
    options : MatrixOptions
        The options of the matrix.
    indptr, indices, data : ArrayPair
    prepared : PreparedMatrix, optional
        The object that products use, if it was made from these arrays or shares their structure.
    has_warned : bool
        Whether a loan that slows products down has been reported.

    Attributes
    ----------
    scipy_array : (key, sparse array) or None
        The plain SciPy array that host operations read, and the versions of the arrays from which it was made
        (`host_operations.py`).
    declared : dict
        The values that the user assigned to `has_sorted_indices` and `has_canonical_format`. They are dropped when
        entries move, an array is assigned, or the matrix is resized.
    """

    __slots__ = (
        "_has_warned",
        "_options",
        "data",
        "declared",
        "device",
        "indices",
        "indptr",
        "prepared",
        "scipy_array",
    )

    def __init__(
        self,
        device: Device,
        options: MatrixOptions,
        indptr: ArrayPair,
        indices: ArrayPair,
        data: ArrayPair,
        prepared: PreparedMatrix | None = None,
        *,
        has_warned: bool = False,
    ) -> None:
        self.device, self._options = device, options
        self.indptr, self.indices, self.data = indptr, indices, data
        self.prepared = prepared
        self.scipy_array: tuple[Any, Any] | None = None
        self.declared: dict[str, bool] = {}
        self._has_warned = has_warned

    @classmethod
    def of_host(
        cls,
        device: Device,
        options: MatrixOptions,
        indptr: npt.NDArray[Any],
        indices: npt.NDArray[Any],
        data: npt.NDArray[Any],
    ) -> Self:
        """Take host arrays without a copy. An array counts as on loan while any other object refers to it."""
        pairs = [ArrayPair(device, host=array) for array in (indptr, indices, data)]
        return cls(device, options, pairs[0], pairs[1], pairs[2])

    @classmethod
    def of_device(cls, device: Device, options: MatrixOptions, csr: Csr, *, conjugated: bool = False) -> Self:
        """Take device arrays without a copy. They must not be written afterwards."""
        indptr, indices = ArrayPair(device, on_device=csr.indptr), ArrayPair(device, on_device=csr.indices)
        return cls(device, options, indptr, indices, ArrayPair(device, on_device=csr.data, conjugated=conjugated))

    @classmethod
    def of_result(
        cls,
        device: Device,
        options: MatrixOptions,
        csr: Csr,
        *,
        conjugated: bool = False,
        structure: Structure | None = None,
    ) -> Self:
        """Take the device arrays of an operation's result without a copy. Nothing is examined before the first product.

        Statistics that `structure` has already are not computed again.
        """
        arrays = cls.of_device(device, options, csr, conjugated=conjugated)
        arrays.prepared = PreparedMatrix.of_result(device, csr, options, structure)
        return arrays

    def __iter__(self) -> Iterator[ArrayPair]:
        return iter((self.indptr, self.indices, self.data))

    # ------------------------------------------------------------------------------------------ other matrices' arrays

    def share(self, *, flip: bool = False) -> MatrixArrays:
        """Return arrays for another matrix, which share these device arrays until one of the matrices is written.

        Parameters
        ----------
        flip : bool
            Whether the new values are the conjugates of these values.
        """
        with self.indptr.lock:
            pairs = (self.indptr.share(), self.indices.share(), self.data.share(flip=flip))
            return MatrixArrays(self.device, self.options, *pairs, self.prepared)

    def with_values(
        self, values: Array, shape: tuple[int, int], *, symmetries: tuple[bool | str, ...] = ()
    ) -> MatrixArrays:
        """Return arrays of the same structure with other values, for another matrix.

        Parameters
        ----------
        values : array
            The values, on the device; the array must not be written afterwards.
        shape : (int, int)
            The shape of the CSR arrays.
        symmetries : tuple
            The declared symmetries (values of the option `symmetric`) that also hold for these values.
        """
        with self.indptr.lock:
            prepared, options = self.current(shape), self.options
            if options.symmetric and options.symmetric not in symmetries:
                options = replace(options, symmetric=None)
            pairs = self.indptr.share(), self.indices.share(), ArrayPair(self.device, on_device=values)
        return MatrixArrays(self.device, options, *pairs, prepared.with_data(values, options))

    def replace_values(self, values: Array, shape: tuple[int, int], *, keeps_declarations: bool = False) -> None:
        """Replace the values, for all matrices that own these arrays. No array may be on loan.

        Parameters
        ----------
        values : array
            The values, on the device; the array must not be written afterwards.
        shape : (int, int)
            The shape of the CSR arrays.
        keeps_declarations : bool
            Whether a declared symmetry remains true.
        """
        with self.indptr.lock:
            prepared = self.current(shape)
            self.data.replace(values, keeps_declarations=keeps_declarations)
            self.prepared = prepared.with_data(values, self.options)

    def replace(self, csr: Csr) -> None:
        """Replace all three arrays, for all matrices that own them. No array may be on loan.

        Parameters
        ----------
        csr : Csr
            The same matrix: its entries may be in another order, with zeros removed or repeated entries added up.
        """
        with self.indptr.lock:
            for pair, array in zip(self, (csr.indptr, csr.indices, csr.data), strict=True):
                pair.replace(array, keeps_declarations=True)
            self.declared.clear()
            self.prepared = PreparedMatrix.of_result(self.device, csr, self.options)

    def with_other_shape(self) -> MatrixArrays:
        """Return the same arrays for a matrix of another shape: a write in place changes both matrices."""
        options = replace(self.options, symmetric=None)
        return MatrixArrays(self.device, options, *self, has_warned=self._has_warned)

    def with_host_array(self, name: str, array: Any) -> MatrixArrays:
        """Return the arrays of a matrix after the assignment ``A.data = array``.

        ``A.data *= 2`` assigns the array that was lent before; then nothing is replaced. Otherwise the result is a new
        object, because a transposed view that was made before keeps its arrays, as in SciPy.

        Raises
        ------
        ValueError
            If the matrix is frozen.
        """
        pairs = dict(zip(ARRAY_NAMES, self, strict=True))
        old = pairs[name]
        if old.is_lent_array(array):
            return self
        if old.frozen:
            raise ValueError(f"the matrix is frozen: {name} cannot be replaced; work on A.copy()")
        pairs[name] = ArrayPair(self.device, host=np.asarray(array))
        return MatrixArrays(self.device, self.options, **pairs, prepared=self.prepared, has_warned=self._has_warned)

    # ----------------------------------------------------------------------------------------------------------- state

    @property
    def options(self) -> MatrixOptions:
        """The current options of the matrix. A declared symmetry ends with the first loan of an array."""
        options = self._options
        if options.symmetric and (self.indptr.was_lent or self.indices.was_lent or self.data.was_lent):
            options = self._options = replace(options, symmetric=None)
        return options

    def set_options(self, options: MatrixOptions) -> None:
        """Set the options. If they differ from the current ones, the next product prepares the matrix again."""
        if options != self.options:
            self._options, self.prepared = options, None

    @property
    def lent_names(self) -> list[str]:
        """The names of the arrays whose host copy may differ from the device copy."""
        return [name for name, pair in zip(ARRAY_NAMES, self, strict=True) if pair.lent]

    @property
    def is_lent(self) -> bool:
        """Whether the host copy of any of the arrays may differ from the device copy."""
        return self.indptr.lent or self.indices.lent or self.data.lent

    @property
    def is_on_loan(self) -> bool:
        """Whether code outside of this object holds one of the host arrays, and may write to it."""
        return self.indptr.on_loan or self.indices.on_loan or self.data.on_loan

    @property
    def is_frozen(self) -> bool:
        """Whether any of the arrays is lent read-only (`freeze`)."""
        return self.indptr.frozen or self.indices.frozen or self.data.frozen

    @property
    def nbytes(self) -> int:
        """Bytes of the three arrays. An array with copies on the host and on the device counts once."""
        return sum(pair.nbytes for pair in self)

    def read(self) -> tuple[npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[Any]]:
        """Return read-only host arrays ``(data, indices, indptr)``, which do not count as on loan. Synchronizes."""
        with self.indptr.lock:
            return self.data.read(), self.indices.read(), self.indptr.read()

    def make_device_current(self) -> None:
        """Upload the host arrays and end their loans. From now on, the device copies are current."""
        for pair in self:
            pair.make_device_current()

    def freeze(self) -> None:
        """Lend read-only host arrays from now on."""
        for pair in self:
            pair.freeze()

    def drop_unconverted(self) -> None:
        """On a CPU, drop a prepared matrix that only refers to the arrays, which can then be lent without a copy."""
        if self.device.is_host and self.prepared is not None and not self.prepared.is_converted:
            self.prepared = None

    def release(self) -> None:
        """Drop the prepared matrix, and host copies to which nothing else refers."""
        prepared, self.prepared, self.scipy_array = self.prepared, None, None
        if prepared is not None:
            prepared.release()
        for pair in self:
            pair.drop_host()

    # --------------------------------------------------------------------------------------------- the prepared matrix

    def up_to_date(self, shape: tuple[int, ...]) -> PreparedMatrix | None:
        """Return the prepared matrix if no array has been lent or replaced since it was made, else None.

        Every product calls this function. It has no loop and calls nothing, because that would take three times as
        long.
        """
        prepared, indptr, indices, data = self.prepared, self.indptr, self.indices, self.data
        if prepared is None or indptr.lent or indices.lent or data.lent or prepared.csr.shape != shape:
            return None
        source = prepared.source
        if indptr.on_device is source[0] and indices.on_device is source[1] and data.on_device is source[2]:
            return prepared
        return None

    def current(self, shape: tuple[int, int]) -> PreparedMatrix:
        """Return the matrix of this shape, prepared for products and with all values that were written so far."""
        prepared = self.up_to_date(shape)
        if prepared is not None:
            return prepared
        has_span = recording.recorder is not None and self.is_on_loan
        with recording.span("set-up", ON_LOAN) if has_span else NO_CONTEXT, self.indptr.lock:
            return self._prepare(shape)

    def _prepare(self, shape: tuple[int, int]) -> PreparedMatrix:
        """Upload written arrays, check them, and return the last prepared matrix, a new one, or one with new values."""
        indptr, indices, data = (pair.current_array() for pair in self)
        lent = self.lent_names
        on_loan, options, prepared = bool(lent), self.options, self.prepared
        if prepared is None or prepared.csr.shape != shape or not _is_of(prepared, indptr, indices):
            prepared = prepare_matrix(self.device, shape, indptr, indices, data, options, on_loan=on_loan)
        elif prepared.source[2] is not data or (prepared.options, prepared.on_loan) != (options, on_loan):
            prepared = prepared.with_data(data, options, on_loan=on_loan)
        self.prepared = prepared
        if lent and not self._has_warned:
            self._warn_of_loans(lent)
        return prepared

    def _warn_of_loans(self, names: list[str]) -> None:
        self._has_warned = True
        if not self.device.is_host:
            warnings.warn(
                f"A.{', A.'.join(names)} is held by somebody, so every product brings it to {self.device.name} again: "
                "drop it, or call A.freeze()",
                HostLoanWarning,
                stacklevel=frames_to_the_caller(),
            )


def prepare_matrix(
    device: Device,
    shape: tuple[int, int],
    indptr: Array,
    indices: Array,
    data: Array,
    options: MatrixOptions,
    *,
    on_loan: bool = False,
) -> PreparedMatrix:
    """Check CSR arrays on their device, and return the prepared matrix. Synchronizes.

    Raises
    ------
    StructureError
        If the arrays do not describe a matrix of this shape.
    """
    with device.active(), device.memory_guard():
        source = (indptr, indices, data)
        indptr, indices = common_index_dtype(indptr, indices)
        if indptr.shape != (shape[0] + 1,) or indices.ndim != 1 or data.ndim != 1:
            refuse_arrays(device, shape, indptr, indices, data)
        device.compile_ahead("A @ x", data.dtype, indices.dtype)
        survey = kernels_of(device).layout.survey(
            device, indptr, indices, bool(kernels_of(device).encode.CSR_CODES)
        )  # synchronizes
        if not survey.describes(shape[1], min(indices.size, data.size)):
            refuse_arrays(device, shape, indptr, indices, data)
        indices, data = indices[: survey.last], data[: survey.last]  # as in SciPy, which accepts longer arrays
        csr = Csr(shape, indptr, indices, data, not survey.num_unsorted, survey.max_length)
        structure = Structure(SparsityPattern(device, csr, survey))
        # On a CPU, a conversion to another format takes as long as tens of products.
        is_new = device.is_host and options.may_be_planned_later and not on_loan
        return PreparedMatrix(device, csr, options, structure, source, on_loan, is_new)


def _is_of(prepared: PreparedMatrix, indptr: Array, indices: Array) -> bool:
    """Return whether `prepared` was made from these very arrays, and not from equal ones."""
    return prepared.source[0] is indptr and prepared.source[1] is indices


_PACKAGE = __name__.partition(".")[0]


def frames_to_the_caller() -> int:
    """Return the `stacklevel` of a warning: the number of frames up to the first one outside of gsparse."""
    frame, count = sys._getframe(1), 1
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] == _PACKAGE:
        frame, count = frame.f_back, count + 1
    return count
