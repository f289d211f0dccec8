"""The LLVM code of `gsparse.kernels.cpu.lanes`: the type `Lanes`, and functions that build its intrinsics.

Lanes are a struct of one LLVM vector, or of two vectors of real and imaginary parts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
import numba.extending
from llvmlite import ir  # type: ignore[import-untyped, unused-ignore]
from llvmlite.binding import get_host_cpu_features, get_host_cpu_name  # type: ignore[import-untyped, unused-ignore]
from numba import types
from numba.core.datamodel import models

LANES = 8


def _has_gathers() -> bool:
    config: Any = numba.config  # may name a CPU other than this one
    features = get_host_cpu_features().flatten() if config.CPU_FEATURES is None else config.CPU_FEATURES
    name = config.CPU_NAME or get_host_cpu_name()
    return "+avx512vl" in features and not name.startswith("znver")


# Whether one gather instruction is faster than loading the elements of all lanes one by one. This is so on Intel's CPUs
# with AVX-512, but not on AMD's CPUs.
HAS_GATHERS = _has_gathers()

I32, I64 = ir.IntType(32), ir.IntType(64)

Vectors = list[Any]  # LLVM values: one vector, or vectors of real and imaginary parts


class Lanes(types.Type):  # type: ignore[misc, unused-ignore]
    """Numba's type of `LANES` numbers of the same dtype."""

    def __init__(self, dtype: Any) -> None:
        self.dtype = dtype
        super().__init__(name=f"Lanes({dtype})")  # type: ignore[no-untyped-call, unused-ignore]


@numba.extending.register_model(Lanes)
class _LanesModel(models.PrimitiveModel):  # type: ignore[misc, unused-ignore]
    def __init__(self, dmm: Any, fe_type: Lanes) -> None:
        vector = ir.VectorType(llvm_type(real_type(fe_type.dtype)), LANES)
        struct = ir.LiteralStructType([vector] * num_parts(fe_type.dtype))
        super().__init__(dmm, fe_type, struct)  # type: ignore[no-untyped-call, unused-ignore]


def num_parts(dtype: Any) -> int:
    """Return the number of vectors for a dtype: two for a complex dtype, one for any other dtype."""
    return 2 if isinstance(dtype, types.Complex) else 1


def real_type(dtype: Any) -> Any:
    """Return the dtype of the real part of numbers of a dtype."""
    return dtype.underlying_float if isinstance(dtype, types.Complex) else dtype


def llvm_type(dtype: Any) -> Any:
    """Return LLVM's type of a real number."""
    if isinstance(dtype, types.Float):
        return ir.DoubleType() if dtype.bitwidth == 64 else ir.FloatType()
    return ir.IntType(dtype.bitwidth)


def pack(builder: Any, vectors: Vectors) -> Any:
    """Return a struct of vectors, which numba handles as one value."""
    packed = ir.Constant(ir.LiteralStructType([vector.type for vector in vectors]), ir.Undefined)
    for i, vector in enumerate(vectors):
        packed = builder.insert_value(packed, vector, i)
    return packed


def unpack(builder: Any, packed: Any) -> Vectors:
    """Return the vectors of a struct from `pack`."""
    return [builder.extract_value(packed, i) for i in range(len(packed.type.elements))]


def splat_vector(builder: Any, scalar: Any, count: int = LANES) -> Any:
    """Return a vector whose elements all are the same number."""
    vector = ir.Constant(ir.VectorType(scalar.type, count), ir.Undefined)
    vector = builder.insert_element(vector, scalar, ir.Constant(I32, 0))
    return shuffle(builder, vector, vector, [0] * count)


def shuffle(builder: Any, a: Any, b: Any, places: list[int]) -> Any:
    """Return the elements at `places` of the concatenation of the vectors a and b."""
    return builder.shuffle_vector(a, b, ir.Constant(ir.VectorType(I32, len(places)), places))


def widen(builder: Any, vector: Any, stored: Any, dtype: Any) -> Any:
    """Convert a vector of numbers from the dtype `stored` to a dtype that can represent all of them."""
    if stored == dtype:
        return vector
    wide = ir.VectorType(llvm_type(dtype), vector.type.count)
    if isinstance(stored, types.Float):
        return builder.fpext(vector, wide)
    if isinstance(dtype, types.Float):
        return (builder.sitofp if stored.signed else builder.uitofp)(vector, wide)
    return (builder.sext if stored.signed else builder.zext)(vector, wide)


def widen_parts(builder: Any, vectors: Vectors, stored: Any, dtype: Any) -> Vectors:
    """Convert real or complex parts to a wider dtype. A real number gets the imaginary part 0, as in NumPy."""
    widened = [widen(builder, vector, real_type(stored), real_type(dtype)) for vector in vectors]
    while len(widened) < num_parts(dtype):
        widened.append(ir.Constant(widened[0].type, None))
    return widened


def pointer_to(context: Any, builder: Any, array_type: Any, array: Any, k: Any) -> Any:
    """Return a pointer to the first real number of element `k`. A complex element consists of two real numbers."""
    data = context.make_array(array_type)(context, builder, array).data
    scalar = llvm_type(real_type(array_type.dtype)).as_pointer()
    return builder.bitcast(builder.gep(data, [k]), scalar)


def as_vector(builder: Any, pointer: Any, count: int) -> tuple[Any, int]:
    """Convert a pointer to a number into a pointer to a vector. Also return the number's alignment in bytes."""
    scalar = pointer.type.pointee
    align = {ir.FloatType: 4, ir.DoubleType: 8}.get(type(scalar)) or scalar.width // 8
    return builder.bitcast(pointer, ir.VectorType(scalar, count).as_pointer()), align


def split_parts(builder: Any, vector: Any, parts: int) -> Vectors:
    """Return the vectors of real parts and of imaginary parts, from a vector in which both alternate."""
    if parts == 1:
        return [vector]
    return [shuffle(builder, vector, vector, list(range(i, 2 * LANES, 2))) for i in range(2)]


def join_parts(builder: Any, vectors: Vectors) -> Any:
    """Return one vector in which real and imaginary parts alternate, from the vectors that `split_parts` returns."""
    if len(vectors) == 1:
        return vectors[0]
    return shuffle(builder, vectors[0], vectors[1], [i // 2 + LANES * (i % 2) for i in range(2 * LANES)])


def first_mask(builder: Any, count: Any, parts: int) -> Any:
    """Return a mask that selects the first `count` elements of a vector. Each element consists of `parts` numbers."""
    size = LANES * parts
    places = ir.Constant(ir.VectorType(I64, size), [i // parts for i in range(size)])
    return builder.icmp_unsigned("<", places, splat_vector(builder, count, size))


def masked_call(builder: Any, name: str, vector: Any, result: Any, args: list[Any]) -> Any:
    """Call LLVM's masked load, store or gather."""
    scalar = vector.element
    suffix = {ir.FloatType: "f32", ir.DoubleType: "f64"}.get(type(scalar)) or f"i{scalar.width}"
    function_type = ir.FunctionType(result, [arg.type for arg in args])
    pointers = f"v{vector.count}p0" if name == "gather" else "p0"
    symbol = f"llvm.masked.{name}.v{vector.count}{suffix}.{pointers}"
    function = builder.module.globals.get(symbol) or ir.Function(builder.module, function_type, symbol)
    return builder.call(function, args)


def masked_load(builder: Any, pointer: Any, align: int, mask: Any) -> Any:
    """Load the elements that the mask selects from the vector at a pointer. All other elements become zero."""
    vector = pointer.type.pointee
    return masked_call(
        builder, "load", vector, vector, [pointer, ir.Constant(I32, align), mask, ir.Constant(vector, None)]
    )


def gather_lanes(
    context: Any,
    builder: Any,
    types_: tuple[Any, Any],
    arrays: tuple[Any, Any],
    k: Any,
    base: Any,
    *,
    padded: bool = False,
    count: Any = None,
) -> Any:
    """Load ``array[base + codes[k + i]]`` into lane i, for arrays ``(array, codes)`` of the types `types_`.

    With `padded`, lanes whose code is padding receive ``array[0]``. With `count`, only `count` codes are read, and all
    other lanes receive arbitrary elements.
    """
    dtype = types_[0].dtype
    gathers = HAS_GATHERS and isinstance(dtype, types.Float)
    gather = _gather_at_once if gathers else _gather_one_by_one
    return pack(builder, gather(context, builder, types_, arrays, k, base, padded, count))


def _gather_one_by_one(
    context: Any, builder: Any, types_: Any, arrays: Any, k: Any, base: Any, padded: bool, count: Any
) -> Vectors:
    """Gather with scalar loads. Lanes from `count` on repeat the code and the element of the first lane.

    If `count` is 0, all lanes use code number 0, because position `k` may be past the end of the codes.
    """
    parts = num_parts(types_[0].dtype)
    first = k
    if count is not None:
        is_empty = builder.icmp_unsigned("==", count, ir.Constant(I64, 0))
        first = builder.select(is_empty, ir.Constant(I64, 0), k)
    vector = ir.VectorType(llvm_type(real_type(types_[0].dtype)), LANES)
    vectors: Vectors = [ir.Constant(vector, ir.Undefined)] * parts
    for lane in range(LANES):
        place = ir.Constant(I64, lane)
        if count is not None:
            place = builder.select(builder.icmp_unsigned("<", place, count), place, ir.Constant(I64, 0))
        code = builder.load(pointer_to(context, builder, types_[1], arrays[1], builder.add(first, place)))
        index = builder.add(_index(builder, code, I64), base)
        if padded:
            padding = builder.icmp_unsigned("==", code, ir.Constant(code.type, -1))
            index = builder.select(padding, ir.Constant(I64, 0), index)
        pointer = pointer_to(context, builder, types_[0], arrays[0], index)
        for i in range(parts):
            element = builder.load(builder.gep(pointer, [ir.Constant(I64, i)]))
            vectors[i] = builder.insert_element(vectors[i], element, ir.Constant(I32, lane))
    return vectors


def _gather_at_once(
    context: Any, builder: Any, types_: Any, arrays: Any, k: Any, base: Any, padded: bool, count: Any
) -> Vectors:
    """Gather with one instruction of the CPU, LLVM's masked gather. Lanes from `count` on are zero."""
    wide = ir.VectorType(I64, LANES)
    mask = ir.Constant(ir.VectorType(ir.IntType(1), LANES), [1] * LANES)
    if count is None:
        codes = load_codes(context, builder, types_[1], arrays[1], k, LANES)
    else:
        mask = first_mask(builder, count, 1)
        pointer, align = as_vector(builder, pointer_to(context, builder, types_[1], arrays[1], k), LANES)
        codes = masked_load(builder, pointer, align, mask)
    indices = builder.add(_index(builder, codes, wide), splat_vector(builder, base))
    if padded:
        padding = builder.icmp_unsigned("==", codes, ir.Constant(codes.type, [-1] * LANES))
        indices = builder.select(padding, ir.Constant(wide, None), indices)
    scalar = llvm_type(types_[0].dtype)
    size = types_[0].dtype.bitwidth // 8
    first = builder.ptrtoint(pointer_to(context, builder, types_[0], arrays[0], ir.Constant(I64, 0)), I64)
    offsets = builder.mul(indices, ir.Constant(wide, [size] * LANES))
    addresses = builder.add(offsets, splat_vector(builder, first))
    pointers = builder.inttoptr(addresses, ir.VectorType(scalar.as_pointer(), LANES))
    elements = ir.VectorType(scalar, LANES)
    masked = [pointers, ir.Constant(I32, size), mask, ir.Constant(elements, None)]
    return [masked_call(builder, "gather", elements, elements, masked)]


def _index(builder: Any, codes: Any, wide: Any) -> Any:
    return codes if codes.type == wide else builder.zext(codes, wide)


def load_codes(context: Any, builder: Any, codes_type: Any, codes: Any, k: Any, count: int) -> Any:
    """Load `count` codes from `k` on."""
    pointer, align = as_vector(builder, pointer_to(context, builder, codes_type, codes, k), count)
    return builder.load(pointer, align=align)


def arithmetic(dtype: Any, builder: Any) -> tuple[Callable[..., Any], Callable[..., Any], Callable[..., Any]]:
    """Return LLVM's addition, subtraction and multiplication for a dtype, as functions of the builder."""
    if isinstance(real_type(dtype), types.Float):
        return builder.fadd, builder.fsub, builder.fmul
    return builder.add, builder.sub, builder.mul
