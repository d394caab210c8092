"""Sums of rows on simulated ranks, for the collectives that have `sum_rows`."""

import torch

from thinwire.channel import Channel
from thinwire.collectives import RowMemory
from thinwire.groups import simulate
from thinwire.rows import Rows

RANKS = (1, 2, 3, 4, 5, 7, 8)


def some_rows(rank, step, *, count=200, width=3, nnz=20, whole=True):
    """About `nnz` rows; every third rank has none."""
    generator = torch.Generator().manual_seed(100 * step + rank)
    ids = torch.randperm(count, generator=generator)[: nnz if rank % 3 != 2 else 0]
    ids = ids.sort().values.int()
    if whole:
        values = torch.randint(-90, 91, (len(ids), width), generator=generator).float()
    else:
        values = torch.randn(len(ids), width, generator=generator)
    return Rows(ids, values, count)


def sums(collective, ranks, rows, steps=3):
    """The result of each step, equal on all ranks: (ids, values, saved)."""

    def body(group):
        memory, seen = RowMemory(), []
        for step in range(steps):
            channel = Channel(group, step=step)
            total = collective.sum_rows(rows(group.rank, step), channel, memory)
            bits = total.values.view(torch.int32).tolist()
            seen.append((total.ids.tolist(), bits, memory.to_dict(), total))
        return seen

    everyone = simulate(ranks, body)
    assert all(
        [step[:3] for step in seen] == [step[:3] for step in everyone[0]]
        for seen in everyone
    )
    return [(total, saved) for _, _, saved, total in everyone[0]]


def dense_sum(ranks, step, rows):
    """The truth, in float64."""
    parts = [rows(rank, step) for rank in range(ranks)]
    total = torch.zeros(parts[0].count, parts[0].width, dtype=torch.float64)
    for part in parts:
        total[part.ids.long()] += part.values.double()
    listed = sorted({i for part in parts for i in part.ids.tolist()})
    return listed, total[listed]
