"""Count-sketches: every hash of every element, row by row.

`hashes.py` defines where an element lies. A cell adds its elements in ascending order.
"""

import torch
from torch import Tensor

from thinwire.kernels.dispatch import primitive
from thinwire.kernels.hashes import Hashes, half_bits, turn_keys
from thinwire.kernels.reference.random_words import random_words, shifted

_LANES = 64


@primitive
def encode_sketch(x: Tensor, hashes: Hashes) -> Tensor:
    """The count-sketch of a vector: in every row, each element in one signed cell.

    It is linear: tables of the same hashes add up to the table of the sum.

    >>> import torch
    >>> x = torch.tensor([0.0, 0.0, 4.0])
    >>> encode_sketch(x, Hashes(rows=2, columns=3, seed=7)).tolist()
    [[0.0, -4.0, 0.0], [0.0, 0.0, -4.0]]
    """
    table = torch.zeros(hashes.rows, hashes.columns, device=x.device)
    for number, row in enumerate(table):
        cells, signs = places(hashes, number, x.numel(), x.device)
        signed = x * signs
        for members in _rounds(cells):
            row[cells[members]] += signed[members]
    return table


@primitive
def estimate_sketch_(
    out: Tensor, table: Tensor, hashes: Hashes, *, mean: bool = False
) -> None:
    """Estimate every element from a table: the median of its rows, or their mean.

    The median takes 1, 3, 5 or 7 rows of finite cells: that of an even number is biased
    or is no row's.

    >>> import torch
    >>> x, hashes = torch.tensor([1.0, 0.0, 4.0]), Hashes(3, columns=5, seed=7)
    >>> out = torch.empty(3)
    >>> estimate_sketch_(out, encode_sketch(x, hashes), hashes)
    >>> out.tolist()
    [1.0, 0.0, 4.0]
    """
    seen = torch.empty(hashes.rows, out.numel(), device=out.device)
    for number, row in enumerate(table):
        cells, signs = places(hashes, number, out.numel(), out.device)
        seen[number] = row[cells] * signs
    if mean:
        out.zero_()
        for row in seen:
            out += row
        # A tensor, because CUDA multiplies by the reciprocal of a number.
        out /= torch.tensor(float(hashes.rows), device=out.device)
    else:
        # Adding zero removes the sign of a zero.
        out.copy_(seen.sort(dim=0).values[hashes.rows // 2] + 0.0)


@primitive
def sketch_energy(table: Tensor) -> Tensor:
    """The sum of squares of each row, in float64: each about that of the vector.

    Cell j is added to lane j % 64, then the lanes in order, so that all agree.

    >>> import torch
    >>> sketch_energy(torch.tensor([[3.0, -4.0], [0.0, 5.0]])).tolist()
    [25.0, 25.0]
    """
    lanes = torch.zeros(len(table), _LANES, dtype=torch.float64, device=table.device)
    for cells in torch.split(table.double().square(), _LANES, dim=1):
        lanes[:, : cells.shape[1]] += cells
    sums = torch.zeros(len(table), dtype=torch.float64, device=table.device)
    for lane in lanes.unbind(1):
        sums += lane
    return sums


def places(
    hashes: Hashes, row: int, size: int, device: torch.device
) -> tuple[Tensor, Tensor]:
    """The cell and the sign of each element in a row."""
    elements = torch.arange(size, device=device)
    words = random_words(hashes.key(row), elements // hashes.block)
    starts = shifted(words, 32) * hashes.columns >> 32
    cells = (starts + elements % hashes.block) % hashes.columns
    return cells, 1.0 - 2.0 * (words & 1)


def _rounds(cells: Tensor) -> list[Tensor]:
    """Split elements into rounds, so that no two of one round share a cell.

    The first round has the first element of each cell, the next the second, and so on:
    added round by round, a cell has one order of additions on any device.
    """
    if len(cells) == 0:
        return []
    _, order = cells.sort(stable=True)
    ascending = cells[order]
    first = torch.searchsorted(ascending, ascending)
    number = torch.arange(len(cells), device=cells.device) - first
    _, by_round = number.sort(stable=True)
    return list(torch.split(order[by_round], torch.bincount(number).tolist()))


@primitive
def shuffled(size: int, count: int, key: int) -> Tensor:
    """The first `count` of the numbers below `size`, shuffled by a key; as int64.

    A Feistel network permutes the numbers of an even number of bits. A number that
    lands outside is permuted again, until it is inside.

    >>> sorted(shuffled(5, 5, key=1).tolist())
    [0, 1, 2, 3, 4]
    """
    numbers, outside = torch.arange(count), torch.ones(count, dtype=torch.bool)
    half = half_bits(size)
    while bool(outside.any()):
        numbers[outside] = _permuted(numbers[outside], half, turn_keys(key))
        outside = numbers >= size
    return numbers


def _permuted(numbers: Tensor, half: int, keys: list[int]) -> Tensor:
    mask = (1 << half) - 1
    left, right = numbers >> half, numbers & mask
    for key in keys:
        left, right = right, left ^ (random_words(key, right) & mask)
    return left << half | right
