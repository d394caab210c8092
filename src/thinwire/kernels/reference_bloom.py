# ruff: noqa: D103, because the front door documents each function.
"""Bloom filters: every hash of every element of the universe.

Bit p of a filter is bit p % 8 of byte p // 8, the least significant first. Element i
sets, for every seed below `hashes`, the bit at MurmurHash3 (x86, 32 bits, seeded) of
the four little-endian bytes of i, modulo the number of bits.
"""

import torch
from torch import Tensor

from thinwire.kernels.reference_bits import from_bits, to_bits
from thinwire.kernels.sections import check_length, index_dtype
from thinwire.kernels.splitmix import lot

_32 = 0xFFFFFFFF


def encode_bloom(indices: Tensor, bits: int, hashes: int) -> Tensor:
    filled = torch.zeros(bits, dtype=torch.uint8, device=indices.device)
    for seed in range(hashes):
        filled[murmur3(indices.long(), seed) % bits] = 1
    return from_bits(filled)


def bloom_positives(
    section: Tensor, size: int, most: int, *, bits: int, hashes: int
) -> Tensor:
    filled = to_bits(checked_filter(section, bits))
    found = torch.arange(size if bits else 0, device=section.device)
    for seed in range(hashes):
        found = found[filled[murmur3(found, seed) % bits] == 1]
    return found[:most].to(index_dtype(size))


def bloom_sample(positives: Tensor, nnz: int, key: int) -> Tensor:
    """Each index draws a lot from the key; the lowest have it, ties to the smaller."""
    lots = [lot(key, index) for index in positives.tolist()]
    first = sorted(range(len(lots)), key=lots.__getitem__)[:nnz]
    return positives[torch.tensor(sorted(first), dtype=torch.int64)]


def bloom_resolve(
    positives: Tensor, nnz: int, key: int, *, bits: int, hashes: int
) -> Tensor:
    """Algorithm 1 of DeepReduce, with every choice it leaves open made.

    The conflict set of a bit has those who may have set it, ascending. Sets come in the
    order of their size, then of their bit, as often as it takes. One with a single
    member gives this and is done with; from others, who was chosen is removed and one
    of the rest drawn. Draws are numbered from 0, and the number draws a lot: its upper
    half, times the size of the set, divided by 2**32.
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
                drawn = (lot(key, draws) >> 32) * len(sets[bit]) >> 32
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
