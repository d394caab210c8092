"""Instructions of the processor that numba does not offer."""

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import extending, types

intrinsic: Any = extending.intrinsic

MAGNITUDE = 0x7FFFFFFF

_I1, _I8, _I32, _I64 = (ir.IntType(width) for width in (1, 8, 32, 64))
_FLOAT = ir.FloatType()


def _instruction(result: Any, argument: Any, emit: Callable[[Any, Any], Any]) -> Any:
    """A function of one argument; `emit(builder, argument)` adds its instructions."""

    def declare(typing: Any, value: Any) -> Any:
        del typing, value

        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            del context, signature
            return emit(builder, args[0])

        return result(argument), generate

    return intrinsic(declare)


def _magnitude(builder: Any, value: Any) -> Any:
    bits = builder.bitcast(value, _I32)
    return builder.zext(builder.and_(bits, ir.Constant(_I32, MAGNITUDE)), _I64)


def _to_bf16(builder: Any, value: Any) -> Any:
    def number(bits: int) -> Any:
        return ir.Constant(_I32, bits)

    bits = builder.bitcast(value, _I32)
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


# Words have 64 bits, signed or not: to cast one to the other is no instruction.
_OF_WORD = (types.int64, types.int64)
_ZERO = ir.Constant(_I1, 0)

# The number of zeros below the lowest one; 64 if there is no one.
trailing_zeros = _instruction(*_OF_WORD, lambda b, word: b.cttz(word, _ZERO))
# The number of zeros above the highest one; 64 if there is no one.
leading_zeros = _instruction(*_OF_WORD, lambda b, word: b.ctlz(word, _ZERO))
count_ones = _instruction(*_OF_WORD, lambda b, word: b.ctpop(word))

# A float32 as its bits, and back.
float_bits = _instruction(
    types.int32, types.float32, lambda b, value: b.bitcast(value, _I32)
)
float_of = _instruction(
    types.float32, types.int32, lambda b, bits: b.bitcast(bits, _FLOAT)
)
# The bits of |value|: integers in the order of magnitudes, NaN above infinity.
magnitude = _instruction(types.int64, types.float32, _magnitude)
# A float32 rounded to bfloat16, ties to even; finite values remain finite.
to_bf16 = _instruction(types.float32, types.float32, _to_bf16)


@intrinsic
def prefetch(typing: Any, x: Any, p: Any) -> Any:
    """Prefetch element `p` of an array."""
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
