"""What SciPy computes on the host: indexing, reductions, conversions, comparisons, sparse with sparse.

An operation on the host works on a *twin*: a plain SciPy array over read-only views of the host arrays. It cannot
write to them, so the device copy stays true and no loan is made. Results come back as the matrix's own class, on its
device; their arrays move there when first multiplied by.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import scipy.sparse as sp

from gsparse.device.select import device_of
from gsparse.errors import DeviceError
from gsparse.matrix.arrays import DeviceArrays, Mirrors
from gsparse.matrix.loans import Mirror

__all__ = ["HostedOperations"]

# Methods of SciPy's that read a matrix and give something new: run on the twin.
READING_METHODS = (
    *("sum", "mean", "trace", "diagonal", "max", "min", "nanmax", "nanmin", "argmax", "argmin", "count_nonzero"),
    *("nonzero", "toarray", "todense", "todia", "todok", "tolil", "__getitem__", "__bool__"),
    *("__add__", "__radd__", "__sub__", "__rsub__", "__rtruediv__", "power", "maximum", "minimum"),
    *("__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__", "reshape", "sorted_indices", "_broadcast_to"),
)


# SciPy's methods that write to the arrays of a matrix.
WRITING_METHODS = (
    *("__setitem__", "setdiag", "eliminate_zeros", "sum_duplicates", "sort_indices", "prune", "resize"),
    *("__imul__", "__itruediv__"),
)


class HostedOperations(DeviceArrays):
    """Mixin: what a device matrix leaves to SciPy."""

    # -------------------------------------------------------------------- twin

    def host_twin(self, operation: str) -> Any:
        """Give a plain SciPy array with this matrix's contents, for an operation that only reads. Synchronizes.

        Where columns are unsorted or repeated, the twin gets arrays of its own: SciPy's reductions sort in place.
        """
        self.stats.left_device(operation)
        return self._twin()

    def _twin(self) -> Any:
        """Give the twin without a word: for what only shows the matrix, no operation at all. Synchronizes."""
        mirrors = self._mirrors
        hosts = tuple(mirrors[name].read() for name in ("data", "indices", "indptr"))
        # Nothing lent since: nothing written.
        key = (self.format, self.shape, *((mirror, mirror.loans) for mirror in mirrors.values()))
        lent = any(mirror.lent for mirror in mirrors.values())
        found = mirrors.twin
        if found is not None and not lent and key == found[0]:
            return found[1]
        twin = self._scipy_base(hosts, shape=self.shape, maxprint=self.maxprint)
        if not twin.has_canonical_format:
            twin = self._scipy_base(tuple(map(np.array, hosts)), shape=self.shape, maxprint=self.maxprint)
        mirrors.twin = None if lent else (key, twin)
        return twin

    def __str__(self) -> str:
        return str(self._twin())

    def _on_host(self, name: str, *args: Any, **options: Any) -> Any:
        """Run SciPy's method on the twin and bring a sparse result of this format home."""
        twin = self.host_twin(name)
        result = getattr(twin, name)(*(self._plain(name, a) for a in args), **options)
        return self if result is twin else self._like(result)

    def _plain(self, name: str, other: Any) -> Any:
        if isinstance(other, HostedOperations):
            return other.host_twin(name)
        if device_of(other) is not None:
            raise DeviceError(f"{name} of a sparse matrix and a device array is computed on the host: pass other.get()")
        return other

    def _like(self, result: Any) -> Any:
        """Make a SciPy array of this format a matrix on this device; its arrays move there when first multiplied by."""
        if not (sp.issparse(result) and result.format == self.format):
            return result
        mirrors = {
            name: Mirror(self.device, host=np.require(getattr(result, name), requirements="W"))
            for name in ("indptr", "indices", "data")
        }
        new = self._with_mirrors(type(self), Mirrors(mirrors), result.shape)
        # (A slice or a sum is not what this matrix was said to be.)
        new._request = replace(self._request, symmetric=None)
        return new

    def _getnnz(self, axis: int | None = None) -> Any:
        if axis is not None:
            return self._on_host("_getnnz", axis=axis)
        # While SciPy changes the arrays one after the other, the row pointers alone say what is valid.
        lent = any(mirror.lent for mirror in self._mirrors.values())
        return int(self._mirrors["indptr"].read()[-1]) if lent else self.current_operand().csr.nnz

    def __iter__(self) -> Iterator[Any]:
        for row in self.host_twin("__iter__"):
            yield self._like(row)

    def tocsr(self, copy: bool = False) -> Any:
        """Give this matrix in CSR.

        Parameters
        ----------
        copy : bool
            Whether a matrix that is in CSR already comes back as a copy.

        Returns
        -------
        GpuSparseMatrix or scipy.sparse.csr_array
            The matrix itself; of a transposed view a plain SciPy array, made on the host.
        """
        return self._to_format("csr", copy)

    def tocsc(self, copy: bool = False) -> Any:
        """Give this matrix in CSC.

        Parameters
        ----------
        copy : bool
            Whether a transposed view, which is in CSC already, comes back as a copy.

        Returns
        -------
        scipy.sparse.csc_array
            A plain SciPy array, made on the host; a transposed view itself.
        """
        return self._to_format("csc", copy)

    def _to_format(self, format: str, copy: bool) -> Any:
        if self.format == format:
            return self.copy() if copy else self
        return self._on_host(f"to{format}", copy=True)

    def tocoo(self, copy: bool = True) -> Any:
        """Give this matrix in COO, made on the host.

        Parameters
        ----------
        copy : bool
            As SciPy's; the arrays are copies in any case.

        Returns
        -------
        scipy.sparse.coo_array
            A plain SciPy array.
        """
        return self._on_host("tocoo", copy=True)

    def tobsr(self, blocksize: tuple[int, int] | None = None, copy: bool = True) -> Any:
        """Give this matrix in BSR, made on the host.

        Parameters
        ----------
        blocksize : (int, int), optional
            Rows and columns of a block, of which M and N are multiples; chosen by SciPy by default.
        copy : bool
            As SciPy's; the arrays are copies in any case.

        Returns
        -------
        scipy.sparse.bsr_array
            A plain SciPy array.
        """
        return self._on_host("tobsr", blocksize=blocksize, copy=True)


def _hosted(name: str) -> Callable[..., Any]:
    def method(self: HostedOperations, *args: Any, **options: Any) -> Any:
        return self._on_host(name, *args, **options)

    scipys = getattr(sp.csr_array, name, None)
    method.__name__, method.__doc__ = name, getattr(scipys, "__doc__", None)
    return method


def _writing(name: str) -> Callable[..., Any]:
    def method(self: HostedOperations, *args: Any, **options: Any) -> Any:
        try:
            return getattr(super(HostedOperations, self), name)(*args, **options)
        except ValueError as error:
            is_frozen = any(mirror.frozen for mirror in self._mirrors.values())
            if not (is_frozen and any(word in str(error) for word in _OF_READ_ONLY)):
                raise
            raise ValueError("this matrix is frozen: write to a copy()") from error

    method.__name__, method.__doc__ = name, getattr(sp.csr_array, name).__doc__
    return method


# What NumPy and SciPy's compiled code say of an array that may not be written.
_OF_READ_ONLY = ("read-only", "not writ", "writeable", "frozen")

for _name in READING_METHODS:
    setattr(HostedOperations, _name, _hosted(_name))
for _name in WRITING_METHODS:
    setattr(HostedOperations, _name, _writing(_name))
