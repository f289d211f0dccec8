"""Division as on a GPU and in NumPy: by zero it results in inf and NaN, where numba's complex division raises."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numba import types
from numba.extending import overload

from gsparse.kernels.cpu.jit import OPTIONS

__all__ = ["divide"]


def divide(a: Any, b: Any) -> Any:
    """Divide in compiled code."""
    return a / b


@overload(divide, jit_options=OPTIONS)  # type: ignore[arg-type]
def _divide(a: Any, b: Any) -> Callable[[Any, Any], Any]:
    # Numba requires the same annotations as in `divide_real`.
    def divide_real(a: Any, b: Any) -> Any:
        return a / b

    def divide_complex(a: Any, b: Any) -> Any:
        return complex(a.real / b.real, a.imag / b.real) if b == 0 else a / b

    return divide_complex if isinstance(a, types.Complex) or isinstance(b, types.Complex) else divide_real
