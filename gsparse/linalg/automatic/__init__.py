"""A solve for people who do not want to choose: properties of a matrix, a chain of methods, and the true residual."""
