"""The methods of all matrices of the package, by subject."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from gsparse.device.base import Device
from gsparse.matrix.anndata_writer import offer_writers
from gsparse.matrix.array_access import LentArrays
from gsparse.matrix.combinations import Combinations
from gsparse.matrix.constructor import construct, rebuild
from gsparse.matrix.conversions import Conversions
from gsparse.matrix.elementwise import ElementWise
from gsparse.matrix.extremes import Extremes
from gsparse.matrix.host_operations import HostFormats
from gsparse.matrix.in_place import Rearrangements
from gsparse.matrix.indexing import Selection
from gsparse.matrix.plans import Plans
from gsparse.matrix.product_methods import Products
from gsparse.matrix.reductions import Reductions
from gsparse.matrix.shapes import Shapes
from gsparse.matrix.ufuncs import Ufuncs
from gsparse.matrix.upper_layers import UpperLayers
from gsparse.matrix.writes import Writes


class DeviceMatrix(
    Products,
    Plans,
    ElementWise,
    Combinations,
    Ufuncs,
    Reductions,
    Extremes,
    Selection,
    Writes,
    Rearrangements,
    Shapes,
    Conversions,
    HostFormats,
    LentArrays,
    UpperLayers,
):
    """A sparse matrix whose arrays live on a device; the subclasses are CSR or CSC, arrays or matrices of SciPy.

    The arrays are those of CSR; `TransposedMatrix` reads them as CSC, which is the transpose.
    """

    def __init__(
        self,
        arg1: Any,
        shape: tuple[int, ...] | None = None,
        dtype: Any = None,
        copy: bool = False,
        *,
        device: str | Device | None = None,
        format: str | None = None,
        schedule: str | None = None,
        threads_per_block: int | None = None,
        expected_products: int | None = None,
        compress: bool | Literal["columns", "values"] | None = None,
        tune: bool | Literal["lazy"] | None = None,
        symmetric: bool | Literal["hermitian"] | None = None,
        maxprint: int | None = None,
    ) -> None:
        options = {
            "format": format,
            "schedule": schedule,
            "threads_per_block": threads_per_block,
            "expected_products": expected_products,
            "compress": compress,
            "tune": tune,
            "symmetric": symmetric,
        }
        offer_writers((type(self), self._transposed_class))
        construct(self, arg1, shape, dtype, copy, device, options, maxprint)

    # The name in a TypeError about arguments: users never see this class.
    __init__.__qualname__ = "GpuSparseMatrix.__init__"

    def __reduce__(self) -> tuple[Any, ...]:
        arrays = tuple(map(np.array, self._arrays.read()))
        state = (self.shape, self.device.kind, self._arrays.options, self._came_from_spmatrix, self.maxprint)
        return rebuild, (type(self), arrays, *state)
