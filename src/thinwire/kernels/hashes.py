"""Hashes: the cell and the sign of each element of a vector in its sketch.

Element x belongs to block j = x // block, as its lane a = x % block. In row i the block
begins at the cell that a 64-bit hash draws for j, and wraps around at the end of the
row: x is in cell (b_i(j) + a) mod columns, and counts with the sign s_i(j). With
blocks of 1 every element has a hash of its own. In longer ones two elements of one
block never share a cell; two of different blocks do with probability 1 / columns,
independently in each row. The cells of a block are contiguous, which memory is fast at.

Nothing is stored: (seed, epoch, row) determine everything, on every rank.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from thinwire.kernels.random_words import STEP, WORD, mixed

# Keys of an epoch: one for each row, the others for other draws.
KEYS = 64


@dataclass(frozen=True, slots=True)
class Hashes:
    """The shape of a sketch, and the seed of its hashes.

    >>> Hashes(rows=1, columns=100, block=64, seed=7).key(0) == key(7, 0, 0)
    True
    """

    rows: int
    columns: int
    block: int = 1
    seed: int = 0
    epoch: int = 0

    def __post_init__(self) -> None:
        if not (1 <= self.columns < 2**31 and 1 <= self.block <= self.columns):
            raise ValueError(
                f"{self.columns} columns and blocks of {self.block}: there are from 1 "
                "to 2**31 - 1 columns, and a block is not longer than a row"
            )
        if not 1 <= self.rows < KEYS:
            raise ValueError(f"{self.rows} rows: there are from 1 to {KEYS - 1}")

    def key(self, row: int) -> int:
        """The key of a row's hashes."""
        return key(self.seed, self.epoch, row)

    @property
    def spare_key(self) -> int:
        """A key that no row has."""
        return key(self.seed, self.epoch, KEYS - 1)


def key(seed: int, epoch: int, number: int) -> int:
    """64 bits for each number below 64 of an epoch.

    >>> hex(key(7, 1, 0))
    '0x76a3dec45265c099'
    """
    return mixed(seed + STEP * (1 + KEYS * epoch + number))


def hash_keys(seed: int, epoch: int, rows: int) -> Tensor:
    """A key for each of at most 64 rows of a table, as int64; fresh in every epoch."""
    if not 0 < rows <= KEYS:
        raise ValueError(f"{rows} rows of a table where 1 to {KEYS} are possible")
    return torch.tensor([signed(key(seed, epoch, row)) for row in range(rows)])


def signed(word: int) -> int:
    """The int64 of the same low 64 bits."""
    word &= WORD
    return word - (1 << 64) if word >> 63 else word


def half_bits(size: int) -> int:
    """Half of the least even number of bits that number `size` elements.

    >>> [half_bits(size) for size in (1, 4, 5, 17)]
    [1, 1, 2, 3]
    """
    return -(-max(size - 1, 1).bit_length() // 2)


def turn_keys(key: int) -> list[int]:
    """The keys of the four rounds of a Feistel network."""
    return [mixed(key + turn) for turn in range(4)]
