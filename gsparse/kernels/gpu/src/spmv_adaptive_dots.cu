// spmv_adaptive_dots.cu - the kernels of spmv_adaptive.cu, which also leave conj(x)*y (sums.cuh).
#define GS_WITH_DOTS
#include "spmv_adaptive.cu"
