"""Bloom filters: every hash of every element of the vector.

Bit p of a filter is bit p % 8 of byte p // 8, the least significant first. Element i
sets, for every seed below `hashes`, the bit at MurmurHash3 (x86, 32 bits, seeded) of
the four little-endian bytes of i, modulo the number of bits.
"""

import torch
from torch import Tensor

from thinwire.kernels.dispatch import cpu_primitive, primitive
from thinwire.kernels.random_words import random_word
from thinwire.kernels.reference.bits import from_bits, to_bits
from thinwire.kernels.sections import check_length, index_dtype

_32 = 0xFFFFFFFF


@primitive
def encode_bloom(indices: Tensor, bits: int, hashes: int) -> Tensor:
    """A filter in whole bytes, with the bits set that each index hashes to.

    The hash of seed 0, 1, ... is MurmurHash3 (x86, 32 bits) of the index in four
    little-endian bytes, modulo `bits`, which is below 2**32.

    >>> import torch
    >>> encode_bloom(torch.tensor([0, 5, 8, 9, 14]), 24, hashes=4).tolist()
    [201, 94, 98]
    """
    filled = torch.zeros(bits, dtype=torch.uint8, device=indices.device)
    for seed in range(hashes):
        filled[murmur3(indices.long(), seed) % bits] = 1
    return from_bits(filled)


@primitive
def bloom_positives(
    section: Tensor, size: int, most: int, *, bits: int, hashes: int
) -> Tensor:
    """The first `most` indices below `size` (at most 2**32) whose bits are all set.

    `ValueError` if these bytes are not a filter of `bits` bits.

    >>> import torch
    >>> section = torch.tensor([201, 94, 98], dtype=torch.uint8)
    >>> bloom_positives(section, 16, most=4, bits=24, hashes=4).tolist()
    [0, 5, 8, 9]
    """
    filled = to_bits(checked_filter(section, bits))
    found = torch.arange(size if bits else 0, device=section.device)
    for seed in range(hashes):
        found = found[filled[murmur3(found, seed) % bits] == 1]
    return found[:most].to(index_dtype(size))


@cpu_primitive
def bloom_sample(positives: Tensor, nnz: int, key: int) -> Tensor:
    """`nnz` of these indices, drawn with `key` (63 bits), still ascending.

    Each index has a random word of the key. The lowest are drawn, ties by index.
    """
    words = [random_word(key, index) for index in positives.tolist()]
    first = sorted(range(len(words)), key=words.__getitem__)[:nnz]
    return positives[torch.tensor(sorted(first), dtype=torch.int64)]


@cpu_primitive
def bloom_resolve(
    positives: Tensor, nnz: int, key: int, *, bits: int, hashes: int
) -> Tensor:
    """Select `nnz` of a filter's positives by conflict sets; ascending.

    Algorithm 1 of DeepReduce, made deterministic.

    The conflict set of a bit lists the positives that hash to it, ascending. Sets are
    visited by size, then by bit, in rounds. A set with one member yields it and is
    done. From another set, members that are chosen are removed, and one of the rest is
    drawn. The n-th draw takes random word n of the key: its upper half, times the
    size of the set, divided by 2**32.
    """
    sets: dict[int, list[int]] = {}
    places = [
        (murmur3(positives.long(), seed) % bits).tolist() for seed in range(hashes)
    ]
    for index, *bits_of in zip(positives.tolist(), *places, strict=True):
        for bit in sorted(set(bits_of)):
            sets.setdefault(bit, []).append(index)
    order = sorted(sets, key=lambda bit: (len(sets[bit]), bit))
    chosen: set[int] = set()
    draws = 0
    while len(chosen) < nnz:
        for bit in order:
            if len(chosen) == nnz:
                break
            if len(sets[bit]) == 1:
                chosen.add(sets[bit].pop())
                continue
            sets[bit] = [index for index in sets[bit] if index not in chosen]
            if sets[bit]:
                drawn = (random_word(key, draws) >> 32) * len(sets[bit]) >> 32
                chosen.add(sets[bit][drawn])
                draws += 1
    return torch.tensor(sorted(chosen), dtype=positives.dtype)


def murmur3(indices: Tensor, seed: int) -> Tensor:
    """MurmurHash3 (x86, 32 bits) of four little-endian bytes each, as int64."""
    k = indices * 0xCC9E2D51 & _32
    k = _rotated(k, 15) * 0x1B873593 & _32
    h = (_rotated(k ^ seed, 13) * 5 + 0xE6546B64 & _32) ^ 4
    h = (h ^ (h >> 16)) * 0x85EBCA6B & _32
    h = (h ^ (h >> 13)) * 0xC2B2AE35 & _32
    return h ^ (h >> 16)


def checked_filter(section: Tensor, bits: int) -> Tensor:
    """The bytes of a filter, or `ValueError` where they are more, fewer or too full."""
    check_length(section, bits)
    if bits == 0:
        return section
    nbytes = -(-bits // 8)
    spare = section[nbytes - 1 :].tolist()
    spare[0] >>= (bits - 1) % 8 + 1
    if any(spare):
        raise ValueError(f"bits that are set beyond the {bits} of the filter")
    return section[:nbytes]


def _rotated(word: Tensor, count: int) -> Tensor:
    return (word << count & _32) | (word >> (32 - count))
