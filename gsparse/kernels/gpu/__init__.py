"""The GPU backend: CUDA C++ in `src/`, bound and launched here."""

from gsparse.kernels.gpu.basis import Arnoldi
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
from gsparse.kernels.gpu.halo import gather, num_scatter_dots, scatter_add
from gsparse.kernels.gpu.slices import cut_slices, lay_out, lay_out_ellpack
from gsparse.kernels.gpu.spmm import csr_spmm
from gsparse.kernels.gpu.spmv import (
    BLOCK_WORK,
    CHUNK_SIZE,
    SPMV,
    TILE_WORK,
    blocked_ellpack,
    csr_adaptive,
    csr_scalar,
    csr_split,
    csr_vector,
    ellpack,
    row_pattern,
)
from gsparse.kernels.gpu.steps import bind_dots, bind_step
from gsparse.kernels.gpu.survey import (
    LONG_LENGTH,
    SCALAR_LENGTH,
    SORTING_SCOPE,
    VECTOR_LENGTH,
    long_rows,
    row_blocks,
    survey,
    tiles,
)
from gsparse.kernels.gpu.transpose import csr_transpose, is_symmetric
from gsparse.kernels.gpu.triangular import factorize_ilu0, triangular_solver

__all__ = [
    "BLOCK_WORK",
    "CHUNK_SIZE",
    "CSR_CODES",
    "LONG_LENGTH",
    "LOOKS_UP",
    "NEEDS_LEVELS",
    "SCALAR_LENGTH",
    "SHARES_RUNS",
    "SORTING_SCOPE",
    "SPMM_READS_LESS",
    "SPMV",
    "TILE_WORK",
    "VECTOR_LENGTH",
    "Arnoldi",
    "bind_dots",
    "bind_step",
    "blocked_ellpack",
    "csr_adaptive",
    "csr_scalar",
    "csr_split",
    "csr_spmm",
    "csr_transpose",
    "csr_vector",
    "cut_slices",
    "distinct_keys",
    "ellpack",
    "encode_columns",
    "encode_keys",
    "factorize_ilu0",
    "gather",
    "gather_rows",
    "is_symmetric",
    "lay_out",
    "lay_out_ellpack",
    "long_rows",
    "num_scatter_dots",
    "row_blocks",
    "row_keys",
    "row_pattern",
    "rows_follow",
    "run_span",
    "scatter_add",
    "survey",
    "survives_halving",
    "tiles",
    "triangular_solver",
]

# Blocks of threads share the rows of a level.
NEEDS_LEVELS = True

SPMM_READS_LESS = True
# Every row has a thread of its own.
SHARES_RUNS = False
