"""cuSPARSE's SpMVOp (CUDA 13.1 and later): a plan is made once, with a kernel that is compiled for the product.

A wheel of nvidia-cusparse that is newer than the installed CUDA serves too, if its folder and that of its
nvidia-nvjitlink are in LD_LIBRARY_PATH before the program starts.

References
----------
NVIDIA, "cuSPARSE generic APIs: cusparseSpMVOp", https://docs.nvidia.com/cuda/cusparse (13.1).
"""

from __future__ import annotations

import weakref
from ctypes import POINTER, byref, c_int, c_size_t, c_void_p
from typing import Any

import numpy as np

from gsparse.bench import cusparse
from gsparse.device.dtypes import Array

# Values of cusparseSpMVOpAlg_t.
_ALGORITHMS = {"SpMVOp": 0, "SpMVOp ALG1": 1, "SpMVOp ALG2": 2}

_P = c_void_p
# handle, operation, A, x, y, z, compute type, algorithm
_OPERANDS = (_P, c_int, _P, _P, _P, _P, c_int, c_int)
_SIGNATURES: dict[str, tuple[Any, ...]] = {
    "cusparseSpMVOp_bufferSize": (*_OPERANDS, POINTER(c_size_t)),
    "cusparseSpMVOp_createDescr": (_P, POINTER(_P), *_OPERANDS[1:], _P),
    # handle, descriptor, plan, code of a function that is applied to each element of the result, its size
    "cusparseSpMVOp_createPlan": (_P, _P, POINTER(_P), _P, c_size_t),
    # handle, plan, alpha, beta, x, y, z
    "cusparseSpMVOp": (_P,) * 7,
    "cusparseSpMVOp_destroyPlan": (_P,),
    "cusparseSpMVOp_destroyDescr": (_P,),
}


def plan_algorithms() -> tuple[str, ...]:
    """Return the names of the algorithms of SpMVOp; none if there is no cuSPARSE, or one without SpMVOp."""
    try:
        library = cusparse.current_context().library
    except (ImportError, cusparse.CusparseError):
        return ()
    return tuple(_ALGORITHMS) if hasattr(library, "cusparseSpMVOp_createPlan") else ()


class CusparsePlan:
    """The product of one CSR matrix with one x into one y by SpMVOp; compare `CusparseProduct`.

    Parameters
    ----------
    arrays : tuple of CuPy arrays
        The CSR arrays (data, indices, indptr).
    shape : (int, int)
    algorithm : str
        A name out of `plan_algorithms`.
    x, y : CuPy arrays
        The vectors that each product reads and writes.

    Raises
    ------
    CusparseError
        If a call of the library fails.
    """

    def __init__(
        self,
        arrays: tuple[Array, Array, Array],
        shape: tuple[int, int],
        algorithm: str,
        x: Array,
        y: Array,
    ) -> None:
        context = cusparse.current_context()
        library, handle = context.library, context.handle
        for name, types in _SIGNATURES.items():
            function = getattr(library, name)
            function.argtypes, function.restype = types, c_int
        data, indices, indptr = arrays
        value_type, scalar = cusparse.VALUE_TYPES[data.dtype.name]
        self._context, self._arrays, self._y = context, (arrays, x), y
        self._alpha, self._beta = scalar(1.0), scalar(0.0)
        self.preprocessed = True
        self._descriptors: list[tuple[str, c_void_p]] = []
        self._finalizer = weakref.finalize(self, cusparse.destroy, library, self._descriptors)
        self._finalizer.atexit = False  # At interpreter exit the driver may have shut down already.
        types = (
            cusparse.INDEX_TYPES[indptr.dtype.name],
            cusparse.INDEX_TYPES[indices.dtype.name],
            cusparse.BASE_ZERO,
            value_type,
        )
        places = (cusparse.address(indptr), cusparse.address(indices), cusparse.address(data))
        A = cusparse.create(library, self._descriptors, "Csr", *shape, data.size, *places, *types)
        dense = [
            cusparse.create(library, self._descriptors, "DnVec", v.size, cusparse.address(v), value_type)
            for v in (x, y)
        ]
        operands = (cusparse.NON_TRANSPOSE, A, *dense, dense[1], value_type, _ALGORITHMS[algorithm])
        size = c_size_t()
        context.bind()
        cusparse.check(library, "cusparseSpMVOp_bufferSize", handle, *operands, byref(size))
        self._buffer = context.cupy.empty(max(size.value, 16), np.uint8)
        descriptor, plan = c_void_p(), c_void_p()
        cusparse.check(
            library, "cusparseSpMVOp_createDescr", handle, byref(descriptor), *operands, cusparse.address(self._buffer)
        )
        self._descriptors.append(("cusparseSpMVOp_destroyDescr", descriptor))
        cusparse.check(library, "cusparseSpMVOp_createPlan", handle, descriptor, byref(plan), None, 0)
        self._descriptors.append(("cusparseSpMVOp_destroyPlan", plan))
        self._arguments = (handle, plan, byref(self._alpha), byref(self._beta), *dense, dense[1])

    def launch(self) -> None:
        """Queue y = A·x on CuPy's current stream."""
        self._context.bind()
        cusparse.check(self._context.library, "cusparseSpMVOp", *self._arguments)

    def result(self) -> Any:
        """Compute the product, and return y on the host."""
        self.launch()
        return self._context.cupy.asnumpy(self._y)  # synchronizes
