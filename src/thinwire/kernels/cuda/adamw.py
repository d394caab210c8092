"""AdamW for elements that waited: kernels on addresses, one launch for a list or all.

Only `has_zero` waits for the device.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import torch
import triton.language as tl
from torch import Tensor

from thinwire.kernels.adam import AdamList, AdamRules, AdamTensors
from thinwire.kernels.cuda.elements import rounded
from thinwire.kernels.cuda.launch import EXACT, cdiv, flat, kernel
from thinwire.kernels.transfers import on_device

TILE: Any = tl.constexpr(512)
# Of each parameter: the addresses of it, its gradient and its records, the kind of its
# dtype, its size, and the first tile of it in a pass over all.
COLUMNS: Any = tl.constexpr(6)
NUMBERS: Any = tl.constexpr(5)
FACTORS: Any = tl.constexpr(6)
DECAYS: Any = tl.constexpr(65)

# Passes over all elements.
NONZERO, ALL, DECAY, FIND = range(4)


@kernel
def _read(base, i, kind, inside, halves: tl.constexpr) -> Any:
    single = (base + 4 * i).to(tl.pointer_type(tl.float32))
    value = tl.load(single, mask=inside & (kind == 0), other=0.0)
    if halves:
        short = (base + 2 * i).to(tl.pointer_type(tl.int16))
        bits = tl.load(short, mask=inside & (kind == 1), other=0).to(tl.int32) << 16
        value = tl.where(kind == 1, bits.to(tl.float32, bitcast=True), value)
        half = (base + 2 * i).to(tl.pointer_type(tl.float16))
        small = tl.load(half, mask=inside & (kind == 2), other=0.0).to(tl.float32)
        value = tl.where(kind == 2, small, value)
    return value


@kernel
def _write(base, i, kind, inside, value, halves: tl.constexpr) -> None:
    single = (base + 4 * i).to(tl.pointer_type(tl.float32))
    tl.store(single, value, mask=inside & (kind == 0))
    if halves:
        short = (base + 2 * i).to(tl.pointer_type(tl.int16))
        tl.store(short, rounded(value), mask=inside & (kind == 1))
        half = (base + 2 * i).to(tl.pointer_type(tl.float16))
        tl.store(half, value.to(tl.float16), mask=inside & (kind == 2))


@kernel
def _decayed(param, i, kind, inside, decays, pending, waited, halves) -> Any:
    decay = tl.load(decays + tl.minimum(waited, pending), mask=inside, other=0.0)
    return _read(param, i, kind, inside, halves) * decay


@kernel
def _update(
    place, rule, i, value, inside, numbers, places, factors, decays, longest, halves
) -> None:
    """Update elements `i` whose gradient is `value`; `place` is a row of `rows`."""
    param = tl.load(place, mask=inside, other=0)
    records = tl.load(place + 2, mask=inside, other=0)
    kind = tl.load(place + 3, mask=inside, other=0)
    number = numbers + rule * NUMBERS
    step = tl.load(number + 4, mask=inside, other=0.0)
    pair = tl.load(places + 2 * rule, mask=inside, other=0)
    pending = tl.load(places + 2 * rule + 1, mask=inside, other=0)
    record = (records + 12 * i).to(tl.pointer_type(tl.float32))
    delivered = tl.load(record + 2, mask=inside, other=0.0)
    waited = (step - delivered).to(tl.int32)
    factor = factors + pair * FACTORS * longest + tl.minimum(waited, longest - 1)
    steps = tl.where(inside, waited, 1).to(tl.float32)
    rate = tl.div_rn(tl.full(steps.shape, 1.0, tl.float32), steps)
    long = waited >= longest - 1
    of_mean = tl.load(factor + longest, mask=inside, other=0.0)
    of_mean = tl.where(long, rate, of_mean)
    of_square = tl.load(factor + 3 * longest, mask=inside, other=0.0)
    of_square = tl.where(long, rate, of_square)
    value = value * tl.load(number + 3, mask=inside, other=0.0)
    of_momentum = tl.load(factor, mask=inside, other=0.0)
    momentum = of_momentum * tl.load(record, mask=inside, other=0.0) + of_mean * value
    of_energy = tl.load(factor + 2 * longest, mask=inside, other=0.0)
    energy = of_energy * tl.load(record + 1, mask=inside, other=0.0)
    square = value * value
    energy = energy + of_square * square
    least = tl.load(factor + 5 * longest, mask=inside, other=0.0) * square
    counted = tl.where(least > energy, least, energy)
    root = tl.load(number + 1, mask=inside, other=1.0)
    eps = tl.load(number + 2, mask=inside, other=1.0)
    divisor = tl.div_rn(tl.sqrt_rn(counted), root) + eps
    size = tl.load(number, mask=inside, other=0.0)
    reach = steps * tl.load(factor + 4 * longest, mask=inside, other=0.0)
    change = tl.div_rn(size * (momentum * reach), divisor)
    table = decays + rule * DECAYS
    kept = _decayed(param, i, kind, inside, table, pending, waited, halves)
    _write(param, i, kind, inside, kept - change, halves)
    tl.store(record, momentum, mask=inside)
    tl.store(record + 1, energy, mask=inside)
    tl.store(record + 2, step, mask=inside)


@kernel
def _update_at(
    indices,
    nnz,
    offsets,
    owners,
    pieces,
    turns,
    rows,
    which,
    numbers,
    places,
    factors,
    decays,
    longest,
    halves: tl.constexpr,
) -> None:
    e = tl.program_id(0).to(tl.int64) * TILE + tl.arange(0, TILE)
    inside = e < nnz
    index = tl.load(indices + e, mask=inside, other=0).to(tl.int64)
    low = tl.zeros([TILE], tl.int32)
    high = low + pieces
    for _ in range(turns):
        middle = (low + high) >> 1
        open_ = low < high
        after = tl.load(offsets + middle + 1, mask=inside & open_, other=0) <= index
        low = tl.where(open_ & after, middle + 1, low)
        high = tl.where(open_ & ~after, middle, high)
    owner = tl.load(owners + low, mask=inside, other=-1)
    inside = inside & (owner >= 0)
    owner = tl.where(inside, owner, 0)
    i = index - tl.load(offsets + low, mask=inside, other=0)
    place = rows + owner * COLUMNS
    grad = tl.load(place + 1, mask=inside, other=0)
    kind = tl.load(place + 3, mask=inside, other=0)
    value = _read(grad, i, kind, inside, halves)
    inside = inside & (value != 0)
    rule = tl.load(which + owner, mask=inside, other=0)
    _update(
        place, rule, i, value, inside, numbers, places, factors, decays, longest, halves
    )


@kernel
def _pass(
    found,
    count,
    turns,
    rows,
    which,
    numbers,
    places,
    factors,
    decays,
    longest,
    what: tl.constexpr,
    halves: tl.constexpr,
) -> None:
    tile = tl.program_id(0)
    low = 0
    high = count
    for _ in range(turns):
        middle = (low + high) >> 1
        # The last parameter whose first tile is not beyond this one.
        before = (low + 1 < high) & (tl.load(rows + middle * COLUMNS + 5) <= tile)
        high = tl.where((low + 1 < high) & (before == 0), middle, high)
        low = tl.where(before, middle, low)
    place = rows + low * COLUMNS + tl.zeros([TILE], tl.int32)
    first = tl.load(rows + low * COLUMNS + 5)
    i = (tile - first) * TILE + tl.arange(0, TILE)
    inside = i < tl.load(rows + low * COLUMNS + 4)
    kind = tl.load(place + 3)
    if what == 3:
        value = _read(tl.load(place + 1), i, kind, inside, halves)
        zeros = tl.sum((inside & (value == 0)).to(tl.int32))
        tl.atomic_or(found, 1, mask=zeros > 0, sem="relaxed")
    else:
        rule = tl.load(which + low) + tl.zeros([TILE], tl.int32)
        if what == 2:
            record = (tl.load(place + 2) + 12 * i).to(tl.pointer_type(tl.float32))
            step = tl.load(numbers + rule * NUMBERS + 4)
            delivered = tl.load(record + 2, mask=inside, other=0.0)
            waited = (step - delivered).to(tl.int32)
            pending = tl.load(places + 2 * rule + 1)
            table = decays + rule * DECAYS
            param = tl.load(place)
            kept = _decayed(param, i, kind, inside, table, pending, waited, halves)
            _write(param, i, kind, inside, kept, halves)
        else:
            value = _read(tl.load(place + 1), i, kind, inside, halves)
            if what == 0:
                inside = inside & (value != 0)
            if tl.sum(inside.to(tl.int32)) > 0:
                _update(
                    place,
                    rule,
                    i,
                    value,
                    inside,
                    numbers,
                    places,
                    factors,
                    decays,
                    longest,
                    halves,
                )


def adamw_at_(
    tensors: AdamTensors, rules: AdamRules, lists: Sequence[AdamList]
) -> None:
    rows, _ = _rows(tensors)
    tables = _tables(rules, rows.device)
    halves = _halves(tensors)
    for indices, offsets, numbers in lists:
        nnz, pieces = len(indices), len(numbers)
        if nnz:
            _update_at[(cdiv(nnz, TILE.value),)](
                flat(indices),
                nnz,
                _copy(offsets, rows.device),
                on_device(numbers.numpy().tobytes(), rows.device).view(torch.int32),
                pieces,
                pieces.bit_length(),
                rows,
                *tables,
                halves=halves,
                **EXACT,
            )


def adamw_(tensors: AdamTensors, rules: AdamRules, *, everything: bool) -> None:
    _run(ALL if everything else NONZERO, tensors, rules)


def decay_(tensors: AdamTensors, rules: AdamRules) -> None:
    _run(DECAY, tensors, rules)


def has_zero(tensors: AdamTensors) -> bool:
    if not tensors.params:
        return False
    found = torch.zeros(1, dtype=torch.int32, device=tensors.params[0].device)
    nothing = torch.zeros(1, dtype=torch.int32)
    numbers = torch.zeros(1, NUMBERS.value)
    rules = AdamRules(nothing, numbers, nothing, numbers[None], numbers)
    _run(FIND, tensors, rules, found)
    return bool(found.item())


def _run(
    what: int, tensors: AdamTensors, rules: AdamRules, found: Tensor | None = None
) -> None:
    rows, tiles = _rows(tensors)
    if tiles:
        tables = _tables(rules, rows.device)
        halves = _halves(tensors)
        _pass[(tiles,)](
            tables[0] if found is None else found,
            len(rows),
            len(rows).bit_length() + 1,
            rows,
            *tables,
            what=what,
            halves=halves,
            **EXACT,
        )


def _rows(tensors: AdamTensors) -> tuple[Tensor, int]:
    """A table of all parameters on their device, and how many tiles they have."""
    tiles = np.cumsum([0, *-(-tensors.rows[:, 4] // TILE.value)])
    table = torch.from_numpy(np.column_stack((tensors.rows, tiles[:-1])))
    return table.to(tensors.params[0].device, non_blocking=True), int(tiles[-1])


def _halves(tensors: AdamTensors) -> bool:
    """Whether a parameter is of half precision."""
    return bool(tensors.rows[:, 3].any())


def _tables(rules: AdamRules, device: torch.device) -> tuple[Any, ...]:
    """The tables on a device, by one copy, and the length of the factors."""
    small = (rules.which, rules.numbers, rules.places, rules.decays)
    packed = torch.cat([each.reshape(-1).view(torch.int32) for each in small])
    parts = packed.to(device, non_blocking=True).split([e.numel() for e in small])
    which, numbers, places, decays = parts
    factors = _copy_of_factors(rules.factors, device)
    return (
        which,
        numbers.view(torch.float32),
        places,
        factors,
        decays.view(torch.float32),
        factors.shape[-1],
    )


@lru_cache(maxsize=256)
def _copy(table: Tensor, device: torch.device) -> Tensor:
    """A copy of a tensor that is never changed, made once."""
    return table.to(device)


# A megabyte for a beta of 0.999; a schedule of betas has others in every step.
_copy_of_factors = lru_cache(maxsize=4)(_copy.__wrapped__)
