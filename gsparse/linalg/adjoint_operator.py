"""The adjoint of an operator as an operator of its own."""

from __future__ import annotations

from typing import Any

import numpy as np

from gsparse.device.base import Device
from gsparse.linalg.operators import Apply, Operator


class AdjointOperator(Operator):
    """The adjoint of an operator."""

    def __init__(self, operator: Operator) -> None:
        self._operator, self.shape, self.dtype = operator, operator.shape[::-1], operator.dtype
        self.is_resident = operator.is_resident

    def home(self) -> Device:
        return self._operator.home()

    def bind(self, device: Device, dtype: np.dtype[Any], columns: int = 1, *, adjoint: bool = False) -> Apply:
        return self._operator.bind(device, dtype, columns, adjoint=not adjoint)
