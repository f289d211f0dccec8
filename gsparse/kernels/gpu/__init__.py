"""The GPU backend: kernels in CUDA C++ (`src/`), and the functions that bind and launch them."""

from gsparse.formats.costs import SCALAR_LENGTH
from gsparse.kernels.gpu.aggregation import independent_set, join_aggregates
from gsparse.kernels.gpu.basis import Arnoldi
from gsparse.kernels.gpu.block_products import block_product, multiply_blocks
from gsparse.kernels.gpu.blocks import block_parts, full_blocks, lay_out_blocks
from gsparse.kernels.gpu.connections import block_weights, examine_rows, strong_connections
from gsparse.kernels.gpu.decomposition import Decomposition
from gsparse.kernels.gpu.diagonal_blocks import bind_block_step, invert_blocks
from gsparse.kernels.gpu.edits import (
    add_entries,
    find_entries,
    insert_entries,
    missing_entries,
    put_values,
    sample_entries,
    sample_entry,
    take_elements,
)
from gsparse.kernels.gpu.encode import (
    CSR_CODES,
    LOOKS_UP,
    distinct_keys,
    encode_columns,
    encode_keys,
    gather_rows,
    row_keys,
    rows_follow,
    run_span,
    survives_halving,
)
from gsparse.kernels.gpu.gradients import dot_rows, product_gradients
from gsparse.kernels.gpu.halo import gather, num_scatter_dots, scatter_add
from gsparse.kernels.gpu.hashes import fill_hashes
from gsparse.kernels.gpu.indices import are_in_range, count_numbers, numbers_from_start, places_of
from gsparse.kernels.gpu.iterations import bind_iterations
from gsparse.kernels.gpu.lane_slices import lane_positions, lane_rows, row_lanes
from gsparse.kernels.gpu.mailboxes import Mailboxes
from gsparse.kernels.gpu.prolongation import (
    expand_pattern,
    orthonormal_candidates,
    prolongator_pattern,
    prolongator_values,
)
from gsparse.kernels.gpu.reductions import (
    count_where,
    extreme_columns,
    extreme_entries,
    extreme_positions,
    first_where,
    sum_entries,
)
from gsparse.kernels.gpu.relaxation import bind_projections, bind_sweep, color_rows
from gsparse.kernels.gpu.slices import cut_slices, lay_out, lay_out_ellpack
from gsparse.kernels.gpu.sort import order_by_row, stable_order
from gsparse.kernels.gpu.sparse_pairs import combine_rows
from gsparse.kernels.gpu.sparse_products import spgemm, spgemm_known, spgemm_values
from gsparse.kernels.gpu.sparse_rows import (
    diagonal_entries,
    drop_zeros,
    keep_entries,
    map_columns,
    row_numbers,
    scale_columns,
    scale_rows,
    slice_rows,
    sum_runs,
    take_rows,
    triangle,
)
from gsparse.kernels.gpu.spmm import csr_spmm
from gsparse.kernels.gpu.spmv import (
    CHUNK_SIZE,
    SPMV,
    blocked_ellpack,
    bsr,
    csr_scalar,
    csr_vector,
    ellpack,
    row_pattern,
)
from gsparse.kernels.gpu.steps import bind_dots, bind_step, compile_steps
from gsparse.kernels.gpu.survey import LONG_LENGTH, SORTING_SCOPE, long_rows, survey
from gsparse.kernels.gpu.symmetry import is_symmetric
from gsparse.kernels.gpu.transpose import csr_transpose
from gsparse.kernels.gpu.triangular import factorize_ilu0, sweep_ilu0, triangular_levels, triangular_solver
from gsparse.kernels.gpu.triangular_blocks import block_triangular_solver, factorize_block_ilu0

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

# Triangular solves need levels, because threads work on the rows of a level at once.
NEEDS_LEVELS = True

# Products with several columns also read row patterns that share values, blocks, and CSR in half the precision.
SPMM_FORMATS: tuple[str, ...] = ("row_pattern", "bsr")
SPMM_HALVES = True
# Which schedule of CSR is fast depends on the lengths of the rows.
FIRST_FORMAT = "auto"
# Neighbouring threads have neighbouring rows of a row pattern, whatever the patterns of these rows are.
SHARES_RUNS = False
# The threads of a slice read the same step of all of its block rows side by side.
SLICES_BLOCKS = True
