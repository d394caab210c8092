"""An accumulator next to one that uses the reference, and counts of kernel calls."""

import torch

from tests.kernels.kernel_inputs import same_bits, some_indices
from thinwire.accumulator import Accumulator
from thinwire.kernels import Block, by_reference, contiguous_blocks, interleaved_blocks

SIZE = 20_011
WAYS = {
    "whole": (Block.whole(SIZE),),
    "interleaved": interleaved_blocks(SIZE, 3, 64),
    "interleaved oddly": interleaved_blocks(SIZE, 3, 100),
    "contiguous": contiguous_blocks(SIZE, 3),
}


class Twin:
    """An accumulator, and another one on which the reference does the same."""

    def __init__(self, blocks=WAYS["whole"], rounding=torch.bfloat16):
        self.size = sum(block.length for block in blocks)
        self.blocks, self.rounding = blocks, rounding
        self.x, self.y = Accumulator(self.size), Accumulator(self.size)
        for each in (self.x, self.y):
            each.set_blocks(blocks)
        self.draws = torch.Generator().manual_seed(0)
        self.counts = [block.length // 100 for block in blocks]

    def drawn(self, size=None):
        return torch.randn(self.size if size is None else size, generator=self.draws)

    def accumulate(self, grad=None, **options):
        grad = self.drawn() if grad is None else grad
        with by_reference():
            self.y.accumulate_(grad.clone(), **options)
        self.x.accumulate_(grad, **options)
        assert not grad.any()

    def take(self, numbers=None, rounding=None):
        numbers = range(len(self.blocks)) if numbers is None else numbers
        counts = [self.counts[b] for b in numbers]
        options = (counts, numbers, rounding or self.rounding)
        with by_reference():
            wanted = self.y.take(*options)
        assert_same(self.x.take(*options), wanted)

    def add(self, number, indices=None, values=None):
        length = self.blocks[number].length
        if indices is None:
            indices = some_indices(length, length // 50)
        values = self.drawn(len(indices)) if values is None else values
        self.x.add_(indices, values, number)
        with by_reference():
            self.y.add_(indices, values, number)

    def warm(self):
        self.accumulate()
        self.take()
        return self

    def check(self):
        assert same_bits(self.x.whole(), self.y.whole())


def assert_same(found, wanted):
    for one, other in zip(found, wanted, strict=True):
        assert same_bits(one[0], other[0])
        assert same_bits(one[1], other[1])


def counting(monkeypatch, module, name):
    """Calls of a kernel, each as its arguments."""
    calls, function = [], getattr(module, name)
    monkeypatch.setattr(module, name, lambda *a: (calls.append(a), function(*a))[1])
    return calls
