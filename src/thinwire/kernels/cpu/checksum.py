"""The checksum of a packet, compiled, in vector instructions."""

from typing import Any

import numpy as np
from llvmlite import ir
from numba import extending, types, uint64
from torch import Tensor

from thinwire.kernels import xxh3
from thinwire.kernels.cpu.arrays import Words
from thinwire.kernels.cpu.compiled import kernel, part

intrinsic: Any = extending.intrinsic


_PRIME = uint64(xxh3.PRIME[0])
_PRIME32 = uint64(xxh3.PRIME32[0])
_AVALANCHE = uint64(xxh3.AVALANCHE)
_HALF = uint64((1 << 32) - 1)
_BLOCK = 128  # words
_MOST_SHORT = 30  # words that are not taken in stripes
_START = np.array(xxh3.START, np.uint64)
_STRIPES = np.array(xxh3.STRIPES, np.uint64)
_MERGE = np.array(xxh3.MERGE, np.uint64)
_LAST_STRIPE = np.array(xxh3.LAST_STRIPE, np.uint64)
_LATE_PAIRS = np.array(xxh3.LATE_PAIRS, np.uint64)
_LAST_PAIR = np.array(xxh3.LAST_PAIR, np.uint64)


def packet_checksum(body: Tensor) -> int:
    words = body.numpy().view(np.uint64)
    if len(words) <= _MOST_SHORT:
        words = words.copy()
        words[3] &= np.uint64(_HALF)
    checksum: int = _packet_checksum(words, np.empty(8, np.uint64))
    return checksum


@kernel
def _packet_checksum(words: Words, lanes: Words) -> Any:
    """Use `lanes`, 8 words; up to 30 words, the packet's own checksum is zero."""
    n = len(words)
    total = uint64(8 * n) * _PRIME
    if n <= 16:
        for i in range(0, (n - 1) // 4 * 2 + 2, 2):
            for begin, key in ((i, 2 * i), (n - i - 2, 2 * i + 2)):
                total += _folded(words, begin, _STRIPES, key)
    elif n <= _MOST_SHORT:
        for i in range(0, 16, 2):
            total += _folded(words, i, _STRIPES, i)
        total = _avalanche(total)
        for i in range(16, n - 1, 2):
            total += _folded(words, i, _LATE_PAIRS, i - 16)
        total += _folded(words, n - 2, _LAST_PAIR, 0)
    else:
        _mix(words, lanes)
        for i in range(0, 8, 2):
            total += _folded(lanes, i, _MERGE, i)
    return _avalanche(total) & _HALF


@part
def _mix(words: Words, lanes: Words) -> None:
    """Set `lanes` to what eight lanes make of all words."""
    for i in range(8):
        lanes[i] = _START[i]
    # Blocks take the fourth word as it is: this takes the checksum out again.
    blank = words[3] & _HALF
    lanes[2] += blank - words[3]
    lanes[3] += _product(blank ^ _STRIPES[3]) - _product(words[3] ^ _STRIPES[3])
    last = len(words) - 8
    begin = 0
    while begin + _BLOCK < len(words):
        _mix_block(lanes, words, begin, _STRIPES)
        begin += _BLOCK
    for place in range((last - begin + 7) // 8):
        for i in range(8):
            word = words[begin + 8 * place + i]
            lanes[i] += _product(word ^ _STRIPES[place + i])
            lanes[i ^ 1] += word
    for i in range(8):
        lanes[i] += _product(words[last + i] ^ _LAST_STRIPE[i])
        lanes[i] += words[last + (i ^ 1)]


@part
def _product(word: Any) -> Any:
    return (word & _HALF) * (word >> uint64(32))


@intrinsic
def _mix_block(typing: Any, lanes: Any, words: Any, begin: Any, keys: Any) -> Any:
    """Add 16 stripes of 8 words from `begin` on to the lanes, and scramble these."""
    del typing, begin
    word, vector = ir.IntType(64), ir.VectorType(ir.IntType(64), 8)
    neighbours = ir.Constant(
        ir.VectorType(ir.IntType(32), 8), [i ^ 1 for i in range(8)]
    )

    def all_of(number: int) -> Any:
        return ir.Constant(vector, [number] * 8)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        def pointer(place: int, offset: Any) -> Any:
            array = context.make_array(signature.args[place])
            data = array(context, builder, args[place]).data
            return builder.bitcast(builder.gep(data, [offset]), vector.as_pointer())

        def loaded(place: int, offset: Any) -> Any:
            return builder.load(pointer(place, offset), align=8)

        mixed = loaded(0, word(0))
        for stripe in range(16):
            read = loaded(1, builder.add(args[2], word(8 * stripe)))
            keyed = builder.xor(read, loaded(3, word(stripe)))
            low = builder.and_(keyed, all_of((1 << 32) - 1))
            product = builder.mul(low, builder.lshr(keyed, all_of(32)))
            swapped = builder.shuffle_vector(read, read, neighbours)
            mixed = builder.add(mixed, builder.add(product, swapped))
        mixed = builder.xor(mixed, builder.lshr(mixed, all_of(47)))
        mixed = builder.xor(mixed, loaded(3, word(16)))
        mixed = builder.mul(mixed, all_of(xxh3.PRIME32[0]))
        builder.store(mixed, pointer(0, word(0)), align=8)
        return context.get_dummy_value()

    return types.void(lanes, words, types.int64, keys), generate


@part
def _folded(words: Words, begin: int, keys: Words, key: int) -> Any:
    """Two words with their keys multiplied, and the halves of the product combined."""
    shift = uint64(32)
    a, b = words[begin] ^ keys[key], words[begin + 1] ^ keys[key + 1]
    low = (a & _HALF) * (b & _HALF)
    left = (a >> shift) * (b & _HALF)
    right = (a & _HALF) * (b >> shift)
    middle = (low >> shift) + (left & _HALF) + right
    high = (left >> shift) + (middle >> shift) + (a >> shift) * (b >> shift)
    return high ^ ((middle << shift) | (low & _HALF))


@part
def _avalanche(total: Any) -> Any:
    total = (total ^ (total >> uint64(37))) * _AVALANCHE
    return total ^ (total >> uint64(32))
