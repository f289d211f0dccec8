"""The kernels compiled for the CPU by numba, and the threads that run them."""

from __future__ import annotations

from typing import Any

import numpy as np

from gsparse.formats.launch import NO_LIMIT
from gsparse.kernels.contract import BindProduct
from gsparse.kernels.cpu.aggregation import independent_set, join_aggregates
from gsparse.kernels.cpu.basis import Arnoldi
from gsparse.kernels.cpu.block_products import block_product, multiply_blocks
from gsparse.kernels.cpu.blocks import block_parts, full_blocks, lay_out_blocks
from gsparse.kernels.cpu.coloring import color_rows
from gsparse.kernels.cpu.connections import block_weights, examine_rows, strong_connections
from gsparse.kernels.cpu.decomposition import Decomposition
from gsparse.kernels.cpu.diagonal_blocks import bind_block_step, invert_blocks
from gsparse.kernels.cpu.edits import (
    add_entries,
    find_entries,
    insert_entries,
    missing_entries,
    put_values,
    sample_entries,
    sample_entry,
    take_elements,
)
from gsparse.kernels.cpu.encode import distinct_keys, encode_columns, encode_keys, run_span, survives_halving
from gsparse.kernels.cpu.gradients import dot_rows, product_gradients
from gsparse.kernels.cpu.halo import gather, num_scatter_dots, scatter_add
from gsparse.kernels.cpu.hashes import fill_hashes
from gsparse.kernels.cpu.lane_slices import lane_positions, lane_rows, row_lanes
from gsparse.kernels.cpu.limits import register_with_threadpoolctl
from gsparse.kernels.cpu.long_rows import CHUNK_SIZE
from gsparse.kernels.cpu.mailboxes import Mailboxes
from gsparse.kernels.cpu.patterns import gather_rows, row_keys, rows_follow
from gsparse.kernels.cpu.prolongation import (
    expand_pattern,
    orthonormal_candidates,
    prolongator_pattern,
    prolongator_values,
)
from gsparse.kernels.cpu.reductions import (
    count_where,
    extreme_columns,
    extreme_entries,
    extreme_positions,
    first_where,
    sum_entries,
)
from gsparse.kernels.cpu.relaxation import bind_projections, bind_sweep
from gsparse.kernels.cpu.row_pairs import combine_rows
from gsparse.kernels.cpu.slices import SORTING_SCOPE, cut_slices, lay_out, lay_out_ellpack
from gsparse.kernels.cpu.sparse_products import spgemm, spgemm_known, spgemm_values
from gsparse.kernels.cpu.sparse_rows import (
    are_in_range,
    count_numbers,
    diagonal_entries,
    drop_zeros,
    keep_entries,
    map_columns,
    numbers_from_start,
    places_of,
    row_numbers,
    scale_columns,
    scale_rows,
    slice_rows,
    sum_runs,
    take_rows,
    triangle,
)
from gsparse.kernels.cpu.spmm import csr_spmm
from gsparse.kernels.cpu.spmv_bsr import bsr
from gsparse.kernels.cpu.spmv_csr import csr_scalar, csr_vector
from gsparse.kernels.cpu.spmv_ellpack import blocked_ellpack, ellpack
from gsparse.kernels.cpu.spmv_pattern import row_pattern
from gsparse.kernels.cpu.steps import bind_dots, bind_iterations, bind_step, compile_steps
from gsparse.kernels.cpu.survey import LONG_LENGTH, long_rows, survey
from gsparse.kernels.cpu.transpose import csr_transpose, is_symmetric, order_by_row, stable_order
from gsparse.kernels.cpu.triangular import factorize_ilu0, sweep_ilu0, triangular_levels, triangular_solver
from gsparse.kernels.cpu.triangular_blocks import block_triangular_solver, factorize_block_ilu0

__all__ = [
    "CHUNK_SIZE",
    "CSR_CODES",
    "FIRST_FORMAT",
    "LONG_LENGTH",
    "LOOKS_UP",
    "NEEDS_LEVELS",
    "SCALAR_LENGTH",
    "SHARES_RUNS",
    "SLICES_BLOCKS",
    "SORTING_SCOPE",
    "SPMM_FORMATS",
    "SPMM_HALVES",
    "SPMV",
    "Arnoldi",
    "Decomposition",
    "Mailboxes",
    "add_entries",
    "are_in_range",
    "bind_block_step",
    "bind_dots",
    "bind_iterations",
    "bind_projections",
    "bind_step",
    "bind_sweep",
    "block_parts",
    "block_product",
    "block_triangular_solver",
    "block_weights",
    "blocked_ellpack",
    "bsr",
    "color_rows",
    "combine_rows",
    "compile_steps",
    "count_numbers",
    "count_where",
    "csr_scalar",
    "csr_spmm",
    "csr_transpose",
    "csr_vector",
    "cut_slices",
    "diagonal_entries",
    "distinct_keys",
    "dot_rows",
    "drop_zeros",
    "ellpack",
    "encode_columns",
    "encode_keys",
    "examine_rows",
    "expand_pattern",
    "extreme_columns",
    "extreme_entries",
    "extreme_positions",
    "factorize_block_ilu0",
    "factorize_ilu0",
    "fill_hashes",
    "find_entries",
    "first_where",
    "full_blocks",
    "gather",
    "gather_rows",
    "independent_set",
    "insert_entries",
    "invert_blocks",
    "is_symmetric",
    "join_aggregates",
    "keep_entries",
    "lane_positions",
    "lane_rows",
    "lay_out",
    "lay_out_blocks",
    "lay_out_ellpack",
    "long_rows",
    "map_columns",
    "missing_entries",
    "multiply_blocks",
    "num_scatter_dots",
    "numbers_from_start",
    "order_by_row",
    "orthonormal_candidates",
    "places_of",
    "product_gradients",
    "prolongator_pattern",
    "prolongator_values",
    "put_values",
    "row_keys",
    "row_lanes",
    "row_numbers",
    "row_pattern",
    "rows_follow",
    "run_span",
    "sample_entries",
    "sample_entry",
    "scale_columns",
    "scale_rows",
    "scatter_add",
    "slice_rows",
    "spgemm",
    "spgemm_known",
    "spgemm_values",
    "stable_order",
    "strong_connections",
    "sum_entries",
    "sum_runs",
    "survey",
    "survives_halving",
    "sweep_ilu0",
    "take_elements",
    "take_rows",
    "triangle",
    "triangular_levels",
    "triangular_solver",
]

# In scalar and vector CSR, the thread that owns a row sums all of it, however long it is.
SCALAR_LENGTH = NO_LIMIT

# Narrow columns in CSR order cost 10 to 25 % on one thread, and looking values up in a table costs more than reading
# them as float32 (7-point 100**3, 27-point 64**3).
CSR_CODES: tuple[np.dtype[Any], ...] = ()
LOOKS_UP = False

# One thread solves triangular factors, row after row.
NEEDS_LEVELS = False

# Products with several columns read blocks, and CSR with values as they are.
SPMM_FORMATS: tuple[str, ...] = ("bsr",)
SPMM_HALVES = False
# Every schedule of CSR gives all threads about the same number of entries.
FIRST_FORMAT = "csr_scalar"
# Blocks are read one after the other, by the thread that owns their block row.
SLICES_BLOCKS = False
# Consecutive rows that follow one pattern are multiplied together.
SHARES_RUNS = True


SPMV: dict[str, BindProduct] = {
    "csr_scalar": csr_scalar,
    "csr_vector": csr_vector,
    "ellpack": ellpack,
    "blocked_ellpack": blocked_ellpack,
    "row_lanes": row_lanes,
    "row_pattern": row_pattern,
    "bsr": bsr,
}

register_with_threadpoolctl()
