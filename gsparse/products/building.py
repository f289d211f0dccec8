"""The products of a matrix: a stored format or CSR, with the kernel that is bound to it.

Everything that a function of this module needs is an argument, and it stores nothing. `gsparse.products.prepared` keeps
the results.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, NamedTuple

import numpy as np

from gsparse.device.dtypes import Array
from gsparse.formats import Bsr, Csr, RowPattern, Stored
from gsparse.formats.bsr import BSR
from gsparse.formats.launch import Launch, Panel
from gsparse.formats.registry import Encoding, find_format
from gsparse.formats.row_pattern import ROW_PATTERN
from gsparse.kernels.backends import kernels_of
from gsparse.plan.choice import Candidate, Plan
from gsparse.plan.columns import ColumnsPlan, launch_for, plan_columns
from gsparse.products.planning import Planner
from gsparse.products.storage import MatrixPreparation
from gsparse.products.structure import Structure
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

    @cached_property
    def nbytes(self) -> int:
        """Bytes of the arrays, which every product reads."""
        return int(self.stored.nbytes)


class ColumnsProduct(NamedTuple):
    """The bound kernel for several dense columns of one dtype, as in `Product`."""

    multiply: Any
    stored: Csr | RowPattern | Bsr
    scalars: tuple[Any, Any]

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays, which every product reads."""
        return int(self.stored.nbytes)

    @property
    def format(self) -> str:
        """The name of the format, as gsparse.FORMATS lists it, without a schedule."""
        return {Csr: "csr", RowPattern: ROW_PATTERN.name, Bsr: BSR.name}[type(self.stored)]


def values_as(csr: Csr, storage: np.dtype[Any]) -> Csr:
    """Return CSR arrays with values of dtype `storage`, the same object if they have it already."""
    return csr if csr.dtype == storage else csr.with_data(csr.data.astype(storage))


def build_product(preparation: MatrixPreparation, format: str, launch: Launch, encoding: Encoding) -> Product:
    """Store a matrix in a format, and bind the product. Synchronizes."""
    device, compute = preparation.structure.device, preparation.compute
    stored = preparation.encoded(encoding).stored(format)
    own_kernel = find_format(format).kernels.get(device.kind)
    bind = kernels_of(device).spmv.PRODUCTS[format] if own_kernel is None else own_kernel
    multiply = bind(device, stored, compute, launch)
    return Product(multiply, format, stored, _one_and_zero(compute))


def _build_candidate(preparation: MatrixPreparation, candidate: Candidate) -> Product:
    return build_product(preparation, candidate.format, candidate.launch, candidate.storage.encoding)


def build_planned(
    planner: Planner, plan: Plan, preparation: MatrixPreparation, adopt: Callable[[Plan, Product | None], None]
) -> Product:
    """Build the product that a plan chooses, or that times decide on: stored ones, or those of a measurement.

    Parameters
    ----------
    planner : Planner
    plan : Plan
    preparation : MatrixPreparation
    adopt : callable
        ``adopt(plan, product)`` is called with the plan that times have decided on. `product` is its product if all
        candidates had to be built in order to time them, and None if this function returns it. With ``tune="lazy"``,
        it is called when the times are known, after this function has returned a product that times the candidates.
        The product keeps this function, which must not refer to the prepared matrix: that would be a reference cycle.
    """
    if not planner.is_to_be_timed:
        return _build_candidate(preparation, plan.chosen)
    device, types = preparation.structure.device, (preparation.csr.dtype, preparation.compute)
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
    one, zero = _one_and_zero(preparation.compute)
    calls = {name: partial(product.multiply, x, y, one, zero, False) for name, product in products.items()}
    return decide(measure(device, calls))


def build_columns(
    structure: Structure, stored: Csr | RowPattern | Bsr, compute: np.dtype[Any], transpose: Csr | None
) -> ColumnsProduct:
    """Bind the product with several columns. `transpose` has the transposed arrays, if there are any."""
    device = structure.device
    # `choose` must not refer to the prepared matrix, which refers to the product: that would be a reference cycle.
    choose = partial(launch_for, structure.rows, **_panel_options(structure, stored, compute))
    multiply = kernels_of(device).spmm.csr_spmm(device, stored, compute, choose, structure.survey, transpose)
    return ColumnsProduct(multiply, stored, _one_and_zero(compute))


def plan_of_columns(
    structure: Structure, stored: Csr | RowPattern | Bsr, compute: np.dtype[Any], panel: Panel
) -> ColumnsPlan:
    """Choose the launch on a GPU for an X with this layout. Synchronizes the first time."""
    plan = plan_columns(structure.rows, panel, **_panel_options(structure, stored, compute))
    return replace(plan, on_cpu=structure.device.is_host)


def _panel_options(structure: Structure, stored: Csr | RowPattern | Bsr, compute: np.dtype[Any]) -> dict[str, Any]:
    return {
        "lanes": structure.device.lanes,
        "value_bytes": compute.itemsize,
        "values": str(stored.dtype),
        "num_patterns": stored.num_patterns if isinstance(stored, RowPattern) else 0,
        "block": stored.blocksize[0] if isinstance(stored, Bsr) else 0,
    }


def _one_and_zero(compute: np.dtype[Any]) -> tuple[Array, Array]:
    return compute.type(1), compute.type(0)
