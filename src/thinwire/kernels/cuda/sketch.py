"""Count-sketches: each cell adds up, in ascending order, the blocks that reach it.

Cells are divided into stretches as long as a block, or a little longer, so that a block
reaches into the stretch in which it begins and at most into the next. Every stretch has
a list of the blocks that may reach it. Blocks are written to the lists in any order
(`_count`, `_place`), then sorted (`_order`). Each program adds up a tile of cells by
reading the blocks on its list (`_add`): the vector is read once for each row, and all
cells of a tile read neighbours.

A stretch starts at a multiple of its length. The last one also has the remaining cells,
so it is up to twice as long, and a block that wraps around from it reaches only the
first.

With short blocks a tile has many lists, and each cell reads another one. With blocks of
1 a list is the elements of one cell, which are read at random.
"""

from typing import Any

import torch
import triton.language as tl
from torch import Tensor

from thinwire.kernels.cuda.launch import EXACT, LONGEST, cdiv, flat, kernel
from thinwire.kernels.cuda.sketch_lists import (
    CELL,
    block_lists,
    counting,
    drawn,
    row_key,
    seed_of,
    sign,
)
from thinwire.kernels.hashes import Hashes
from thinwire.kernels.reference import sketch as reference

# Entries of a list that a cell loads at once.
AHEAD: Any = tl.constexpr(4)
LANES: Any = tl.constexpr(64)

# Blocks from this length on fill the lanes of a tile: one list serves all its cells.
_LONG = 128
# The most cells or elements of a tile; and if each cell has a separate list.
_TILE, _SMALL_TILE = 1024, 256
# Entries of all lists together, of 20 bytes; and of one list, on average. Moving one to
# its place compares it with all others. A vector with more is added part by part.
_ENTRIES, _LISTED = 1 << 22, 32
_FEWEST = 1 << 14
_NETWORKS = (1, 3, 5, 7)


@counting
def _add(
    x,
    table,
    starts,
    ordered,
    first,
    size,
    columns,
    stretches,
    block: tl.constexpr,
    length: tl.constexpr,
    tile: tl.constexpr,
    together: tl.constexpr,
    fresh: tl.constexpr,
) -> None:
    row = tl.program_id(1)
    cell = tl.program_id(0) * tile + tl.arange(0, tile)
    inside = cell < columns
    cells = table + row.to(tl.int64) * columns + cell
    if fresh:
        total = tl.zeros([tile], tl.float32)
    else:
        total = tl.load(cells, mask=inside, other=0.0)
    # One list for all cells, as scalars, or one for each.
    at = tl.program_id(0) * tile if together else cell
    at = tl.minimum(at // length, stretches - 1) + row.to(tl.int64) * stretches
    low, high = tl.load(starts + at), tl.load(starts + at + 1)
    longest = high - low if together else tl.max(high - low)
    for e in range(0, longest, AHEAD):
        for ahead in tl.static_range(AHEAD):
            here = low + e + ahead
            listed = here < high
            entry = tl.load(ordered + here, mask=listed, other=0)
            begin = (first + (entry >> 33)) * block
            count = tl.where(listed, tl.minimum(size - begin, block), 0).to(tl.int32)
            lane = cell - ((entry >> 2) & CELL).to(tl.int32)
            lane = tl.where(lane < 0, lane + columns, lane)
            # Adding a zero changes nothing, because a sum from 0 on is never -0.
            value = tl.load(x + begin + lane, mask=lane < count, other=0.0)
            total += sign(entry & 1) * value
    tl.store(cells, total, mask=inside)


def encode_sketch(x: Tensor, hashes: Hashes) -> Tensor:
    if hashes.columns > LONGEST:
        return reference.encode_sketch.reference(x, hashes)
    vector = flat(x.contiguous())
    table = torch.empty(hashes.rows, hashes.columns, device=x.device)
    blocks = cdiv(vector.numel(), hashes.block)
    if blocks == 0:
        return table.zero_()
    length = _length(hashes.block)
    stretches = max(hashes.columns // length, 1)
    reaches = 1 if hashes.block == 1 or stretches == 1 else 2
    most = min(_LISTED * stretches, _ENTRIES // (hashes.rows * reaches))
    part = max(most, _FEWEST)
    tile, together = _tile(length)
    grid = (cdiv(hashes.columns, tile), hashes.rows)
    form = {"length": length, "block": hashes.block, "tile": tile, "together": together}
    for first in range(0, blocks, part):
        count = min(part, blocks - first)
        shape = (hashes.columns, stretches)
        lists = block_lists(hashes, (first, count), shape, (length, reaches), x.device)
        given = (vector, table, *lists, first, vector.numel(), *shape)
        _add[grid](*given, fresh=first == 0, **form, **EXACT)
    return table


def _length(block: int) -> int:
    """Of a stretch: whole tiles, if blocks are long."""
    return block if block < _LONG else cdiv(block, _LONG) * _LONG


def _tile(length: int) -> tuple[int, bool]:
    """The cells or elements of a tile; whether they are all in one stretch."""
    if length % _LONG:
        return _SMALL_TILE, False
    return min(length & -length, _TILE), True


@kernel
def _read(table, seed, row: tl.constexpr, number, lane, inside, columns) -> Any:
    """A row's estimates of elements of one block, or each of another block."""
    key = row_key(seed, tl.full([], row, tl.int32))
    start, minus = drawn(key, number, columns)
    around = lane - (columns - start).to(tl.int32)
    cell = tl.where(around < 0, lane + start.to(tl.int32), around)
    cells = table + tl.full([], row, tl.int64) * columns
    return sign(minus) * tl.load(cells + cell, mask=inside, other=0.0)


@kernel
def _middle(a, b, c) -> Any:
    return tl.maximum(tl.minimum(a, b), tl.minimum(tl.maximum(a, b), c))


@kernel
def _middle_of_5(a, b, c, d, e) -> Any:
    """Drop the least and the greatest of four, then take the median of the rest."""
    low = tl.maximum(tl.minimum(a, b), tl.minimum(c, d))
    high = tl.minimum(tl.maximum(a, b), tl.maximum(c, d))
    return _middle(low, high, e)


@kernel
def _middle_of_7(a, b, c, d, e, f, g) -> Any:
    """By thirteen comparisons; each drops values that cannot be the median."""
    a, f = tl.minimum(a, f), tl.maximum(a, f)
    a, d = tl.minimum(a, d), tl.maximum(a, d)
    b, g = tl.minimum(b, g), tl.maximum(b, g)
    c, e = tl.minimum(c, e), tl.maximum(c, e)
    b = tl.maximum(a, b)
    d, f = tl.minimum(d, f), tl.maximum(d, f)
    c, g = tl.minimum(c, g), tl.maximum(c, g)
    d = tl.maximum(c, d)
    d = tl.minimum(d, g)
    e = tl.minimum(e, f)
    b, e = tl.minimum(b, e), tl.maximum(b, e)
    return _middle(b, d, e)


@counting
def _estimate(
    out,
    table,
    seed,
    size,
    columns,
    rows: tl.constexpr,
    block: tl.constexpr,
    tile: tl.constexpr,
    together: tl.constexpr,
    mean: tl.constexpr,
) -> None:
    begin = tl.program_id(0).to(tl.int64) * tile
    i = begin + tl.arange(0, tile)
    inside = i < size
    # One block for all elements, as a scalar, or one for each.
    n = (begin if together else i) // block
    k = (i - n * block).to(tl.int32)
    if mean:
        total = tl.zeros([tile], tl.float32)
        for row in tl.static_range(rows):
            total += _read(table, seed, row, n, k, inside, columns)
        found = tl.div_rn(total, tl.full([tile], rows, tl.float32))
    else:
        found = _read(table, seed, 0, n, k, inside, columns)
        if rows >= 3:
            b = _read(table, seed, 1, n, k, inside, columns)
            c = _read(table, seed, 2, n, k, inside, columns)
        if rows >= 5:
            d = _read(table, seed, 3, n, k, inside, columns)
            e = _read(table, seed, 4, n, k, inside, columns)
        if rows == 7:
            f = _read(table, seed, 5, n, k, inside, columns)
            g = _read(table, seed, 6, n, k, inside, columns)
            found = _middle_of_7(found, b, c, d, e, f, g)
        elif rows == 5:
            found = _middle_of_5(found, b, c, d, e)
        elif rows == 3:
            found = _middle(found, b, c)
        # Adding zero removes the sign of a zero.
        found += 0.0
    tl.store(out + i, found, mask=inside)


def estimate_sketch_(
    out: Tensor, table: Tensor, hashes: Hashes, *, mean: bool = False
) -> None:
    rows, columns, block = hashes.rows, hashes.columns, hashes.block
    if not mean and rows not in _NETWORKS:
        raise ValueError(f"the median of {rows} rows: choose 1, 3, 5 or 7")
    vector = flat(out)
    if columns > LONGEST:
        reference.estimate_sketch_.reference(out, table, hashes, mean=mean)
    elif vector.numel():
        tile, together = _tile(block)
        form = {"rows": rows, "block": block, "tile": tile, "together": together}
        given = (vector, table.contiguous(), seed_of(hashes), vector.numel(), columns)
        grid = (cdiv(vector.numel(), tile),)
        _estimate[grid](*given, mean=mean, **form, **EXACT)


@counting
def _energy(table, lanes, sums, columns) -> None:
    row = tl.program_id(0)
    lane = tl.arange(0, LANES)
    cells = table + row.to(tl.int64) * columns
    total = tl.zeros([LANES], tl.float64)
    for j in range(0, columns, LANES * 16):
        for ahead in tl.static_range(16):
            at = j + ahead * LANES + lane
            value = tl.load(cells + at, mask=at < columns, other=0.0).to(tl.float64)
            total += value * value
    tl.store(lanes + row * LANES + lane, total)
    tl.debug_barrier()
    in_all = tl.load(lanes + row * LANES)
    for other in range(1, LANES):
        in_all += tl.load(lanes + row * LANES + other)
    tl.store(sums + row, in_all)


def sketch_energy(table: Tensor) -> Tensor:
    rows, columns = table.shape
    if columns > LONGEST:
        return reference.sketch_energy.reference(table)
    sums = torch.empty(rows, dtype=torch.float64, device=table.device)
    lanes = sums.new_empty(rows * LANES.value)
    _energy[(rows,)](table.contiguous(), lanes, sums, columns, num_warps=1, **EXACT)
    return sums
