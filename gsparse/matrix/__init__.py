"""`GpuSparseMatrix`, its counterpart `CsrMatrix`, and their transposed views: SciPy's methods, computed on a device."""
