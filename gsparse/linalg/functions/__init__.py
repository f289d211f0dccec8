"""Functions of matrices: their action on vectors, and estimates of their norms."""
