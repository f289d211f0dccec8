"""`solve`, which chooses a method by the properties of the matrix and checks the true residual."""
