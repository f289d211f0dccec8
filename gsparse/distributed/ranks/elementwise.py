"""The element-wise operations of a matrix over ranks: their names, and which of them map zeros to zeros.

If zeros stay zeros, a rank applies the operation to each of its two blocks. Otherwise, as for `A == 0`, the rank needs
its rows with all columns of the matrix, because most elements of the result are stored.
"""

from __future__ import annotations

import operator
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import numpy as np

from gsparse.matrix.gpu_sparse_matrix import Ufuncs

# Operations of a matrix and a number, or of two matrices, that may map zeros to other values.
_OF_ZEROS: dict[str, Callable[[Any, Any], Any]] = {
    "__eq__": operator.eq, "__ne__": operator.ne, "__lt__": operator.lt, "__le__": operator.le, "__gt__": operator.gt,
    "__ge__": operator.ge, "maximum": np.maximum, "minimum": np.minimum, "__add__": operator.add,
    "__sub__": operator.sub,
}  # fmt: skip
# Operations whose second operand may be a dense array, and those whose second operand may be a matrix.
OF_ARRAYS = ("multiply", "__truediv__")
OF_MATRICES = (*_OF_ZEROS, "multiply")


def check_elementwise(name: str, operand: Any, is_matrix: bool) -> None:
    """Raise a TypeError if an operation does not take a second operand, or None, of this kind."""
    if is_matrix:
        accepted = name in OF_MATRICES
    elif operand is None or name == "astype":
        accepted = True
    else:
        dtype = operand.dtype if hasattr(operand, "dtype") else np.asarray(operand).dtype
        accepted = dtype.kind in "biufc" and (name in OF_ARRAYS or not np.ndim(operand))
    if not accepted:
        kind = "a matrix" if is_matrix else f"{type(operand).__name__}"
        raise TypeError(
            f"{name.strip('_')} of a matrix over ranks and {kind} is not sparse, or not defined: it takes numbers, "
            f"{', '.join(OF_ARRAYS)} also dense arrays, and {', '.join(OF_MATRICES)} matrices over the same ranks"
        )


def keeps_zeros(dtype: np.dtype[Any], name: str, operand: Any) -> bool:
    """Return whether an operation maps 0 to 0. Its operands are a matrix of `dtype` and `operand`, a number or None.

    Raises
    ------
    NotImplementedError
        For the sum of a matrix and a number other than 0, as in SciPy.
    """
    if name not in _OF_ZEROS:
        return True
    keeps = not _OF_ZEROS[name](dtype.type(0), operand)
    if not keeps and name in ("__add__", "__sub__"):
        raise NotImplementedError("adding a nonzero scalar to a sparse array is not supported")
    return keeps


_DOC = """Call SciPy's method `{0}` on all ranks, element by element.

        Parameters
        ----------
        *operands, **options
            As those of `scipy.sparse.csr_array.{0}`; see `elementwise`.

        Returns
        -------
        DistributedMatrix or RankMatrix
            A matrix over the same ranks, with values of SciPy's dtype.
        """


def _operation(name: str) -> Any:
    """Return the method of this name, which calls `ElementWise.elementwise`."""

    def method(self: ElementWise, *operands: Any, **options: Any) -> Any:
        return self.elementwise(name, *operands, **options)

    method.__name__, method.__doc__ = name, _DOC.format(name)
    return method


class ElementWise(Ufuncs, ABC):
    """The element-wise operations of SciPy's sparse arrays, and NumPy's functions, which call `elementwise`."""

    __hash__ = object.__hash__

    @abstractmethod
    def elementwise(self, name: str, *operands: Any, **options: Any) -> Any:
        """Return the result of an element-wise operation as a matrix over the same ranks.

        Parameters
        ----------
        name : str
            The method of SciPy's sparse arrays, such as "multiply" or "__abs__".
        *operands, **options
            Its arguments.

        Returns
        -------
        DistributedMatrix or RankMatrix
            The result. It has the dtype that SciPy's result has.
        """

    multiply = _operation("multiply")
    maximum = _operation("maximum")
    minimum = _operation("minimum")
    power = _operation("power")
    _square = _operation("_square")
    astype = _operation("astype")
    __add__ = _operation("__add__")
    __sub__ = _operation("__sub__")
    __truediv__ = _operation("__truediv__")
    __neg__ = _operation("__neg__")
    __abs__ = _operation("__abs__")
    __round__ = _operation("__round__")
    __eq__ = _operation("__eq__")
    __ne__ = _operation("__ne__")
    __lt__ = _operation("__lt__")
    __le__ = _operation("__le__")
    __gt__ = _operation("__gt__")
    __ge__ = _operation("__ge__")
    _real = _operation("_real")
    _imag = _operation("_imag")
    sin = _operation("sin")
    tan = _operation("tan")
    arcsin = _operation("arcsin")
    arctan = _operation("arctan")
    sinh = _operation("sinh")
    tanh = _operation("tanh")
    arcsinh = _operation("arcsinh")
    arctanh = _operation("arctanh")
    rint = _operation("rint")
    sign = _operation("sign")
    expm1 = _operation("expm1")
    log1p = _operation("log1p")
    deg2rad = _operation("deg2rad")
    rad2deg = _operation("rad2deg")
    floor = _operation("floor")
    ceil = _operation("ceil")
    trunc = _operation("trunc")
    sqrt = _operation("sqrt")

    def conj(self, copy: bool = True) -> Any:
        """Return the complex conjugates.

        Parameters
        ----------
        copy : bool, optional
            Ignored: the result is always another matrix.

        Returns
        -------
        DistributedMatrix or RankMatrix
            A matrix over the same ranks.
        """
        return self.elementwise("conj")

    conjugate = conj

    @property
    def real(self) -> Any:
        """The real parts, as a matrix over the same ranks."""
        return self._real()

    @property
    def imag(self) -> Any:
        """The imaginary parts, as a matrix over the same ranks."""
        return self._imag()

    def copy(self) -> Any:
        """Return a copy of the matrix.

        Returns
        -------
        DistributedMatrix or RankMatrix
            A matrix over the same ranks.
        """
        return self.elementwise("copy")

    def __mul__(self, other: Any) -> Any:
        return self.multiply(other)

    def __rmul__(self, other: Any) -> Any:
        return self.multiply(other)

    def __pow__(self, n: Any) -> Any:
        return self.power(n)
