"""One contract an operation, implemented twice under the same name: `kernels.cpu` and `kernels.gpu`.

The contract, for both backends
-------------------------------
``kernel(device, matrix, x, y, alpha, beta, conjugate, launch)`` computes, in place, row by row,

    y = alpha * A @ x + beta * y          (A conjugated first where `conjugate` is true)

`device`
    The `gsparse.device.Device` all arrays live on.
`matrix`
    `Csr` for `csr_scalar` and `csr_vector`, `Ellpack` for `ellpack`, `BlockedEllpack` for `blocked_ellpack`.
`x`, `y`
    Contiguous vectors of `num_cols` and `num_rows` elements, of the compute dtype (`gsparse._typing.COMPUTE_DTYPES`);
    they do not overlap. The matrix's values are of that dtype or of one that widens to it (float32 read by a float64
    or complex128 product, for instance).
`alpha`, `beta`
    NumPy scalars of the compute dtype. Where ``beta == 0``, y is never read: NaN there does not survive.
`launch`
    `Launch`: how many threads a block, and for `csr_vector` how many threads (on the CPU: partial sums) a row.

`csr_spmm` has the same contract with `x` of shape (num_cols, k) and `y` of shape (num_rows, k), both of any strides.

Rows are summed in a fixed order, so the same input gives the same bits. Nothing is allocated and nothing waits for the
device. Bytes moved: ``matrix.nbytes`` + x once (more where gathers miss the cache) + y once (twice where beta != 0).

``csr_to_ellpack(device, csr, width)`` and ``csr_to_blocked_ellpack(device, csr, slice_size)`` give a new frozen format
that shares `csr.indptr`; they count, scan and fill on the device.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["DEFAULT_THREADS_PER_BLOCK", "THREADS_PER_BLOCK", "Launch"]

# Launch shapes that may be asked for.
THREADS_PER_BLOCK = (128, 256, 512)
# The default. An H200 runs 128 up to 3 % faster on stencils and 14 % slower on banded matrices, and 512 1 to 3 % slower
# (asv_bench/measure_spmv.py --threads-per-block 128,256,512); AMD's lab notes advise 256 too.
DEFAULT_THREADS_PER_BLOCK = 256


@dataclass(frozen=True)
class Launch:
    """How a kernel is launched.

    Attributes
    ----------
    threads_per_block : {128, 256, 512}
        GPU threads a block; the CPU backend has no use for it.
    threads_per_row : int
        For `csr_vector`: threads (CPU: independent partial sums) that share a row, a power of two from 2 to the
        device's lanes per warp.
    """

    threads_per_block: int = DEFAULT_THREADS_PER_BLOCK
    threads_per_row: int = 1
