"""Vector instructions on 64 elements, one word of marks.

Numba does not vectorise a comparison whose results are packed into a word. These
compile to the processor's instructions.
"""

from typing import Any

from llvmlite import ir
from numba import extending, types

from thinwire.kernels.cpu.intrinsics import MAGNITUDE

intrinsic: Any = extending.intrinsic
_LANES = 16
_I16, _I32, _I64 = (ir.IntType(width) for width in (16, 32, 64))
_FLOATS = ir.VectorType(ir.FloatType(), _LANES)
_INTS = ir.VectorType(_I32, _LANES)
_SHORTS = ir.VectorType(_I16, _LANES)


@intrinsic
def accumulate_64(
    typing: Any,
    x: Any,
    p: Any,
    grad: Any,
    q: Any,
    scale: Any,
    threshold: Any,
    before: Any,
) -> Any:
    """`x = x * scale + grad; grad = 0` for 64 elements; their marks as an int64.

    The elements of `x` as they were are copied to `before`, unless it holds octets.
    """
    del typing, p, q, scale, threshold
    signature = types.int64(
        x, types.int64, grad, types.int64, types.float32, types.int64, before
    )

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        to = _address(context, builder, signature.args[0], args[0], args[1])
        by = _address(context, builder, signature.args[2], args[2], args[3])
        copies = signature.args[6].dtype == types.float32
        if copies:
            old_to = _address(context, builder, signature.args[6], args[6], args[1])
            olds = []
        factor = _splat(builder, args[4], _FLOATS)
        least = _splat(builder, builder.trunc(args[5], _I32), _INTS)
        short = signature.args[2].dtype == types.uint16
        marks = ir.Constant(_I64, 0)
        for group in range(0, 64, _LANES):
            there = builder.gep(to, [ir.Constant(_I64, group)])
            here = builder.gep(by, [ir.Constant(_I64, group)])
            addend = _load_floats(builder, here, short=short)
            old = _load(builder, there, _FLOATS, 4)
            if copies:
                olds.append(old)
            new = builder.fadd(builder.fmul(old, factor), addend)
            _store(builder, new, there, 4)
            zero = ir.Constant(_SHORTS if short else _FLOATS, [0] * _LANES)
            _store(builder, zero, here, 2 if short else 4)
            marks = _pack(builder, marks, new, least, group)
        if copies:
            _stream(builder, olds, old_to)
        return marks

    return signature, generate


@intrinsic
def keep(typing: Any, before: Any, p: Any, value: Any) -> Any:
    """`before[p] = value`, unless `before` holds octets."""
    del typing, p, value

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        if signature.args[0].dtype == types.float32:
            at = _address(context, builder, signature.args[0], args[0], args[1])
            builder.store(args[2], at)
        return context.get_dummy_value()

    return types.void(before, types.int64, types.float32), generate


@intrinsic
def mark_64(typing: Any, x: Any, p: Any, threshold: Any) -> Any:
    """Marks of the 64 elements of `x` from `p` on, as an int64."""
    del typing, p, threshold

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        at = _address(context, builder, signature.args[0], args[0], args[1])
        least = _splat(builder, builder.trunc(args[2], _I32), _INTS)
        marks = ir.Constant(_I64, 0)
        for group in range(0, 64, _LANES):
            there = builder.gep(at, [ir.Constant(_I64, group)])
            value = _load(builder, there, _FLOATS, 4)
            marks = _pack(builder, marks, value, least, group)
        return marks

    return types.int64(x, types.int64, types.int64), generate


@intrinsic
def magnitude_bits(typing: Any, vector: Any, i: Any) -> Any:
    """An element without its sign, without widening it as numba would."""
    del typing, i

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        at = _address(context, builder, signature.args[0], args[0], args[1])
        bits = builder.load(at)
        mask = (1 << (bits.type.width - 1)) - 1
        return builder.and_(bits, ir.Constant(bits.type, mask))

    return vector.dtype(vector, types.int64), generate


@intrinsic
def widen(typing: Any, value: Any) -> Any:
    """A float32 as it is, the bits of a bfloat16 as the float32 they stand for."""
    del typing

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        del context
        if signature.args[0] == types.float32:
            return args[0]
        wide = builder.shl(builder.zext(args[0], _I32), ir.Constant(_I32, 16))
        return builder.bitcast(wide, ir.FloatType())

    return types.float32(value), generate


def _address(context: Any, builder: Any, kind: Any, array: Any, index: Any) -> Any:
    data = context.make_array(kind)(context, builder, array).data
    return builder.gep(data, [index])


def _load(builder: Any, address: Any, vector: Any, align: int) -> Any:
    return builder.load(builder.bitcast(address, vector.as_pointer()), align=align)


def _store(builder: Any, value: Any, address: Any, align: int) -> None:
    pointer = builder.bitcast(address, value.type.as_pointer())
    builder.store(value, pointer, align=align)


def _stream(builder: Any, values: Any, address: Any) -> None:
    """Store 64 elements past the cache where their address is a multiple of 64.

    They are not read again in a usual step. An ordinary store would read every line of
    the cache before it writes it.
    """
    bits = builder.ptrtoint(address, _I64)
    offset = builder.and_(bits, ir.Constant(_I64, 63))
    aligned = builder.icmp_unsigned("==", offset, ir.Constant(_I64, 0))
    with builder.if_else(aligned) as (past, ordinary):
        with past:
            _store_group(builder, values, address, 64, nontemporal=True)
        with ordinary:
            _store_group(builder, values, address, 4, nontemporal=False)


def _store_group(
    builder: Any, values: Any, address: Any, align: int, *, nontemporal: bool
) -> None:
    for number, value in enumerate(values):
        place = builder.gep(address, [ir.Constant(_I64, number * _LANES)])
        pointer = builder.bitcast(place, value.type.as_pointer())
        store = builder.store(value, pointer, align=align)
        if nontemporal:
            one = builder.module.add_metadata([ir.Constant(_I32, 1)])
            store.set_metadata("nontemporal", one)


def _load_floats(builder: Any, address: Any, *, short: bool) -> Any:
    if not short:
        return _load(builder, address, _FLOATS, 4)
    wide = builder.zext(_load(builder, address, _SHORTS, 2), _INTS)
    shift = ir.Constant(_INTS, [16] * _LANES)
    return builder.bitcast(builder.shl(wide, shift), _FLOATS)


def _splat(builder: Any, value: Any, vector: Any) -> Any:
    empty = ir.Constant(vector, ir.Undefined)
    first = builder.insert_element(empty, value, ir.Constant(_I32, 0))
    return builder.shuffle_vector(first, empty, ir.Constant(_INTS, [0] * _LANES))


def _pack(builder: Any, marks: Any, value: Any, least: Any, group: int) -> Any:
    mask = ir.Constant(_INTS, [MAGNITUDE] * _LANES)
    bits = builder.and_(builder.bitcast(value, _INTS), mask)
    reached = builder.bitcast(builder.icmp_unsigned(">=", bits, least), _I16)
    wide = builder.shl(builder.zext(reached, _I64), ir.Constant(_I64, group))
    return builder.or_(marks, wide)
