"""The kernels compiled for the CPU by numba, and the threads that run them."""

from __future__ import annotations

from typing import Any

import numpy as np

from gsparse.formats.launch import NO_LIMIT
from gsparse.kernels.contract import BindProduct
from gsparse.kernels.cpu.basis import Arnoldi
from gsparse.kernels.cpu.encode import distinct_keys, encode_columns, encode_keys, run_span, survives_halving
from gsparse.kernels.cpu.halo import gather, num_scatter_dots, scatter_add
from gsparse.kernels.cpu.limits import register_with_threadpoolctl
from gsparse.kernels.cpu.long_rows import CHUNK_SIZE
from gsparse.kernels.cpu.patterns import gather_rows, row_keys, rows_follow
from gsparse.kernels.cpu.slices import SORTING_SCOPE, cut_slices, lay_out, lay_out_ellpack
from gsparse.kernels.cpu.spmm import csr_spmm
from gsparse.kernels.cpu.spmv_csr import BLOCK_WORK, TILE_WORK, csr_adaptive, csr_scalar, csr_split, csr_vector
from gsparse.kernels.cpu.spmv_ellpack import blocked_ellpack, ellpack
from gsparse.kernels.cpu.spmv_pattern import row_pattern
from gsparse.kernels.cpu.steps import bind_dots, bind_step
from gsparse.kernels.cpu.survey import LONG_LENGTH, long_rows, row_blocks, survey, tiles
from gsparse.kernels.cpu.transpose import csr_transpose, is_symmetric
from gsparse.kernels.cpu.triangular import factorize_ilu0, triangular_solver

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

# Rows are walked whole by whichever thread has their part.
SCALAR_LENGTH = VECTOR_LENGTH = NO_LIMIT

# Narrow columns in CSR's order cost 10 to 25 % on one thread, and looking two values up a lane costs more than reading
# them as float32 (7-point 100**3, 27-point 64**3).
CSR_CODES: tuple[np.dtype[Any], ...] = ()
LOOKS_UP = False

# One thread goes from row to row.
NEEDS_LEVELS = False

SPMM_READS_LESS = False
# Consecutive rows that follow one pattern are multiplied side by side.
SHARES_RUNS = True


SPMV: dict[str, BindProduct] = {
    "csr_scalar": csr_scalar,
    "csr_vector": csr_vector,
    "csr_adaptive": csr_adaptive,
    "csr_split": csr_split,
    "ellpack": ellpack,
    "blocked_ellpack": blocked_ellpack,
    "row_pattern": row_pattern,
}

register_with_threadpoolctl()
