"""Direct solves: factorizations of several libraries behind one object, and solves with triangular matrices."""
