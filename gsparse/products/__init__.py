"""`A @ x` and `A @ X`: parse the inputs once, prepare the matrix once, launch.

Read the files in this order:

1. `multiply`: what happens when a product is called. It checks the arguments (`arguments`), and launches the kernel of
   a `PreparedMatrix`.
2. `prepared`: the `PreparedMatrix`, which holds the CSR arrays on a device, and makes what products first need:
   `planning` chooses a format, `building` stores the matrix in it and binds the product, and `format_cache` keeps both.
   `options` holds the user's options, and `checks` refuses invalid arrays.
3. `storage`: how each format would store the matrix, and the arrays of the chosen format. `columns_storage`: what
   products with several columns read.
4. `structure`: everything that depends on the row pointers and columns alone. Matrices with other values share it.
   Its slices are in `sliced_rows`, its row lanes in `row_lanes`, its dense blocks in `dense_blocks`, its row patterns
   in `repeated_rows`, and its transpose in `transposed_rows`.
5. `dictionary`: the distinct keys among many, for values and for rows that repeat.
6. `tuning`: the choice by measured times (`tune=`).
"""
