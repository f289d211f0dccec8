// spmv_csr_dots.cu - the kernels of spmv_csr.cu, which also leave conj(x)*y (sums.cuh).
#define GS_WITH_DOTS
#include "spmv_csr.cu"
