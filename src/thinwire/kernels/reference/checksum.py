"""The checksum of a packet, in plain Python."""

from struct import unpack

from torch import Tensor

from thinwire.kernels import xxh3
from thinwire.kernels.dispatch import primitive

_WORD = (1 << 64) - 1
_HALF = (1 << 32) - 1


@primitive
def packet_checksum(body: Tensor) -> int:
    """The low 32 bits of XXH3-64 over a packet whose own checksum counts as zero.

    A packet is 4 or more words of 8 bytes; its checksum is the high half of the fourth.

    >>> import torch
    >>> hex(packet_checksum(torch.zeros(32, dtype=torch.uint8)))
    '0x9071c99d'
    """
    words = list(unpack(f"<{len(body) // 8}Q", body.numpy().tobytes()))
    words[3] &= _HALF
    if len(words) <= 16:
        return _short(words) & _HALF
    if len(words) <= 30:
        return _medium(words) & _HALF
    return _long(words) & _HALF


def _short(words: list[int]) -> int:
    total = 8 * len(words) * xxh3.PRIME[0]
    for i in range((len(words) - 1) // 4 + 1):
        total += _pair(words, 2 * i, xxh3.STRIPES[4 * i : 4 * i + 2])
        ends = xxh3.STRIPES[4 * i + 2 : 4 * i + 4]
        total += _pair(words, len(words) - 2 * i - 2, ends)
    return _avalanche(total)


def _medium(words: list[int]) -> int:
    total = 8 * len(words) * xxh3.PRIME[0]
    for i in range(0, 16, 2):
        total += _pair(words, i, xxh3.STRIPES[i : i + 2])
    total = _avalanche(total)
    for i in range(16, len(words) - 1, 2):
        total += _pair(words, i, xxh3.LATE_PAIRS[i - 16 : i - 14])
    return _avalanche(total + _pair(words, len(words) - 2, xxh3.LAST_PAIR))


def _long(words: list[int]) -> int:
    lanes = list(xxh3.START)
    for stripe in range((len(words) - 1) // 8):
        place = stripe % 16
        _add_stripe(lanes, words, 8 * stripe, xxh3.STRIPES[place : place + 8])
        if place == 15:
            for i, key in enumerate(xxh3.STRIPES[16:]):
                lanes[i] = ((lanes[i] ^ lanes[i] >> 47) ^ key) * xxh3.PRIME32[0] & _WORD
    _add_stripe(lanes, words, len(words) - 8, xxh3.LAST_STRIPE)
    total = 8 * len(words) * xxh3.PRIME[0]
    for i in range(0, 8, 2):
        total += _pair(lanes, i, xxh3.MERGE[i : i + 2])
    return _avalanche(total)


def _add_stripe(
    lanes: list[int], words: list[int], begin: int, keys: tuple[int, ...]
) -> None:
    for i, key in enumerate(keys):
        mixed = words[begin + i] ^ key
        product = (mixed & _HALF) * (mixed >> 32)
        lanes[i] = (lanes[i] + words[begin + (i ^ 1)] + product) & _WORD


def _pair(words: list[int], begin: int, keys: tuple[int, ...]) -> int:
    """The product of two words with keys, its halves folded."""
    product = (words[begin] ^ keys[0]) * (words[begin + 1] ^ keys[1])
    return product & _WORD ^ product >> 64


def _avalanche(total: int) -> int:
    total &= _WORD
    total = (total ^ total >> 37) * xxh3.AVALANCHE & _WORD
    return total ^ total >> 32
