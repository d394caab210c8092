"""The checksum of a packet, compiled: about 20 GB/s."""

from typing import Any

import numpy as np
from numba import uint64
from numpy.typing import NDArray
from torch import Tensor

from thinwire.kernels import xxh3
from thinwire.kernels.cpu.compiled import kernel, part

Words = NDArray[np.uint64]

_PRIME = uint64(xxh3.PRIME[0])
_PRIME32 = uint64(xxh3.PRIME32[0])
_AVALANCHE = uint64(xxh3.AVALANCHE)
_HALF = uint64((1 << 32) - 1)
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
    checksum: int = _packet_checksum(words, np.empty((2, 8), np.uint64))
    return checksum


@kernel
def _packet_checksum(words: Words, room: Words) -> Any:
    """Use `room` for 2 x 8 words; up to 30 words, the packet's own checksum is zero."""
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
        _mix(words, room[0], room[1])
        for i in range(0, 8, 2):
            total += _folded(room[0], i, _MERGE, i)
    return _avalanche(total) & _HALF


@part
def _mix(words: Words, lanes: Words, plain: Words) -> None:
    """Set `lanes` to what eight lanes make of all words."""
    shift = uint64(32)
    for i in range(8):
        lanes[i], plain[i] = _START[i], 0
    # The loop takes the fourth word as it is: this takes the checksum out again.
    blank = words[3] & _HALF
    plain[3] = blank - words[3]
    mixed = words[3] ^ _STRIPES[3]
    lanes[3] -= (mixed & _HALF) * (mixed >> shift)
    mixed = blank ^ _STRIPES[3]
    lanes[3] += (mixed & _HALF) * (mixed >> shift)
    last = len(words) - 8
    for begin in range(0, last, 8):
        place = begin // 8 % 16
        for i in range(8):
            word = words[begin + i]
            mixed = word ^ _STRIPES[place + i]
            lanes[i] += (mixed & _HALF) * (mixed >> shift)
            plain[i] += word
        if place == 15:
            # Each lane adds the words of its neighbour: at once for 16 stripes.
            for i in range(8):
                lane = lanes[i] + plain[i ^ 1]
                lane ^= (lane >> uint64(47)) ^ _STRIPES[16 + i]
                lanes[i] = lane * _PRIME32
            for i in range(8):
                plain[i] = 0
    for i in range(8):
        mixed = words[last + i] ^ _LAST_STRIPE[i]
        lanes[i] += (mixed & _HALF) * (mixed >> shift)
        lanes[i] += plain[i ^ 1] + words[last + (i ^ 1)]


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
