"""Count-sketches, a tile of the vector at a time.

With blocks of 1024 a row takes about the time of a copy: one hash serves a whole block,
whose elements are added to neighbouring cells in vector instructions. With blocks of 1
each element is hashed and waits for its cell.
"""

from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from thinwire.kernels.cpu.arrays import Doubles, Floats, Words
from thinwire.kernels.cpu.compiled import allocating, kernel, part
from thinwire.kernels.cpu.random_words import random_word
from thinwire.kernels.cpu.threads import share_out
from thinwire.kernels.hashes import Hashes, half_bits, turn_keys

# Elements of a tile: its estimates from all rows fit in the L1 cache.
_TILE = 1024
_LANES = 64
_NETWORKS = (1, 3, 5, 7)
_ADD, _READ = False, True


def encode_sketch(x: Tensor, hashes: Hashes) -> Tensor:
    table = torch.zeros(hashes.rows, hashes.columns)
    given = (x.contiguous().numpy(), table.numpy(), _keys(hashes), hashes.block)
    run = partial(_encode_rows, *given)
    size = x.numel()
    # Each thread takes whole rows, so that a cell is added up by one thread, in order.
    share_out(run, 0, hashes.rows * size, boundary=lambda p: p // size * size)
    return table


def estimate_sketch_(
    out: Tensor, table: Tensor, hashes: Hashes, *, mean: bool = False
) -> None:
    if not mean and hashes.rows not in _NETWORKS:
        raise ValueError(f"the median of {hashes.rows} rows: choose 1, 3, 5 or 7")
    keys = _keys(hashes)
    given = (out.numpy(), table.contiguous().numpy(), keys, hashes.block, mean)
    share_out(partial(_estimate, *given), 0, out.numel(), boundary=lambda p: p)


def sketch_energy(table: Tensor) -> Tensor:
    lanes = np.zeros((len(table), _LANES))
    _square_and_add(table.contiguous().numpy(), lanes)
    sums = torch.zeros(len(table), dtype=torch.float64)
    for lane in torch.from_numpy(lanes).unbind(1):
        sums += lane
    return sums


def shuffled(size: int, count: int, key: int) -> Tensor:
    numbers = torch.empty(count, dtype=torch.int64)
    half = half_bits(size)
    _shuffle(numbers.numpy(), size, half, np.array(turn_keys(key), np.uint64))
    return numbers


def _keys(hashes: Hashes) -> Words:
    return np.array([hashes.key(row) for row in range(hashes.rows)], np.uint64)


@part
def _cell(word: Any, columns: Any) -> Any:
    upper = np.uint64(word) >> np.uint64(32)
    return np.int64((upper * np.uint64(columns)) >> np.uint64(32))


@part
def _sign(word: Any) -> Any:
    odd = np.int32(np.uint64(word) & np.uint64(1))
    return np.float32(np.int32(1) - odd - odd)


@kernel
@allocating
def _encode_rows(
    x: Floats, table: Floats, keys: Words, block: int, low: int, high: int
) -> None:
    """The rows `low / size` to `high / size` of a table of zeros."""
    size = len(x)
    if size == 0:
        return
    cells = np.empty(_TILE, np.int64)
    signed = np.empty(_TILE, np.float32)
    # Row by row, because one row may fit in the cache where the table does not.
    for i in range(low // size, high // size):
        for p in range(0, size, _TILE):
            tile = x[p : p + _TILE]
            if block == 1:
                _add_each(table[i], tile, p, keys[i], cells, signed)
            else:
                _for_each_run(table[i], tile, p, keys[i], block, _ADD)


@part
def _add_each(
    row: Floats, tile: Floats, p: int, key: Any, cells: Any, signed: Floats
) -> None:
    columns = len(row)
    for t in range(len(tile)):
        word = random_word(key, p + t)
        cells[t] = _cell(word, columns)
        signed[t] = _sign(word) * tile[t]
    for t in range(len(tile)):
        row[cells[t]] += signed[t]


@part
def _for_each_run(
    row: Floats,
    values: Floats,
    p: int,
    key: Any,
    block: int,
    reading: bool,  # noqa: FBT001
) -> None:
    """Add values to a row, or read them, where values begin at element `p`."""
    columns = len(row)
    number = p // block
    lane = p - number * block
    t = 0
    while t < len(values):
        word = random_word(key, number)
        end = min(t + block - lane, len(values))
        cell = _cell(word, columns) + lane
        if cell >= columns:
            cell -= columns
        around = min(t + columns - cell, end)
        if reading:
            _read_run(row[cell:], values[t:around], _sign(word))
            _read_run(row, values[around:end], _sign(word))
        else:
            _add_run(row[cell:], values[t:around], _sign(word))
            _add_run(row, values[around:end], _sign(word))
        t = end
        lane = 0
        number += 1


@part
def _add_run(cells: Floats, values: Floats, sign: Any) -> None:
    for t in range(len(values)):
        cells[t] += sign * values[t]


@part
def _read_run(cells: Floats, values: Floats, sign: Any) -> None:
    for t in range(len(values)):
        values[t] = sign * cells[t]


@kernel
@allocating
def _estimate(
    out: Floats,
    table: Floats,
    keys: Words,
    block: int,
    mean: bool,  # noqa: FBT001 - compiled code has no keywords
    low: int,
    high: int,
) -> None:
    rows = len(table)
    seen = np.empty((rows, _TILE), np.float32)
    for p in range(low, high, _TILE):
        tile = out[p : min(p + _TILE, high)]
        for i in range(rows):
            if block == 1:
                _read_each(table[i], seen[i, : len(tile)], p, keys[i])
            else:
                _for_each_run(table[i], seen[i, : len(tile)], p, keys[i], block, _READ)
        if mean:
            _mean(seen, tile)
        elif rows == 1:
            _one(seen, tile)
        elif rows == 3:
            _median_of_3(seen, tile)
        elif rows == 5:
            _median_of_5(seen, tile)
        else:
            _median_of_7(seen, tile)


@part
def _read_each(row: Floats, seen: Floats, p: int, key: Any) -> None:
    columns = len(row)
    for t in range(len(seen)):
        word = random_word(key, p + t)
        seen[t] = _sign(word) * row[_cell(word, columns)]


# Which of two zeros a comparison returns depends on the processor. Adding zero removes
# the sign.


@part
def _mean(seen: Floats, tile: Floats) -> None:
    rows = np.float32(len(seen))
    for t in range(len(tile)):
        total = np.float32(0)
        for i in range(len(seen)):
            total += seen[i, t]
        tile[t] = total / rows


@part
def _one(seen: Floats, tile: Floats) -> None:
    for t in range(len(tile)):
        tile[t] = seen[0, t] + np.float32(0)


@part
def _least(a: Any, b: Any) -> Any:
    return a if a < b else b


@part
def _most(a: Any, b: Any) -> Any:
    return b if a < b else a


@part
def _middle(a: Any, b: Any, c: Any) -> Any:
    return _most(_least(a, b), _least(_most(a, b), c)) + np.float32(0)


@part
def _median_of_3(seen: Floats, tile: Floats) -> None:
    a, b, c = seen[0], seen[1], seen[2]
    for t in range(len(tile)):
        tile[t] = _middle(a[t], b[t], c[t])


@part
def _median_of_5(seen: Floats, tile: Floats) -> None:
    """Drop the least and the greatest of four, then take the median of the rest."""
    a, b, c, d, e = seen[0], seen[1], seen[2], seen[3], seen[4]
    for t in range(len(tile)):
        low = _most(_least(a[t], b[t]), _least(c[t], d[t]))
        high = _least(_most(a[t], b[t]), _most(c[t], d[t]))
        tile[t] = _middle(low, high, e[t])


@part
def _median_of_7(seen: Floats, tile: Floats) -> None:
    """By thirteen comparisons; each drops values that cannot be the median."""
    for t in range(len(tile)):
        a, b, c = seen[0, t], seen[1, t], seen[2, t]
        d, e, f, g = seen[3, t], seen[4, t], seen[5, t], seen[6, t]
        a, f = _least(a, f), _most(a, f)
        a, d = _least(a, d), _most(a, d)
        b, g = _least(b, g), _most(b, g)
        c, e = _least(c, e), _most(c, e)
        b = _most(a, b)
        d, f = _least(d, f), _most(d, f)
        c, g = _least(c, g), _most(c, g)
        d = _most(c, d)
        d, g = _least(d, g), _most(d, g)
        e = _least(e, f)
        b, e = _least(b, e), _most(b, e)
        tile[t] = _middle(b, d, e)


@kernel
def _square_and_add(table: Floats, lanes: Doubles) -> None:
    for i in range(len(table)):
        row, sums = table[i], lanes[i]
        for j in range(len(row)):
            value = np.float64(row[j])
            sums[j & (_LANES - 1)] += value * value


@kernel
def _shuffle(numbers: Any, size: int, half: int, keys: Words) -> None:
    mask = (np.int64(1) << half) - 1
    for t in range(len(numbers)):
        number = np.int64(t)
        while True:
            left, right = number >> half, number & mask
            for key in keys:
                left, right = right, left ^ (np.int64(random_word(key, right)) & mask)
            number = (left << half) | right
            if number < size:
                break
        numbers[t] = number
