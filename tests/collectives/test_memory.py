"""A reduction allocates packets and lists, but no second vector."""

from pathlib import Path

import pytest
import torch

from tests.workers import pool
from thinwire.accumulator import Accumulator
from thinwire.channel import Channel
from thinwire.codecs import Split
from thinwire.collectives import S2, AllGather, GTopK, SparDL, UnionReduce
from thinwire.layout import Layout

pytestmark = pytest.mark.processes

SIZE = 8_000_000


def peak_growth(group, collective):
    """By how many bytes a step's peak exceeds what the process held before it."""
    state = collective.init(Layout.flat(SIZE))
    generator = torch.Generator().manual_seed(group.rank)
    whole = torch.randn(SIZE, generator=generator)
    if collective.density == 1.0:
        whole[torch.arange(SIZE) % 100 != 0] = 0.0  # what is left to offer
    x = Accumulator(SIZE)
    for step in range(3):
        x.whole().copy_(whole)
        before = resident("VmRSS")
        Path("/proc/self/clear_refs").write_text("5")  # resets the peak
        channel = Channel(group, Split(), step=step)
        collective.all_reduce_(x, channel, state, lambda: None)
        peak = resident("VmHWM")
    return peak - before


def resident(what):
    status = Path("/proc/self/status").read_text().splitlines()
    line = next(line for line in status if line.startswith(what))
    return 1024 * int(line.split()[1])


@pytest.mark.parametrize(
    "collective",
    [
        AllGather(0.01),
        GTopK(0.01),
        GTopK(0.01, "tree"),
        SparDL(0.01),
        SparDL(0.01, teams=2),
        SparDL(0.01, partition="contiguous"),
        UnionReduce(0.01),
        UnionReduce(0.01, "block"),
        S2(0.01),
        S2(0.01, "block"),
        UnionReduce(1.0),
        S2(1.0),
    ],
    ids=str,
)
def test_no_temporary_of_the_size_of_the_gradient(collective):
    ranks = 4
    packets = ranks * Split().nbytes(SIZE, SIZE // 100)
    block = 4 * SIZE // ranks
    for growth in pool(ranks).run(peak_growth, collective):
        assert growth <= packets + block
