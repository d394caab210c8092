"""AdamW for elements that waited: a few lines of memory for each delivered one.

Kernels get addresses, because a call works on all parameters. What an element needs is
prefetched while others before it are computed.
"""

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from thinwire.kernels.adam import AdamList, AdamRules, AdamTensors
from thinwire.kernels.cpu.arrays import Bits, Counts, Floats, Indices
from thinwire.kernels.cpu.compiled import kernel, part
from thinwire.kernels.cpu.intrinsics import (
    float16_bits,
    float16_of,
    float_bits,
    float_of,
    load_float,
    load_short,
    nonzero_floats,
    nonzero_halves,
    prefetch_address,
    store_float,
    store_short,
    trailing_zeros,
)
from thinwire.kernels.cpu.threads import make, share_out

# Addresses of the parameter, the gradient and the records, kind of dtype, and size.
Addresses = Bits
Rules = tuple[Counts, Floats, Counts, Floats, Floats]

# Entries for which a second thread is worth waking: each costs 20 to 60 ns.
_SHARE = 4096
# How many entries of a list, and elements of a pass, prefetching is ahead.
_AHEAD = 32
_LEAD = 2048


def adamw_at_(
    tensors: AdamTensors, rules: AdamRules, lists: Sequence[AdamList]
) -> None:
    given = (tensors.rows, _arrays(rules))
    share = max(
        _SHARE, -(-sum(len(e.indices) for e in lists) // torch.get_num_threads())
    )
    calls = []
    for each in lists:
        indices, offsets, numbers = (tensor.numpy() for tensor in each)
        for low in range(0, len(indices), share):
            entries = indices[low : low + share]
            calls.append(partial(_update_at, *given, entries, offsets, numbers))
    make(calls, min(torch.get_num_threads(), len(calls)))


def adamw_(tensors: AdamTensors, rules: AdamRules, *, everything: bool) -> None:
    starts = _starts(tensors)
    given = (tensors.rows, _arrays(rules), starts, everything)
    share_out(partial(_update_all, *given), 0, int(starts[-1]), boundary=lambda p: p)


def decay_(tensors: AdamTensors, rules: AdamRules) -> None:
    starts = _starts(tensors)
    given = (tensors.rows, _arrays(rules), starts)
    share_out(partial(_decay_all, *given), 0, int(starts[-1]), boundary=lambda p: p)


def has_zero(tensors: AdamTensors) -> bool:
    found, starts = np.zeros(1, np.int64), _starts(tensors)
    given = (tensors.rows, starts, found)
    share_out(partial(_find_zero, *given), 0, int(starts[-1]), boundary=lambda p: p)
    return bool(found[0])


def _arrays(rules: AdamRules) -> tuple[NDArray[Any], ...]:
    return tuple(tensor.numpy() for tensor in rules)


def _starts(tensors: AdamTensors) -> Bits:
    starts = np.zeros(len(tensors.rows) + 1, np.int64)
    np.cumsum(tensors.rows[:, 4], out=starts[1:])
    return starts


@part
def _load(address: int, kind: int, i: int) -> Any:
    if kind == 0:
        return load_float(address + 4 * i)
    half = load_short(address + 2 * i)
    if kind == 1:
        return float_of(np.int32(np.uint32(half) << np.uint32(16)))
    return float16_of(half)


@part
def _store(address: int, kind: int, i: int, value: Any) -> None:
    if kind == 0:
        store_float(address + 4 * i, value)
    elif kind == 1:
        # To even, as torch rounds: a large value to infinity.
        bits = np.int64(float_bits(value)) & 0xFFFFFFFF
        half = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
        store_short(address + 2 * i, np.uint16(half if value == value else 0x7FC0))  # noqa: PLR0124 - is it a number?
    else:
        store_short(address + 2 * i, float16_bits(value))


@part
def _prefetch(place: Any, i: int) -> None:
    """Prefetch what an update of element `i` needs, but for its gradient."""
    param, records, kind = place
    prefetch_address(param + (4 if kind == 0 else 2) * i)
    # A record may lie in two lines.
    prefetch_address(records + 12 * i)
    prefetch_address(records + 12 * i + 8)


@part
def _update(place: Any, rule: Any, i: int, value: Any) -> None:
    """Update element `i`, whose gradient is `value`."""
    param, records, kind = place
    numbers, factors, decays, pending = rule
    last = factors.shape[1] - 1
    record = records + 12 * i
    waited = np.int64(numbers[4] - load_float(record + 8))
    column, steps = min(waited, last), np.float32(waited)
    value = value * numbers[3]
    of_mean, of_square = factors[1, column], factors[3, column]
    if waited >= last:
        of_mean = of_square = np.float32(1.0) / steps
    momentum = factors[0, column] * load_float(record) + of_mean * value
    square = value * value
    energy = factors[2, column] * load_float(record + 4) + of_square * square
    least = factors[5, column] * square
    counted = least if least > energy else energy
    divisor = np.float32(math.sqrt(counted)) / numbers[1] + numbers[2]
    reach = steps * factors[4, column]
    change = (numbers[0] * (momentum * reach)) / divisor
    kept = _load(param, kind, i) * decays[min(waited, pending)]
    _store(param, kind, i, kept - change)
    store_float(record, momentum)
    store_float(record + 4, energy)
    store_float(record + 8, numbers[4])


@part
def _rule(rules: Rules, number: int) -> Any:
    which, numbers, places, factors, decays = rules
    rule = which[number]
    pair, pending = places[rule]
    return numbers[rule], factors[pair], decays[rule], np.int64(pending)


@kernel
def _update_at(
    addresses: Addresses,
    rules: Rules,
    indices: Indices,
    offsets: Bits,
    numbers: Counts,
) -> None:
    entries, k, piece = len(indices), 0, 0
    while k < entries:
        while offsets[piece + 1] <= indices[k]:
            piece += 1
        end = k + np.searchsorted(indices[k:], offsets[piece + 1])
        number = numbers[piece]
        if number >= 0:
            param, grad, records, kind, _ = addresses[number]
            rule, place = _rule(rules, number), (param, records, kind)
            size = 4 if kind == 0 else 2
            first = offsets[piece]
            for e in range(k, end):
                if e + _AHEAD < end:
                    i = np.int64(indices[e + _AHEAD]) - first
                    prefetch_address(grad + size * i)
                    _prefetch(place, i)
                i = np.int64(indices[e]) - first
                value = _load(grad, kind, i)
                if value != 0:
                    _update(place, rule, i, value)
        k = end


@kernel
def _update_all(
    addresses: Addresses,
    rules: Rules,
    starts: Bits,
    everything: bool,  # noqa: FBT001
    low: int,
    high: int,
) -> None:
    for number in range(len(addresses)):
        i = max(low, starts[number]) - starts[number]
        end = min(high, starts[number + 1]) - starts[number]
        if i >= end:
            continue
        param, grad, records, kind, _ = addresses[number]
        rule, place = _rule(rules, number), (param, records, kind)
        while i < end:
            step, marks = _marks(grad, kind, i, end)
            if everything:
                marks = np.int64((1 << step) - 1)
            elif i + _LEAD + 32 <= end:
                later = _marks(grad, kind, i + _LEAD, end)[1]
                while later != 0:
                    _prefetch(place, i + _LEAD + trailing_zeros(later))
                    later &= later - 1
            while marks != 0:
                at = i + trailing_zeros(marks)
                _update(place, rule, at, _load(grad, kind, at))
                marks &= marks - 1
            i += step


@part
def _marks(grad: int, kind: int, i: int, end: int) -> Any:
    """The number of elements looked at, and marks of those that are not zero."""
    if kind == 0 and end - i >= 16:
        return 16, nonzero_floats(grad + 4 * i)
    if kind != 0 and end - i >= 32:
        return 32, nonzero_halves(grad + 2 * i)
    return 1, np.int64(_load(grad, kind, i) != 0)


@kernel
def _decay_all(
    addresses: Addresses, rules: Rules, starts: Bits, low: int, high: int
) -> None:
    for number in range(len(addresses)):
        param, _, records, kind, _ = addresses[number]
        numbers, _, decays, pending = _rule(rules, number)
        first = starts[number]
        for i in range(max(low, first) - first, min(high, starts[number + 1]) - first):
            waited = np.int64(numbers[4] - load_float(records + 12 * i + 8))
            kept = _load(param, kind, i) * decays[min(waited, pending)]
            _store(param, kind, i, kept)


@kernel
def _find_zero(
    addresses: Addresses, starts: Bits, found: Bits, low: int, high: int
) -> None:
    for number in range(len(addresses)):
        _, grad, _, kind, _ = addresses[number]
        i = max(low, starts[number]) - starts[number]
        end = min(high, starts[number + 1]) - starts[number]
        # Another thread may find one first.
        while i < end and found[0] == 0:
            step, marks = _marks(grad, kind, i, end)
            if marks != (1 << step) - 1:
                found[0] = 1
            i += step
