"""Kernels: one contract (`gsparse.kernels.contract`), implemented for the CPU and for GPUs under the same names."""
