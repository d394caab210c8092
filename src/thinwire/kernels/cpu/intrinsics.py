"""What a processor does in an instruction or a few, and numba does not offer."""

from typing import Any

from llvmlite import ir
from numba import extending, types

intrinsic: Any = extending.intrinsic

MAGNITUDE = 0x7FFFFFFF

_I1, _I8, _I32, _I64 = (ir.IntType(width) for width in (1, 8, 32, 64))
_FLOAT = ir.FloatType()

# A word may be signed or not: to cast one to the other is no instruction.


@intrinsic
def trailing_zeros(typing: Any, word: Any) -> Any:
    """The place of the lowest one of a word of 64 bits; 64 if there is none."""
    del typing, word

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        del context, signature
        return builder.cttz(args[0], ir.Constant(_I1, 0))

    return types.int64(types.int64), generate


@intrinsic
def leading_zeros(typing: Any, word: Any) -> Any:
    """How many zeros are above the highest one of a word of 64 bits."""
    del typing, word

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        del context, signature
        return builder.ctlz(args[0], ir.Constant(_I1, 0))

    return types.int64(types.int64), generate


@intrinsic
def count_ones(typing: Any, word: Any) -> Any:
    """How many ones are in a word of 64 bits."""
    del typing, word

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        del context, signature
        return builder.ctpop(args[0])

    return types.int64(types.int64), generate


@intrinsic
def prefetch(typing: Any, x: Any, p: Any) -> Any:
    """Ask the memory for element `p` of an array that will be needed soon."""
    del typing, p

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        array = context.make_array(signature.args[0])(context, builder, args[0])
        byte = _I8.as_pointer()
        name, known = "llvm.prefetch.p0", builder.module.globals
        if name not in known:
            kind = ir.FunctionType(ir.VoidType(), [byte, _I32, _I32, _I32])
            ir.Function(builder.module, kind, name)
        address = builder.bitcast(builder.gep(array.data, [args[1]]), byte)
        flags = (ir.Constant(_I32, n) for n in (0, 3, 1))
        builder.call(known[name], [address, *flags])
        return context.get_dummy_value()

    return types.void(x, types.int64), generate


@intrinsic
def float_bits(typing: Any, value: Any) -> Any:
    """The bits of a float32."""
    del typing, value

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        del context, signature
        return builder.bitcast(args[0], _I32)

    return types.int32(types.float32), generate


@intrinsic
def float_of(typing: Any, bits: Any) -> Any:
    """The float32 that has these bits."""
    del typing, bits

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        del context, signature
        return builder.bitcast(args[0], _FLOAT)

    return types.float32(types.int32), generate


@intrinsic
def magnitude(typing: Any, value: Any) -> Any:
    """The bits of |value|: integers in the order of magnitudes, NaN above infinity."""
    del typing, value

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        del context, signature
        bits = builder.bitcast(args[0], _I32)
        return builder.zext(builder.and_(bits, ir.Constant(_I32, MAGNITUDE)), _I64)

    return types.int64(types.float32), generate


@intrinsic
def to_bf16(typing: Any, value: Any) -> Any:
    """A float32 rounded to bfloat16, ties to even; finite values remain finite."""
    del typing, value

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        del context, signature

        def number(bits: int) -> Any:
            return ir.Constant(_I32, bits)

        bits = builder.bitcast(args[0], _I32)
        size = builder.and_(bits, number(MAGNITUDE))
        odd = builder.and_(builder.lshr(size, number(16)), number(1))
        up = builder.add(builder.add(size, number(0x7FFF)), odd)
        cut = builder.and_(up, number(0xFFFF0000))
        over = builder.icmp_unsigned(">", cut, number(0x7F7F0000))
        cut = builder.select(over, number(0x7F7F0000), cut)
        finite = builder.icmp_unsigned("<", size, number(0x7F800000))
        rounded = builder.select(finite, cut, size)
        sign = builder.and_(bits, number(0x80000000))
        return builder.bitcast(builder.or_(rounded, sign), _FLOAT)

    return types.float32(types.float32), generate
