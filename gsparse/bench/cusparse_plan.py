"""cuSPARSE's SpMVOp (CUDA 13.1 and later): a plan is made once, with a kernel that is compiled for the product.

A wheel of nvidia-cusparse that is newer than the installed CUDA serves too, if its folder and that of its
nvidia-nvjitlink are in LD_LIBRARY_PATH before the program starts.

References
----------
NVIDIA, "cuSPARSE generic APIs: cusparseSpMVOp", https://docs.nvidia.com/cuda/cusparse (13.1).
"""

from __future__ import annotations

from ctypes import POINTER, byref, c_int, c_size_t, c_void_p
from typing import Any

import numpy as np

from gsparse.bench import cusparse
from gsparse.bench.cusparse import CusparseProduct

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


class CusparsePlan(CusparseProduct):
    """The product of one CSR matrix with one x into one y by SpMVOp. The algorithm is one of `plan_algorithms`."""

    def _prepare(
        self, matrix: c_void_p, dense: list[c_void_p], value_type: int, algorithm: str, *, preprocess: bool
    ) -> None:
        context, library = self._context, self._library
        for name, types in _SIGNATURES.items():
            function = getattr(library, name)
            function.argtypes, function.restype = types, c_int
        operands = (cusparse.NON_TRANSPOSE, matrix, *dense, dense[1], value_type, _ALGORITHMS[algorithm])
        size, descriptor, plan = c_size_t(), c_void_p(), c_void_p()
        context.bind()
        cusparse.check(library, "cusparseSpMVOp_bufferSize", context.handle, *operands, byref(size))
        self._buffer = context.cupy.empty(max(size.value, 16), np.uint8)
        made = (*operands, cusparse.address(self._buffer))
        cusparse.check(library, "cusparseSpMVOp_createDescr", context.handle, byref(descriptor), *made)
        self._descriptors.append(("cusparseSpMVOp_destroyDescr", descriptor))
        cusparse.check(library, "cusparseSpMVOp_createPlan", context.handle, descriptor, byref(plan), None, 0)
        self._descriptors.append(("cusparseSpMVOp_destroyPlan", plan))
        self._name, self._product = "cusparseSpMVOp", library.cusparseSpMVOp
        self._arguments = (context.handle, plan, byref(self._alpha), byref(self._beta), *dense, dense[1])
        self.preprocessed = True
