"""One reduction on simulated ranks, for examples worked out by hand."""

from dataclasses import dataclass

import torch
from torch import Tensor

from thinwire.accumulator import Accumulator
from thinwire.channel import Channel
from thinwire.codecs import Split
from thinwire.groups import simulate
from thinwire.layout import Layout
from thinwire.sparse import SparseVector


@dataclass(frozen=True)
class Reduction:
    """The total, equal on all ranks, and `x` of each rank afterwards."""

    total: dict[int, float] | list[float]
    after: list[list[float]]


def reduce(collective, xs, *, codec=None, step=0):
    """Reduce one vector per rank."""
    if codec is None and collective.coded:
        codec = Split()

    def body(group):
        x = Accumulator.of(torch.tensor(xs[group.rank], dtype=torch.float32))
        out = torch.full((x.size,), float("nan"))
        state = collective.init(Layout.flat(x.size))
        channel = Channel(group, codec, step=step)
        total = collective.all_reduce_(x, channel, state, lambda: out)
        assert isinstance(total, SparseVector) or total is out
        return plain(total), x.whole().tolist()

    totals, after = zip(*simulate(len(xs), body), strict=True)
    assert all(total == totals[0] for total in totals)
    return Reduction(totals[0], list(after))


def plain(total: SparseVector | Tensor):
    """A sparse total as a dict, a dense one as a list."""
    return total.to_dict() if isinstance(total, SparseVector) else total.tolist()
