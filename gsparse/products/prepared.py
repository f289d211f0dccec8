"""A matrix made ready for products: checked CSR on a device, its plans, and what was built from it.

An operand's arrays never change. A matrix whose arrays changed has another operand; where only the values did, the new
one keeps the structure: statistics, slices, encoded columns.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, NamedTuple, TypeVar

import numpy as np

from gsparse.device.base import Device
from gsparse.device.dtypes import Array
from gsparse.device.locks import make_lock
from gsparse.errors import FormatError
from gsparse.formats import Csr, RowPattern, Stored
from gsparse.formats.launch import Panel
from gsparse.formats.registry import Storage, choices, find_format, names_of
from gsparse.formats.row_pattern import ROW_PATTERN
from gsparse.formats.row_stats import RowStats
from gsparse.kernels.backends import kernels_of
from gsparse.plan.choice import Plan, make_plan, settle
from gsparse.plan.columns import ColumnsPlan, launch_for, plan_columns
from gsparse.plan.cost_model import MACHINE_MODELS, MachineModel
from gsparse.products.checks import common_index_dtype, refuse_arrays, with_values
from gsparse.products.request import Request
from gsparse.products.storage import Entries, halved
from gsparse.products.structure import Structure
from gsparse.products.tuning import LazyTuner, key_of, recall, remember, worth_timing

__all__ = ["Operand", "Product", "make_operand"]

# Products from which on looking for something better, or timing candidates, can pay.
_EXAMINE_PRODUCTS = 50


@dataclass(frozen=True, eq=False)
class Product:
    """What one kind of product needs.

    Attributes
    ----------
    multiply : callable
        ``multiply(x, y, alpha, beta, conjugate)``, see `gsparse.kernels`.
    stored : Stored
    plan : Plan
    scalars : (scalar, scalar)
        One and zero: alpha and beta of a plain product.
    """

    multiply: Any
    stored: Stored
    plan: Plan
    scalars: tuple[Any, Any]


_Made = TypeVar("_Made")


class ColumnsProduct(NamedTuple):
    """The same for several dense columns."""

    multiply: Any
    stored: Csr | RowPattern
    scalars: tuple[Any, Any]


# The dtype in which values are read, and that in which products compute.
Types = tuple[np.dtype[Any], np.dtype[Any]]


@dataclass(eq=False)
class Operand:
    """CSR arrays on a device and everything derived from them, each made when first needed.

    Parameters
    ----------
    device : Device
    csr : Csr
        Checked.
    request : Request
    structure : Structure
        Of these row pointers and columns; shared by operands that differ in values only.
    source : (array, array, array)
        indptr, indices and data as they came: whoever still has these very arrays has this operand.
    own_product : Product, optional
        That of vectors of the matrix's own dtype, once it is built.
    own_columns : ColumnsProduct, optional
        That of several columns of it.
    """

    device: Device
    csr: Csr
    request: Request
    structure: Structure
    source: tuple[Array, Array, Array]
    own_product: Product | None = field(default=None, repr=False)
    own_columns: ColumnsProduct | None = field(default=None, repr=False)
    _products: dict[Types, Product] = field(default_factory=dict, repr=False)
    _entries: dict[Types, Entries] = field(default_factory=dict, repr=False)
    _plans: dict[Types, Plan] = field(default_factory=dict, repr=False)
    _columns: dict[Types, ColumnsProduct] = field(default_factory=dict, repr=False)
    _transposed: tuple[Operand, bool] | None = field(default=None, repr=False)
    # False once memory did not last to look at formats that are laid out anew.
    _has_room: bool = field(default=True, repr=False)
    _lock: Any = field(default_factory=make_lock, repr=False)

    @property
    def stats(self) -> RowStats:
        """Statistics of the rows."""
        return self.structure.rows

    def plan(self, storage: np.dtype[Any], compute: np.dtype[Any]) -> Plan:
        """Choose the format for values read as `storage` by products in `compute`. Synchronizes the first time."""
        found = self._plans.get((storage, compute))
        if found is None:
            with self._lock, self.device.active():
                found = self._plans.get((storage, compute))
                if found is None:
                    found = self._as_memory_lasts(partial(self._make_plan, storage, compute))
                    self._plans[storage, compute] = found
        return found

    def _as_memory_lasts(self, make: Callable[[], _Made]) -> _Made:
        """Do what may look at every format; where memory does not last for that, once more with CSR alone."""
        try:
            with self.device.memory_guard():
                return make()
        except MemoryError:
            if self._format != "auto" or not self._has_room:
                raise
        # (What the attempt held went with its error.)
        self._has_room = False
        self._plans.clear()
        self._entries.clear()
        self.structure.keep(find_format(names_of(reads_csr=True)[0]).pieces)
        with self.device.memory_guard():
            return make()

    def refusal(self) -> FormatError | None:
        """Return why the format that was asked for does not fit the matrix; None where it does. Synchronizes."""
        if self.request.format == "auto":
            return None
        usable = [format for format in choices(self.request.format) if self.device.kind in format.costs]
        if not usable:
            name, kind = self.request.format, self.device.kind
            return FormatError(f"{name} has no kernel for this kind of device ({kind}): leave the choice to 'auto'")
        with self._lock, self.device.active(), self.device.memory_guard():
            fits = any(format.fits(self.stats) and format.accepts(self.structure) for format in usable)
        return None if fits else usable[0].refusal()

    @cached_property
    def _format(self) -> str:
        """The format that was asked for, or "auto" where the matrix does not fit it. Synchronizes.

        The constructor of a matrix has refused a format that does not fit. Results of operations, which inherit the
        request, are left to "auto" instead.
        """
        return self.request.format if self.refusal() is None else "auto"

    def _make_plan(self, storage: np.dtype[Any], compute: np.dtype[Any]) -> Plan:
        request, examined = self.request, [format.name for format in choices(self._format)]
        storages = self._storages(examined, self._entries_of(storage, compute))
        plan = make_plan(
            self.stats,
            storages,
            device=self.device.name,
            lanes=self.device.lanes,
            model=self._model,
            value_bytes=compute.itemsize,
            format=self._format,
            threads_per_block=request.threads_per_block,
            expected_products=request.expected_products,
        )
        if not self._has_room:
            plan = replace(plan, reason=f"{plan.reason}; memory did not last for other formats")
        if self._is_to_be_timed:
            when = "in the first products" if request.tune == "lazy" else "at the first product"
            plan = replace(plan, reason=f"{plan.reason}; will be timed {when} (unless such a matrix was before)")
        return plan

    def _storages(self, wanted: list[str], entries: Entries) -> dict[str, Storage]:
        """Describe the formats for a plan, and look closely at those that may be chosen. Synchronizes."""
        if not self._leaves_choice:
            return entries.storages(wanted)
        if not self.request.compress:
            wanted = [name for name in wanted if not find_format(name).only_compressed]
        storages = entries.storages(wanted if self._is_worth_examining else ())
        in_place = names_of(reads_csr=True)
        return {
            name: storage
            for name, storage in storages.items()
            if name in wanted and (self._has_room or name in in_place)
        }

    @property
    def _leaves_choice(self) -> bool:
        return len(choices(self._format)) > 1

    @property
    def _is_to_be_timed(self) -> bool:
        request = self.request
        return bool(request.tune) and self._leaves_choice and request.expected_products >= _EXAMINE_PRODUCTS

    @property
    def _model(self) -> MachineModel:
        return MACHINE_MODELS[self.device.kind]

    @property
    def _is_worth_examining(self) -> bool:
        products = self.request.expected_products
        return self._has_room and products >= _EXAMINE_PRODUCTS and products * self.csr.nnz >= self._model.examination

    def _entries_of(self, storage: np.dtype[Any], compute: np.dtype[Any]) -> Entries:
        found = self._entries.get((storage, compute))
        if found is None:
            compress = self.request.compress and (not self._leaves_choice or self._is_worth_examining)
            found = Entries(self.structure, self.values_as(storage), compute, compress)
            self._entries[storage, compute] = found
        return found

    def values_as(self, storage: np.dtype[Any]) -> Csr:
        """Give the CSR arrays with values of dtype `storage`."""
        if self.csr.dtype == storage:
            return self.csr
        with self.device.memory_guard():
            return self.csr.with_data(self.csr.data.astype(storage))

    def product(self, storage: np.dtype[Any], compute: np.dtype[Any]) -> Product:
        """Give what products need, converted on the device when first asked for."""
        found = self._products.get((storage, compute))
        if found is None:
            with self._lock, self.device.active():
                found = self._products.get((storage, compute))
                if found is None:
                    found = self._as_memory_lasts(partial(self._build, storage, compute))
                    self._keep(found, storage, compute)
        return found

    def _build(self, storage: np.dtype[Any], compute: np.dtype[Any]) -> Product:
        plan = self.plan(storage, compute)
        if self._is_to_be_timed:
            found = self._tuned(plan, storage, compute)
        else:
            found = self._product_of(plan, storage, compute)
        del self._entries[storage, compute]  # what the chosen format does not need goes
        self.structure.keep(find_format(found.plan.format).pieces)
        # What was built on this stream may be read on any other from now on.
        self.device.synchronize()  # synchronizes
        return found

    def _product_of(self, plan: Plan, storage: np.dtype[Any], compute: np.dtype[Any]) -> Product:
        stored = self._entries_of(storage, compute).stored(plan.format)
        own = find_format(plan.format).kernels.get(self.device.kind)
        bind = kernels_of(self.device).SPMV[plan.format] if own is None else own
        multiply = bind(self.device, stored, compute, plan.launch)
        return Product(multiply, stored, plan, (compute.type(1), compute.type(0)))

    def _tuned(self, plan: Plan, storage: np.dtype[Any], compute: np.dtype[Any]) -> Product:
        """Let remembered times decide, else measure: now, or in the first products."""
        key = key_of(self.device, plan, (storage, compute))
        times = recall(key, [c.format for c in plan.candidates])
        if times is not None:
            plan = self._plans[storage, compute] = settle(plan, times, "measured before")
            return self._product_of(plan, storage, compute)
        names = worth_timing(plan, self.request.expected_products)
        products = {name: self._product_of(replace(plan, format=name), storage, compute) for name in names}

        def decide(times: dict[str, float]) -> None:
            remember(key, times)
            settled = self._plans[storage, compute] = settle(plan, times, "measured")
            self._keep(replace(products[settled.format], plan=settled), storage, compute)

        if self.request.tune == "lazy":
            multiply = LazyTuner(self.device, {n: p.multiply for n, p in products.items()}, decide)
            return replace(products[names[0]], multiply=multiply)
        x, y = (self.device.xp.ones(n, compute) for n in self.csr.shape[::-1])
        scalars = compute.type(1), compute.type(0), False
        decide({n: self.device.seconds_of(partial(p.multiply, x, y, *scalars)) for n, p in products.items()})
        return self._products[storage, compute]

    def _keep(self, product: Product, storage: np.dtype[Any], compute: np.dtype[Any]) -> None:
        self._products[storage, compute] = product
        if storage == compute == self.csr.dtype:
            self.own_product = product

    def columns(self, storage: np.dtype[Any], compute: np.dtype[Any]) -> ColumnsProduct:
        """Give what products with several columns need, made when first asked for."""
        found = self._columns.get((storage, compute))
        if found is None:
            with self._lock, self.device.active():
                found = self._as_memory_lasts(partial(self._build_columns, storage, compute))
                self._columns[storage, compute] = found
                if storage == compute == self.csr.dtype:
                    self.own_columns = found
        return found

    def _build_columns(self, storage: np.dtype[Any], compute: np.dtype[Any]) -> ColumnsProduct:
        stored, survey = self.columns_stored(storage, compute), self.structure.survey
        # (Does not hold this operand, which holds the product.)
        choose = partial(launch_for, self.stats, **self._panel_options(stored, compute))
        multiply = kernels_of(self.device).csr_spmm(self.device, stored, compute, choose, survey)
        self.device.synchronize()  # synchronizes: read on any stream from now on, as in `_build`
        return ColumnsProduct(multiply, stored, (compute.type(1), compute.type(0)))

    def columns_stored(self, storage: np.dtype[Any], compute: np.dtype[Any]) -> Csr | RowPattern:
        """Give what products with several columns read: CSR, or rows that share all entries once. Synchronizes."""
        reads_less = kernels_of(self.device).SPMM_READS_LESS and self.request.compress
        if reads_less and self._is_worth_examining and self.plan(storage, compute).format == ROW_PATTERN.name:
            stored = self.product(storage, compute).stored
            if isinstance(stored, RowPattern) and stored.pattern_values is not None:
                return stored
        csr = self.columns_csr(storage, compute)
        # (Asked again: there may have been no memory for patterns.)
        return csr.with_data(halved(self.device, csr.data)) if reads_less and self._is_worth_examining else csr

    def columns_csr(self, storage: np.dtype[Any], compute: np.dtype[Any]) -> Csr:
        """Give the CSR arrays that products with several columns may read."""
        # Real values are made complex once: they have few kernels to themselves, and X takes as many bytes.
        return self.values_as(np.result_type(storage, np.complex64) if compute.kind == "c" else storage)

    def columns_plan(self, panel: Panel, storage: np.dtype[Any], compute: np.dtype[Any]) -> ColumnsPlan:
        """Choose how an X like this is multiplied on a GPU. Synchronizes the first time."""
        stored = self.columns(storage, compute).stored
        return plan_columns(self.stats, panel, **self._panel_options(stored, compute))

    def _panel_options(self, stored: Csr | RowPattern, compute: np.dtype[Any]) -> dict[str, Any]:
        return {
            "lanes": self.device.lanes,
            "value_bytes": compute.itemsize,
            "values": str(stored.dtype),
            "num_patterns": stored.num_patterns if isinstance(stored, RowPattern) else 0,
        }

    def transposed(self) -> tuple[Operand, bool]:
        """Give the operand of the transposed matrix, and whether its values stand for their conjugates.

        A matrix that equals its transpose, or its conjugate transpose, is its own; any other has a transposed copy,
        made on the device when first asked for and kept.
        """
        if self._transposed is None:
            with self._lock, self.device.active(), self.device.memory_guard():
                if self._transposed is None:
                    self._transposed = self._transpose()
        return self._transposed

    def _transpose(self) -> tuple[Operand, bool]:
        symmetry = self.request.symmetric
        if symmetry is None and self.csr.shape[0] == self.csr.shape[1] and self.is_canonical:
            is_symmetric = partial(kernels_of(self.device).is_symmetric, self.device, self.csr)
            symmetry = is_symmetric(False) or (self.csr.dtype.kind == "c" and is_symmetric(True) and "hermitian")
        if symmetry:
            return self, symmetry == "hermitian"
        csr = kernels_of(self.device).csr_transpose(self.device, self.csr)
        source, structure = (csr.indptr, csr.indices, csr.data), Structure.of(self.device, csr)
        return Operand(self.device, csr, self.request, structure, source), False

    def with_data(self, data: Array, request: Request | None = None) -> Operand:
        """Give the operand of the same structure with other values (or another request); the structure is shared."""
        csr, source = with_values(self.csr, data), (*self.source[:2], data)
        return Operand(self.device, csr, request or self.request, self.structure, source)

    def release(self) -> None:
        """Drop what was built; it is made again when next needed."""
        with self._lock:
            kept: tuple[dict[Any, Any], ...] = (self._products, self._entries, self._plans, self._columns)
            for pieces in kept:
                pieces.clear()
            self.own_product = self.own_columns = self._transposed = None
            self.structure.keep(())
            self._has_room = True

    @property
    def is_canonical(self) -> bool:
        """Whether columns rise strictly within every row: sorted, no duplicates. Synchronizes."""
        with self.device.active(), self.device.memory_guard():
            return not self.structure.survey.num_unsorted


def make_operand(
    device: Device, shape: tuple[int, int], indptr: Array, indices: Array, data: Array, request: Request
) -> Operand:
    """Check CSR arrays on their device, once, and give their operand. Synchronizes.

    Raises
    ------
    StructureError
        Where the arrays do not describe a matrix of this shape.
    """
    with device.active(), device.memory_guard():
        source = (indptr, indices, data)
        indptr, indices = common_index_dtype(indptr, indices)
        if indptr.shape != (shape[0] + 1,) or indices.ndim != 1 or data.ndim != 1:
            refuse_arrays(device, shape, indptr, indices, data)
        survey = kernels_of(device).survey(device, indptr, indices, bool(kernels_of(device).CSR_CODES))  # synchronizes
        if not survey.describes(shape[1], min(indices.size, data.size)):
            refuse_arrays(device, shape, indptr, indices, data)
        # As in SciPy, arrays may have room for more entries than the row pointers speak of.
        csr = Csr(shape, indptr, indices[: survey.last], data[: survey.last])
        return Operand(device, csr, request, Structure.of(device, csr, survey), source)
