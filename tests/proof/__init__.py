"""Proves the GPU kernels where there is no GPU: an emulator, both vendors' compilers, planted bugs, CuPy's facts."""
