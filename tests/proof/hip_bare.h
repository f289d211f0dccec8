// hip_bare.h - the small part of HIP with which an ordinary clang compiles our kernels for AMD, without ROCm
// (compile_amd.py):
//   clang++ -x hip --offload-device-only --offload-arch=gfx90a -nogpuinc -nogpulib -DGS_BARE -DGS_WARP=64
#pragma once
#define __global__ __attribute__((global))
#define __device__ __attribute__((device))
#define __host__ __attribute__((host))
#define __shared__ __attribute__((shared))
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(n, ...) __attribute__((amdgpu_flat_work_group_size(1, n)))

#define GS_DIM3(name, fx, fy, fz)                                              \
  struct name##_t {                                                            \
    struct X { __device__ operator unsigned() const { return fx; } } x;        \
    struct Y { __device__ operator unsigned() const { return fy; } } y;        \
    struct Z { __device__ operator unsigned() const { return fz; } } z;        \
  };                                                                           \
  extern const __device__ __attribute__((weak)) name##_t name;
GS_DIM3(threadIdx, __builtin_amdgcn_workitem_id_x(), __builtin_amdgcn_workitem_id_y(), __builtin_amdgcn_workitem_id_z())
GS_DIM3(blockIdx, __builtin_amdgcn_workgroup_id_x(), __builtin_amdgcn_workgroup_id_y(), __builtin_amdgcn_workgroup_id_z())
GS_DIM3(blockDim, __builtin_amdgcn_workgroup_size_x(), __builtin_amdgcn_workgroup_size_y(), __builtin_amdgcn_workgroup_size_z())
GS_DIM3(gridDim, __builtin_amdgcn_grid_size_x() / __builtin_amdgcn_workgroup_size_x(), 1, 1)

static __device__ __forceinline__ void __syncthreads() {
  __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
  __builtin_amdgcn_s_barrier();
  __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
}
static __device__ __forceinline__ int gs_bare_lane() {
  return __builtin_amdgcn_mbcnt_hi(~0u, __builtin_amdgcn_mbcnt_lo(~0u, 0u));
}
template <class T> __device__ __forceinline__ T gs_bare_permute(T v, int source) {
  union { T value; int words[(sizeof(T) + 3) / 4]; } u{v};
  for (unsigned k = 0; k < (sizeof(T) + 3) / 4; ++k) u.words[k] = __builtin_amdgcn_ds_bpermute(source << 2, u.words[k]);
  return u.value;
}
template <class T> __device__ __forceinline__ T __shfl_down(T v, int d, int w = GS_WARP) {
  const int lane = gs_bare_lane();
  return gs_bare_permute(v, (lane & (w - 1)) + d < w ? lane + d : lane);
}
template <class T> __device__ __forceinline__ T __shfl_up(T v, int d, int w = GS_WARP) {
  const int lane = gs_bare_lane();
  return gs_bare_permute(v, (lane & (w - 1)) >= d ? lane - d : lane);
}
template <class T> __device__ __forceinline__ T __shfl(T v, int s, int w = GS_WARP) {
  return gs_bare_permute(v, (gs_bare_lane() & ~(w - 1)) + (s & (w - 1)));
}
template <class T> __device__ __forceinline__ T atomicAdd(T *p, T v) {
  return __hip_atomic_fetch_add(p, v, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
}
template <class T> __device__ __forceinline__ T atomicMax(T *p, T v) {
  return __hip_atomic_fetch_max(p, v, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
}
template <class T> __device__ __forceinline__ T atomicOr(T *p, T v) {
  return __hip_atomic_fetch_or(p, v, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
}
template <class T> __device__ __forceinline__ T atomicCAS(T *p, T expected, T v) {
  __hip_atomic_compare_exchange_strong(p, &expected, v, __ATOMIC_RELAXED, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
  return expected;
}
static __device__ __forceinline__ void __threadfence() { __builtin_amdgcn_fence(__ATOMIC_SEQ_CST, "agent"); }
static __device__ __forceinline__ double sqrt(double a) { return __builtin_sqrt(a); }
