"""Bloom filters: 6 ns an element to scan, 12 if the filter does not fit the cache.

A scan hashes a batch of elements with vector instructions. It drops those whose bit is
not set, without a branch, and hashes only the rest with the next function. Resolving
conflict sets takes 500 ns an entry, most of it waiting for memory.
"""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from thinwire.kernels.cpu.arrays import Counts, Indices, Octets, Words
from thinwire.kernels.cpu.compiled import allocating, kernel, part
from thinwire.kernels.cpu.random_words import mixed, random_word
from thinwire.kernels.reference.bloom import checked_filter
from thinwire.kernels.sections import index_dtype

_BATCH = 1024
_ROW = 256


def encode_bloom(indices: Tensor, bits: int, hashes: int) -> Tensor:
    section = torch.zeros(-(-bits // 8), dtype=torch.uint8)
    _insert(indices.contiguous().numpy(), bits, hashes, section.numpy())
    return section


def bloom_positives(
    section: Tensor, size: int, most: int, *, bits: int, hashes: int
) -> Tensor:
    octets = checked_filter(section, bits).contiguous().numpy()
    found = torch.empty(min(most, size) if bits else 0, dtype=index_dtype(size))
    if len(found) == 0:
        return found
    return found[: _positives(octets, bits, hashes, size, found.numpy())]


def bloom_sample(positives: Tensor, nnz: int, key: int) -> Tensor:
    if nnz == len(positives):
        return positives
    sampled = torch.empty(nnz, dtype=positives.dtype)
    if nnz > 0:
        listed = positives.contiguous().numpy()
        words = np.empty(len(listed), np.uint64)
        _draw(listed, key, words)
        limit = np.partition(words, nnz - 1)[nnz - 1]
        _take_lowest(listed, words, limit, sampled.numpy())
    return sampled


def bloom_resolve(
    positives: Tensor, nnz: int, key: int, *, bits: int, hashes: int
) -> Tensor:
    if nnz == len(positives):
        return positives
    listed = positives.contiguous().numpy()
    entries = len(listed) * hashes
    starts = np.zeros(bits + 1, np.int32 if entries < 2**31 else np.int64)
    chosen = np.zeros(len(listed), np.bool_)
    _resolve(listed, bits, hashes, starts, nnz, key, chosen)
    return positives[torch.from_numpy(chosen)]


@part
def _hash_index(index: Any) -> Any:
    """The part of MurmurHash3 (x86, 32 bits) that does not depend on the seed."""
    k = np.uint32(np.uint32(index) * np.uint32(0xCC9E2D51))
    k = np.uint32((k << np.uint32(15)) | (k >> np.uint32(17)))
    return np.uint32(k * np.uint32(0x1B873593))


@part
def _bit_of(hashed: Any, seed: Any, bits: Any, inverse: Any) -> Any:
    """The bit of the filter for a seed: the full hash modulo `bits`.

    `inverse` is 2**32 // bits.
    """
    h = np.uint32(hashed ^ np.uint32(seed))
    h = np.uint32((h << np.uint32(13)) | (h >> np.uint32(19)))
    h = np.uint32(h * np.uint32(5) + np.uint32(0xE6546B64))
    h = np.uint32(h ^ np.uint32(4))  # the length of the key in bytes
    h = np.uint32((h ^ (h >> np.uint32(16))) * np.uint32(0x85EBCA6B))
    h = np.uint32((h ^ (h >> np.uint32(13))) * np.uint32(0xC2B2AE35))
    h = np.uint32(h ^ (h >> np.uint32(16)))
    # The quotient is right or one too small, because `inverse` is rounded down.
    # A division would take longer than the hash.
    quotient = (np.uint64(h) * np.uint64(inverse)) >> np.uint64(32)
    rest = np.uint64(h) - quotient * np.uint64(bits)
    return np.uint32(rest - np.uint64(bits) if rest >= np.uint64(bits) else rest)


@kernel
@allocating
def _insert(indices: Indices, bits: int, hashes: int, octets: Octets) -> None:
    inverse = (1 << 32) // bits
    hashed = np.empty(_BATCH, np.uint32)
    places = np.empty(_BATCH, np.uint32)
    for start in range(0, len(indices), _BATCH):
        count = min(_BATCH, len(indices) - start)
        for t in range(count):
            hashed[t] = _hash_index(indices[start + t])
        for seed in range(hashes):
            for t in range(count):
                places[t] = _bit_of(hashed[t], seed, bits, inverse)
            for t in range(count):
                p = places[t]
                octets[p >> np.uint32(3)] |= np.uint8(1) << np.uint8(p & np.uint32(7))


@kernel
@allocating
def _positives(
    octets: Octets, bits: int, hashes: int, size: int, found: Indices
) -> int:
    """Write the first elements whose bits are all set to `found`; returns how many."""
    inverse = (1 << 32) // bits
    elements = np.empty(_BATCH, np.uint32)
    places = np.empty(_BATCH, np.uint32)
    n = 0
    for start in range(0, size, _BATCH):
        count: Any = min(_BATCH, size - start)
        for t in range(count):
            elements[t] = start + t
        for seed in range(hashes):
            for t in range(count):
                places[t] = _bit_of(_hash_index(elements[t]), seed, bits, inverse)
            left = np.uint64(0)
            for t in range(count):
                p = places[t]
                elements[left] = elements[t]
                octet = np.uint64(octets[p >> np.uint32(3)])
                left += (octet >> np.uint64(p & np.uint32(7))) & np.uint64(1)
            count = np.int64(left)
            if count == 0:
                break
        count = min(count, len(found) - n)
        for t in range(count):
            found[n + t] = elements[t]
        n += count
        if n == len(found):
            break
    return n


@kernel
def _draw(positives: Indices, key: int, words: Words) -> None:
    mixed_key = mixed(np.uint64(key))
    for x in range(len(positives)):
        words[x] = random_word(mixed_key, positives[x])


@kernel
def _take_lowest(
    positives: Indices, words: Words, limit: Any, sampled: Indices
) -> None:
    """Fill `sampled` with the positives of the lowest words; the largest is `limit`.

    Of those whose word equals `limit`, the first ones are taken.
    """
    below: Any = 0
    for x in range(len(words)):
        below += words[x] < limit
    ties = len(sampled) - below
    n = 0
    for x in range(len(words)):
        tie = words[x] == limit and ties > 0
        ties -= tie
        if words[x] < limit or tie:
            sampled[n] = positives[x]
            n += 1


@kernel
@allocating
def _resolve(
    positives: Indices,
    bits: int,
    hashes: int,
    starts: Indices,
    nnz: int,
    key: int,
    chosen: NDArray[np.bool_],
) -> None:
    """Set `chosen` for `nnz` of the positives; see the reference."""
    ends = starts[:-1].copy()
    members = np.empty(len(positives) * hashes, np.int32)
    order = _conflict_sets(positives, bits, hashes, starts, ends, members)
    mixed_key = mixed(np.uint64(key))
    draws = 0
    count = 0
    sets = len(order)
    while sets > 0:
        kept = 0
        for s in range(sets):
            b = order[s]
            start = starts[b]
            end = start
            alone = ends[b] - start == 1
            for e in range(start, ends[b]):
                x = members[e]
                members[end] = x
                end += not chosen[x]
            ends[b] = end
            if end == start:
                continue
            x = members[start]
            if not alone:
                word = random_word(mixed_key, draws) >> np.uint64(32)
                drawn = (word * np.uint64(end - start)) >> np.uint64(32)
                x = members[start + np.int64(drawn)]
                draws += 1
                order[kept] = b
                kept += 1
            chosen[x] = True
            count += 1
            if count == nnz:
                return
        sets = kept


@part
def _hash_rows(positives: Indices, first: int, bits: int, places: Any) -> int:
    """Write the bits of some positives to `places`, a row for each seed."""
    inverse = (1 << 32) // bits
    count = min(_ROW, len(positives) - first)
    for seed in range(len(places)):
        row = places[seed]
        for t in range(count):
            row[t] = _bit_of(_hash_index(positives[first + t]), seed, bits, inverse)
    return count


@part
@allocating
def _conflict_sets(
    positives: Indices,
    bits: int,
    hashes: int,
    starts: Indices,
    ends: Indices,
    members: Counts,
) -> Indices:
    """List the positives that hash to each bit: `members[starts[bit] : ends[bit]]`.

    Returns the bits with a nonempty list, ordered by its length, then by bit.
    """
    places = np.empty((hashes, _ROW), np.uint32)
    for first in range(0, len(positives), _ROW):
        count = _hash_rows(positives, first, bits, places)
        for seed in range(hashes):
            for t in range(count):
                starts[np.int64(places[seed, t]) + 1] += 1
    for b in range(bits):
        starts[b + 1] += starts[b]
        ends[b] = starts[b]
    for first in range(0, len(positives), _ROW):
        count = _hash_rows(positives, first, bits, places)
        for t in range(count):
            x = first + t
            for seed in range(hashes):
                b = places[seed, t]
                end = ends[b]
                # A positive that hashes to a bit twice is listed once.
                if end == starts[b] or members[end - 1] != x:
                    members[end] = x
                    ends[b] = end + 1
    largest: Any = 0
    for b in range(bits):
        largest = max(largest, ends[b] - starts[b])
    counts = np.zeros(largest + 2, np.int64)
    for b in range(bits):
        counts[ends[b] - starts[b] + 1] += 1
    empty = counts[1]
    for length in range(largest + 1):
        counts[length + 1] += counts[length]
    order = np.empty(bits - empty, np.int64)
    for b in range(bits):
        length = ends[b] - starts[b]
        if length > 0:
            order[counts[length] - empty] = b
            counts[length] += 1
    return order
