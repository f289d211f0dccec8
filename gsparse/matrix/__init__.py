"""`GpuSparseMatrix` and its views: SciPy's surface, and the arrays that the host may borrow."""
