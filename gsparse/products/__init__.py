"""`A @ x` and `A @ X`: parse the inputs once, prepare the matrix once, launch.

Read the files in this order:

1. `multiply`: the steps of a product. It checks the arguments (`checks`), and launches the kernel of a
   `PreparedMatrix`.
2. `prepared`: the `PreparedMatrix`, which holds the CSR arrays on a device, and makes what products need: `planning`
   chooses a format with the user's options, and `building` stores the matrix in it and binds the product.
3. `storage`: how each format would store the matrix, and the arrays of the chosen format.
4. `structure`: everything that depends on the row pointers and columns alone. Matrices with other values share it.
5. One file for each storage format: the arrays that it derives from a structure, how it stores a matrix, and the
   constants of its predicted time.
6. `tuning`: the choice by measured times (`tune=`).
"""

from gsparse.formats.registry import names_of, register
from gsparse.products.blocked_ellpack import BLOCKED_ELLPACK
from gsparse.products.bsr import BSR
from gsparse.products.csr import CSR_SCALAR, CSR_VECTOR
from gsparse.products.ellpack import ELLPACK
from gsparse.products.row_lanes import ROW_LANES
from gsparse.products.row_pattern import ROW_PATTERN

# Plans list the candidates in this order.
for _format in (CSR_SCALAR, CSR_VECTOR, ELLPACK, BLOCKED_ELLPACK, ROW_LANES, ROW_PATTERN, BSR):
    register(_format)

# The names of the built-in formats, after "auto", which chooses one of them.
FORMATS = ("auto", *names_of())
