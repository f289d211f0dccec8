"""Eight numbers side by side in vector registers, for compiled loops that LLVM does not vectorize by itself.

A lane is one element of a vector register. A loop over a slice assigns one row to each lane, and processes one entry of
each row at a time:

    lane                0        1        2       ...      7
    codes[k : k + 8]    c0       c1       c2               c7         `load` reads eight neighbouring elements
    gather              x[c0]    x[c1]    x[c2]            x[c7]      `gather` reads eight scattered ones
    sums                s0       s1       s2               s7         one sum per row

LLVM does not vectorize these loops. It cannot prove that storing a sum leaves `x` unchanged, and it does not combine
eight scalar sums into a vector. If a matrix stays in the cache, lanes halve the time of a product. A gather is a single
instruction if this is faster, otherwise eight scalar loads (`gsparse.kernels.cpu.vectors.HAS_GATHERS`).

A `Lanes` is one LLVM vector, or two vectors for real and imaginary parts. No operations are reordered or fused, so each
lane gets the same bits as a scalar loop. Positions are uint64.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir  # type: ignore[import-untyped, unused-ignore]
from numba import types

from gsparse.kernels.cpu.jit import intrinsic
from gsparse.kernels.cpu.vectors import (
    I32,
    LANES,
    Lanes,
    arithmetic,
    as_vector,
    first_mask,
    gather_lanes,
    join_parts,
    load_codes,
    masked_call,
    masked_load,
    num_parts,
    pack,
    pointer_to,
    shuffle,
    splat_vector,
    split_parts,
    unpack,
    widen_parts,
)

# ---- reading and writing


@intrinsic
def splat(context: Any, scalar: Any) -> Any:
    """Return lanes that all contain the same number."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        complex_ = num_parts(scalar) == 2
        parts = [builder.extract_value(args[0], i) for i in range(2)] if complex_ else [args[0]]
        return pack(builder, [splat_vector(builder, part) for part in parts])

    return Lanes(scalar)(scalar), codegen


@intrinsic
def load(context: Any, array: Any, k: Any, like: Any) -> Any:
    """Return ``array[k : k + LANES]``, widened to the dtype of the number `like`."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        parts = num_parts(array.dtype)
        pointer, align = as_vector(builder, pointer_to(context, builder, array, *args[:2]), LANES * parts)
        vectors = split_parts(builder, builder.load(pointer, align=align), parts)
        return pack(builder, widen_parts(builder, vectors, array.dtype, like))

    return Lanes(like)(array, types.uint64, like), codegen


@intrinsic
def load_first(context: Any, array: Any, k: Any, count: Any, like: Any) -> Any:
    """Return ``array[k : k + count]``, widened to the dtype of `like`, followed by zeros. Read no other element."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        parts = num_parts(array.dtype)
        pointer, align = as_vector(builder, pointer_to(context, builder, array, *args[:2]), LANES * parts)
        masked = masked_load(builder, pointer, align, first_mask(builder, args[2], parts))
        vectors = split_parts(builder, masked, parts)
        return pack(builder, widen_parts(builder, vectors, array.dtype, like))

    return Lanes(like)(array, types.uint64, types.uint64, like), codegen


@intrinsic
def store(context: Any, array: Any, k: Any, lanes: Any) -> Any:
    """Store the lanes in ``array[k : k + LANES]``."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        vector = join_parts(builder, unpack(builder, args[2]))
        pointer, align = as_vector(builder, pointer_to(context, builder, array, *args[:2]), vector.type.count)
        builder.store(vector, pointer, align=align)
        return context.get_dummy_value()

    return types.void(array, types.uint64, lanes), codegen


@intrinsic
def store_first(context: Any, array: Any, k: Any, count: Any, lanes: Any) -> Any:
    """Store the first `count` lanes in ``array[k : k + count]``."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        vector = join_parts(builder, unpack(builder, args[3]))
        pointer, align = as_vector(builder, pointer_to(context, builder, array, *args[:2]), vector.type.count)
        mask = first_mask(builder, args[2], num_parts(array.dtype))
        masked_call(builder, "store", vector.type, ir.VoidType(), [vector, pointer, ir.Constant(I32, align), mask])
        return context.get_dummy_value()

    return types.void(array, types.uint64, types.uint64, lanes), codegen


@intrinsic
def gather(context: Any, array: Any, codes: Any, k: Any, base: Any) -> Any:
    """Return ``array[base + codes[k : k + LANES]]``. No code may be the padding code."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return gather_lanes(context, builder, (array, codes), args[:2], *args[2:])

    return Lanes(array.dtype)(array, codes, types.uint64, types.uint64), codegen


@intrinsic
def gather_first(context: Any, array: Any, codes: Any, k: Any, base: Any, count: Any) -> Any:
    """Return ``array[base + codes[k : k + count]]``, followed by arbitrary values. Read no other code."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return gather_lanes(context, builder, (array, codes), args[:2], *args[2:4], count=args[4])

    return Lanes(array.dtype)(array, codes, types.uint64, types.uint64, types.uint64), codegen


@intrinsic
def gather_or_first(context: Any, array: Any, codes: Any, k: Any, base: Any) -> Any:
    """Return ``array[base + codes[k : k + LANES]]``, with ``array[0]`` in lanes whose code is padding."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return gather_lanes(context, builder, (array, codes), args[:2], *args[2:], padded=True)

    return Lanes(array.dtype)(array, codes, types.uint64, types.uint64), codegen


# ---- padding and equality


@intrinsic
def keep_padding(context: Any, codes: Any, k: Any, before: Any, after: Any) -> Any:
    """Return `before` in lanes whose code is padding, and `after` in all other lanes."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        vector = load_codes(context, builder, codes, args[0], args[1], LANES)
        padding = builder.icmp_unsigned("==", vector, ir.Constant(vector.type, [-1] * LANES))
        pairs = zip(unpack(builder, args[2]), unpack(builder, args[3]), strict=True)
        return pack(builder, [builder.select(padding, old, new) for old, new in pairs])

    return before(codes, types.uint64, before, after), codegen


@intrinsic
def any_padding(context: Any, codes: Any, k: Any) -> Any:
    """Return whether any of the ``4 * LANES`` codes from `k` on is padding."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        vector = load_codes(context, builder, codes, args[0], args[1], 4 * LANES)
        padding = builder.icmp_unsigned("==", vector, ir.Constant(vector.type, [-1] * (4 * LANES)))
        return builder.icmp_unsigned("!=", builder.bitcast(padding, I32), ir.Constant(I32, 0))

    return types.boolean(codes, types.uint64), codegen


@intrinsic
def same_as_first(context: Any, codes: Any, k: Any) -> Any:
    """Return whether the `LANES` codes from `k` on are all equal."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        vector = load_codes(context, builder, codes, args[0], args[1], LANES)
        same = builder.icmp_unsigned("==", vector, shuffle(builder, vector, vector, [0] * LANES))
        bits = builder.bitcast(same, ir.IntType(LANES))
        return builder.icmp_unsigned("==", bits, ir.Constant(bits.type, -1))

    return types.boolean(codes, types.uint64), codegen


@intrinsic
def keep_first(context: Any, lanes: Any, count: Any) -> Any:
    """Return `lanes` with zeros in all lanes except the first `count`."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kept = first_mask(builder, args[1], 1)
        vectors = unpack(builder, args[0])
        return pack(builder, [builder.select(kept, vector, ir.Constant(vector.type, None)) for vector in vectors])

    return lanes(lanes, types.uint64), codegen


# ---- arithmetic


@intrinsic
def add(context: Any, a: Any, b: Any) -> Any:
    """Return a + b."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        plus, _, _ = arithmetic(a.dtype, builder)
        pairs = zip(unpack(builder, args[0]), unpack(builder, args[1]), strict=True)
        return pack(builder, [plus(u, v) for u, v in pairs])

    return a(a, b), codegen


@intrinsic
def multiply(context: Any, a: Any, b: Any) -> Any:
    """Return a * b."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        plus, minus, times = arithmetic(a.dtype, builder)
        u, v = unpack(builder, args[0]), unpack(builder, args[1])
        if len(u) == 1:
            return pack(builder, [times(u[0], v[0])])
        real = minus(times(u[0], v[0]), times(u[1], v[1]))
        return pack(builder, [real, plus(times(u[0], v[1]), times(u[1], v[0]))])

    return a(a, b), codegen


@intrinsic
def conjugate_lanes(context: Any, a: Any) -> Any:
    """Return the complex conjugate of each lane."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        real, imaginary = unpack(builder, args[0])
        return pack(builder, [real, builder.fneg(imaginary)])

    return a(a), codegen


@intrinsic
def lane_sum(context: Any, a: Any) -> Any:
    """Return the sum of all lanes. Halves of the vector are added to each other until one element is left."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        plus, _, _ = arithmetic(a.dtype, builder)
        sums = []
        for vector in unpack(builder, args[0]):
            left, size = vector, LANES
            while size > 1:
                size //= 2
                low = shuffle(builder, left, left, list(range(size)))
                left = plus(low, shuffle(builder, left, left, list(range(size, 2 * size))))
            sums.append(builder.extract_element(left, ir.Constant(I32, 0)))
        if len(sums) == 1:
            return sums[0]
        packed = ir.Constant(ir.LiteralStructType([part.type for part in sums]), ir.Undefined)
        return builder.insert_value(builder.insert_value(packed, sums[0], 0), sums[1], 1)

    return a.dtype(a), codegen
