"""The plainest kernels of the four formats, as peers to time ours against in the same run: float64, int32 indices."""

from __future__ import annotations

from typing import Any

import cupy
import numpy as np
from timing import seconds_of

import gsparse
from gsparse.plan import threads_per_row

__all__ = ["plain_times"]

THREADS = 256
MAX_PADDING = 4.0

SOURCE = r"""
#define ARRAYS \
  const int *__restrict__ c, const double *__restrict__ a, const double *__restrict__ x, double *__restrict__ y
#define ROW(T) (((long long)blockIdx.x * blockDim.x + threadIdx.x) / T)
extern "C" __global__ void csr_scalar(int n, const int *__restrict__ p, ARRAYS) {
  long long r = ROW(1); if (r >= n) return;
  double s = 0; for (int k = p[r]; k < p[r + 1]; ++k) s += a[k] * x[c[k]];
  y[r] = s;
}
template <int T> __device__ void vector(int n, const int *__restrict__ p, ARRAYS) {
  long long r = ROW(T); int lane = threadIdx.x % T; double s = 0;
  if (r < n) for (int k = p[r] + lane; k < p[r + 1]; k += T) s += a[k] * x[c[k]];
  for (int d = T / 2; d > 0; d >>= 1) s += __shfl_down_sync(0xffffffff, s, d, T);
  if (r < n && lane == 0) y[r] = s;
}
#define VECTOR(T) \
  extern "C" __global__ void csr_vector_##T(int n, const int *__restrict__ p, ARRAYS) { vector<T>(n, p, c, a, x, y); }
VECTOR(2) VECTOR(4) VECTOR(8) VECTOR(16) VECTOR(32)
extern "C" __global__ void ellpack(int n, int width, ARRAYS) {
  long long r = ROW(1); if (r >= n) return;
  double s = 0; for (int j = 0; j < width; ++j) { long long k = (long long)j * n + r; s += a[k] * x[c[k]]; }
  y[r] = s;
}
extern "C" __global__ void blocked_ellpack(int n, const long long *__restrict__ offsets, ARRAYS) {
  long long r = ROW(1); if (r >= n) return;
  long long begin = offsets[r / 32]; int width = (offsets[r / 32 + 1] - begin) / 32;
  double s = 0; for (int j = 0; j < width; ++j) { long long k = begin + j * 32 + r % 32; s += a[k] * x[c[k]]; }
  y[r] = s;
}
"""


def plain_times(arrays: tuple[Any, ...], x: Any) -> dict[str, float]:
    """Time the plain kernels of one matrix, in µs, under "plain" and the format's name."""
    data, indices, indptr = arrays
    module, num_rows = cupy.RawModule(code=SOURCE), indptr.size - 1
    y = cupy.empty(num_rows)

    def time(kernel: str, threads: int, *leading: Any) -> float:
        function, grid = module.get_function(kernel), (-(-threads // THREADS),)
        return seconds_of(lambda: function(grid, (THREADS,), (np.int32(num_rows), *leading, x, y)), 10) * 1e6

    lanes = threads_per_row(indices.size / max(num_rows, 1), 32)
    times = {
        "plain csr_scalar": time("csr_scalar", num_rows, indptr, indices, data),
        "plain csr_vector": time(f"csr_vector_{lanes}", num_rows * lanes, indptr, indices, data),
    }
    for format in ("ellpack", "blocked_ellpack"):
        A = gsparse.GpuSparseMatrix(arrays, shape=(num_rows, x.size), format=format)
        if A.plan.chosen.padding_ratio < MAX_PADDING:
            s = A.stored
            first = np.int32(s.width) if format == "ellpack" else s.slice_offsets
            times[f"plain {format}"] = time(format, num_rows, first, s.indices, s.data)
    return times
