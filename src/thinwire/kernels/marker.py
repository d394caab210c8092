"""Candidate marks: the bits that let selection skip a second dense pass."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from thinwire.kernels.blocks import Block, interleaved_blocks

# A hint is put where at least this much more than what is selected will reach it: as
# much as needed, where too few were marked lately.
SLACK = 0.12


@dataclass(slots=True)
class Marker:
    """For each block of a vector a hint, and room for one bit per element.

    `accumulate_` sets the bit of every element whose magnitude is at least its block's
    hint; `select` then looks at marked elements only. Selection is exact whatever the
    hints are (too few marks mean a second look at the block), so nothing here needs
    saving: a hint never changes a result.

    Block b owns the words `offsets[b]` to `offsets[b + 1]` of `bitmap`; element j of
    the block is bit j % 64 of its word j // 64. A hint below zero means "none yet".
    `valid[b]` says that the marks of block b describe the vector as it is now: that
    accumulation covered the whole block since it was last selected from. Between the
    two, only `add_at_` with this marker may change the block; whoever changes it in
    another way calls `forget`.

    Whoever sets `lending` promises more: between the two, nobody looks at the vector
    but by `take_each` and `add_at_` with this marker, or after `reclaim_`. A backend
    may then keep what it has marked in its scratch instead of the vector.
    """

    blocks: tuple[Block, ...]
    lending: bool = field(default=False, kw_only=True)
    # By NumPy, as they are read and written one by one, which tensors are slow at.
    hints: NDArray[np.float32] = field(init=False)
    bitmap: Tensor = field(init=False)
    offsets: tuple[int, ...] = field(init=False)
    valid: list[bool] = field(init=False)
    # What the marks of a block were made with; its hint may have changed since.
    thresholds: NDArray[np.float32] = field(init=False)
    size: int = field(init=False)
    # How much more than k the next hint aims at; more after too few were marked.
    slack: list[float] = field(init=False)
    # How the blocks lie: one after the other (0), dealt in chunks of so many elements,
    # or in another way (-1), which is not marked while accumulating.
    chunk: int = field(init=False)
    starts: NDArray[np.int64] = field(init=False)
    firsts: NDArray[np.int64] = field(init=False)
    # What a backend keeps instead of a bitmap, on its device.
    scratch: Any = field(init=False, default=None, compare=False, repr=False)
    _covered: list[int] = field(init=False)
    _pieces: list[tuple[int, int]] = field(init=False)

    def __post_init__(self) -> None:
        self.hints = np.full(len(self.blocks), -1.0, np.float32)
        self.thresholds = self.hints.copy()
        self.size = sum(block.length for block in self.blocks)
        self.slack = [SLACK] * len(self.blocks)
        self.offsets = (0,)
        for block in self.blocks:
            self.offsets += (self.offsets[-1] + -(-block.length // 64),)
        self.bitmap = torch.zeros(self.offsets[-1], dtype=torch.int64)
        self.chunk = dealt(self.blocks)
        ends = [block.start + block.length for block in self.blocks]
        self.starts = np.array([0, *ends], np.int64)
        self.firsts = np.array(self.offsets[:-1], np.int64)
        self.forget()

    @property
    def hint_bits(self) -> NDArray[np.int32]:
        """The hints as the integers that have the same bits, by which kernels go."""
        return self.hints.view(np.int32)

    @property
    def threshold_bits(self) -> NDArray[np.int32]:
        """The thresholds likewise."""
        return self.thresholds.view(np.int32)

    def forget(self) -> None:
        """The vector has changed: no mark describes it any more."""
        self.valid = [False] * len(self.blocks)
        self._covered = [0] * len(self.blocks)
        self._pieces = []

    def spend(self, number: int) -> None:
        """Block `number` was selected from and will change: its marks are void."""
        self.valid[number] = False
        self._covered[number] = 0

    def cover(self, low: int, high: int) -> None:
        """The elements `low` to `high` of the vector are being marked.

        Pieces that do not overlap add up to one accumulation of the vector; a piece
        that was there before begins a new one.
        """
        if any(low < end and start < high for start, end in self._pieces):
            self.forget()
        if low < high:
            self._pieces.append((low, high))
        if high - low == self.size:  # as a rule: one step for all blocks
            self.thresholds[:] = self.hints
            self._covered = [block.length for block in self.blocks]
            self.valid = [hint >= 0 for hint in self.thresholds.tolist()]
            return
        hints = self.hints.tolist()
        for b, block in enumerate(self.blocks):
            if self._covered[b] == 0:
                self.thresholds[b] = hints[b]
            self._covered[b] += block.before(high) - block.before(low)
            complete = self._covered[b] == block.length
            self.valid[b] = complete and bool(self.thresholds[b] >= 0)

    def describes(self, size: int) -> bool:
        """Whether accumulation can mark: known blocks that make up the vector."""
        return self.chunk >= 0 and size == self.size

    def word_boundary(self, position: int) -> int:
        """The last place up to `position` where no word of marks is begun."""
        if self.chunk > 0:
            return position - position % 64 if self.chunk % 64 == 0 else 0
        start = max(b.start for b in self.blocks if b.start <= position)
        return position - (position - start) % 64


def dealt(blocks: tuple[Block, ...]) -> int:
    """How blocks lie: 0 one after the other, the chunk if dealt in turn, or -1."""
    end = 0
    for block in blocks:
        if not block.contiguous or block.start != end:
            break
        end += block.length
    else:
        return 0
    size = sum(block.length for block in blocks)
    chunk = blocks[0].chunk
    return chunk if blocks == interleaved_blocks(size, len(blocks), chunk) else -1


def chosen_blocks(
    marker: Marker,
    numbers: Sequence[int] | None,
    rounding: torch.dtype = torch.float32,
) -> Sequence[int]:
    """These numbers of a marker's blocks, each once, or all of them."""
    if rounding not in (torch.float32, torch.bfloat16):
        raise ValueError(f"values are rounded to float32 or bfloat16, not {rounding}")
    chosen = range(len(marker.blocks)) if numbers is None else numbers
    if len(set(chosen)) < len(chosen):
        raise ValueError(f"blocks {list(chosen)}: name each of them once")
    return chosen
