"""A matrix that is prepared for products: checked CSR arrays on a device, its plans, and the formats built from it.

The arrays of a `PreparedMatrix` never change. A matrix whose arrays have changed gets a new `PreparedMatrix`. If only
the values have changed, the new one shares the `Structure` of the old one: statistics, slices, encoded columns.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache, partial
from typing import Any, NamedTuple, TypeVar
from weakref import WeakMethod

import numpy as np

from gsparse.device.base import Device
from gsparse.device.dtypes import Array
from gsparse.device.locks import make_lock
from gsparse.errors import FormatError
from gsparse.formats import Csr, RowPattern, Stored
from gsparse.formats.launch import Launch, Panel
from gsparse.formats.registry import PLAIN, Encoding, Storage, choices, find_format, names_of
from gsparse.formats.row_pattern import ROW_PATTERN
from gsparse.formats.row_stats import RowStats
from gsparse.kernels.backends import kernels_of
from gsparse.plan.choice import Candidate, Plan, make_plan
from gsparse.plan.columns import ColumnsPlan, launch_for, plan_columns
from gsparse.plan.cost_model import MACHINE_MODELS, MachineModel
from gsparse.products.checks import common_index_dtype, refuse_arrays, with_values
from gsparse.products.options import MatrixOptions
from gsparse.products.storage import Entries, halve_precision
from gsparse.products.structure import Structure
from gsparse.products.tuning import (
    FirstProducts,
    LazyTuner,
    Timing,
    choose_measured,
    formats_to_time,
    key_of,
    measure,
    recall,
    remember,
)

__all__ = ["ColumnsProduct", "PreparedMatrix", "Product", "prepare_matrix"]

# Number of expected products from which on analyzing the matrix, or timing candidates, can pay.
_MIN_ANALYSIS_PRODUCTS = 50


@lru_cache
def _without_setup(options: MatrixOptions) -> MatrixOptions:
    """Return the options for the first products of a result. They are kept, because most results have the same."""
    return replace(options, expected_products=1)


@dataclass(frozen=True, eq=False)
class Product:
    """The bound kernel for vectors of one dtype, with the arrays that it reads.

    Attributes
    ----------
    multiply : callable
        ``multiply(x, y, alpha, beta, conjugate)``, as `gsparse.kernels.contract` describes it.
    format : str
        The name of the format.
    stored : Stored
        Its arrays.
    scalars : (scalar, scalar)
        One and zero in the compute dtype: alpha and beta of ``A @ x``.
    """

    multiply: Any
    format: str
    stored: Stored
    scalars: tuple[Any, Any]


_Result = TypeVar("_Result")


class ColumnsProduct(NamedTuple):
    """The bound kernel for several dense columns of one dtype, as in `Product`."""

    multiply: Any
    stored: Csr | RowPattern
    scalars: tuple[Any, Any]


# The dtype in which a product reads the values, and the dtype in which it computes.
Types = tuple[np.dtype[Any], np.dtype[Any]]


@dataclass(eq=False)
class PreparedMatrix:
    """CSR arrays on a device and everything that is derived from them, each part made when it is first needed.

    Parameters
    ----------
    device : Device
    csr : Csr
        The checked arrays.
    options : MatrixOptions
    structure : Structure
        The structure of these row pointers and columns. Prepared matrices that differ in their values only share it.
    source : (array, array, array)
        The indptr, indices and data from which this object was made. If a matrix still has these very arrays, this
        object is still valid for it.
    plain_product : Product, optional
        The product with vectors of the matrix's own dtype, after it has been built.
    plain_columns : ColumnsProduct, optional
        The product with several columns of this dtype, after it has been built.
    later_options : MatrixOptions, optional
        The options for the time after the first products. Until then, `options` ask for a format without set-up.
    """

    device: Device
    csr: Csr
    options: MatrixOptions
    structure: Structure
    source: tuple[Array, Array, Array]
    plain_product: Product | None = field(default=None, repr=False)
    plain_columns: ColumnsProduct | None = field(default=None, repr=False)
    later_options: MatrixOptions | None = None
    _products: dict[Types, Product] = field(default_factory=dict, repr=False)
    _entries: dict[Types, Entries] = field(default_factory=dict, repr=False)
    _plans: dict[Types, Plan] = field(default_factory=dict, repr=False)
    _columns: dict[Types, ColumnsProduct] = field(default_factory=dict, repr=False)
    _transposed: tuple[PreparedMatrix, bool] | None = field(default=None, repr=False)
    # Whether memory has sufficed so far. If not, only formats that read CSR's own arrays are candidates.
    _has_memory: bool = field(default=True, repr=False)
    _lock: Any = field(default_factory=make_lock, repr=False)

    @property
    def stats(self) -> RowStats:
        """Statistics of the rows."""
        return self.structure.rows

    def plan(self, storage: np.dtype[Any], compute: np.dtype[Any]) -> Plan:
        """Return the plan for values read as `storage` by products in `compute`. Synchronizes the first time."""
        plan = self._plans.get((storage, compute))
        if plan is None:
            with self._lock, self.device.active():
                plan = self._plans.get((storage, compute))
                if plan is None:
                    plan = self._retry_with_csr(partial(self._make_plan, storage, compute))
                    self._plans[storage, compute] = plan
        return plan

    def _retry_with_csr(self, make: Callable[[], _Result]) -> _Result:
        """Call a function that may try every format. If memory does not suffice, call it again with CSR alone."""
        try:
            with self.device.memory_guard():
                return make()
        except MemoryError:
            if self._format != "auto" or not self._has_memory:
                raise
        # Leaving the `except` block has dropped the traceback, and with it the arrays that it kept alive.
        self._has_memory = False
        self._plans.clear()
        self._entries.clear()
        self.structure.drop_pieces_except(find_format(names_of(reads_csr=True)[0]).pieces)
        with self.device.memory_guard():
            return make()

    def refusal(self) -> FormatError | None:
        """Return the error for a requested format that cannot store the matrix, or None. Synchronizes."""
        if self.options.format == "auto":
            return None
        usable = [format for format in choices(self.options.format) if self.device.kind in format.costs]
        if not usable:
            name, kind = self.options.format, self.device.kind
            return FormatError(f"{name} has no kernel for this kind of device ({kind}): leave the choice to 'auto'")
        with self._lock, self.device.active(), self.device.memory_guard():
            fits = any(format.fits(self.stats) and format.accepts(self.structure) for format in usable)
        return None if fits else usable[0].refusal()

    @cached_property
    def _format(self) -> str:
        """The requested format, or "auto" if it cannot store the matrix. Synchronizes.

        The constructor of a matrix refuses a requested format that cannot store it. The result of an operation inherits
        the request, and falls back to "auto" instead.
        """
        return self.options.format if self.refusal() is None else "auto"

    @property
    def _request(self) -> str:
        """The requested format. The first products of a result use one that needs no set-up. May synchronize."""
        first = "auto" if self.later_options is None else kernels_of(self.device).FIRST_FORMAT
        return self._format if first == "auto" else first

    def _make_plan(self, storage: np.dtype[Any], compute: np.dtype[Any]) -> Plan:
        options, request = self.options, self._request
        allowed = [format.name for format in choices(request)]
        storages = self._storages(allowed, self._entries_of(storage, compute))
        plan = make_plan(
            self.stats,
            storages,
            device=self.device.name,
            lanes=self.device.lanes,
            model=self._model,
            value_bytes=compute.itemsize,
            threads=self.device.num_threads,
            format=request,
            threads_per_block=options.threads_per_block,
            expected_products=options.expected_products,
        )
        if not self._has_memory:
            plan = replace(plan, reason=f"{plan.reason}; memory did not suffice for other formats")
        if self.later_options is not None:
            first = plan.reason if request == "auto" else "it needs no set-up"
            plan = replace(
                plan,
                reason=f"{first}; the matrix is the result of an operation, so formats that need a set-up are "
                f"considered after {_MIN_ANALYSIS_PRODUCTS} products, or when a solver begins",
            )
        if self._is_to_be_timed:
            when = "in the first products" if options.tune == "lazy" else "at the first product"
            plan = replace(plan, reason=f"{plan.reason}; will be timed {when} (unless its times are stored)")
        return plan

    def _storages(self, allowed: list[str], entries: Entries) -> dict[str, tuple[Storage, ...]]:
        """Describe how each candidate for a plan would store the matrix. Synchronizes."""
        if not self._leaves_choice:
            return entries.storages(allowed)
        if not self.options.compress:
            allowed = [name for name in allowed if not find_format(name).only_compressed]
        storages = entries.storages(allowed if self._is_worth_analyzing else ())
        in_place = names_of(reads_csr=True)
        return {
            name: storage
            for name, storage in storages.items()
            if name in allowed and (self._has_memory or name in in_place)
        }

    @property
    def _leaves_choice(self) -> bool:
        return len(choices(self._format)) > 1

    @property
    def _is_to_be_timed(self) -> bool:
        options = self.options
        return bool(options.tune) and self._leaves_choice and options.expected_products >= _MIN_ANALYSIS_PRODUCTS

    @property
    def _model(self) -> MachineModel:
        return MACHINE_MODELS[self.device.kind]

    @property
    def _is_worth_analyzing(self) -> bool:
        products = self.options.expected_products
        work = products * self.csr.nnz
        return self._has_memory and products >= _MIN_ANALYSIS_PRODUCTS and work >= self._model.min_analysis_work

    def _entries_of(self, storage: np.dtype[Any], compute: np.dtype[Any]) -> Entries:
        entries = self._entries.get((storage, compute))
        if entries is None:
            compresses = not self._leaves_choice or self._is_worth_analyzing
            encoding = self.options.encoding if compresses else PLAIN
            entries = Entries(self.structure, self.values_as(storage), compute, encoding)
            self._entries[storage, compute] = entries
        return entries

    def values_as(self, storage: np.dtype[Any]) -> Csr:
        """Return the CSR arrays with values of dtype `storage`."""
        if self.csr.dtype == storage:
            return self.csr
        with self.device.memory_guard():
            return self.csr.with_data(self.csr.data.astype(storage))

    def product(self, storage: np.dtype[Any], compute: np.dtype[Any]) -> Product:
        """Return the product for these dtypes. The first call builds it on the device, and synchronizes."""
        product = self._products.get((storage, compute))
        if product is None:
            with self._lock, self.device.active():
                product = self._products.get((storage, compute))
                if product is None:
                    product = self._retry_with_csr(partial(self._build, storage, compute))
                    self._set_product(product, storage, compute)
        return product

    def _build(self, storage: np.dtype[Any], compute: np.dtype[Any]) -> Product:
        if self.later_options is not None and self._request != "auto":  # The rows need not be examined.
            launch = Launch(self.options.threads_per_block)
            product = self._product_of(self._request, launch, PLAIN, storage, compute)
        else:
            product = self._planned_product(self.plan(storage, compute), storage, compute)
        if self.later_options is not None:
            first = FirstProducts(product.multiply, _MIN_ANALYSIS_PRODUCTS, WeakMethod(self.plan_for_many_products))
            product = replace(product, multiply=first)
        # Free what the chosen format does not need.
        del self._entries[storage, compute]
        self.structure.drop_pieces_except(find_format(product.format).pieces)
        # From now on, kernels on any stream may read the arrays that were built on this stream.
        self.device.synchronize()  # synchronizes
        return product

    def _product_of(
        self, format: str, launch: Launch, encoding: Encoding, storage: np.dtype[Any], compute: np.dtype[Any]
    ) -> Product:
        stored = self._entries_of(storage, compute).encoded(encoding).stored(format)
        own_kernel = find_format(format).kernels.get(self.device.kind)
        bind = kernels_of(self.device).SPMV[format] if own_kernel is None else own_kernel
        multiply = bind(self.device, stored, compute, launch)
        return Product(multiply, format, stored, (compute.type(1), compute.type(0)))

    def _candidate_product(self, candidate: Candidate, storage: np.dtype[Any], compute: np.dtype[Any]) -> Product:
        return self._product_of(candidate.format, candidate.launch, candidate.storage.encoding, storage, compute)

    def _planned_product(self, plan: Plan, storage: np.dtype[Any], compute: np.dtype[Any]) -> Product:
        """Build the product that a plan chooses, or that times decide on: remembered, measured now, or by and by."""
        if not self._is_to_be_timed:
            return self._candidate_product(plan.chosen, storage, compute)
        key = key_of(self.device, plan, (storage, compute))
        times = recall(key, [c.format for c in plan.candidates])
        if times is not None:
            plan = self._plans[storage, compute] = choose_measured(plan, times, "measured before")
            return self._candidate_product(plan.chosen, storage, compute)
        names = formats_to_time(plan, self.options.expected_products)
        candidates = {c.format: c for c in plan.candidates}
        products = {name: self._candidate_product(candidates[name], storage, compute) for name in names}

        def decide(times: dict[str, Timing]) -> None:
            remember(key, times)
            final_plan = self._plans[storage, compute] = choose_measured(plan, times, "measured")
            self._set_product(products[final_plan.format], storage, compute)

        if self.options.tune == "lazy":
            multiply = LazyTuner(self.device, {n: p.multiply for n, p in products.items()}, decide)
            return replace(products[names[0]], multiply=multiply)
        x, y = (self.device.xp.ones(n, compute) for n in self.csr.shape[::-1])
        scalars = compute.type(1), compute.type(0), False
        decide(measure(self.device, {n: partial(p.multiply, x, y, *scalars) for n, p in products.items()}))
        return self._products[storage, compute]

    def _set_product(self, product: Product, storage: np.dtype[Any], compute: np.dtype[Any]) -> None:
        self._products[storage, compute] = product
        if storage == compute == self.csr.dtype:
            self.plain_product = product

    def columns(self, storage: np.dtype[Any], compute: np.dtype[Any]) -> ColumnsProduct:
        """Return the product with several columns for these dtypes. The first call builds it, and synchronizes."""
        product = self._columns.get((storage, compute))
        if product is None:
            with self._lock, self.device.active():
                product = self._retry_with_csr(partial(self._build_columns, storage, compute))
                self._columns[storage, compute] = product
                if storage == compute == self.csr.dtype:
                    self.plain_columns = product
        return product

    def _build_columns(self, storage: np.dtype[Any], compute: np.dtype[Any]) -> ColumnsProduct:
        stored, survey = self.columns_stored(storage, compute), self.structure.survey
        # `choose` must not refer to this object, which refers to the product: that would be a reference cycle.
        choose = partial(launch_for, self.stats, **self._panel_options(stored, compute))
        multiply = kernels_of(self.device).csr_spmm(self.device, stored, compute, choose, survey)
        self.device.synchronize()  # synchronizes: from now on, kernels on any stream may read the arrays.
        return ColumnsProduct(multiply, stored, (compute.type(1), compute.type(0)))

    def columns_stored(self, storage: np.dtype[Any], compute: np.dtype[Any]) -> Csr | RowPattern:
        """Return what products with several columns read: CSR, or row patterns that share values. Synchronizes."""
        reads_less = kernels_of(self.device).SPMM_READS_LESS and self.options.compress
        if reads_less and self._is_worth_analyzing and self.plan(storage, compute).format == ROW_PATTERN.name:
            stored = self.product(storage, compute).stored
            if isinstance(stored, RowPattern) and stored.pattern_values is not None:
                return stored
        csr = self._columns_csr(storage, compute)
        # `_is_worth_analyzing` may have changed, if memory did not suffice for the patterns.
        return csr.with_data(halve_precision(self.device, csr.data)) if reads_less and self._is_worth_analyzing else csr

    def _columns_csr(self, storage: np.dtype[Any], compute: np.dtype[Any]) -> Csr:
        """Return the CSR arrays for products with several columns. If X is complex, their values are complex too.

        Kernels for real values and a complex X would be a quarter of all instantiations, and would read as many bytes
        of X.
        """
        return self.values_as(np.result_type(storage, np.complex64) if compute.kind == "c" else storage)

    def columns_plan(self, panel: Panel, storage: np.dtype[Any], compute: np.dtype[Any]) -> ColumnsPlan:
        """Choose the launch on a GPU for an X with this layout. Synchronizes the first time."""
        stored = self.columns(storage, compute).stored
        return plan_columns(self.stats, panel, **self._panel_options(stored, compute))

    def _panel_options(self, stored: Csr | RowPattern, compute: np.dtype[Any]) -> dict[str, Any]:
        return {
            "lanes": self.device.lanes,
            "value_bytes": compute.itemsize,
            "values": str(stored.dtype),
            "num_patterns": stored.num_patterns if isinstance(stored, RowPattern) else 0,
        }

    def transposed(self) -> tuple[PreparedMatrix, bool]:
        """Return the prepared transposed matrix, and whether products must conjugate its values.

        For a symmetric or Hermitian matrix this is the object itself. For any other matrix, the first call makes a
        transposed copy on the device, which is kept.
        """
        if self._transposed is None:
            with self._lock, self.device.active(), self.device.memory_guard():
                if self._transposed is None:
                    self._transposed = self._transpose()
        return self._transposed

    def _transpose(self) -> tuple[PreparedMatrix, bool]:
        symmetry = self.options.symmetric
        if symmetry is None and self.csr.shape[0] == self.csr.shape[1] and self.is_canonical:
            is_symmetric = partial(kernels_of(self.device).is_symmetric, self.device, self.csr)
            symmetry = is_symmetric(False) or (self.csr.dtype.kind == "c" and is_symmetric(True) and "hermitian")
        if symmetry:
            return self, symmetry == "hermitian"
        csr = kernels_of(self.device).csr_transpose(self.device, self.csr)
        if self.later_options is not None:
            return PreparedMatrix.of_result(self.device, csr, self.later_options), False
        source, structure = (csr.indptr, csr.indices, csr.data), Structure.of(self.device, csr)
        return PreparedMatrix(self.device, csr, self.options, structure, source), False

    def with_data(self, data: Array, options: MatrixOptions | None = None) -> PreparedMatrix:
        """Return a prepared matrix that shares the structure and has other values (and options, if they are passed)."""
        csr, source = with_values(self.csr, data), (*self.source[:2], data)
        if self.later_options is not None:
            return PreparedMatrix.of_result(self.device, csr, options or self.later_options, self.structure, source)
        return PreparedMatrix(self.device, csr, options or self.options, self.structure, source)

    @classmethod
    def of_result(
        cls,
        device: Device,
        csr: Csr,
        options: MatrixOptions,
        structure: Structure | None = None,
        source: tuple[Array, Array, Array] | None = None,
    ) -> PreparedMatrix:
        """Prepare the result of an operation, which is often multiplied only a few times, if at all.

        Nothing is examined before the first product. The first products use a format without set-up, unless the options
        name a format, ask for measurements, or expect few products anyway.
        """
        structure = structure or Structure.of(device, csr)
        source = source or (csr.indptr, csr.indices, csr.data)
        if options.format != "auto" or options.tune or options.expected_products < _MIN_ANALYSIS_PRODUCTS:
            return cls(device, csr, options, structure, source)
        return cls(device, csr, _without_setup(options), structure, source, later_options=options)

    def plan_for_many_products(self) -> None:
        """Choose the format again, with the options for the time after the first products, at the next product."""
        if self.later_options is None:
            return
        with self._lock:
            if self.later_options is not None:
                self.options, self.later_options = self.later_options, None
                self._forget()

    def _forget(self) -> None:
        caches: tuple[dict[Any, Any], ...] = (self._products, self._entries, self._plans, self._columns)
        for cache in caches:
            cache.clear()
        self.plain_product = self.plain_columns = None

    def release(self) -> None:
        """Free everything that was built from the CSR arrays. It is made again when it is next needed."""
        with self._lock:
            self._forget()
            self._transposed = None
            self.structure.drop_pieces_except(())
            self._has_memory = True

    @property
    def is_canonical(self) -> bool:
        """Whether the columns of every row are sorted and without duplicates. Synchronizes."""
        with self.device.active(), self.device.memory_guard():
            return self.csr.is_canonical or not self.structure.survey.num_unsorted


def prepare_matrix(
    device: Device, shape: tuple[int, int], indptr: Array, indices: Array, data: Array, options: MatrixOptions
) -> PreparedMatrix:
    """Check CSR arrays on their device, once, and return the prepared matrix. Synchronizes.

    Raises
    ------
    StructureError
        If the arrays do not describe a matrix of this shape.
    """
    with device.active(), device.memory_guard():
        source = (indptr, indices, data)
        indptr, indices = common_index_dtype(indptr, indices)
        if indptr.shape != (shape[0] + 1,) or indices.ndim != 1 or data.ndim != 1:
            refuse_arrays(device, shape, indptr, indices, data)
        survey = kernels_of(device).survey(device, indptr, indices, bool(kernels_of(device).CSR_CODES))  # synchronizes
        if not survey.describes(shape[1], min(indices.size, data.size)):
            refuse_arrays(device, shape, indptr, indices, data)
        # As in SciPy, the arrays may be longer than the last row pointer says.
        indices, data = indices[: survey.last], data[: survey.last]
        csr = Csr(shape, indptr, indices, data, not survey.num_unsorted, survey.max_length)
        return PreparedMatrix(device, csr, options, Structure.of(device, csr, survey), source)
