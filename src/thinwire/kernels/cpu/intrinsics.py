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


def _prefetch(builder: Any, address: Any) -> None:
    name, known = "llvm.prefetch.p0", builder.module.globals
    if name not in known:
        kind = ir.FunctionType(ir.VoidType(), [address.type, _I32, _I32, _I32])
        ir.Function(builder.module, kind, name)
    flags = (ir.Constant(_I32, n) for n in (0, 3, 1))
    builder.call(known[name], [address, *flags])


@intrinsic
def prefetch(typing: Any, x: Any, p: Any) -> Any:
    """Prefetch element `p` of an array."""
    del typing, p

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        array = context.make_array(signature.args[0])(context, builder, args[0])
        address = builder.gep(array.data, [args[1]])
        _prefetch(builder, builder.bitcast(address, _I8.as_pointer()))
        return context.get_dummy_value()

    return types.void(x, types.int64), generate


def _at_address(kind: Any, result: Any, align: int) -> tuple[Any, Any]:
    """Functions that load from, and store to, an address given as an integer."""

    @intrinsic
    def load(typing: Any, address: Any) -> Any:
        del typing, address

        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            del context, signature
            pointer = builder.inttoptr(args[0], kind.as_pointer())
            return builder.load(pointer, align=align)

        return result(types.int64), generate

    @intrinsic
    def store(typing: Any, address: Any, value: Any) -> Any:
        del typing, address, value

        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            del signature
            pointer = builder.inttoptr(args[0], kind.as_pointer())
            builder.store(args[1], pointer, align=align)
            return context.get_dummy_value()

        return types.void(types.int64, result), generate

    return load, store


_HALF = ir.HalfType()
load_float, store_float = _at_address(_FLOAT, types.float32, 4)
load_short, store_short = _at_address(ir.IntType(16), types.uint16, 2)
# A float32 as the bits of the nearest float16, and back.
float16_bits = _instruction(
    types.uint16,
    types.float32,
    lambda b, value: b.bitcast(b.fptrunc(value, _HALF), ir.IntType(16)),
)
float16_of = _instruction(
    types.float32,
    types.uint16,
    lambda b, bits: b.fpext(b.bitcast(bits, _HALF), _FLOAT),
)


@intrinsic
def prefetch_address(typing: Any, address: Any) -> Any:
    """Prefetch the line of memory at an address given as an integer."""
    del typing, address

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        del signature
        _prefetch(builder, builder.inttoptr(args[0], _I8.as_pointer()))
        return context.get_dummy_value()

    return types.void(types.int64), generate


def _nonzero_marks(width: int, lanes: int) -> Any:
    """Marks of the elements of 64 bytes that are neither 0.0 nor -0.0."""
    vector = ir.VectorType(ir.IntType(width), lanes)

    def emit(builder: Any, address: Any) -> Any:
        pointer = builder.inttoptr(address, vector.as_pointer())
        mask = ir.Constant(vector, [(1 << (width - 1)) - 1] * lanes)
        bits = builder.and_(builder.load(pointer, align=width // 8), mask)
        marks = builder.icmp_unsigned("!=", bits, ir.Constant(vector, [0] * lanes))
        return builder.zext(builder.bitcast(marks, ir.IntType(lanes)), _I64)

    return _instruction(types.int64, types.int64, emit)


nonzero_floats = _nonzero_marks(32, 16)
nonzero_halves = _nonzero_marks(16, 32)
