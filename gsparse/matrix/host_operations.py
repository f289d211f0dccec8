"""Operations that SciPy computes on the host.

An operation on the host reads a plain SciPy array over read-only views of the host arrays (`scipy_array_of`). Nothing
can write to it, so the device copy stays current, and no host array counts as on loan. Results come back as matrices of
the same class and device; their arrays move there when they are first multiplied. A write on the host borrows the
matrix's own host arrays.

`HOST_OPERATIONS` is the list of these operations, which the documentation prints (`docs/conf.py`).
"""

from __future__ import annotations

import sys
import warnings
from dataclasses import replace
from typing import Any

import numpy as np
import scipy.sparse as sp

from gsparse.device.base import Device
from gsparse.device.select import device_of
from gsparse.errors import DeviceError
from gsparse.files.checks import scipy_matrices
from gsparse.matrix.arrays import MatrixArrays
from gsparse.matrix.matrix_like import MatrixLike, is_device_matrix
from gsparse.profiling.recording import recorded_call
from gsparse.sparse import PUBLIC_NAMES

# The operations that still run on the host, and when they do.
HOST_OPERATIONS = {
    "``todia``, ``tobsr``, ``tolil``, ``todok``": "always: SciPy makes these formats",
    "``A[i, j] = v`` and other writes": "while somebody holds ``A.data``, ``A.indices`` or ``A.indptr``: the host copy "
    "is the current one then",
    "everything": "for ``longdouble`` values, which no device computes in",
    "``data``, ``indices``, ``indptr``": "always: they are the host arrays; those of the device are ``device_data``, "
    "``device_indices`` and ``device_indptr``",
    "``scipy.sparse.linalg``, ``csgraph`` and other code of SciPy": "where it reads these arrays",
    "Writing with anndata": "always: files are written from the host",
}

# SciPy's functions that read host arrays, and gsparse's functions that do the same on the device. The names of
# `gsparse.sparse` also belong to them.
_COUNTERPARTS = {name: f"gsparse.linalg.{name}" for name in ("norm", "spsolve", "splu", "factorized")}
# The functions that a warning has named.
_named: set[str] = set()

# The message of the ValueError that a write to a frozen matrix raises.
FROZEN = "this matrix is frozen: write to a copy()"
# Words of the errors that NumPy and SciPy's compiled code raise for an array that is read-only.
_READ_ONLY_WORDS = ("read-only", "not writ", "writeable", "frozen")


# ------------------------------------------------------------------------------------------------------------- reading


def name_counterpart(device: Device) -> None:
    """Warn, once per function, if SciPy's code copies a GPU matrix to the host and gsparse has the function."""
    if device.is_host:
        return
    name, frame, level = "", sys._getframe(1), 2
    while frame is not None and frame.f_globals.get("__name__", "").startswith(("gsparse.", "scipy.sparse.")):
        if frame.f_globals["__name__"].startswith("scipy."):
            name = frame.f_code.co_name  # The outermost frame is the function that the program called.
        frame, level = frame.f_back, level + 1  # type: ignore[assignment]
    other = f"gsparse.sparse.{name}" if name in PUBLIC_NAMES else _COUNTERPARTS.get(name)
    if other is not None and name not in _named:
        _named.add(name)
        text = f"SciPy's {name} copies a matrix from {device.name} to the host: {other} computes on the device"
        warnings.warn(text, sp.SparseEfficiencyWarning, stacklevel=level)


def counted_scipy_array(matrix: MatrixLike, operation: str) -> Any:
    """Return a plain SciPy array for an operation that only reads, and count the operation. Synchronizes.

    Raises
    ------
    HostFallbackError
        Inside `gsparse.strict()`.
    """
    matrix.stats.left_device(operation)
    return scipy_array_of(matrix)


def scipy_array_of(matrix: MatrixLike) -> Any:
    """Return the plain SciPy array with the matrix's contents, which is cached. Counts nothing. Synchronizes.

    If columns are unsorted or repeated, each call makes an array with copies of the host arrays, because SciPy's
    methods may sort them or add repeated entries up in place, which must not change the next operation's input.
    """
    arrays = matrix._arrays
    hosts = arrays.read()
    # If no array was lent or replaced since, nothing was written.
    key = (matrix.format, matrix.shape, matrix.maxprint, *((pair, pair.version) for pair in arrays))
    lent = arrays.is_lent
    remembered = arrays.scipy_array
    if remembered is not None and not lent and key == remembered[0]:
        return remembered[1]
    with scipy_matrices():
        array = matrix._scipy_base(hosts, shape=matrix.shape, maxprint=matrix.maxprint)
    is_read_only = array.has_canonical_format  # Then there is nothing to sort or to add up, so SciPy writes nothing.
    arrays.scipy_array = (key, array) if is_read_only and not lent else None
    if is_read_only:
        return array
    with scipy_matrices():
        return matrix._scipy_base(tuple(map(np.array, hosts)), shape=matrix.shape, maxprint=matrix.maxprint)


@recorded_call("host", "{1}: SciPy computes it")
def run_on_host(matrix: MatrixLike, name: str, *args: Any, **options: Any) -> Any:
    """Run SciPy's method `name` on the host. A sparse result of this format becomes a matrix on the device."""
    array = counted_scipy_array(matrix, name)
    arguments = [_as_plain(name, argument) for argument in args]
    with scipy_matrices():
        result = getattr(array, name)(*arguments, **options)
    return matrix if result is array else brought_back(matrix, result)


@recorded_call("host", "sparse @ sparse: values of extended precision")
def multiply_sparse_on_host(matrix: MatrixLike, other: Any, *, reflected: bool = False) -> Any:
    """Multiply by a sparse matrix: matrix·other, or other·matrix if `reflected`."""
    name = "sparse @ sparse"
    array, other = counted_scipy_array(matrix, name), _as_plain(name, other)
    with scipy_matrices():
        result = other @ array if reflected else array @ other
    return brought_back(matrix, result)


def _as_plain(name: str, other: Any) -> Any:
    """Return an operand in a form that SciPy accepts."""
    if is_device_matrix(other):
        return counted_scipy_array(other, name)
    if device_of(other) is not None:
        raise DeviceError(f"{name} of a sparse matrix and a device array is computed on the host: pass other.get()")
    return other


def brought_back(matrix: MatrixLike, result: Any) -> Any:
    """Return a SciPy array of this format as a matrix on this device, to which the first product uploads it."""
    if not (sp.issparse(result) and result.format == matrix.format):
        return result
    hosts = (np.require(array, requirements="W") for array in (result.indptr, result.indices, result.data))
    # A declared symmetry holds for the matrix itself, not for its slices and sums.
    options = replace(matrix._arrays.options, symmetric=None)
    return matrix._with_arrays(MatrixArrays.of_host(matrix.device, options, *hosts), result.shape)


# ------------------------------------------------------------------------------------------------------------- writing


@recorded_call("host", "{1}: a host array is on loan")
def write_on_host(matrix: MatrixLike, name: str, *args: Any, **options: Any) -> Any:
    """Run SciPy's method `name` on the matrix itself, whose host arrays it borrows.

    Raises
    ------
    ValueError
        If the matrix is frozen.
    """
    try:
        with scipy_matrices():
            result = getattr(matrix._scipy_base, name)(matrix, *map(_downloaded, args), **options)
        matrix._arrays.declared.clear()  # SciPy's method may have declared properties for its own use.
        return result
    except ValueError as error:
        if not (matrix._arrays.is_frozen and any(word in str(error) for word in _READ_ONLY_WORDS)):
            raise
        raise ValueError(FROZEN) from error


def _downloaded(argument: Any) -> Any:
    """Return an argument, or a tuple of arguments, in which arrays of a GPU are replaced by host copies."""
    if isinstance(argument, tuple):
        return tuple(map(_downloaded, argument))
    return argument if device_of(argument) is None else argument.get()


class HostFormats(MatrixLike):
    """Methods that return SciPy's other formats, made on the host, and the text of ``print(A)``."""

    def __str__(self) -> str:
        """Return the text of ``print(A)``: a head with this class and the device, and SciPy's table of entries."""
        array = scipy_array_of(self)
        with scipy_matrices():
            return repr(self) + str(array).removeprefix(repr(array))

    def todia(self, copy: bool = False) -> Any:
        """Return this matrix in DIA, which SciPy makes on the host. Synchronizes.

        Parameters
        ----------
        copy : bool
            Has no effect: the values are always copies. SciPy has this parameter.

        Returns
        -------
        scipy.sparse.dia_array
            A plain SciPy array.
        """
        return run_on_host(self, "todia", copy)

    def tolil(self, copy: bool = False) -> Any:
        """Return this matrix in LIL, which SciPy makes on the host. Synchronizes.

        Parameters
        ----------
        copy : bool
            Has no effect: the values are always copies. SciPy has this parameter.

        Returns
        -------
        scipy.sparse.lil_array
            A plain SciPy array.
        """
        return run_on_host(self, "tolil", copy)

    def todok(self, copy: bool = False) -> Any:
        """Return this matrix in DOK, which SciPy makes on the host. Synchronizes.

        Parameters
        ----------
        copy : bool
            Has no effect: the values are always copies. SciPy has this parameter.

        Returns
        -------
        scipy.sparse.dok_array
            A plain SciPy array.
        """
        return run_on_host(self, "todok", copy)

    def tobsr(self, blocksize: tuple[int, int] | None = None, copy: bool = True) -> Any:
        """Return this matrix in BSR, which SciPy makes on the host. Synchronizes.

        Parameters
        ----------
        blocksize : (int, int), optional
            Rows and columns of a block, which must divide M and N. By default, SciPy chooses them.
        copy : bool
            Has no effect: the arrays are always copies. SciPy has this parameter.

        Returns
        -------
        scipy.sparse.bsr_array
            A plain SciPy array.

        Raises
        ------
        ValueError
            If the matrix cannot be divided into such blocks.
        """
        return run_on_host(self, "tobsr", blocksize=blocksize, copy=True)
