"""The kernels: one contract (`gsparse.kernels.contract`), which the CPU and GPUs implement under the same names."""
