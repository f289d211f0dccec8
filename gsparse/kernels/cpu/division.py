"""Division as on a GPU and in NumPy: by zero it results in inf and NaN, where numba's complex division raises."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numba import types
from numba.extending import overload

from gsparse.kernels.cpu.jit import OPTIONS


def divide(a: Any, b: Any) -> Any:
    """Divide in compiled code."""
    return a / b


def divide_scalars(a: Any, b: Any) -> Any:
    """Divide in compiled code, before a loop over elements that are multiplied by the quotient.

    LLVM would otherwise move the division into the loop: instead of beta·p, it would compute (rho·p)/rho_old for each
    element, and rho·p may overflow.
    """
    return a / b


def _divide_complex(a: Any, b: Any) -> Any:
    return complex(a.real / b.real, a.imag / b.real) if b == 0 else a / b


def _divide_real(a: Any, b: Any) -> Any:
    return a / b


def _divide_real_scalars(a: Any, b: Any) -> Any:
    return b if np.isnan(b) else a / b  # the condition changes no result, but keeps the division where it is


def _is_complex(a: Any, b: Any) -> bool:
    return isinstance(a, types.Complex) or isinstance(b, types.Complex)


@overload(divide, jit_options=OPTIONS)  # type: ignore[arg-type]
def _divide(a: Any, b: Any) -> Callable[[Any, Any], Any]:
    return _divide_complex if _is_complex(a, b) else _divide_real


@overload(divide_scalars, jit_options=OPTIONS)  # type: ignore[arg-type]
def _divide_scalars(a: Any, b: Any) -> Callable[[Any, Any], Any]:
    return _divide_complex if _is_complex(a, b) else _divide_real_scalars
