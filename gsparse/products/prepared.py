"""A matrix that is prepared for products: checked CSR arrays on a device, and the products that were made from them.

    PreparedMatrix --+--> Planner         chooses a format (planning.py)
                     +--> build_...       store the matrix in the format, and bind the product (building.py)
                     +--> FormatCache     the plans, preparations and products, by dtypes (building.py)
                     +--> Structure       everything that depends on row pointers and columns only (structure.py)

The arrays of a `PreparedMatrix` never change. A matrix whose arrays have changed gets a new `PreparedMatrix`. If only
the values have changed, the new object shares the `Structure` of the old one: statistics, slices, encoded columns.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, TypeVar
from weakref import WeakMethod, ref

import numpy as np

from gsparse.device.base import Device
from gsparse.device.dtypes import COMPUTE_DTYPES, Array
from gsparse.device.locks import made_once, make_lock
from gsparse.errors import FormatError
from gsparse.formats import Bsr, Csr, RowPattern
from gsparse.formats.launch import Panel
from gsparse.formats.registry import choices, find_format, names_of
from gsparse.formats.row_stats import RowStats
from gsparse.kernels.backends import kernels_of
from gsparse.plan.choice import Plan
from gsparse.plan.columns import ColumnsPlan
from gsparse.products.building import (
    CountedProduct,
    FormatCache,
    Product,
    Types,
    blocks_for_columns,
    build_columns,
    build_first,
    build_planned,
    can_multiply_columns,
    may_read_other_formats,
    plan_of_columns,
    values_as,
)
from gsparse.products.checks import with_values
from gsparse.products.planning import MIN_ANALYSIS_PRODUCTS, MatrixOptions, Planner
from gsparse.products.storage import MatrixPreparation, halve_precision
from gsparse.products.structure import SparsityPattern, Structure
from gsparse.products.transposing import MAX_BY_COLUMNS, ByColumns, find_symmetry, transpose_arrays
from gsparse.products.tuning import call_if_alive

_Result = TypeVar("_Result")
# A thread holds this lock while a new matrix gets its first product, and while a matrix stops being new.
_first = make_lock()


@dataclass(eq=False)
class PreparedMatrix:
    """CSR arrays on a device and everything that is derived from them, each part made when it is first needed.

    Parameters
    ----------
    device : Device
    csr : Csr
        The checked arrays.
    options : MatrixOptions
    known_structure : Structure or None
        The structure of these row pointers and columns, if it is known. Matrices that differ in their values share it.
    source : (array, array, array)
        The indptr, indices and data from which this object was made. If a matrix still has these very arrays, this
        object is still valid for it.
    on_loan : bool, optional
        Whether the user holds an array of the matrix and may write to it before the next product. Then a conversion to
        another format would serve one product only.
    is_new : bool, optional
        Whether the first products use a format without set-up, because few products may follow: the matrix is the
        result of an operation, or was made on a CPU.
    is_result : bool, optional
        Whether the matrix is the result of an operation, or got other values. If neither, it stops being new when its
        plan is requested.
    transpose : Csr, optional
        The arrays of the matrix of which this is the transposed copy.
    plain_product : Product, optional
        The product with vectors of the matrix's own dtype, after it has been built.
    plain_columns : Product, optional
        The product with several columns of this dtype, after it has been built.
    """

    device: Device
    csr: Csr
    options: MatrixOptions
    known_structure: Structure | None
    source: tuple[Array, Array, Array]
    on_loan: bool = False
    is_new: bool = False
    is_result: bool = False
    transpose: Csr | None = None
    plain_product: Product | None = field(default=None, repr=False)
    plain_columns: Product | None = field(default=None, repr=False)
    # The transposed matrix (None: this one, which avoids a reference cycle), and whether products conjugate its values.
    _transposed: tuple[PreparedMatrix | None, bool] | None = field(default=None, repr=False)
    _num_by_columns: int = field(default=0, repr=False)
    # The transposed arrays, if a conversion needed them before `transposed`, which then uses them.
    _transposed_csr: Csr | None = field(default=None, repr=False)
    # False after memory did not suffice for a format: then only formats that read CSR's own arrays are candidates.
    _has_memory: bool = field(default=True, repr=False)

    @made_once
    def _formats(self) -> FormatCache:
        """The plans and products. They are made late because most results of operations are never multiplied."""
        return FormatCache(self.device)

    @classmethod
    def of_result(
        cls,
        device: Device,
        csr: Csr,
        options: MatrixOptions,
        structure: Structure | None = None,
        source: tuple[Array, Array, Array] | None = None,
    ) -> PreparedMatrix:
        """Prepare the result of an operation without examining it. Most results are multiplied rarely or never."""
        source = source or (csr.indptr, csr.indices, csr.data)
        return cls(device, csr, options, structure, source, is_new=options.may_be_planned_later, is_result=True)

    def with_data(self, data: Array, options: MatrixOptions, *, on_loan: bool = False) -> PreparedMatrix:
        """Return a prepared matrix with the same structure, and with other values and options."""
        csr, source = with_values(self.csr, data), (*self.source[:2], data)
        if on_loan:
            return PreparedMatrix(self.device, csr, options, self.structure, source, on_loan)
        return PreparedMatrix.of_result(self.device, csr, options, self.structure, source)

    @made_once
    def structure(self) -> Structure:
        """The structure of these row pointers and columns."""
        return self.known_structure or Structure(SparsityPattern(self.device, self.csr))

    @property
    def is_converted(self) -> bool:
        """Whether a format or the transpose has been built. The first products of a new matrix build nothing."""
        has_format = not self.is_new and bool(self._formats.products or self._formats.columns)
        return has_format or self._transposed is not None or self._transposed_csr is not None

    @property
    def stats(self) -> RowStats:
        """Statistics of the row lengths."""
        return self.structure.sparsity.rows

    @property
    def is_canonical(self) -> bool:
        """Whether the columns of every row are sorted and without duplicates. Synchronizes."""
        with self.device.active(), self.device.memory_guard():
            return self.csr.is_canonical or not self.structure.sparsity.survey.num_unsorted

    # ------------------------------------------------------------------------------------------------------ the choice

    def refusal(self) -> FormatError | None:
        """Return the error for a requested format that cannot store the matrix, or None. Synchronizes."""
        if self.options.format == "auto":
            return None
        usable = [format for format in choices(self.options.format) if self.device.kind in format.costs]
        if not usable:
            name, kind = self.options.format, self.device.kind
            return FormatError(f"{name} has no kernel for this kind of device ({kind}): leave the choice to 'auto'")
        with self._formats.lock, self.device.active(), self.device.memory_guard():
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
    def _planner(self) -> Planner:
        """A planner for the current state of this matrix. May synchronize."""
        return Planner(self.structure, self.options, self._format, self.is_new, self.on_loan, self._has_memory)

    def plan(self, storage: np.dtype[Any], compute: np.dtype[Any]) -> Plan:
        """Return the plan to read values as `storage` and compute in `compute`. Synchronizes the first time."""
        make = partial(self._retry_with_csr, partial(self._make_plan, storage, compute))
        return self._formats.find_or_make(self._formats.plans, (storage, compute), make)

    def _make_plan(self, storage: np.dtype[Any], compute: np.dtype[Any]) -> Plan:
        return self._planner.plan(self._preparation(storage, compute), compute)

    def plan_for_many_products(self) -> None:
        """Stop treating the matrix as new, so that its next product chooses a format for many products."""
        if not self.is_new:
            return
        with self._formats.lock, _first:
            if self.is_new:
                self.is_new = False
                self._forget()

    def columns_plan(self, panel: Panel, storage: np.dtype[Any], compute: np.dtype[Any]) -> ColumnsPlan:
        """Choose the GPU launch of a product whose X has the layout `panel`. Synchronizes the first time."""
        return plan_of_columns(self.structure.sparsity, self.columns(storage, compute).stored, compute, panel)

    # ---------------------------------------------------------------------------------------------------- the products

    def product(self, storage: np.dtype[Any], compute: np.dtype[Any]) -> Product:
        """Return the product for these dtypes. The first call builds it on the device, and synchronizes."""
        formats, types = self._formats, (storage, compute)
        product = formats.products.get(types)
        if product is None and types == 2 * (self.csr.dtype,):
            product = self.plain_product
        if product is None:
            make = partial(self._retry_with_csr, partial(self._build, *types))
            with formats.lock:
                product = formats.find_or_make(formats.products, types, make)
                self._set_product(product, types)
        return product

    def own_product(self) -> Product | None:
        """Return the product with vectors of the matrix's dtype, or None if no kernel computes in this dtype."""
        dtype = self.csr.dtype
        if dtype not in COMPUTE_DTYPES:
            return None
        if not self.is_new:
            return self.product(dtype, dtype)
        if self.plain_product is None:
            with self.device.memory_guard():
                product = self._build_first(dtype, dtype)
            with _first:
                if self.is_new and self.plain_product is None:
                    self.plain_product = product
        return self.plain_product

    def _build(self, storage: np.dtype[Any], compute: np.dtype[Any]) -> Product:
        if self.is_new:
            return self._build_first(storage, compute)
        plan = self.plan(storage, compute)
        adopt = partial(call_if_alive, WeakMethod(self._adopt_plan), (storage, compute))
        product = build_planned(self._planner, plan, self._preparation(storage, compute), adopt)
        # Free what the chosen format does not need.
        del self._formats.preparations[storage, compute]
        self.structure.release_parts_except(find_format(product.format).parts)
        # From now on, kernels on any stream may read the arrays that were built on this stream.
        self.device.synchronize()  # synchronizes
        return product

    def _build_first(self, storage: np.dtype[Any], compute: np.dtype[Any]) -> Product:
        """Bind a product that reads CSR as it is, and asks for a plan after some calls."""
        csr, threads_per_block = values_as(self.csr, storage), self.options.threads_per_block
        return build_first(self.device, csr, compute, threads_per_block, ref(self))

    def _adopt_plan(self, types: Types, plan: Plan, product: Product | None) -> None:
        """Store a plan that measured times have chosen, and its product if it is not None."""
        self._formats.plans[types] = plan
        if product is not None:
            self._set_product(product, types)

    def _set_product(self, product: Product, types: Types) -> None:
        self._formats.products[types] = product
        if types == 2 * (self.csr.dtype,):
            self.plain_product = product

    def columns(self, storage: np.dtype[Any], compute: np.dtype[Any]) -> Product:
        """Return the product with several columns for these dtypes. The first call builds it, and synchronizes."""
        formats, types = self._formats, (storage, compute)
        product = formats.columns.get(types)
        if product is None:
            make = partial(self._retry_with_csr, partial(self._build_columns, *types))
            with formats.lock:
                product = formats.find_or_make(formats.columns, types, make)
                if types == 2 * (self.csr.dtype,):
                    self.plain_columns = product
        return product

    def by_columns(self, storage: np.dtype[Any]) -> ByColumns | None:
        """Return a product with the transpose that reads this matrix by columns, or None.

        If the result is None, the caller must transpose the arrays, which pays after some products. `storage` is the
        dtype in which values are read.
        """
        options = self.options
        has_arrays = self._transposed is not None or self.structure.known_transposition is not None
        if has_arrays or storage != self.csr.dtype or options.symmetric or options.format != "auto" or options.tune:
            return None
        multiply = kernels_of(self.device).spmm.TRANSPOSED_PRODUCT
        if multiply is None or self._num_by_columns == MAX_BY_COLUMNS:
            return None
        self._num_by_columns += 1
        return ByColumns(self.device, self.csr, multiply)

    def _build_columns(self, storage: np.dtype[Any], compute: np.dtype[Any]) -> Product:
        product = build_columns(self.structure.sparsity, self.columns_stored(storage, compute), compute, self.transpose)
        self.device.synchronize()  # synchronizes: from now on, kernels on any stream may read the arrays.
        if not self.is_new:
            return product
        return replace(product, multiply=CountedProduct(product.multiply, MIN_ANALYSIS_PRODUCTS, ref(self)))

    def columns_stored(self, storage: np.dtype[Any], compute: np.dtype[Any]) -> Csr | RowPattern | Bsr:
        """Return the arrays that products with several columns read. Synchronizes."""
        kernels, planner = kernels_of(self.device), self._planner
        is_planned = planner.is_worth_analyzing or not planner.leaves_choice
        plan = self.plan(storage, compute) if is_planned and may_read_other_formats(self.structure) else None
        stored: Any = None
        if plan is not None and plan.format in kernels.spmm.FORMATS:
            stored = self.product(storage, compute).stored
            stored = stored if can_multiply_columns(stored, compute) else None
        if isinstance(stored, Bsr):
            return stored
        reads_less = kernels.spmm.READS_HALVES and self.options.encoding.values
        # Kernels for real values and a complex X would be a quarter of all instantiations, and would read as many bytes
        # of X. So if X is complex, the values are made complex too.
        csr = values_as(self.csr, np.result_type(storage, np.complex64) if compute.kind == "c" else storage)
        # Ask again, because the answer has changed if memory did not suffice for the row patterns.
        is_worth_analyzing = self._planner.is_worth_analyzing
        if reads_less and is_worth_analyzing and stored is None:
            csr = csr.with_data(halve_precision(self.device, csr.data))
        other: Csr | RowPattern = csr if stored is None else stored
        blocks = blocks_for_columns(planner, plan, csr, other, compute) if plan and is_worth_analyzing else None
        return other if blocks is None else blocks

    def _preparation(self, storage: np.dtype[Any], compute: np.dtype[Any]) -> MatrixPreparation:
        preparation = self._formats.preparations.get((storage, compute))
        if preparation is None:
            csr = values_as(self.csr, storage)
            preparation = MatrixPreparation(self.structure, csr, compute, self._planner.encoding)
            self._formats.preparations[storage, compute] = preparation
        return preparation

    # ------------------------------------------------------------------------------------------------------- the cache

    def _retry_with_csr(self, make: Callable[[], _Result]) -> _Result:
        """Call `make`, which may try every format. If memory does not suffice, call it again with CSR alone."""
        try:
            with self.device.memory_guard():
                return make()
        except MemoryError:
            if self._format != "auto" or not self._has_memory:
                raise
        # Leaving the `except` block has dropped the traceback, and with it the arrays that it kept alive.
        self._has_memory = False
        self._formats.forget_plans()
        self.structure.release_parts_except(find_format(names_of(reads_csr=True)[0]).parts)
        with self.device.memory_guard():
            return make()

    def _forget(self) -> None:
        self._formats.forget()
        self.plain_product = self.plain_columns = None

    def release(self) -> None:
        """Free everything that was built from the CSR arrays. The next product builds it again."""
        with self._formats.lock:
            self._forget()
            self._transposed = self._transposed_csr = None
            self.structure.release()
            self._has_memory = True

    # --------------------------------------------------------------------------------------------------- the transpose

    def transposed(self) -> tuple[PreparedMatrix, bool]:
        """Return the prepared transposed matrix, and whether products must conjugate its values.

        For a symmetric or Hermitian matrix, the result is this object itself; otherwise a copy on the device, which is
        kept.
        """
        if self._transposed is None:
            with self._formats.lock, self.device.active(), self.device.memory_guard():
                if self._transposed is None:
                    self._transposed = self._transpose()
        prepared, conjugated = self._transposed
        return (self if prepared is None else prepared), conjugated

    def _transpose(self) -> tuple[PreparedMatrix | None, bool]:
        """Return the prepared transpose (None: this matrix), and whether products must conjugate its values."""
        device, symmetry = self.device, self.options.symmetric
        if symmetry is None and self.csr.shape[0] == self.csr.shape[1] and self.is_canonical:
            symmetry = find_symmetry(device, self.csr)  # synchronizes
        if symmetry:  # Only complex values have a conjugate: a matrix that is declared Hermitian may be real.
            return None, symmetry == "hermitian" and self.csr.dtype.kind == "c"
        csr, structure = transpose_arrays(self.structure, self.csr, self._transposed_csr)
        self._transposed_csr = None
        source, flags = (csr.indptr, csr.indices, csr.data), (self.on_loan, self.is_new, self.is_result)
        return PreparedMatrix(device, csr, self.options, structure, source, *flags, self.csr), False

    def transposed_csr(self) -> tuple[Csr, bool]:
        """Return the transposed arrays, which are kept, and whether their values are still to be conjugated.

        Conversions call this. It does not test the matrix for symmetry, because that pays only for products.
        """
        if self._transposed is None and self.options.symmetric is None:
            with self._formats.lock, self.device.active(), self.device.memory_guard():
                if self._transposed is None:
                    if self._transposed_csr is None:
                        self._transposed_csr = kernels_of(self.device).transpose.csr_transpose(self.device, self.csr)
                    return self._transposed_csr, False
        prepared, conjugated = self.transposed()
        return prepared.csr, conjugated
