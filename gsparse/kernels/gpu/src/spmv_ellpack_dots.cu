// spmv_ellpack_dots.cu - the kernels of spmv_ellpack.cu, which also leave conj(x)*y (sums.cuh).
#define GS_WITH_DOTS
#include "spmv_ellpack.cu"
