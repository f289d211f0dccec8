"""The plans, preparations and products of one matrix, by the dtypes of a product, each made once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np

from gsparse.device.base import Device
from gsparse.device.locks import make_lock
from gsparse.plan.choice import Plan
from gsparse.products.building import ColumnsProduct, Product
from gsparse.products.storage import MatrixPreparation
from gsparse.profiling import recording

_Result = TypeVar("_Result")
# The dtype in which a product reads the values, and the dtype in which it computes.
Types = tuple[np.dtype[Any], np.dtype[Any]]


@dataclass(eq=False)
class FormatCache:
    """What was made of a matrix for products. Each item is complete when it is stored.

    Attributes
    ----------
    device : Device
    lock : reentrant lock
        Is held by the thread that makes an item.
    plans, preparations, products, columns : dict
        Items by dtypes. A preparation is kept until the product with a vector is built.
    """

    device: Device
    lock: Any = field(default_factory=make_lock)
    plans: dict[Types, Plan] = field(default_factory=dict)
    preparations: dict[Types, MatrixPreparation] = field(default_factory=dict)
    products: dict[Types, Product] = field(default_factory=dict)
    columns: dict[Types, ColumnsProduct] = field(default_factory=dict)

    def find_or_make(self, items: dict[Types, _Result], types: Types, make: Callable[[], _Result]) -> _Result:
        """Return the item for these dtypes out of one of the dictionaries. If there is none, only one thread makes it.

        The device is the current one while `make` runs.
        """
        item = items.get(types)
        if item is None:
            with self.lock, self.device.active():
                item = items.get(types)
                if item is None:
                    item = items[types] = self._recorded(items, make)()
        return item

    def _recorded(self, items: dict[Types, _Result], make: Callable[[], _Result]) -> Callable[[], _Result]:
        """Return the call that makes an item, recorded if a profile is open."""
        if recording.recorder is None:
            return make
        is_plan: bool = items is self.plans
        return recording.timed(make, "set-up", "choose a format" if is_plan else "store a format", self.device)

    def forget_plans(self) -> None:
        """Drop what has not become a product yet."""
        self.plans.clear()
        self.preparations.clear()

    def forget(self) -> None:
        """Drop everything."""
        self.forget_plans()
        self.products.clear()
        self.columns.clear()
