"""`GpuSparseMatrix`, the matrix flavour, and their views: SciPy's surface, and arrays that the host may borrow."""
