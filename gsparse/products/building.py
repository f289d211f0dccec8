"""The products of a matrix: the arrays that they read (a stored format, or CSR), with a bound kernel.

The functions of this module get everything as arguments and store nothing. `gsparse.products.prepared` keeps the
results in a `FormatCache`.

Products with several columns read CSR, row patterns that share values, or dense blocks. Blocks may be stored for these
products alone, beside the format that products with a vector read. They then take about as much memory as the values in
CSR.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, partial
from typing import Any, TypeGuard, TypeVar

import numpy as np

from gsparse.device.base import Device
from gsparse.device.dtypes import Array
from gsparse.device.locks import make_lock
from gsparse.formats import Bsr, Csr, RowPattern
from gsparse.formats.launch import Launch, Panel
from gsparse.formats.registry import Encoding, find_format
from gsparse.kernels.backends import kernels_of
from gsparse.plan.choice import Candidate, Plan
from gsparse.plan.columns import ColumnsPlan, launch_for, plan_columns, seconds_per_columns
from gsparse.plan.cost_model import MACHINE_MODELS
from gsparse.products.bsr import BSR, DenseBlocks
from gsparse.products.csr import CSR_SCALAR, CsrRows
from gsparse.products.planning import MIN_ANALYSIS_PRODUCTS, Planner
from gsparse.products.row_pattern import ROW_PATTERN
from gsparse.products.storage import MatrixPreparation
from gsparse.products.structure import SparsityPattern, Structure
from gsparse.products.tuning import (
    LazyTuner,
    Timing,
    choose_measured,
    formats_to_time,
    key_of,
    measure,
    recall,
    remember,
)
from gsparse.profiling import recording

# Largest number of bytes of a block's column.
_COLUMN_BYTES = 4

_Result = TypeVar("_Result")
# The dtype in which a product reads the values, and the dtype in which it computes.
Types = tuple[np.dtype[Any], np.dtype[Any]]


@dataclass(eq=False)
class Product:
    """A kernel bound to the arrays that it reads, for a vector or for several dense columns of one dtype.

    Attributes
    ----------
    multiply : callable
        ``multiply(x, y, alpha, beta, conjugate)``, as `gsparse.kernels.contract` describes it.
    format : str
        The name of the format, as in `gsparse.FORMATS`. For several columns it has no schedule: "csr".
    stored : StoredMatrix or Csr
        The arrays that the kernel reads.
    scalars : (scalar, scalar)
        One and zero in the compute dtype: alpha and beta of ``A @ x``.
    """

    multiply: Any
    format: str
    stored: Any
    scalars: tuple[Any, Any]

    @cached_property
    def nbytes(self) -> int:
        """Bytes of the stored arrays. Every product reads all of them."""
        return int(self.stored.nbytes)


@dataclass(eq=False)
class FormatCache:
    """The plans and products of a matrix. Each item is complete when it is stored.

    Attributes
    ----------
    device : Device
    lock : reentrant lock
        A thread holds the lock while it makes an item.
    plans, preparations, products, columns : dict
        Items by (storage dtype, compute dtype). A preparation is kept until the product with a vector is built.
    """

    device: Device
    lock: Any = field(default_factory=make_lock)
    plans: dict[Types, Plan] = field(default_factory=dict)
    preparations: dict[Types, MatrixPreparation] = field(default_factory=dict)
    products: dict[Types, Product] = field(default_factory=dict)
    columns: dict[Types, Product] = field(default_factory=dict)

    def find_or_make(self, items: dict[Types, _Result], types: Types, make: Callable[[], _Result]) -> _Result:
        """Return the item for these dtypes from one of the dictionaries.

        If the item is missing, one thread makes it with `make`, while the device is the current one.
        """
        item = items.get(types)
        if item is None:
            with self.lock, self.device.active():
                item = items.get(types)
                if item is None:
                    item = items[types] = self._recorded(items, make)()
        return item

    def _recorded(self, items: dict[Types, _Result], make: Callable[[], _Result]) -> Callable[[], _Result]:
        """Return `make`, which an open profile records as set-up."""
        if recording.recorder is None:
            return make
        is_plan: bool = items is self.plans
        return recording.timed(make, "set-up", "choose a format" if is_plan else "store a format", self.device)

    def forget_plans(self) -> None:
        """Drop the plans and preparations, but keep the products."""
        self.plans.clear()
        self.preparations.clear()

    def forget(self) -> None:
        """Drop everything."""
        self.forget_plans()
        self.products.clear()
        self.columns.clear()


def values_as(csr: Csr, storage: np.dtype[Any]) -> Csr:
    """Return CSR arrays with values of dtype `storage`; `csr` itself if its values already have this dtype."""
    return csr if csr.dtype == storage else csr.with_data(csr.data.astype(storage))


def build_product(preparation: MatrixPreparation, format: str, launch: Launch, encoding: Encoding) -> Product:
    """Store a matrix in a format, and bind the product. Synchronizes."""
    device, compute = preparation.sparsity.device, preparation.compute
    stored = preparation.encoded(encoding).stored(format)
    own_kernel = find_format(format).kernels.get(device.kind)
    bind = kernels_of(device).spmv.PRODUCTS[format] if own_kernel is None else own_kernel
    multiply = bind(device, stored, compute, launch)
    return Product(multiply, format, stored, one_and_zero(compute))


class CountedProduct:
    """A product of a new matrix that counts its calls. After many calls, it lets the matrix choose a format.

    A product with several columns counts as one call for each column.

    Parameters
    ----------
    multiply : callable
    count : int
        Number of calls before `matrix.plan_for_many_products`, after which the matrix uses another product.
    matrix : weakref.ref
        The prepared matrix, which is freed as soon as nobody else refers to it.
    """

    def __init__(self, multiply: Callable[..., None], count: int, matrix: Callable[[], Any]) -> None:
        self._multiply, self._remaining, self._matrix = multiply, count, matrix

    def __call__(self, x: Array, *args: Any) -> None:
        if self._remaining <= 0 and (matrix := self._matrix()) is not None:
            matrix.plan_for_many_products()
        self._remaining -= 1 if x.ndim == 1 else x.shape[1]
        self._multiply(x, *args)


def build_first(
    device: Device, csr: Csr, compute: np.dtype[Any], threads_per_block: int, matrix: Callable[[], Any]
) -> Product:
    """Return the product of the prepared matrix ``matrix()`` that reads the arrays of `csr` and counts its calls."""
    kernels, stored = kernels_of(device).spmv, csr
    multiply: Callable[..., None]
    if kernels.CSR_PRODUCT is not None:
        multiply = partial(kernels.CSR_PRODUCT, csr)
    else:
        rows = matrix().structure.part(CsrRows)
        launch = Launch(threads_per_block, rows.threads_per_row)
        stored = rows.as_they_are(csr, launch.threads_per_row)
        multiply = kernels.PRODUCTS[kernels.FIRST_FORMAT](device, stored, compute, launch)
    counted = CountedProduct(multiply, MIN_ANALYSIS_PRODUCTS, matrix)
    return Product(counted, kernels.FIRST_FORMAT, stored, one_and_zero(compute))


def _build_candidate(preparation: MatrixPreparation, candidate: Candidate) -> Product:
    return build_product(preparation, candidate.format, candidate.launch, candidate.storage.encoding)


def build_planned(
    planner: Planner, plan: Plan, preparation: MatrixPreparation, adopt: Callable[[Plan, Product | None], None]
) -> Product:
    """Build the product that a plan chooses, or that measured times choose (`tune=`).

    Parameters
    ----------
    planner : Planner
    plan : Plan
    preparation : MatrixPreparation
    adopt : callable
        ``adopt(plan, product)`` is called with the plan that measured times have chosen. `product` is the product of
        this plan if all candidates were built in order to time them, and None if `build_planned` returns this product.
        With ``tune="lazy"``, `build_planned` first returns a product that times the candidates, and `adopt` is called
        when the times are known. That product keeps `adopt`, so `adopt` must not refer to the prepared matrix: that
        would be a reference cycle.
    """
    if not planner.is_to_be_timed:
        return _build_candidate(preparation, plan.chosen)
    device, types = preparation.sparsity.device, (preparation.csr.dtype, preparation.compute)
    key = key_of(device, plan, types)
    times = recall(key, [c.format for c in plan.candidates])
    if times is not None:
        plan = choose_measured(plan, times, "measured before")
        adopt(plan, None)
        return _build_candidate(preparation, plan.chosen)
    candidates = {c.format: c for c in plan.candidates}
    names = formats_to_time(plan, planner.expected_products)
    products = {name: _build_candidate(preparation, candidates[name]) for name in names}

    def decide(times: dict[str, Timing]) -> Product:
        remember(key, times)
        final_plan = choose_measured(plan, times, "measured")
        adopt(final_plan, products[final_plan.format])
        return products[final_plan.format]

    if planner.options.tune == "lazy":
        multiply = LazyTuner(device, {name: product.multiply for name, product in products.items()}, decide)
        return replace(products[names[0]], multiply=multiply)
    x, y = (device.xp.ones(n, preparation.compute) for n in preparation.csr.shape[::-1])
    one, zero = one_and_zero(preparation.compute)
    calls = {name: partial(product.multiply, x, y, one, zero, False) for name, product in products.items()}
    return decide(measure(device, calls))


def may_read_other_formats(structure: Structure) -> bool:
    """Return whether a plan may choose another format than CSR for products with several columns. Synchronizes.

    This check takes at most the time of two products, and a plan takes longer. So the caller makes a plan only if the
    result is True.
    """
    formats = kernels_of(structure.sparsity.device).spmm.FORMATS
    return ROW_PATTERN.name in formats or (BSR.name in formats and _square_blocks(structure) > 1)


def _square_blocks(structure: Structure) -> int:
    """Return the number of rows of the square blocks that the matrix consists of; 1 if it has none."""
    rows, columns = structure.part(DenseBlocks).blocksize
    return rows if rows == columns else 1


def can_multiply_columns(stored: Any, compute: np.dtype[Any]) -> TypeGuard[RowPattern | Bsr]:
    """Return whether products with several columns can read a stored matrix.

    Such products read row patterns with shared values, and square blocks whose values are not encoded in a table and
    are real or complex like the compute dtype.
    """
    if isinstance(stored, Bsr):
        rows, columns = stored.blocksize
        return rows == columns > 1 and stored.values.table is None and stored.dtype.kind == compute.kind
    return isinstance(stored, RowPattern) and stored.pattern_values is not None


def blocks_for_columns(
    planner: Planner, plan: Plan, csr: Csr, other: Csr | RowPattern, compute: np.dtype[Any]
) -> Bsr | None:
    """Store blocks for products with several columns, if that pays. Synchronizes.

    Parameters
    ----------
    planner : Planner
    plan : Plan
        The plan for products with a vector. Blocks are considered if they are a candidate in it.
    csr : Csr
        The arrays, with the values that the products are to read.
    other : Csr or RowPattern
        The arrays that the products read if no blocks are stored.
    compute : dtype

    Returns
    -------
    Bsr or None
        None if the matrix has no square blocks, or if all expected products gain less than the set-up takes.
    """
    structure, device = planner.structure, planner.structure.sparsity.device
    candidate = next((c for c in plan.candidates if c.format == BSR.name), None)
    if candidate is None or BSR.name not in kernels_of(device).spmm.FORMATS or csr.dtype.kind != compute.kind:
        return None
    size = _square_blocks(structure)
    if size == 1:
        return None
    positions, model = candidate.num_stored, MACHINE_MODELS[device.kind]
    nbytes = positions * (csr.dtype.itemsize + _COLUMN_BYTES / size**2)
    with_blocks = seconds_per_columns(model, nbytes, positions / size, compute.itemsize, device.num_threads)
    without = seconds_per_columns(model, other.nbytes, csr.nnz, compute.itemsize, device.num_threads)
    if (without - with_blocks) * planner.expected_products <= candidate.setup_seconds:
        return None
    encoding = Encoding(columns=planner.encoding.columns, values=False)
    blocks = MatrixPreparation(structure, csr, compute, encoding).stored(BSR.name)
    assert isinstance(blocks, Bsr)
    return blocks


def build_columns(
    sparsity: SparsityPattern, stored: Csr | RowPattern | Bsr, compute: np.dtype[Any], transpose: Csr | None
) -> Product:
    """Bind the product with several columns. `transpose` has the transposed arrays, or is None."""
    device = sparsity.device
    # `choose` must not refer to the prepared matrix, which refers to the product: that would be a reference cycle.
    choose = partial(launch_for, sparsity.rows, **_panel_options(device, stored, compute))
    multiply = kernels_of(device).spmm.csr_spmm(device, stored, compute, choose, sparsity.survey, transpose)
    format = {Csr: CSR_SCALAR.layout, RowPattern: ROW_PATTERN.name, Bsr: BSR.name}[type(stored)]
    return Product(multiply, format, stored, one_and_zero(compute))


def plan_of_columns(
    sparsity: SparsityPattern, stored: Csr | RowPattern | Bsr, compute: np.dtype[Any], panel: Panel
) -> ColumnsPlan:
    """Choose the GPU launch of a product whose X has the layout `panel`. Synchronizes the first time."""
    plan = plan_columns(sparsity.rows, panel, **_panel_options(sparsity.device, stored, compute))
    return replace(plan, on_cpu=sparsity.device.is_host)


def _panel_options(device: Device, stored: Csr | RowPattern | Bsr, compute: np.dtype[Any]) -> dict[str, Any]:
    return {
        "lanes": device.lanes,
        "value_bytes": compute.itemsize,
        "values": str(stored.dtype),
        "num_patterns": stored.num_patterns if isinstance(stored, RowPattern) else 0,
        "block": stored.blocksize[0] if isinstance(stored, Bsr) else 0,
    }


@cache
def one_and_zero(compute: np.dtype[Any]) -> tuple[Array, Array]:
    """Return 1 and 0 in the compute dtype: alpha and beta of ``A @ x``."""
    return compute.type(1), compute.type(0)
