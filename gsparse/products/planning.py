"""The plan of a matrix: the user's options, which formats are candidates, and the reason for the choice.

A planner has no state: the same planner makes the same plan from the same preparation.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from numbers import Real
from typing import Any, Literal

import numpy as np

from gsparse.errors import FormatError
from gsparse.formats.launch import DEFAULT_THREADS_PER_BLOCK
from gsparse.formats.registry import PLAIN, Encoding, Storage, choices, find_format, names_of
from gsparse.formats.row_stats import MAX_INT32
from gsparse.kernels.backends import kernels_of
from gsparse.plan.choice import EXPECTED_PRODUCTS, Plan, check_request, make_plan
from gsparse.plan.cost_model import MACHINE_MODELS
from gsparse.products.storage import MatrixPreparation
from gsparse.products.structure import Structure

# Smallest number of expected products for which analyzing the matrix, or timing candidates, can pay.
MIN_ANALYSIS_PRODUCTS = 50
# The options that have only a few valid values, and these values.
_CHOICES: dict[str, tuple[Any, ...]] = {
    "compress": (False, True, "columns", "values"),
    "tune": (False, True, "lazy"),
    "symmetric": (None, True, False, "hermitian"),
}


@dataclass(frozen=True)
class MatrixOptions:
    """The options that the user chose when making the matrix.

    Attributes
    ----------
    format : str
        The name of a format or of a layout, or "auto" (`gsparse.formats.registry.choices`).
    threads_per_block, expected_products, compress, tune, symmetric
        As in `gsparse.GpuSparseMatrix`.
    block_shape : (int, int) or None
        The block size (rows, columns of the CSR arrays) of the BSR matrix from which this matrix, or an operand of the
        operation that returned it, was made. The matrix may not have such blocks: an operation may have removed or
        transposed them.

    Raises
    ------
    FormatError
        If an option has an invalid value. The message lists the valid ones.
    """

    format: str = "auto"
    threads_per_block: int = DEFAULT_THREADS_PER_BLOCK
    expected_products: int = EXPECTED_PRODUCTS
    compress: bool | Literal["columns", "values"] = True
    tune: bool | Literal["lazy"] = False
    symmetric: bool | Literal["hermitian"] | None = None
    block_shape: tuple[int, int] | None = None

    @property
    def encoding(self) -> Encoding:
        """The parts of the matrix that `compress` allows to store in fewer bytes."""
        return Encoding(columns=self.compress in (True, "columns"), values=self.compress in (True, "values"))

    @property
    def may_be_planned_later(self) -> bool:
        """Whether the first products may use a format that needs no set-up, so that the choice is made later."""
        return self.format == "auto" and not self.tune and self.expected_products >= MIN_ANALYSIS_PRODUCTS

    def transposed(self) -> MatrixOptions:
        """Return the options for the transposed CSR arrays."""
        return self if self.block_shape is None else replace(self, block_shape=self.block_shape[::-1])

    def __post_init__(self) -> None:
        check_request(self.format, self.threads_per_block)
        for name, allowed in _CHOICES.items():
            option = getattr(self, name)
            if not (isinstance(option, str | bool | np.bool_ | None) and option in allowed):
                raise FormatError(f"{name} must be one of {allowed}, got {option!r}")
        if not (isinstance(self.expected_products, Real) and self.expected_products >= 1):
            raise FormatError(f"expected_products must be a number of at least 1, got {self.expected_products!r}")


@dataclass(frozen=True, eq=False)
class Planner:
    """All facts, except the values, from which a format is chosen.

    Attributes
    ----------
    structure : Structure
    options : MatrixOptions
        The options of the user.
    format : str
        The requested format, or "auto" if it cannot store the matrix.
    is_new : bool
        Whether the matrix has not been multiplied often, and its first products use a format without set-up.
    on_loan : bool
        Whether the user may write to an array of the matrix before the next product.
    has_memory : bool
        Whether memory has sufficed so far. If not, the only candidates are formats that read CSR's own arrays.
    """

    structure: Structure
    options: MatrixOptions
    format: str
    is_new: bool
    on_loan: bool
    has_memory: bool

    @property
    def request(self) -> str:
        """The requested format for the next products: one without set-up if the matrix is new."""
        device = self.structure.sparsity.device
        return str(kernels_of(device).spmv.FIRST_FORMAT) if self.is_new else self.format

    @property
    def expected_products(self) -> int:
        """The number of products that share the set-up time: 1 for a new or lent matrix, else the user's option."""
        return 1 if self.is_new or self.on_loan else self.options.expected_products

    @property
    def leaves_choice(self) -> bool:
        """Whether the request allows several formats."""
        return len(choices(self.format)) > 1

    @property
    def is_to_be_timed(self) -> bool:
        """Whether to choose by measured times. The candidates are timed unless stored times are found."""
        return bool(self.options.tune) and self.leaves_choice and self.expected_products >= MIN_ANALYSIS_PRODUCTS

    @property
    def is_worth_analyzing(self) -> bool:
        """Whether analyzing the matrix, in order to store it in fewer bytes, can pay."""
        work = self.expected_products * self.structure.sparsity.csr.nnz
        is_enough = work >= MACHINE_MODELS[self.structure.sparsity.device.kind].min_analysis_work
        return self.has_memory and self.expected_products >= MIN_ANALYSIS_PRODUCTS and is_enough

    @property
    def encoding(self) -> Encoding:
        """Which parts of the matrix may be stored in fewer bytes."""
        return self.options.encoding if not self.leaves_choice or self.is_worth_analyzing else PLAIN

    def plan(self, preparation: MatrixPreparation, compute: np.dtype[Any]) -> Plan:
        """Choose the format for products that compute in this dtype. Synchronizes."""
        device, options, request = self.structure.sparsity.device, self.options, self.request
        plan = make_plan(
            self.structure.sparsity.rows,
            self._storages([format.name for format in choices(request)], preparation),
            device=device.name,
            lanes=device.lanes,
            model=MACHINE_MODELS[device.kind],
            value_bytes=compute.itemsize,
            threads=device.num_threads,
            format=request,
            threads_per_block=options.threads_per_block,
            expected_products=self.expected_products,
        )
        return replace(plan, reason=self._explained(plan.reason))

    def _explained(self, reason: str) -> str:
        """Return a plan's reason, extended by what restricted the choice and when the choice will be made again."""
        if not self.has_memory:
            reason = f"{reason}; memory did not suffice for other formats"
        if self.is_new:
            reason = (
                "it needs no set-up; the matrix is the result of an operation or has new values, so formats that need "
                f"a set-up are considered after {MIN_ANALYSIS_PRODUCTS} products, or when a solver begins"
            )
        if self.is_to_be_timed:
            when = "in the first products" if self.options.tune == "lazy" else "at the first product"
            reason = f"{reason}; will be timed {when} (unless its times are stored)"
        if self._has_needless_int64:
            reason = f"{reason}; its indices are of int64, and products read less if you convert them to int32"
        return reason

    @property
    def _has_needless_int64(self) -> bool:
        """Whether the indices are of int64 although int32 can number rows, columns and entries."""
        csr = self.structure.sparsity.csr
        return csr.indices.dtype == np.int64 and max(*csr.shape, csr.nnz) <= MAX_INT32

    def _storages(self, allowed: list[str], preparation: MatrixPreparation) -> dict[str, tuple[Storage, ...]]:
        """Describe how each candidate for a plan would store the matrix. Synchronizes."""
        if not self.leaves_choice:
            return preparation.storages(allowed)
        if not self.options.encoding.columns:
            allowed = [name for name in allowed if not find_format(name).only_compressed]
        storages = preparation.storages(allowed if self.is_worth_analyzing else ())
        in_place = names_of(reads_csr=True)
        return {
            name: storage
            for name, storage in storages.items()
            if name in allowed and (self.has_memory or name in in_place)
        }
