"""Constants that kernels and the host must agree on: defined in the CUDA sources, and read there by the host."""

from __future__ import annotations

from gsparse.formats.launch import THREADS_PER_BLOCK
from gsparse.kernels import aggregation, algebra
from gsparse.kernels.gpu.launch import constant

# The names of operations in `OPERATIONS` that the enumeration of the kernels writes out.
OPERATORS = {"ne": "NOT_EQUAL", "lt": "LESS", "gt": "GREATER"}


def test_numbers_that_both_backends_share_are_those_of_the_kernels() -> None:
    for name, number in algebra.OPERATIONS.items():
        assert constant("sparse_pairs.cu", f"GS_{OPERATORS.get(name, name.upper())}") == number
    for name, number in {**algebra.TERMS, **algebra.EXTREMES, **algebra.TESTS}.items():
        assert constant("reductions.cu", f"GS_{name.upper().replace(' ', '_')}") == number
    for name in ("UNDECIDED", "OUTSIDE", "ISOLATED"):
        assert constant("independent_set.cu", f"GS_{name}") == getattr(aggregation, name)
    assert constant("port.cuh", "GS_MAX_THREADS") == max(THREADS_PER_BLOCK)
    assert constant("port.cuh", "GS_LARGEST_BLOCK") == constant("spmv_hubs.cu", "GS_HUB_THREADS")


def test_the_survey_reads_its_statistics_where_the_kernel_puts_them() -> None:
    from gsparse.kernels.gpu.layout import _COUNTERS, _FACTS

    assert len(_COUNTERS) == constant("parts.cuh", "GS_LONG")
    assert len(_FACTS) == constant("setup_survey.cu", "GS_CONTRADICTED") + 1
