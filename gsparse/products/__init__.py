"""`A @ x` and `A @ X`: parse the inputs once, prepare the matrix once, launch."""
