// spmv_pattern_dots.cu - the kernels of spmv_pattern.cu, which also leave conj(x)*y (sums.cuh).
#define GS_WITH_DOTS
#include "spmv_pattern.cu"
