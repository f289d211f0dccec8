"""Roundings of a kernel do not depend on what the process compiled before it."""

from __future__ import annotations

import pytest

from tests.support import run_python

# A loose kernel, which may fuse multiplications and additions, is compiled before a strict one. Both call the same
# subroutine, and both need the product of complex numbers, which is a function within numba.
PROGRAM = """
__name__ = "gsparse_roundings"  # as of a module of this package
import numpy as np
from gsparse.kernels.cpu.compiling import compiled, compiled_loosely, inlined

@inlined
def add(a, b, c):
    return a * b + c

@compiled_loosely
def loose(part, num_parts, x, y, z):
    for i in range(x.size):
        z[i] = add(x[i], x[i], y[i] * z[i])

@compiled
def strict(part, num_parts, x, y, z):
    for i in range(x.size):
        z[i] = add(x[i], x[i], y[i] * z[i])

def product(a, b):
    made = np.empty_like(a)
    if a.dtype.kind == "f":
        made[:] = a * b
    else:
        made.real, made.imag = a.real * b.real - a.imag * b.imag, a.real * b.imag + a.imag * b.real
    return made

rng = np.random.default_rng(0)
x, y, z = rng.standard_normal((3, 2000)).astype("{real}").view("{dtype}")
expected = product(x, x) + product(y, z)
loose(0, 1, x, y, z.copy())
strict(0, 1, x, y, z)
may_fuse = ["contract" in text for kernel in (loose, strict) for text in kernel.inspect_llvm().values()]
print(may_fuse, np.array_equal(z, expected))
"""


@pytest.mark.parametrize(
    ("real", "dtype"), [("float64", "float64"), ("float32", "complex64"), ("float64", "complex128")]
)
def test_a_strict_kernel_rounds_each_operation_also_after_a_loose_one(real: str, dtype: str) -> None:
    assert run_python(PROGRAM.replace("{real}", real).replace("{dtype}", dtype)) == "[True, False] True"
